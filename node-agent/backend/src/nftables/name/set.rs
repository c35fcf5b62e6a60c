//! Sets and maps.

use std::fmt;

use super::ServiceTable;
use crate::refusals::{FLOW, FLOWS, RefusalReason};
use denizen_model::Family;
use denizen_nft::{Field, Set, SetDeclaration, SetId};

/// The most endpoints of a service address: slots are numbered with 16 bits.
pub const MOST_SLOTS: u32 = 65_535;

/// The facts that fill a set. Until they are known, the elements of an earlier run stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilledBy {
    /// The state file.
    Pods,
    /// A complete picture of services, endpoints and the node.
    Services,
    /// Packets add its elements, so none is ever wrong.
    Packets,
}

/// Which facts the agent has. What an earlier run programmed from facts that are not known yet is
/// left alone: a restart must lose nothing while the API, or the state file, cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KnownFacts {
    /// The state file was read.
    pub pods: bool,
    /// The first lists of services, endpoints and the node are complete.
    pub services: bool,
}

impl KnownFacts {
    /// Whether the facts that fill this set are known.
    pub fn covers(self, set: ServiceSet) -> bool {
        match set.filled_by() {
            FilledBy::Pods => self.pods,
            FilledBy::Services => self.services,
            FilledBy::Packets => false,
        }
    }
}

/// A set or map; [`SETS`] declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServiceSet {
    Services,
    Endpoints,
    NodePorts,
    NodePortEndpoints,
    LocalServices,
    LocalEndpoints,
    LocalNodePorts,
    LocalNodePortEndpoints,
    ClusterIps,
    NodePortAddresses,
    LocalPods,
    BridgedPods,
    Hairpin,
    RestrictedFrontends,
    AllowedSources,
    Affinity,
    AffinityReserved,
    AffinityBrief,
    AffinityBudget,
    AffinitySlots,
    AffinityEndpoints,
    NodePortAffinitySlots,
    NodePortAffinityEndpoints,
    LocalAffinitySlots,
    LocalAffinityEndpoints,
    LocalNodePortAffinitySlots,
    LocalNodePortAffinityEndpoints,
    RefusedNoEndpoints,
    DroppedNoLocalEndpoints,
    DroppedSourceRanges,
    ServiceConnections,
    PodPorts,
    PodPorts6,
    VirtualIps,
}

const SOURCE: Field = Field::Source(Family::V4);
const DESTINATION: Field = Field::Destination(Family::V4);
const SLOT: Field = Field::Random(MOST_SLOTS);
const ADDRESS: &[Field] = &[DESTINATION];
const NODE_PORT: &[Field] = &[Field::Protocol, Field::DestinationPort];
const NODE_PORT_SLOT: &[Field] = &[Field::Protocol, Field::DestinationPort, SLOT];
const NODE_PORT_NUMBER: &[Field] = &[Field::Protocol, Field::DestinationPort, Field::Priority];
const FRONTEND: &[Field] = &[DESTINATION, Field::Protocol, Field::DestinationPort];
const FRONTEND_SLOT: &[Field] = &[DESTINATION, Field::Protocol, Field::DestinationPort, SLOT];
const FRONTEND_NUMBER: &[Field] =
    &[DESTINATION, Field::Protocol, Field::DestinationPort, Field::Priority];
const FRONTEND_SOURCE: &[Field] =
    &[DESTINATION, Field::Protocol, Field::DestinationPort, SOURCE, Field::Priority];
const POD: &[Field] = &[Field::InputInterface, SOURCE];
/// The number comes first: nft cannot list a rule that updates a set whose key begins with an IPv6
/// address.
const CLIENT: &[Field] = &[Field::Priority, SOURCE];
/// What connections are counted by: the fields of [`FRONTEND`], numbers first for the reason given
/// at [`CLIENT`].
pub const COUNTED: &[Field] = &[Field::Protocol, Field::DestinationPort, DESTINATION];

/// The sets of IP tables in the order in which they are created, then those of the bridge's table
/// and of ARP's.
const SETS: [SetDeclaration<ServiceSet>; 34] = {
    const ENDPOINT: &[Field] = &[DESTINATION, Field::DestinationPort];
    /// The number of a service port's endpoint.
    const NUMBER: &[Field] = &[Field::Priority];
    /// The room for clients. In the reserve, that is enough for 128 service ports that use up their
    /// budget twice: at once, and in the time after.
    const MANY: u32 = 1 << 18;
    /// One budget for each number of a service port.
    const FEW: u32 = 1 << 16;
    [
        SetDeclaration::new(ServiceSet::Services, "services", FRONTEND)
            .to_chains()
            .why("where connections to a service's address and port go"),
        SetDeclaration::new(ServiceSet::Endpoints, "endpoints", FRONTEND_SLOT)
            .to(ENDPOINT)
            .why("the endpoints behind each service address, by slot"),
        SetDeclaration::new(ServiceSet::NodePorts, "nodeports", NODE_PORT)
            .to_chains()
            .why("where connections to a node port go"),
        SetDeclaration::new(ServiceSet::NodePortEndpoints, "nodeport-endpoints", NODE_PORT_SLOT)
            .to(ENDPOINT)
            .why("the endpoints behind each node port, by slot"),
        SetDeclaration::new(ServiceSet::LocalServices, "local-services", FRONTEND)
            .to_chains()
            .why("policy Local: where connections from outside to a service go"),
        SetDeclaration::new(ServiceSet::LocalEndpoints, "local-endpoints", FRONTEND_SLOT)
            .to(ENDPOINT)
            .why("policy Local: the endpoints on this node, by slot"),
        SetDeclaration::new(ServiceSet::LocalNodePorts, "local-nodeports", NODE_PORT)
            .to_chains()
            .why("policy Local: where connections from outside to a node port go"),
        SetDeclaration::new(
            ServiceSet::LocalNodePortEndpoints,
            "local-nodeport-endpoints",
            NODE_PORT_SLOT,
        )
        .to(ENDPOINT)
        .why("policy Local: a node port's endpoints on this node, by slot"),
        SetDeclaration::new(ServiceSet::ClusterIps, "cluster-ips", ADDRESS)
            .why("cluster IPs of services"),
        SetDeclaration::new(ServiceSet::NodePortAddresses, "nodeport-addresses", ADDRESS)
            .why("addresses of this node that serve node ports"),
        SetDeclaration::new(ServiceSet::LocalPods, "local-pods", POD)
            .why("local pods: input interface and source address"),
        SetDeclaration::new(ServiceSet::BridgedPods, "bridged-pods", POD)
            .why("bridged pods whose bridge port must match too: interface and source address"),
        SetDeclaration::new(ServiceSet::Hairpin, "hairpin", &[SOURCE, DESTINATION])
            .why("hairpin: pods that are endpoints of the service they call"),
        SetDeclaration::new(ServiceSet::RestrictedFrontends, "restricted-frontends", FRONTEND)
            .why("loadBalancerSourceRanges: load balancer IPs that not all clients may use"),
        SetDeclaration::new(ServiceSet::AllowedSources, "allowed-sources", FRONTEND_SOURCE)
            .why("loadBalancerSourceRanges: who may use them, and the length of the prefix"),
        SetDeclaration::new(ServiceSet::Affinity, "affinity", CLIENT)
            .to(NUMBER)
            .why("session affinity: the endpoint that each client of a service port got last")
            .filled_by_packets(MANY),
        SetDeclaration::new(ServiceSet::AffinityReserved, "affinity-reserved", CLIENT)
            .to(NUMBER)
            .why("session affinity, map full: local pods, and a budget of each service port")
            .filled_by_packets(MANY),
        SetDeclaration::new(ServiceSet::AffinityBrief, "affinity-brief", CLIENT)
            .to(NUMBER)
            .why("session affinity, map full: all other clients, for a short time")
            .filled_by_packets(FEW),
        SetDeclaration::new(ServiceSet::AffinityBudget, "affinity-budget", &[Field::Priority])
            .why("session affinity, map full: budget of each service port for new clients")
            .filled_by_packets(FEW),
        SetDeclaration::new(ServiceSet::AffinitySlots, "affinity-slots", FRONTEND_SLOT)
            .to(NUMBER)
            .why("session affinity: the number of the endpoint in each slot"),
        SetDeclaration::new(ServiceSet::AffinityEndpoints, "affinity-endpoints", FRONTEND_NUMBER)
            .to(ENDPOINT)
            .why("session affinity: endpoints by number"),
        SetDeclaration::new(
            ServiceSet::NodePortAffinitySlots,
            "nodeport-affinity-slots",
            NODE_PORT_SLOT,
        )
        .to(NUMBER)
        .why("session affinity, node ports: the number of the endpoint in each slot"),
        SetDeclaration::new(
            ServiceSet::NodePortAffinityEndpoints,
            "nodeport-affinity-endpoints",
            NODE_PORT_NUMBER,
        )
        .to(ENDPOINT)
        .why("session affinity, node ports: endpoints by number"),
        SetDeclaration::new(ServiceSet::LocalAffinitySlots, "local-affinity-slots", FRONTEND_SLOT)
            .to(NUMBER)
            .why("session affinity, policy Local: the number of the endpoint in each slot"),
        SetDeclaration::new(
            ServiceSet::LocalAffinityEndpoints,
            "local-affinity-endpoints",
            FRONTEND_NUMBER,
        )
        .to(ENDPOINT)
        .why("session affinity, policy Local: endpoints by number"),
        SetDeclaration::new(
            ServiceSet::LocalNodePortAffinitySlots,
            "local-nodeport-affinity-slots",
            NODE_PORT_SLOT,
        )
        .to(NUMBER)
        .why("session affinity, policy Local, node ports: the number of the endpoint in each slot"),
        SetDeclaration::new(
            ServiceSet::LocalNodePortAffinityEndpoints,
            "local-nodeport-affinity-endpoints",
            NODE_PORT_NUMBER,
        )
        .to(ENDPOINT)
        .why("session affinity, policy Local, node ports: endpoints by number"),
        SetDeclaration::new(ServiceSet::RefusedNoEndpoints, RefusalReason::NoEndpoints.set(), FLOW)
            .why("flows of the last 15 minutes that found no endpoint")
            .filled_by_packets(FLOWS),
        SetDeclaration::new(
            ServiceSet::DroppedNoLocalEndpoints,
            RefusalReason::NoLocalEndpoints.set(),
            FLOW,
        )
        .why("policy Local: flows of the last 15 minutes that found no endpoint on this node")
        .filled_by_packets(FLOWS),
        SetDeclaration::new(
            ServiceSet::DroppedSourceRanges,
            RefusalReason::SourceRanges.set(),
            FLOW,
        )
        .why("loadBalancerSourceRanges: flows of the last 15 minutes that they do not permit")
        .filled_by_packets(FLOWS),
        SetDeclaration::new(ServiceSet::ServiceConnections, "service-connections", COUNTED)
            .why("--service-metrics: connections to each service address and port")
            .filled_by_packets(FEW),
        SetDeclaration::new(ServiceSet::PodPorts, "pod-ports", POD)
            .why("bridge ports and IPv4 source addresses of local pods"),
        SetDeclaration::new(ServiceSet::PodPorts6, "pod-ports6", POD)
            .why("bridge ports and IPv6 source addresses of local pods"),
        SetDeclaration::new(ServiceSet::VirtualIps, "virtual-ips", &[Field::ArpTarget])
            .why("addresses of services that are routed to this node for IPVS"),
    ]
};

impl ServiceSet {
    /// The sets of a table, in the order in which they are created.
    pub fn of(table_family: ServiceTable) -> impl Iterator<Item = Self> {
        let declarations = match table_family {
            ServiceTable::Ip(_) => &SETS[..31],
            ServiceTable::Bridge => &SETS[31..33],
            ServiceTable::Arp => &SETS[33..],
        };
        declarations.iter().map(|declaration| declaration.set)
    }

    pub fn id(self) -> SetId {
        SetId(self as u8)
    }

    /// The set with this id.
    pub fn of_id(id: SetId) -> Self {
        SETS[usize::from(id.0)].set
    }

    fn declaration(self) -> &'static SetDeclaration<Self> {
        &SETS[self as usize]
    }

    /// Its name in the kernel.
    pub fn as_str(self) -> &'static str {
        self.declaration().name()
    }

    pub fn filled_by(self) -> FilledBy {
        let pods = [Self::LocalPods, Self::BridgedPods, Self::PodPorts, Self::PodPorts6];
        match self.max_dynamic_elements() {
            Some(_) => FilledBy::Packets,
            None if pods.contains(&self) => FilledBy::Pods,
            None => FilledBy::Services,
        }
    }

    /// The most elements that packets may add; `None` for sets that packets do not fill.
    pub fn max_dynamic_elements(self) -> Option<u32> {
        self.declaration().max_dynamic_elements()
    }

    /// The family of the addresses in its keys.
    pub fn family(self, table_family: ServiceTable) -> Family {
        match (table_family, self) {
            (ServiceTable::Ip(family), _) => family,
            (ServiceTable::Bridge, Self::PodPorts6) => Family::V6,
            (ServiceTable::Bridge | ServiceTable::Arp, _) => Family::V4,
        }
    }

    /// The driver's set, in a table of this family.
    pub fn declared(self, table_family: ServiceTable) -> Set {
        self.declaration().declared(self.id()).in_version(self.family(table_family))
    }
}

impl fmt::Display for ServiceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_is_declared_at_its_number() {
        for (number, declaration) in SETS.iter().enumerate() {
            assert_eq!(declaration.set as usize, number);
        }
    }
}
