//! Sets and maps.

use std::fmt;

use super::ServiceTable;
use denizen_model::Family;
use denizen_nft::SetId;

/// What fills a set, and so must be known before it can be said to be right. Until then, what an
/// earlier run put there stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilledBy {
    /// The state file.
    Pods,
    /// A complete picture of services, endpoints and the node.
    Services,
    /// It is never said to be wrong.
    Packets,
}

/// Which facts the agent has. What an earlier run programmed from the others is left
/// alone: a restart must lose nothing while the API, or the state file, cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KnownFacts {
    /// The state file was read.
    pub pods: bool,
    /// The first lists of services, endpoints and the node are complete.
    pub services: bool,
}

impl KnownFacts {
    /// Whether the facts that fill this set are known.
    pub fn covers(self, set: SetName) -> bool {
        match set.filled_by() {
            FilledBy::Pods => self.pods,
            FilledBy::Services => self.services,
            FilledBy::Packets => false,
        }
    }
}

/// A set or map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetName {
    /// Address, protocol, port → where to.
    Services,
    /// Address, protocol, port, slot → endpoint.
    Endpoints,
    /// Protocol, port → where to.
    NodePorts,
    /// Protocol, port, slot → endpoint.
    NodePortEndpoints,
    /// As [`Self::Services`], under policy Local, from elsewhere.
    LocalServices,
    /// As [`Self::Endpoints`], on this node.
    LocalEndpoints,
    /// As [`Self::NodePorts`], under policy Local, from elsewhere.
    LocalNodePorts,
    /// As [`Self::NodePortEndpoints`], on this node.
    LocalNodePortEndpoints,
    /// The cluster IPs that services have.
    ClusterIps,
    /// The node's own addresses that serve node ports.
    NodePortAddresses,
    /// Input interface and address of each pod of this node.
    LocalPods,
    /// The same of those whose port of the bridge must be right, too.
    BridgedPods,
    /// Each local endpoint's address, twice.
    Hairpin,
    /// Frontends that not every source may enter by.
    RestrictedFrontends,
    /// Frontend and range of sources that may enter by it.
    AllowedSources,
    /// Service port and client → endpoint's number; the kernel fills it and lets it expire.
    Affinity,
    /// The same while [`Self::Affinity`] is full: this node's pods, and some clients of each
    /// service port.
    AffinityReserved,
    /// The same while [`Self::Affinity`] is full: all other clients, for a short time.
    AffinityBrief,
    /// How many clients of each service port may still enter [`Self::AffinityReserved`].
    AffinityBudget,
    /// As [`Self::Endpoints`], → endpoint's number, for services with session affinity.
    AffinitySlots,
    /// Address, protocol, port, endpoint's number → endpoint.
    AffinityEndpoints,
    /// As [`Self::AffinitySlots`], of node ports.
    NodePortAffinitySlots,
    /// As [`Self::AffinityEndpoints`], of node ports.
    NodePortAffinityEndpoints,
    /// As [`Self::AffinitySlots`], on this node.
    LocalAffinitySlots,
    /// As [`Self::AffinityEndpoints`], on this node.
    LocalAffinityEndpoints,
    /// As [`Self::LocalAffinitySlots`], of node ports.
    LocalNodePortAffinitySlots,
    /// As [`Self::LocalAffinityEndpoints`], of node ports.
    LocalNodePortAffinityEndpoints,
    /// Port of a bridge and address of each pod of [`Self::BridgedPods`].
    PodPorts,
    /// The same, IPv6.
    PodPorts6,
    /// The addresses that are routed to this node for virtual servers.
    VirtualIps,
}

impl SetName {
    /// Those of IP tables, in the order in which they are made, then those of a bridge's table
    /// and of ARP's.
    const ALL: [Self; 30] = [
        Self::Services,
        Self::Endpoints,
        Self::NodePorts,
        Self::NodePortEndpoints,
        Self::LocalServices,
        Self::LocalEndpoints,
        Self::LocalNodePorts,
        Self::LocalNodePortEndpoints,
        Self::ClusterIps,
        Self::NodePortAddresses,
        Self::LocalPods,
        Self::BridgedPods,
        Self::Hairpin,
        Self::RestrictedFrontends,
        Self::AllowedSources,
        Self::Affinity,
        Self::AffinityReserved,
        Self::AffinityBrief,
        Self::AffinityBudget,
        Self::AffinitySlots,
        Self::AffinityEndpoints,
        Self::NodePortAffinitySlots,
        Self::NodePortAffinityEndpoints,
        Self::LocalAffinitySlots,
        Self::LocalAffinityEndpoints,
        Self::LocalNodePortAffinitySlots,
        Self::LocalNodePortAffinityEndpoints,
        Self::PodPorts,
        Self::PodPorts6,
        Self::VirtualIps,
    ];

    /// Those of a table, in the order in which they are made.
    pub fn of(table_family: ServiceTable) -> &'static [Self] {
        match table_family {
            ServiceTable::Ip(_) => &Self::ALL[..27],
            ServiceTable::Bridge => &Self::ALL[27..29],
            ServiceTable::Arp => &Self::ALL[29..],
        }
    }

    /// The driver's name for it.
    pub fn id(self) -> SetId {
        SetId(self as u8)
    }

    /// The set that has this name.
    pub fn of_id(id: SetId) -> Self {
        Self::ALL[usize::from(id.0)]
    }

    /// The family of the addresses in its keys.
    pub fn family(self, table_family: ServiceTable) -> Family {
        match (table_family, self) {
            (ServiceTable::Ip(family), _) => family,
            (ServiceTable::Bridge, Self::PodPorts6) => Family::V6,
            (ServiceTable::Bridge | ServiceTable::Arp, _) => Family::V4,
        }
    }

    /// Whose facts fill it.
    pub fn filled_by(self) -> FilledBy {
        match self {
            Self::LocalPods | Self::BridgedPods | Self::PodPorts | Self::PodPorts6 => {
                FilledBy::Pods
            }
            Self::Affinity
            | Self::AffinityReserved
            | Self::AffinityBrief
            | Self::AffinityBudget => FilledBy::Packets,
            Self::Services
            | Self::Endpoints
            | Self::NodePorts
            | Self::NodePortEndpoints
            | Self::LocalServices
            | Self::LocalEndpoints
            | Self::LocalNodePorts
            | Self::LocalNodePortEndpoints
            | Self::ClusterIps
            | Self::VirtualIps
            | Self::NodePortAddresses
            | Self::Hairpin
            | Self::RestrictedFrontends
            | Self::AllowedSources
            | Self::AffinitySlots
            | Self::AffinityEndpoints
            | Self::NodePortAffinitySlots
            | Self::NodePortAffinityEndpoints
            | Self::LocalAffinitySlots
            | Self::LocalAffinityEndpoints
            | Self::LocalNodePortAffinitySlots
            | Self::LocalNodePortAffinityEndpoints => FilledBy::Services,
        }
    }

    /// Its name in the kernel.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Endpoints => "endpoints",
            Self::NodePorts => "nodeports",
            Self::NodePortEndpoints => "nodeport-endpoints",
            Self::LocalServices => "local-services",
            Self::LocalEndpoints => "local-endpoints",
            Self::LocalNodePorts => "local-nodeports",
            Self::LocalNodePortEndpoints => "local-nodeport-endpoints",
            Self::ClusterIps => "cluster-ips",
            Self::NodePortAddresses => "nodeport-addresses",
            Self::LocalPods => "local-pods",
            Self::BridgedPods => "bridged-pods",
            Self::PodPorts => "pod-ports",
            Self::PodPorts6 => "pod-ports6",
            Self::VirtualIps => "virtual-ips",
            Self::Hairpin => "hairpin",
            Self::RestrictedFrontends => "restricted-frontends",
            Self::AllowedSources => "allowed-sources",
            Self::Affinity => "affinity",
            Self::AffinityReserved => "affinity-reserved",
            Self::AffinityBrief => "affinity-brief",
            Self::AffinityBudget => "affinity-budget",
            Self::AffinitySlots => "affinity-slots",
            Self::AffinityEndpoints => "affinity-endpoints",
            Self::NodePortAffinitySlots => "nodeport-affinity-slots",
            Self::NodePortAffinityEndpoints => "nodeport-affinity-endpoints",
            Self::LocalAffinitySlots => "local-affinity-slots",
            Self::LocalAffinityEndpoints => "local-affinity-endpoints",
            Self::LocalNodePortAffinitySlots => "local-nodeport-affinity-slots",
            Self::LocalNodePortAffinityEndpoints => "local-nodeport-affinity-endpoints",
        }
    }

    /// What it is for, beside it on the node.
    pub fn why(self) -> &'static str {
        match self {
            Self::Services => "where connections to a service's address and port go",
            Self::Endpoints => "the endpoints behind each service address, by slot",
            Self::NodePorts => "where connections to a node port go",
            Self::NodePortEndpoints => "the endpoints behind each node port, by slot",
            Self::LocalServices => "policy Local: where connections from outside to a service go",
            Self::LocalEndpoints => "policy Local: the endpoints on this node, by slot",
            Self::LocalNodePorts => {
                "policy Local: where connections from outside to a node port go"
            }
            Self::LocalNodePortEndpoints => {
                "policy Local: a node port's endpoints on this node, by slot"
            }
            Self::ClusterIps => "cluster IPs of services",
            Self::NodePortAddresses => "addresses of this node that serve node ports",
            Self::LocalPods => "local pods: input interface and source address",
            Self::BridgedPods => {
                "bridged pods whose bridge port must match too: interface and source address"
            }
            Self::PodPorts => "bridge ports and IPv4 source addresses of local pods",
            Self::PodPorts6 => "bridge ports and IPv6 source addresses of local pods",
            Self::VirtualIps => "addresses of services that are routed to this node for IPVS",
            Self::Hairpin => "hairpin: pods that are endpoints of the service they call",
            Self::RestrictedFrontends => {
                "loadBalancerSourceRanges: load balancer IPs that not all clients may use"
            }
            Self::AllowedSources => "loadBalancerSourceRanges: who may use them",
            Self::Affinity => {
                "session affinity: the endpoint that each client of a service port got last"
            }
            Self::AffinityReserved => {
                "session affinity, map full: local pods, and a budget of each service port"
            }
            Self::AffinityBrief => {
                "session affinity, map full: all other clients, for a short time"
            }
            Self::AffinityBudget => {
                "session affinity, map full: budget of each service port for new clients"
            }
            Self::AffinitySlots => "session affinity: the number of the endpoint in each slot",
            Self::AffinityEndpoints => "session affinity: endpoints by number",
            Self::NodePortAffinitySlots => {
                "session affinity, node ports: the number of the endpoint in each slot"
            }
            Self::NodePortAffinityEndpoints => "session affinity, node ports: endpoints by number",
            Self::LocalAffinitySlots => {
                "session affinity, policy Local: the number of the endpoint in each slot"
            }
            Self::LocalAffinityEndpoints => "session affinity, policy Local: endpoints by number",
            Self::LocalNodePortAffinitySlots => {
                "session affinity, policy Local, node ports: the number of the endpoint in each slot"
            }
            Self::LocalNodePortAffinityEndpoints => {
                "session affinity, policy Local, node ports: endpoints by number"
            }
        }
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_found_by_its_id() {
        for set in SetName::ALL {
            assert_eq!(SetName::of_id(set.id()), set);
        }
    }
}
