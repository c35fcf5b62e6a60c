//! Short constructors of policies, for tests with many of them.

use super::object::{
    IpBlock, NetworkPolicy, ObjectMeta, PolicyPeer, PolicyPort, PolicyRule, PolicySpec, PortNumber,
};
use super::selector::LabelSelector;
use crate::packets::probe::Protocol;

impl NetworkPolicy {
    /// A policy for these pods of a namespace that isolates them in no direction yet.
    pub fn new(namespace: &str, name: &str, pods: LabelSelector) -> Self {
        let metadata =
            ObjectMeta { namespace: namespace.into(), name: name.into(), ..ObjectMeta::default() };
        let spec =
            PolicySpec { pod_selector: pods, policy_types: Some(vec![]), ..PolicySpec::default() };
        Self { metadata, spec }
    }

    /// Isolates the pods for ingress, with these rules.
    #[must_use]
    pub fn ingress(mut self, rules: impl IntoIterator<Item = PolicyRule>) -> Self {
        self.spec.policy_types.get_or_insert_default().push("Ingress".to_owned());
        self.spec.ingress = Some(rules.into_iter().collect());
        self
    }

    /// Isolates the pods for egress, with these rules.
    #[must_use]
    pub fn egress(mut self, rules: impl IntoIterator<Item = PolicyRule>) -> Self {
        self.spec.policy_types.get_or_insert_default().push("Egress".to_owned());
        self.spec.egress = Some(rules.into_iter().collect());
        self
    }
}

impl PolicyRule {
    /// A rule that permits everything: `{}`.
    pub fn all() -> Self {
        Self::default()
    }

    /// A rule that permits these sources.
    pub fn from(peers: impl IntoIterator<Item = PolicyPeer>) -> Self {
        Self { from: Some(peers.into_iter().collect()), ..Self::default() }
    }

    /// A rule that permits these destinations.
    pub fn to(peers: impl IntoIterator<Item = PolicyPeer>) -> Self {
        Self { to: Some(peers.into_iter().collect()), ..Self::default() }
    }

    /// The same rule for these ports only.
    #[must_use]
    pub fn at(self, ports: impl IntoIterator<Item = PolicyPort>) -> Self {
        Self { ports: Some(ports.into_iter().collect()), ..self }
    }
}

impl PolicyPeer {
    /// Pods of the policy's own namespace.
    pub fn pods(pods: LabelSelector) -> Self {
        Self { pod_selector: Some(pods), ..Self::default() }
    }

    /// All pods of the selected namespaces.
    pub fn namespaces(namespaces: LabelSelector) -> Self {
        Self { namespace_selector: Some(namespaces), ..Self::default() }
    }

    /// The selected pods of the selected namespaces.
    pub fn both(namespaces: LabelSelector, pods: LabelSelector) -> Self {
        Self { namespace_selector: Some(namespaces), ..Self::pods(pods) }
    }

    /// A block of addresses with exceptions.
    pub fn block(cidr: impl Into<String>, except: impl IntoIterator<Item = String>) -> Self {
        let block = IpBlock { cidr: cidr.into(), except: except.into_iter().collect() };
        Self { ip_block: Some(block), ..Self::default() }
    }
}

impl PolicyPort {
    /// Every port of a protocol.
    pub fn every(protocol: Protocol) -> Self {
        Self { protocol: Some(protocol.to_string()), ..Self::default() }
    }

    /// One port.
    pub fn number(protocol: Protocol, port: u16) -> Self {
        Self { port: Some(PortNumber::Number(port.into())), ..Self::every(protocol) }
    }

    /// All ports from one to another.
    pub fn range(protocol: Protocol, first: u16, last: u16) -> Self {
        Self { end_port: Some(last.into()), ..Self::number(protocol, first) }
    }

    /// Container ports of this name.
    pub fn named(protocol: Protocol, name: &str) -> Self {
        Self { port: Some(PortNumber::Name(name.to_owned())), ..Self::every(protocol) }
    }
}
