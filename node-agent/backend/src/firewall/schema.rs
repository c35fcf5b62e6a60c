//! The sets and maps of the tables of IP packets.

use super::TABLE;
use denizen_model::Family;
use denizen_nft::{DataType, Field, Schema, Set, SetId};
use denizen_plan::Direction;
use denizen_state::firewall::PENDING;

/// A set of a table of IP packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetName {
    /// Pods about which nothing is decided yet. The plugin adds to it too, while no agent runs.
    Pending,
    /// Pods of which a direction is restricted.
    Isolated(Direction),
    /// Restricted pods, each with itself as its peer.
    Itself,
    /// Addresses of pods, and the number of their identity.
    Identities,
    /// Ranges of `ipBlock`s, and the number of their identity.
    Blocks,
    /// What a pod may do with a peer, whatever the protocol and the port.
    All(Direction),
    /// What a pod may do with a peer by one protocol.
    Protocols(Direction),
    /// What a pod may do with a peer at one port of the destination.
    Ports(Direction),
    /// What a pod may do with a peer at a range of ports of the destination.
    PortRanges(Direction),
    /// The node's ends of routed pods' links.
    PodInterfaces,
    /// The same, each with an address that its pod has.
    PodAddresses,
    /// The node's ends of the links of routed pods that a policy restricts.
    RestrictedInterfaces,
    /// The same of those that one isolates for ingress.
    IsolatedInterfaces,
    /// Addresses of pods and nodes: nobody else may send from them.
    Taken,
    /// Addresses of nodes, where tunnels may end.
    Nodes,
    /// Protocols and ports at which the node takes packets out of packets.
    TunnelPorts,
    /// The same for protocols without ports.
    TunnelProtocols,
}

impl SetName {
    /// All of them, in the order in which they are made.
    pub const ALL: [Self; 22] = [
        Self::Pending,
        Self::Isolated(Direction::Ingress),
        Self::Isolated(Direction::Egress),
        Self::Itself,
        Self::Identities,
        Self::Blocks,
        Self::All(Direction::Ingress),
        Self::Protocols(Direction::Ingress),
        Self::Ports(Direction::Ingress),
        Self::PortRanges(Direction::Ingress),
        Self::All(Direction::Egress),
        Self::Protocols(Direction::Egress),
        Self::Ports(Direction::Egress),
        Self::PortRanges(Direction::Egress),
        Self::PodInterfaces,
        Self::PodAddresses,
        Self::RestrictedInterfaces,
        Self::IsolatedInterfaces,
        Self::Taken,
        Self::Nodes,
        Self::TunnelPorts,
        Self::TunnelProtocols,
    ];

    /// Its number in the schema.
    pub fn id(self) -> SetId {
        let at = Self::ALL.iter().position(|name| *name == self);
        SetId(at.expect("it is one of all") as u8)
    }

    pub fn of_id(id: SetId) -> Self {
        Self::ALL[usize::from(id.0)]
    }

    /// The direction whose permissions are in it.
    pub fn permits(self) -> Option<Direction> {
        match self {
            Self::All(direction)
            | Self::Protocols(direction)
            | Self::Ports(direction)
            | Self::PortRanges(direction) => Some(direction),
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
            | Self::TunnelProtocols => None,
        }
    }

    /// Its name in the kernel.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => PENDING,
            Self::Isolated(Direction::Ingress) => "ingress-isolated",
            Self::Isolated(Direction::Egress) => "egress-isolated",
            Self::Itself => "itself",
            Self::Identities => "identities",
            Self::Blocks => "blocks",
            Self::All(Direction::Ingress) => "ingress-all",
            Self::All(Direction::Egress) => "egress-all",
            Self::Protocols(Direction::Ingress) => "ingress-protocols",
            Self::Protocols(Direction::Egress) => "egress-protocols",
            Self::Ports(Direction::Ingress) => "ingress-ports",
            Self::Ports(Direction::Egress) => "egress-ports",
            Self::PortRanges(Direction::Ingress) => "ingress-port-ranges",
            Self::PortRanges(Direction::Egress) => "egress-port-ranges",
            Self::PodInterfaces => "pod-interfaces",
            Self::PodAddresses => "pod-addresses",
            Self::RestrictedInterfaces => "restricted-interfaces",
            Self::IsolatedInterfaces => "isolated-interfaces",
            Self::Taken => "taken",
            Self::Nodes => "nodes",
            Self::TunnelPorts => "tunnel-ports",
            Self::TunnelProtocols => "tunnel-protocols",
        }
    }

    fn comment(self) -> &'static str {
        match self {
            Self::Pending => "local pods whose policies are not known yet: all is dropped",
            Self::Isolated(Direction::Ingress) => "local pods that a policy isolates for ingress",
            Self::Isolated(Direction::Egress) => "local pods that a policy isolates for egress",
            Self::Itself => "a pod reaches itself, whatever its policies say",
            Self::Identities => "pods, and the number of the peers of policies that cover them",
            Self::Blocks => "ranges of ipBlocks, and the number of those that hold them",
            Self::All(_) => "pod and peer: every port of every protocol; peer 0 is everybody",
            Self::Protocols(_) => "pod, protocol and peer: every port; peer 0 is everybody",
            Self::Ports(_) => "pod, protocol, destination port and peer; peer 0 is everybody",
            Self::PortRanges(_) => "pod, protocol, destination ports and peer; peer 0 is everybody",
            Self::PodInterfaces => "the node's ends of local pods' links",
            Self::PodAddresses => "the addresses of the pod behind each of them",
            Self::RestrictedInterfaces => "those of pods that a policy restricts",
            Self::IsolatedInterfaces => "those of pods that a policy isolates for ingress",
            Self::Taken => "addresses of pods and nodes: nobody else may send from them",
            Self::Nodes => "addresses of nodes, where tunnels may end",
            Self::TunnelPorts => "where the node takes packets out of packets",
            Self::TunnelProtocols => "by which the node takes packets out of packets",
        }
    }

    /// As the driver has it.
    pub fn declared(self, version: Family) -> Set {
        use Field::{DestinationPort, InputInterface, Priority, Protocol};
        let (source, destination) = (Field::Source(version), Field::Destination(version));
        let pod = |direction| match direction {
            Direction::Ingress => destination,
            Direction::Egress => source,
        };
        let key = match self {
            // Ranges of one field: the kernel takes them away as fast as it adds them.
            Self::Pending | Self::Identities | Self::Blocks | Self::Taken | Self::Nodes => {
                vec![source]
            }
            Self::Isolated(direction) => vec![pod(direction)],
            Self::Itself => vec![source, destination],
            Self::All(direction) => vec![pod(direction), Priority],
            Self::Protocols(direction) => vec![pod(direction), Protocol, Priority],
            Self::Ports(direction) | Self::PortRanges(direction) => {
                vec![pod(direction), Protocol, DestinationPort, Priority]
            }
            Self::PodInterfaces | Self::RestrictedInterfaces | Self::IsolatedInterfaces => {
                vec![InputInterface]
            }
            Self::TunnelPorts => vec![Protocol, DestinationPort],
            Self::TunnelProtocols => vec![Protocol],
            Self::PodAddresses => vec![InputInterface, source],
        };
        Set {
            id: self.id(),
            name: self.as_str(),
            comment: self.comment(),
            key,
            is_ranged: matches!(self, Self::Blocks | Self::PortRanges(_)),
            data: match matches!(self, Self::Identities | Self::Blocks) {
                true => DataType::Fields(vec![Priority]),
                false => DataType::None,
            },
            room: None,
        }
    }
}

/// The table of one IP version.
pub fn schema(version: Family) -> Schema {
    Schema {
        family: version.into(),
        name: TABLE,
        comment: "Denizen: NetworkPolicies for this node's pods",
        sets: SetName::ALL.map(|set| set.declared(version)).into(),
    }
}
