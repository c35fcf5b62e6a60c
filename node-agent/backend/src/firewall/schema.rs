//! The sets and maps of the tables of IP packets.

use super::TABLE;
use crate::refusals::{FLOW, FLOWS, RefusalReason};
use denizen_model::Family;
use denizen_nft::{Field, Schema, Set, SetDeclaration, SetId};
use denizen_plan::{Direction, FirewallPlan};
use denizen_state::firewall::PENDING;

/// A set of a table of IP packets; [`SETS`] declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FirewallSet {
    /// Pods about which nothing is decided yet. The plugin adds to it too, while no agent runs.
    Pending,
    Isolated(Direction),
    Itself,
    Identities,
    Blocks,
    /// What a pod may do with a peer, whatever the protocol and the port.
    All(Direction),
    /// What a pod may do with a peer by one protocol.
    Protocols(Direction),
    /// What a pod may do with a peer at one port of the destination.
    Ports(Direction),
    /// Pods and peers that [`Self::PortRanges`] names.
    WithPortRanges(Direction),
    /// What a pod may do with a peer at a range of ports of the destination, as prefixes
    /// ([`port_range`](super::port_range)).
    PortRanges(Direction),
    PodInterfaces,
    PodAddresses,
    RestrictedInterfaces,
    IsolatedInterfaces,
    Taken,
    Nodes,
    TunnelPorts,
    TunnelProtocols,
    /// Pods that ClusterNetworkPolicies select.
    Tiered,
    /// For a pod of [`Self::Tiered`] and a peer, the port set that says what may pass between them.
    PortsByPeer(Direction),
    /// A port set, and a destination port that it permits.
    PermittedPorts,
    /// A port set, and destination ports that it permits, as prefixes.
    PermittedPortRanges,
    /// Port sets that permit protocols without ports.
    PermittedOthers,
    /// Flows that no policy permits. Packets fill it.
    Refusals(Direction),
}

/// How much the tables of IP packets must express. They only have the sets that this needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirewallScope {
    /// No policy is known. New pods may be pending.
    Idle,
    /// There are policies.
    Policies,
    /// ClusterNetworkPolicies select pods of this node.
    Tiers,
}

impl FirewallScope {
    pub const ALL: [Self; 3] = [Self::Idle, Self::Policies, Self::Tiers];

    /// The scope that a plan needs, once policies are known.
    pub fn of(firewall: &FirewallPlan) -> Self {
        match (firewall.is_enforced(), firewall.has_tiers()) {
            (_, true) => Self::Tiers,
            (true, false) => Self::Policies,
            (false, false) => Self::Idle,
        }
    }

    pub fn is_tiered(self) -> bool {
        self == Self::Tiers
    }
}

const SOURCE: Field = Field::Source(Family::V4);
const DESTINATION: Field = Field::Destination(Family::V4);

/// In the order in which they are created.
const SETS: [SetDeclaration<FirewallSet>; 32] = {
    use Direction::{Egress, Ingress};
    use Field::{DestinationPort, InputInterface, Priority, Protocol};
    const EVERY_PORT: &str = "pod and peer: every port of every protocol; peer 0 is everybody";
    const PROTOCOLS: &str = "pod, protocol and peer: every port; peer 0 is everybody";
    const PORTS: &str = "pod, protocol, destination port and peer; peer 0 is everybody";
    const PEER_PORTS: &str =
        "pod and peer: the number of what passes between them, by all policies";
    const WITH_RANGES: &str = "pod and peer: there are ranges of ports; peer 0 is everybody";
    const PORT_RANGES: &str = "the same with prefixes of ports: the bit behind the prefix is 1";
    const PORT_SET: &[Field] = &[Protocol, DestinationPort, Priority];
    const TO_PORT: &[Field] = &[DESTINATION, Protocol, DestinationPort, Priority];
    const FROM_PORT: &[Field] = &[SOURCE, Protocol, DestinationPort, Priority];
    [
        SetDeclaration::new(FirewallSet::Pending, PENDING, &[SOURCE])
            .why("local pods whose policies are not known yet: all is dropped"),
        SetDeclaration::new(FirewallSet::Isolated(Ingress), "ingress-isolated", &[DESTINATION])
            .why("local pods that a policy isolates for ingress"),
        SetDeclaration::new(FirewallSet::Isolated(Egress), "egress-isolated", &[SOURCE])
            .why("local pods that a policy isolates for egress"),
        SetDeclaration::new(FirewallSet::Itself, "itself", &[SOURCE, DESTINATION])
            .why("a pod reaches itself, whatever its policies say"),
        SetDeclaration::new(FirewallSet::Identities, "identities", &[SOURCE])
            .to(&[Priority])
            .why("pods, and the number of the peers of policies that cover them"),
        SetDeclaration::new(FirewallSet::Blocks, "blocks", &[SOURCE])
            .to(&[Priority])
            .ranged()
            .why("ranges of ipBlocks, and the number of those that hold them"),
        SetDeclaration::new(FirewallSet::All(Ingress), "ingress-all", &[DESTINATION, Priority])
            .why(EVERY_PORT),
        SetDeclaration::new(
            FirewallSet::Protocols(Ingress),
            "ingress-protocols",
            &[DESTINATION, Protocol, Priority],
        )
        .why(PROTOCOLS),
        SetDeclaration::new(FirewallSet::Ports(Ingress), "ingress-ports", TO_PORT).why(PORTS),
        SetDeclaration::new(
            FirewallSet::WithPortRanges(Ingress),
            "ingress-with-port-ranges",
            &[DESTINATION, Priority],
        )
        .why(WITH_RANGES),
        SetDeclaration::new(FirewallSet::PortRanges(Ingress), "ingress-port-ranges", TO_PORT)
            .why(PORT_RANGES),
        SetDeclaration::new(FirewallSet::All(Egress), "egress-all", &[SOURCE, Priority])
            .why(EVERY_PORT),
        SetDeclaration::new(
            FirewallSet::Protocols(Egress),
            "egress-protocols",
            &[SOURCE, Protocol, Priority],
        )
        .why(PROTOCOLS),
        SetDeclaration::new(FirewallSet::Ports(Egress), "egress-ports", FROM_PORT).why(PORTS),
        SetDeclaration::new(
            FirewallSet::WithPortRanges(Egress),
            "egress-with-port-ranges",
            &[SOURCE, Priority],
        )
        .why(WITH_RANGES),
        SetDeclaration::new(FirewallSet::PortRanges(Egress), "egress-port-ranges", FROM_PORT)
            .why(PORT_RANGES),
        SetDeclaration::new(FirewallSet::PodInterfaces, "pod-interfaces", &[InputInterface])
            .why("the node's ends of local pods' links"),
        SetDeclaration::new(FirewallSet::PodAddresses, "pod-addresses", &[InputInterface, SOURCE])
            .why("the addresses of the pod behind each of them"),
        SetDeclaration::new(
            FirewallSet::RestrictedInterfaces,
            "restricted-interfaces",
            &[InputInterface],
        )
        .why("those of pods that a policy restricts"),
        SetDeclaration::new(
            FirewallSet::IsolatedInterfaces,
            "isolated-interfaces",
            &[InputInterface],
        )
        .why("those of pods that a policy isolates for ingress"),
        SetDeclaration::new(FirewallSet::Taken, "taken", &[SOURCE])
            .why("addresses of pods and nodes: nobody else may send from them"),
        SetDeclaration::new(FirewallSet::Nodes, "nodes", &[SOURCE])
            .why("addresses of nodes, where tunnels may end"),
        SetDeclaration::new(FirewallSet::TunnelPorts, "tunnel-ports", &[Protocol, DestinationPort])
            .why("where the node takes packets out of packets"),
        SetDeclaration::new(FirewallSet::TunnelProtocols, "tunnel-protocols", &[Protocol])
            .why("by which the node takes packets out of packets"),
        SetDeclaration::new(FirewallSet::Tiered, "tiered", &[SOURCE])
            .why("local pods that ClusterNetworkPolicies select"),
        SetDeclaration::new(
            FirewallSet::PortsByPeer(Ingress),
            "ingress-by_peer",
            &[DESTINATION, Priority],
        )
        .to(&[Priority])
        .why(PEER_PORTS),
        SetDeclaration::new(
            FirewallSet::PortsByPeer(Egress),
            "egress-by_peer",
            &[SOURCE, Priority],
        )
        .to(&[Priority])
        .why(PEER_PORTS),
        SetDeclaration::new(FirewallSet::PermittedPorts, "permitted-ports", PORT_SET)
            .why("protocol, destination port and number: it passes"),
        SetDeclaration::new(FirewallSet::PermittedPortRanges, "permitted-port-ranges", PORT_SET)
            .why(PORT_RANGES),
        SetDeclaration::new(FirewallSet::PermittedOthers, "permitted-others", &[Priority])
            .why("numbers by which protocols without ports pass"),
        refusals(Ingress, "flows of the last 15 minutes that no policy permits to reach the pod"),
        refusals(Egress, "flows of the last 15 minutes that no policy permits the pod to begin"),
    ]
};

const fn refusals(direction: Direction, why: &'static str) -> SetDeclaration<FirewallSet> {
    let name = RefusalReason::NoPolicy(direction).set();
    SetDeclaration::new(FirewallSet::Refusals(direction), name, FLOW)
        .why(why)
        .filled_by_packets(FLOWS)
}

impl FirewallSet {
    pub fn id(self) -> SetId {
        let at = SETS.iter().position(|declaration| declaration.set == self);
        SetId(at.expect("every set is declared") as u8)
    }

    pub fn of_id(id: SetId) -> Self {
        SETS[usize::from(id.0)].set
    }

    /// Whether tables of this scope have the set.
    fn is_in(self, scope: FirewallScope) -> bool {
        match self {
            Self::Tiered
            | Self::PortsByPeer(_)
            | Self::PermittedPorts
            | Self::PermittedPortRanges
            | Self::PermittedOthers => scope.is_tiered(),
            Self::Refusals(_) => scope != FirewallScope::Idle,
            Self::Pending
            | Self::Isolated(_)
            | Self::Itself
            | Self::Identities
            | Self::Blocks
            | Self::All(_)
            | Self::Protocols(_)
            | Self::Ports(_)
            | Self::WithPortRanges(_)
            | Self::PortRanges(_)
            | Self::PodInterfaces
            | Self::PodAddresses
            | Self::RestrictedInterfaces
            | Self::IsolatedInterfaces
            | Self::Taken
            | Self::Nodes
            | Self::TunnelPorts
            | Self::TunnelProtocols => true,
        }
    }

    /// The direction whose permissions the set holds, if it holds any.
    pub fn permits(self) -> Option<Direction> {
        match self {
            Self::All(direction)
            | Self::Protocols(direction)
            | Self::Ports(direction)
            | Self::WithPortRanges(direction)
            | Self::PortRanges(direction)
            | Self::PortsByPeer(direction) => Some(direction),
            Self::Pending
            | Self::Isolated(_)
            | Self::Itself
            | Self::Identities
            | Self::Blocks
            | Self::PodInterfaces
            | Self::PodAddresses
            | Self::RestrictedInterfaces
            | Self::IsolatedInterfaces
            | Self::Taken
            | Self::Nodes
            | Self::TunnelPorts
            | Self::TunnelProtocols
            | Self::Tiered
            | Self::PermittedPorts
            | Self::PermittedPortRanges
            | Self::PermittedOthers
            | Self::Refusals(_) => None,
        }
    }

    /// The driver's set.
    pub fn declared(self, version: Family) -> Set {
        let id = self.id();
        SETS[usize::from(id.0)].declared(id).in_version(version)
    }
}

/// The schema of one IP version's table.
pub fn schema(version: Family, scope: FirewallScope) -> Schema {
    let sets = SETS.iter().map(|declaration| declaration.set);
    let sets = sets.filter(|set| set.is_in(scope));
    Schema {
        family: version.into(),
        name: TABLE,
        comment: "Denizen: NetworkPolicies for this node's pods",
        sets: sets.map(|set| set.declared(version)).collect(),
    }
}
