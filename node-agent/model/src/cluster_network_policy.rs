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
    /// Behind them, unless one of them isolates the pod for the direction.
    Baseline,
}

impl Tier {
    /// Both.
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
    /// It passes this direction, whatever comes later says.
    Accept,
    /// It is dropped.
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
/// What of a rule cannot be understood fails closed, as the API has it: a rule that accepts
/// matches nothing, and one that denies or passes denies everything. A policy whose tier, priority
/// or subject cannot be understood does not come here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNetworkPolicy {
    /// Its name.
    pub name: Arc<str>,
    /// Its tier.
    pub tier: Tier,
    /// Of two policies of a tier, the one with the lower number is evaluated first.
    pub priority: u16,
    /// The namespaces of the pods that it is about.
    pub namespaces: Selector,
    /// Those pods of them.
    pub pods: Selector,
    /// About what reaches them, in order. Empty if it does not say anything about that.
    pub ingress: Vec<TierRule>,
    /// About what they reach, in order.
    pub egress: Vec<TierRule>,
    /// Whether all of it is understood.
    pub is_understood: bool,
}

impl ClusterNetworkPolicy {
    /// What decides which policy is evaluated first. Of equal priorities, the name decides: the
    /// same on every node and after every restart.
    pub fn order(&self) -> (Tier, u16, &str) {
        (self.tier, self.priority, &self.name)
    }
}

/// One entry of `ingress` or `egress`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierRule {
    /// Its place in the policy's list, counted from 0.
    pub index: usize,
    /// Its name; empty if it has none.
    pub name: Arc<str>,
    /// What it does.
    pub action: Action,
    /// About whom.
    pub peers: TierPeers,
    /// About which ports of the destination.
    pub ports: TierPorts,
}

/// `from` or `to` of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TierPeers {
    /// Everybody: of a rule that is not understood.
    All,
    /// These.
    These(Vec<TierPeer>),
}

/// One entry of `from` or `to`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TierPeer {
    /// Pods, by labels of their own and of their namespace.
    Pods {
        /// Which namespaces.
        namespaces: Selector,
        /// Which pods of them.
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
    /// Missing: every port of every protocol, also of those without ports.
    All,
    /// These.
    These(Vec<TierPort>),
}

/// One entry of `protocols`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TierPort {
    /// From this port of the protocol to that one, both included.
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
