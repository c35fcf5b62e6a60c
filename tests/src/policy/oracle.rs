//! Which packets NetworkPolicies permit, by the text of Kubernetes' documentation alone.
//!
//! Every question walks all policies: nothing is prepared, shared or kept. A rule that cannot be
//! understood permits nothing, and its policy isolates all the same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::object::{
    Container, IpBlock, Labels, NetworkPolicy, PodObject, PolicyPeer, PolicyPort, PortNumber,
};
use super::object::{PolicyRule, PolicyWorld};
use super::tier::{self, TierVerdict};
use crate::packets::probe::Protocol;

/// A new connection's first packet, addressed to a pod and not to a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyPacket {
    /// The sender.
    pub from: IpAddr,
    /// The receiver.
    pub to: IpAddr,
    /// What it carries.
    pub transport: Transport,
}

/// What a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A protocol with ports, and the destination's port.
    Port(Protocol, u16),
    /// Anything else, such as ICMP.
    Other,
}

/// One of the two directions in which pods are isolated, seen from the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Ingress,
    Egress,
}

/// Whether a packet arrives: its sender may send it, and its receiver may receive it.
pub fn allowed(world: &PolicyWorld, packet: PolicyPacket) -> bool {
    egress_allowed(world, packet) && ingress_allowed(world, packet)
}

/// Whether the sender may send it: always, unless a policy keeps the sending pod from it.
pub fn egress_allowed(world: &PolicyWorld, packet: PolicyPacket) -> bool {
    owner(world, packet.from)
        .is_none_or(|pod| permits_in_tiers(world, pod, Direction::Egress, packet))
}

/// Whether the receiver may receive it: always, unless a policy keeps it from the receiving pod. A
/// pod's own node always reaches it.
pub fn ingress_allowed(world: &PolicyWorld, packet: PolicyPacket) -> bool {
    owner(world, packet.to).is_none_or(|pod| {
        is_its_node(world, pod, packet.from)
            || permits_in_tiers(world, pod, Direction::Ingress, packet)
    })
}

/// The pod that has an address. Pods in the host network have their node's address, and a pod that
/// has ended has no address any more. If two pods claim the address, the younger one has it.
pub(super) fn owner(world: &PolicyWorld, address: IpAddr) -> Option<&PodObject> {
    let has_it = |pod: &&PodObject| {
        !pod.spec.host_network
            && !["Succeeded", "Failed"].contains(&pod.status.phase.as_str())
            && pod.status.pod_ips.iter().any(|pod_ip| pod_ip.ip == address)
    };
    world.pods.iter().filter(has_it).max_by_key(|pod| &pod.metadata.creation_timestamp)
}

fn is_its_node(world: &PolicyWorld, pod: &PodObject, address: IpAddr) -> bool {
    let mut nodes = world.nodes.iter();
    nodes.any(|node| node.name == pod.spec.node_name && node.addresses.contains(&address))
}

/// Tier Admin decides first; then NetworkPolicies, if one of them isolates the pod in this
/// direction, otherwise tier Baseline; what none of them denies passes.
fn permits_in_tiers(
    world: &PolicyWorld,
    pod: &PodObject,
    direction: Direction,
    packet: PolicyPacket,
) -> bool {
    match tier::verdict(world, "Admin", pod, direction, packet) {
        TierVerdict::Accept => return true,
        TierVerdict::Deny => return false,
        TierVerdict::Nothing => {}
    }
    if world.policies.iter().any(|policy| isolates(policy, pod, direction)) {
        // A pod cannot block access to itself.
        return packet.from == packet.to || permits(world, pod, direction, packet);
    }
    tier::verdict(world, "Baseline", pod, direction, packet) != TierVerdict::Deny
}

/// Whether no policy isolates the pod in this direction, or one of the isolating policies permits
/// the packet.
fn permits(
    world: &PolicyWorld,
    pod: &PodObject,
    direction: Direction,
    packet: PolicyPacket,
) -> bool {
    let isolates = |policy: &&NetworkPolicy| isolates(policy, pod, direction);
    let isolating: Vec<_> = world.policies.iter().filter(isolates).collect();
    isolating.is_empty()
        || isolating.iter().any(|policy| {
            let (_, is_understood) = policy.spec.pod_selector.held(&pod.metadata.labels);
            let (name, rules) = match direction {
                Direction::Ingress => ("Ingress", &policy.spec.ingress),
                Direction::Egress => ("Egress", &policy.spec.egress),
            };
            let types = policy.spec.policy_types.as_deref().unwrap_or_default();
            let is_meant = types.is_empty() || types.iter().any(|listed| listed == name);
            let mut rules = rules.iter().flatten();
            is_understood
                && is_meant
                && rules.any(|rule| rule_permits(world, policy, rule, direction, packet))
        })
}

/// Requirements that cannot be understood are ignored: the pod is isolated all the same.
fn isolates(policy: &NetworkPolicy, pod: &PodObject, direction: Direction) -> bool {
    let (selected, _) = policy.spec.pod_selector.held(&pod.metadata.labels);
    policy.metadata.namespace == pod.metadata.namespace
        && selected
        && has_direction(policy, direction)
}

/// Without `policyTypes` a policy is about ingress, and about egress if it has egress rules. An
/// unknown type counts as both.
fn has_direction(policy: &NetworkPolicy, direction: Direction) -> bool {
    let named = policy.spec.policy_types.iter().flatten().collect::<Vec<_>>();
    let has_egress_rules = policy.spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
    match direction {
        Direction::Ingress if named.is_empty() => true,
        Direction::Egress if named.is_empty() => has_egress_rules,
        Direction::Ingress => named.iter().any(|name| *name != "Egress"),
        Direction::Egress => named.iter().any(|name| *name != "Ingress"),
    }
}

fn rule_permits(
    world: &PolicyWorld,
    policy: &NetworkPolicy,
    rule: &PolicyRule,
    direction: Direction,
    packet: PolicyPacket,
) -> bool {
    let (peers, other) = match direction {
        Direction::Ingress => (&rule.from, packet.from),
        Direction::Egress => (&rule.to, packet.to),
    };
    let peers = peers.as_deref().unwrap_or_default();
    let ports = rule.ports.as_deref().unwrap_or_default();
    let destination = owner(world, packet.to);
    (peers.is_empty() || peers.iter().any(|peer| is_peer(world, policy, peer, other)))
        && (ports.is_empty()
            || ports.iter().any(|port| is_port(port, destination, packet.transport)))
}

/// A peer is exactly one of three: a block, pods of the policy's own namespace, pods of namespaces.
fn is_peer(
    world: &PolicyWorld,
    policy: &NetworkPolicy,
    peer: &PolicyPeer,
    address: IpAddr,
) -> bool {
    let PolicyPeer { pod_selector, namespace_selector, ip_block } = peer;
    let selectors = (pod_selector, namespace_selector);
    match (ip_block, selectors) {
        (Some(block), (None, None)) => in_block(block, address),
        (Some(_), _) | (None, (None, None)) => false,
        (None, (pods, namespaces)) => owner(world, address).is_some_and(|pod| {
            let in_namespace = match namespaces {
                None => pod.metadata.namespace == policy.metadata.namespace,
                Some(namespaces) => namespaces
                    .selects(&namespace_labels(world, &pod.metadata.namespace))
                    .unwrap_or(false),
            };
            let pods = pods.as_ref();
            in_namespace
                && pods.is_none_or(|pods| pods.selects(&pod.metadata.labels).unwrap_or(false))
        }),
    }
}

/// The namespace's labels. The API server adds its name as a label that nobody can change.
pub(super) fn namespace_labels(world: &PolicyWorld, name: &str) -> Labels {
    let namespace = world.namespaces.iter().find(|namespace| namespace.metadata.name == name);
    let mut labels =
        namespace.map(|namespace| namespace.metadata.labels.clone()).unwrap_or_default();
    labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
    labels
}

/// Whether an address is in the block and in none of its exceptions, which must all lie in the
/// block.
fn in_block(block: &IpBlock, address: IpAddr) -> bool {
    let Some(range) = range(&block.cidr) else { return false };
    let exceptions: Option<Vec<_>> =
        block.except.iter().map(|except| self::range(except)).collect();
    let Some(exceptions) = exceptions else { return false };
    let is_inside = |except: &(u128, u32, bool)| {
        except.2 == range.2 && except.1 >= range.1 && in_range(range, except.0, except.2)
    };
    let (bits, is_v6) = bits(address);
    exceptions.iter().all(is_inside)
        && in_range(range, bits, is_v6)
        && !exceptions.iter().any(|except| in_range(*except, bits, is_v6))
}

/// A CIDR: the address as bits, the prefix length, and whether it is IPv6.
pub(super) fn range(cidr: &str) -> Option<(u128, u32, bool)> {
    let (address, length) = cidr.split_once('/')?;
    let (bits, is_v6) = bits(address.parse().ok()?);
    let length: u32 = length.parse().ok()?;
    let longest = if is_v6 { 128 } else { 32 };
    (length <= longest).then_some((bits, length, is_v6))
}

pub(super) fn bits(address: IpAddr) -> (u128, bool) {
    match address {
        IpAddr::V4(address) => (u128::from(Ipv4Addr::to_bits(address)), false),
        IpAddr::V6(address) => (Ipv6Addr::to_bits(address), true),
    }
}

pub(super) fn in_range((base, length, is_v6): (u128, u32, bool), bits: u128, of_v6: bool) -> bool {
    let host_bits = if is_v6 { 128 } else { 32 } - length;
    let prefix = |bits: u128| bits.checked_shr(host_bits).unwrap_or(0);
    is_v6 == of_v6 && prefix(base) == prefix(bits)
}

fn is_port(port: &PolicyPort, destination: Option<&PodObject>, transport: Transport) -> bool {
    let Transport::Port(protocol, number) = transport else { return false };
    if !is_protocol(port.protocol.as_deref(), protocol) {
        return false;
    }
    let is_number = |number: &i64| (1..=65535).contains(number);
    match (&port.port, port.end_port) {
        (None, None) => true,
        (Some(PortNumber::Number(only)), None) => is_number(only) && *only == i64::from(number),
        (Some(PortNumber::Number(first)), Some(last)) => {
            is_number(first) && is_number(&last) && (*first..=last).contains(&i64::from(number))
        }
        (Some(PortNumber::Name(name)), None) => {
            destination.is_some_and(|pod| has_port(pod, name, protocol, number))
        }
        (None | Some(PortNumber::Name(_)), Some(_)) => false,
    }
}

fn is_protocol(written: Option<&str>, protocol: Protocol) -> bool {
    written.unwrap_or("TCP") == protocol.to_string()
}

/// Whether a container that runs as long as the pod does has a port of this name, protocol and
/// number.
pub(super) fn has_port(pod: &PodObject, name: &str, protocol: Protocol, number: u16) -> bool {
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars = pod.spec.init_containers.iter().filter(is_sidecar);
    pod.spec.containers.iter().chain(sidecars).flat_map(|container| &container.ports).any(|port| {
        port.name.as_deref() == Some(name)
            && is_protocol(port.protocol.as_deref(), protocol)
            && port.container_port == number
    })
}

#[cfg(test)]
mod tests;
