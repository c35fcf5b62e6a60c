//! NetworkPolicies (`networking.k8s.io/v1`), reduced to what decides about packets.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::labels::Selector;
use denizen_packet::Protocol;

/// Namespace and name of a NetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A NetworkPolicy.
///
/// A part that cannot be understood never permits anything: an invalid peer, port or rule is
/// skipped, and a policy whose own selector is invalid selects more pods rather than fewer, and
/// permits nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPolicy {
    pub name: PolicyName,
    /// The pods of its namespace that it selects.
    pub pods: Selector,
    /// What may reach the selected pods; `None` if it does not isolate them for ingress.
    pub ingress: Option<Vec<PolicyRule>>,
    /// What the selected pods may reach; `None` if it does not isolate them for egress.
    pub egress: Option<Vec<PolicyRule>>,
    pub is_understood: bool,
}

/// One entry of `ingress` or `egress`: it permits these ports for these peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRule {
    /// Index in the policy's list, from 0.
    pub index: usize,
    pub peers: Peers,
    /// To which ports of the destination.
    pub ports: Ports,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    /// Missing or empty: everybody, inside and outside the cluster.
    All,
    /// These; empty, and so nobody, if every entry was invalid.
    These(Vec<PolicyPeer>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyPeer {
    /// Pods, by labels of their own and of their namespace.
    Pods { namespaces: Namespaces, pods: Selector },
    /// Addresses, whoever has them.
    Block(Block),
}

/// The namespaces of a peer's pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespaces {
    /// Without `namespaceSelector`: the policy's own.
    Own,
    Selected(Selector),
}

/// `ipBlock`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// `cidr`, without host bits.
    pub range: IpNetwork,
    /// `except`, each within [`Self::range`]. Sorted, without duplicates.
    pub except: Vec<IpNetwork>,
}

impl Block {
    pub fn contains(&self, address: IpAddr) -> bool {
        let is_in = |range: &IpNetwork| range.contains(address);
        is_in(&self.range) && !self.except.iter().any(is_in)
    }
}

/// `ports` of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// Missing or empty: every port of every protocol, including protocols without ports.
    All,
    /// These; empty, and so none, if every entry was invalid.
    These(Vec<PolicyPort>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyPort {
    /// `protocol`, TCP if missing.
    pub protocol: Protocol,
    /// `port` and `endPort`.
    pub port: PortMatch,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortMatch {
    Any,
    /// From the first to the second, both included.
    Range(NonZeroU16, NonZeroU16),
    /// The container ports of the destination pod that have this name and the entry's protocol.
    Named(Arc<str>),
}

impl fmt::Display for PolicyPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol;
        match &self.port {
            PortMatch::Any => write!(f, "every {protocol} port"),
            PortMatch::Range(first, last) if first == last => write!(f, "{protocol} port {first}"),
            PortMatch::Range(first, last) => write!(f, "{protocol} ports {first} to {last}"),
            PortMatch::Named(name) => write!(f, "{protocol} port {name:?}"),
        }
    }
}
