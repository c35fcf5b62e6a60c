//! The sets of the table of bridges.

use denizen_model::Family;
use denizen_nft::{DataType, Field, Set, SetId, Statement};

/// A set of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetName {
    /// The ports of recorded pods.
    Ports,
    /// Those of pods that a policy restricts.
    Restricted,
    /// The IPv4 addresses that may come in through each port.
    Addresses4,
    /// The same for IPv6.
    Addresses6,
    /// The same for what neighbour advertisements announce.
    Targets,
    /// The Ethernet address that may come in through each port.
    Macs,
    /// The Ethernet addresses of all pods behind ports, and of the bridges.
    TakenMacs,
    /// The IPv4 addresses of pods and nodes.
    Taken4,
    /// The same for IPv6.
    Taken6,
    /// The same for what neighbour advertisements announce.
    TakenTargets,
    /// The IPv4 addresses of nodes, where tunnels may end.
    Nodes4,
    /// The same for IPv6.
    Nodes6,
    /// Protocols and ports at which the node takes packets out of packets.
    TunnelPorts,
    /// The same for protocols without ports.
    TunnelProtocols,
    /// Ports of pods that a policy isolates for ingress.
    IngressIsolated,
    /// Ports of restricted pods whose frames IP rules do not see: in VLANs, or on bridges without
    /// bridge netfilter.
    CutOff,
    /// Ports that are veths whose other ends are interfaces of the node.
    NodeVeths,
}

/// How a set is declared: which one, its name and what it is for, and its key.
type Declaration = (SetName, &'static str, &'static str, &'static [Field]);

const SETS: [Declaration; 17] = {
    use Field::{
        DestinationPort, EtherSource, InputInterface, NeighbourTarget, OutputInterface, Protocol,
    };
    const S4: Field = Field::Source(Family::V4);
    const S6: Field = Field::Source(Family::V6);
    const D4: Field = Field::Destination(Family::V4);
    const D6: Field = Field::Destination(Family::V6);
    [
        (SetName::Ports, "pod-ports", "ports of local pods", &[InputInterface]),
        (
            SetName::Restricted,
            "restricted-ports",
            "ports of local pods that a policy restricts",
            &[InputInterface],
        ),
        (
            SetName::Addresses4,
            "pod-addresses",
            "the IPv4 addresses of the pod behind each port",
            &[InputInterface, S4],
        ),
        (
            SetName::Addresses6,
            "pod-addresses6",
            "the IPv6 addresses of the pod behind each port",
            &[InputInterface, S6],
        ),
        (
            SetName::Targets,
            "pod-targets",
            "the same, as neighbour advertisements have them",
            &[InputInterface, NeighbourTarget],
        ),
        (
            SetName::Macs,
            "pod-macs",
            "the Ethernet address of the pod behind each port",
            &[InputInterface, EtherSource],
        ),
        (
            SetName::TakenMacs,
            "taken-macs",
            "the Ethernet addresses of local pods and of bridges",
            &[EtherSource],
        ),
        (SetName::Taken4, "taken", "the IPv4 addresses of pods and nodes", &[S4]),
        (SetName::Taken6, "taken6", "the IPv6 addresses of pods and nodes", &[S6]),
        (
            SetName::TakenTargets,
            "taken-targets",
            "the same, as neighbour advertisements have them",
            &[NeighbourTarget],
        ),
        (SetName::Nodes4, "nodes", "the IPv4 addresses of nodes", &[D4]),
        (SetName::Nodes6, "nodes6", "the IPv6 addresses of nodes", &[D6]),
        (
            SetName::TunnelPorts,
            "tunnel-ports",
            "where the node takes packets out of packets",
            &[Protocol, DestinationPort],
        ),
        (
            SetName::TunnelProtocols,
            "tunnel-protocols",
            "by which the node takes packets out of packets",
            &[Protocol],
        ),
        (
            SetName::IngressIsolated,
            "ingress-isolated",
            "ports of local pods that a policy isolates for ingress",
            &[OutputInterface],
        ),
        (
            SetName::CutOff,
            "cut-off",
            "ports of restricted pods whose frames IP rules do not see",
            &[InputInterface],
        ),
        (
            SetName::NodeVeths,
            "node-veths",
            "veths by which the node itself is behind a port",
            &[InputInterface],
        ),
    ]
};

impl SetName {
    pub(super) fn id(self) -> SetId {
        SetId(self as u8)
    }

    /// As the driver has it.
    pub(super) fn declared(self) -> Set {
        let declaration = SETS.iter().find(|(set, ..)| *set == self);
        let (_, name, comment, key) = declaration.expect("every set is declared");
        Set {
            id: self.id(),
            name,
            comment,
            key: key.to_vec(),
            is_ranged: false,
            data: DataType::None,
            room: None,
        }
    }

    /// Asks whether it has the packet's values.
    pub(super) fn has(self) -> Statement {
        Statement::In(self.declared().lookup())
    }

    /// The same of other fields than those that it is declared with.
    pub(super) fn has_of(self, fields: &[Field]) -> Statement {
        Statement::In(self.declared().lookup_of(fields.to_vec()))
    }
}

/// All of them, in the order in which they are made.
pub(super) fn all() -> impl Iterator<Item = SetName> {
    SETS.iter().map(|(set, ..)| *set)
}
