//! ClusterNetworkPolicies (`policy.networking.k8s.io`), reduced to what decides about packets.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::labels::Selector;
use denizen_packet::Protocol;

/// When a policy is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Before NetworkPolicies.
    Admin,
    /// After NetworkPolicies, unless one of these isolates the pod for the direction.
    Baseline,
}

impl Tier {
    pub const BOTH: [Self; 2] = [Self::Admin, Self::Baseline];
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admin => "Admin",
            Self::Baseline => "Baseline",
        })
    }
}

/// What the first rule that matches does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// The connection passes in this direction, whatever later rules and policies say.
    Accept,
    /// The connection is dropped.
    Deny,
    /// The rest of the tier is skipped.
    Pass,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept => "Accept",
            Self::Deny => "Deny",
            Self::Pass => "Pass",
        })
    }
}

/// A ClusterNetworkPolicy.
///
/// A part of a rule that cannot be understood fails closed, as the API demands: a rule with action
/// Accept then matches nothing, and a rule with Deny or Pass denies everything. A policy whose
/// tier, priority or subject cannot be understood is skipped by the decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNetworkPolicy {
    pub name: Arc<str>,
    pub tier: Tier,
    /// Of two policies of a tier, the one with the lower number is evaluated first.
    pub priority: u16,
    /// The namespaces of the policy's subject.
    pub namespaces: Selector,
    /// The pods of the policy's subject, within these namespaces.
    pub pods: Selector,
    /// The rules for connections to the selected pods, in order. Empty if the policy has none.
    pub ingress: Vec<TierRule>,
    /// The rules for connections from the selected pods, in order.
    pub egress: Vec<TierRule>,
    /// Whether every part of the policy was understood.
    pub is_understood: bool,
}

impl ClusterNetworkPolicy {
    /// What decides which policy is evaluated first. Of equal priorities, the name decides: the
    /// same on every node and after every restart.
    pub fn order(&self) -> (Tier, u16, &str) {
        (self.tier, self.priority, &self.name)
    }

    /// Whether a peer may gain by an address that the rules do not name: a rule denies, or passes
    /// over rules that accept.
    pub fn is_evadable(&self) -> bool {
        self.ingress.iter().chain(&self.egress).any(|rule| rule.action != Action::Accept)
    }
}

/// One entry of `ingress` or `egress`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierRule {
    /// Index in the policy's list, from 0.
    pub index: usize,
    /// Its name; empty if it has none.
    pub name: Arc<str>,
    pub action: Action,
    /// The other end of the connection.
    pub peers: TierPeers,
    /// The ports of the destination.
    pub ports: TierPorts,
}

/// `from` or `to` of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TierPeers {
    /// Everybody: only in a rule that was not understood.
    All,
    These(Vec<TierPeer>),
}

/// One entry of `from` or `to`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TierPeer {
    /// Pods, by labels of their own and of their namespace.
    Pods {
        /// Which namespaces.
        namespaces: Selector,
        /// Which pods of these namespaces.
        pods: Selector,
    },
    /// Addresses, whoever has them, without host bits.
    Network(IpNetwork),
    /// The addresses of nodes with these labels.
    Nodes(Selector),
}

/// `protocols` of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TierPorts {
    /// Missing: every port of every protocol, including protocols without ports.
    All,
    These(Vec<TierPort>),
}

/// One entry of `protocols`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TierPort {
    /// From the first port to the second, both included.
    Range(Protocol, NonZeroU16, NonZeroU16),
    /// The container ports of the destination pod that have this name, of whichever protocol.
    Named(Arc<str>),
}

impl fmt::Display for TierPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(protocol, first, last) if first == last => {
                write!(f, "{protocol} port {first}")
            }
            Self::Range(protocol, first, last) => write!(f, "{protocol} ports {first} to {last}"),
            Self::Named(name) => write!(f, "port {name:?}"),
        }
    }
}
