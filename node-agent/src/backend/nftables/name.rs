//! What denizen's objects in nf_tables are called.

use std::fmt;

use crate::model::Protocol;

/// The table, one in each family. By its name a restarted agent knows what is its own.
pub const TABLE: &str = "denizen";

/// Which doors a balancing chain serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// Addresses of services, any endpoint.
    Service,
    /// Node ports, any endpoint.
    NodePort,
    /// Addresses of services, endpoints on this node only.
    LocalService,
    /// Node ports, endpoints on this node only.
    LocalNodePort,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Service,
        Self::NodePort,
        Self::LocalService,
        Self::LocalNodePort,
    ];

    fn prefix(self) -> &'static str {
        match self {
            Self::Service => "",
            Self::NodePort => "nodeport-",
            Self::LocalService => "local-",
            Self::LocalNodePort => "local-nodeport-",
        }
    }

    /// The map in which the group's doors are found.
    pub fn doors(self) -> SetName {
        match self {
            Self::Service => SetName::Services,
            Self::NodePort => SetName::NodePorts,
            Self::LocalService => SetName::LocalServices,
            Self::LocalNodePort => SetName::LocalNodePorts,
        }
    }

    /// The map of the doors' endpoints by slot, where a client is kept with its endpoint.
    pub fn affinity_slots(self) -> SetName {
        match self {
            Self::Service => SetName::AffinitySlots,
            Self::NodePort => SetName::NodePortAffinitySlots,
            Self::LocalService => SetName::LocalAffinitySlots,
            Self::LocalNodePort => SetName::LocalNodePortAffinitySlots,
        }
    }

    /// The map of the doors' endpoints by the number that clients are remembered with.
    pub fn affinity_endpoints(self) -> SetName {
        match self {
            Self::Service => SetName::AffinityEndpoints,
            Self::NodePort => SetName::NodePortAffinityEndpoints,
            Self::LocalService => SetName::LocalAffinityEndpoints,
            Self::LocalNodePort => SetName::LocalNodePortAffinityEndpoints,
        }
    }

    /// The map in which the doors' endpoints are found.
    pub fn endpoints(self) -> SetName {
        match self {
            Self::Service => SetName::Endpoints,
            Self::NodePort => SetName::NodePortEndpoints,
            Self::LocalService => SetName::LocalEndpoints,
            Self::LocalNodePort => SetName::LocalNodePortEndpoints,
        }
    }
}

/// Balances among at most `size` endpoints over one protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class {
    /// Whose doors.
    pub group: Group,
    /// nft's text form wants the protocol named where a port is translated.
    pub protocol: Protocol,
    /// A power of two.
    pub size: u32,
    /// Clients are kept with their endpoint for this many seconds; `None` without session affinity.
    pub affinity: Option<u32>,
}

impl Class {
    /// The same without session affinity.
    pub fn plain(self) -> Self {
        Self {
            affinity: None,
            ..self
        }
    }
}

/// A chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainName {
    /// nat prerouting.
    Prerouting,
    /// nat output.
    Output,
    /// nat postrouting.
    Postrouting,
    /// filter forward: what pods send elsewhere than to services.
    Forward,
    /// Marks for masquerade what leaves the ranges where pods keep their address.
    Egress,
    /// Where services are looked up.
    Services,
    /// Where node ports are looked up.
    NodePorts,
    /// Where doors under policy Local are looked up for traffic from elsewhere.
    LocalPolicy,
    /// The same for node ports.
    NodePortPolicy,
    /// Marks for masquerade what is not a local pod's.
    MarkUnlessLocal,
    /// Refuses.
    NoEndpoints,
    /// Drops.
    NoLocalEndpoints,
    /// Marks unless local, then balances.
    Cluster(Class),
    /// Marks always, then balances.
    External(Class),
    /// Balances.
    Balance(Class),
    /// Sends a client that is remembered to its endpoint.
    Remembered(Class),
    /// Drops what may not enter at a load balancer IP.
    SourceRanges,
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = |f: &mut fmt::Formatter<'_>, what: &str, class: &Class| {
            if let Some(seconds) = class.affinity {
                let Class {
                    group,
                    protocol,
                    size,
                    ..
                } = class;
                return write!(
                    f,
                    "{}{what}-affinity-{protocol}-{size}-{seconds}s",
                    group.prefix()
                );
            }
            write!(
                f,
                "{}{what}-{}-{}",
                class.group.prefix(),
                class.protocol,
                class.size
            )
        };
        match self {
            Self::Prerouting => f.write_str("prerouting"),
            Self::Output => f.write_str("output"),
            Self::Postrouting => f.write_str("postrouting"),
            Self::Forward => f.write_str("forward"),
            Self::Egress => f.write_str("egress"),
            Self::Services => f.write_str("services"),
            Self::NodePorts => f.write_str("nodeports"),
            Self::LocalPolicy => f.write_str("local-policy"),
            Self::NodePortPolicy => f.write_str("nodeport-policy"),
            Self::MarkUnlessLocal => f.write_str("mark-unless-local"),
            Self::NoEndpoints => f.write_str("no-endpoints"),
            Self::NoLocalEndpoints => f.write_str("no-local-endpoints"),
            Self::Cluster(c) => class(f, "cluster", c),
            Self::External(c) => class(f, "external", c),
            Self::Balance(c) => class(f, "lb", c),
            Self::Remembered(c) => class(f, "remembered", c),
            Self::SourceRanges => f.write_str("source-ranges"),
        }
    }
}

/// What must be known before a set can be said to be right. Until then, what an earlier run put there stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Facts {
    /// The state file.
    Pods,
    /// A complete picture of services, endpoints and the node.
    Services,
    /// Packets: the kernel fills it, and it is never said to be wrong.
    Traffic,
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
    /// Each local endpoint's address, twice.
    Hairpin,
    /// Doors that not every source may enter by.
    RestrictedDoors,
    /// Door and range of sources that may enter by it.
    AllowedSources,
    /// Service port and client → endpoint's number; the kernel fills it and lets it expire.
    Affinity,
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
}

impl SetName {
    /// All, in the order in which they are made.
    pub const ALL: [Self; 23] = [
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
        Self::Hairpin,
        Self::RestrictedDoors,
        Self::AllowedSources,
        Self::Affinity,
        Self::AffinitySlots,
        Self::AffinityEndpoints,
        Self::NodePortAffinitySlots,
        Self::NodePortAffinityEndpoints,
        Self::LocalAffinitySlots,
        Self::LocalAffinityEndpoints,
        Self::LocalNodePortAffinitySlots,
        Self::LocalNodePortAffinityEndpoints,
    ];

    /// Whose facts fill it.
    pub fn filled_by(self) -> Facts {
        match self {
            Self::LocalPods => Facts::Pods,
            Self::Affinity => Facts::Traffic,
            Self::Services
            | Self::Endpoints
            | Self::NodePorts
            | Self::NodePortEndpoints
            | Self::LocalServices
            | Self::LocalEndpoints
            | Self::LocalNodePorts
            | Self::LocalNodePortEndpoints
            | Self::ClusterIps
            | Self::NodePortAddresses
            | Self::Hairpin
            | Self::RestrictedDoors
            | Self::AllowedSources
            | Self::AffinitySlots
            | Self::AffinityEndpoints
            | Self::NodePortAffinitySlots
            | Self::NodePortAffinityEndpoints
            | Self::LocalAffinitySlots
            | Self::LocalAffinityEndpoints
            | Self::LocalNodePortAffinitySlots
            | Self::LocalNodePortAffinityEndpoints => Facts::Services,
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
            Self::Hairpin => "hairpin",
            Self::RestrictedDoors => "restricted-doors",
            Self::AllowedSources => "allowed-sources",
            Self::Affinity => "affinity",
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
            Self::LocalServices => "policy Local: where connections from elsewhere to a service go",
            Self::LocalEndpoints => "policy Local: the endpoints on this node, by slot",
            Self::LocalNodePorts => "policy Local: where connections from elsewhere to a node port go",
            Self::LocalNodePortEndpoints => "policy Local: a node port's endpoints on this node, by slot",
            Self::ClusterIps => "cluster IPs of services",
            Self::NodePortAddresses => "addresses of this node that serve node ports",
            Self::LocalPods => "where packets of this node's pods come in, and with which source",
            Self::Hairpin => "pods that are handed to themselves",
            Self::RestrictedDoors => "loadBalancerSourceRanges: load balancer IPs that not everybody may use",
            Self::AllowedSources => "loadBalancerSourceRanges: who may use them",
            Self::Affinity => "session affinity: the endpoint that each client of a service port got last",
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
