//! Names of denizen's objects in nf_tables.

mod set;

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

pub use self::set::{COUNTED, FilledBy, KnownFacts, MOST_SLOTS, ServiceSet};
use denizen_model::{Family, Protocol, family_of};
use denizen_nft::Schema;

/// The table, one in each family. A restarted agent recognises its own by the name.
pub const TABLE: &str = "denizen";

/// The table's comment on the node.
const TABLE_COMMENT: &str = "Denizen: service networking; see denizen-agent explain";

/// The families of our tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServiceTable {
    /// Frames that come in through a port of a bridge, whatever they carry. First, since they are
    /// detected before they are IP packets.
    Bridge,
    /// ARP messages. Before the IP tables: no address may be routed to this node for IPVS without
    /// this table.
    Arp,
    /// IP packets of one family.
    Ip(Family),
}

impl ServiceTable {
    pub const ALL: [Self; 4] =
        [Self::Bridge, Self::Arp, Self::Ip(Family::V4), Self::Ip(Family::V6)];

    /// The driver's family.
    pub fn lowered(self) -> denizen_nft::TableFamily {
        match self {
            Self::Ip(family) => family.into(),
            Self::Arp => denizen_nft::TableFamily::Arp,
            Self::Bridge => denizen_nft::TableFamily::Bridge,
        }
    }

    /// The table of this family, without chains and elements.
    pub fn schema(self) -> Schema {
        Schema {
            family: self.lowered(),
            name: TABLE,
            comment: TABLE_COMMENT,
            sets: ServiceSet::of(self).map(|set| set.declared(self)).collect(),
        }
    }

    /// Whether its packets have addresses of this address's family.
    pub fn holds(self, address: IpAddr) -> bool {
        match self {
            Self::Ip(family) => family == family_of(address),
            Self::Arp => address.is_ipv4(),
            Self::Bridge => false,
        }
    }

    /// The `ranges` of the address family of this table's packets.
    pub fn own(self, ranges: &[IpNetwork]) -> Vec<IpNetwork> {
        let own = ranges.iter().filter(|range| self.holds(range.ip()));
        own.copied().collect()
    }
}

impl fmt::Display for ServiceTable {
    /// The name that nft has for the family.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lowered().fmt(f)
    }
}

/// Which frontends a balancing chain serves.
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
    pub const ALL: [Self; 4] =
        [Self::Service, Self::NodePort, Self::LocalService, Self::LocalNodePort];

    fn prefix(self) -> &'static str {
        match self {
            Self::Service => "",
            Self::NodePort => "nodeport-",
            Self::LocalService => "local-",
            Self::LocalNodePort => "local-nodeport-",
        }
    }

    /// The map in which the group's frontends are found.
    pub fn keys(self) -> ServiceSet {
        match self {
            Self::Service => ServiceSet::Services,
            Self::NodePort => ServiceSet::NodePorts,
            Self::LocalService => ServiceSet::LocalServices,
            Self::LocalNodePort => ServiceSet::LocalNodePorts,
        }
    }

    /// With session affinity: the map of the numbers of the frontends' endpoints, by slot.
    pub fn affinity_slots(self) -> ServiceSet {
        match self {
            Self::Service => ServiceSet::AffinitySlots,
            Self::NodePort => ServiceSet::NodePortAffinitySlots,
            Self::LocalService => ServiceSet::LocalAffinitySlots,
            Self::LocalNodePort => ServiceSet::LocalNodePortAffinitySlots,
        }
    }

    /// With session affinity: the map of the frontends' endpoints by number.
    pub fn affinity_endpoints(self) -> ServiceSet {
        match self {
            Self::Service => ServiceSet::AffinityEndpoints,
            Self::NodePort => ServiceSet::NodePortAffinityEndpoints,
            Self::LocalService => ServiceSet::LocalAffinityEndpoints,
            Self::LocalNodePort => ServiceSet::LocalNodePortAffinityEndpoints,
        }
    }

    /// The map in which the frontends' endpoints are found.
    pub fn endpoints(self) -> ServiceSet {
        match self {
            Self::Service => ServiceSet::Endpoints,
            Self::NodePort => ServiceSet::NodePortEndpoints,
            Self::LocalService => ServiceSet::LocalEndpoints,
            Self::LocalNodePort => ServiceSet::LocalNodePortEndpoints,
        }
    }
}

/// Balances among at most `size` endpoints over one protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class {
    /// The frontends that it serves.
    pub group: Group,
    /// nft's text needs the protocol if a port is translated.
    pub protocol: Protocol,
    /// A power of two.
    pub size: u32,
    /// The time-out of session affinity in seconds; `None` without it.
    pub affinity: Option<u32>,
}

impl Class {
    /// The same class without session affinity.
    pub fn plain(self) -> Self {
        Self { affinity: None, ..self }
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
    /// filter prerouting: protects loopback addresses.
    Martians,
    /// filter forward: egress masquerade.
    Forward,
    /// Marks packets for egress masquerade.
    Egress,
    /// Where services are looked up.
    Services,
    /// Where node ports are looked up.
    NodePorts,
    /// Where frontends under policy Local are looked up for traffic from outside.
    LocalPolicy,
    /// The same for node ports.
    NodePortPolicy,
    /// Marks for masquerade, except local pods' packets.
    MarkUnlessLocal,
    /// Looks up the service again, then refuses.
    UnusedPort,
    /// Drops what is addressed to a service range.
    Unallocated,
    /// Filter forward: what is still addressed to a service range.
    UnallocatedForward,
    /// Filter output: the same of what the node itself sends.
    UnallocatedOutput,
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
    /// Remembers a new client, and sends it to its endpoint.
    Remember(Class),
    /// Drops sources that may not use a load balancer IP.
    SourceRanges,
    /// Filter prerouting, right behind the nat chain, or filter forward with egress masquerade:
    /// clears the bit of the mark that the bridge's table set.
    ClearPortBit,
    /// With egress masquerade, filter input: the same for packets to the node itself.
    ClearPortBitHere,
    /// A bridge's filter forward.
    Bridged,
    /// Filter input, before IPVS. In ARP's table: ARP messages that arrive.
    Input,
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = |f: &mut fmt::Formatter<'_>, what: &str, class: &Class| {
            if let Some(seconds) = class.affinity {
                let Class { group, protocol, size, .. } = class;
                return write!(f, "{}{what}-affinity-{protocol}-{size}-{seconds}s", group.prefix());
            }
            write!(f, "{}{what}-{}-{}", class.group.prefix(), class.protocol, class.size)
        };
        match self {
            Self::Prerouting => f.write_str("prerouting"),
            Self::Output => f.write_str("output"),
            Self::Postrouting => f.write_str("postrouting"),
            Self::Martians => f.write_str("martians"),
            Self::Forward => f.write_str("forward"),
            Self::Egress => f.write_str("egress"),
            Self::Services => f.write_str("services"),
            Self::NodePorts => f.write_str("nodeports"),
            Self::LocalPolicy => f.write_str("local-policy"),
            Self::NodePortPolicy => f.write_str("nodeport-policy"),
            Self::MarkUnlessLocal => f.write_str("mark-unless-local"),
            Self::UnusedPort => f.write_str("unused-port"),
            Self::Unallocated => f.write_str("unallocated"),
            Self::UnallocatedForward => f.write_str("unallocated-forward"),
            Self::UnallocatedOutput => f.write_str("unallocated-output"),
            Self::NoEndpoints => f.write_str("no-endpoints"),
            Self::NoLocalEndpoints => f.write_str("no-local-endpoints"),
            Self::Cluster(c) => class(f, "cluster", c),
            Self::External(c) => class(f, "external", c),
            Self::Balance(c) => class(f, "lb", c),
            Self::Remembered(c) => class(f, "remembered", c),
            Self::Remember(c) => class(f, "remember", c),
            Self::SourceRanges => f.write_str("source-ranges"),
            Self::ClearPortBit => f.write_str("clear-port-bit"),
            Self::ClearPortBitHere => f.write_str("clear-port-bit-here"),
            Self::Bridged => f.write_str("bridged"),
            Self::Input => f.write_str("input"),
        }
    }
}
