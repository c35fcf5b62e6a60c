//! The sets of the table of bridges.

use denizen_model::Family;
use denizen_nft::{Field, Set, SetDeclaration, SetId, Statement};

/// A set of the table; [`SETS`] declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BridgeSet {
    Ports,
    Restricted,
    Addresses4,
    Addresses6,
    Targets,
    Macs,
    TakenMacs,
    Taken4,
    Taken6,
    TakenTargets,
    Nodes4,
    Nodes6,
    TunnelPorts,
    TunnelProtocols,
    IngressIsolated,
    EgressIsolated,
    CutOff,
    NodeVeths,
}

/// In the order in which they are created.
const SETS: [SetDeclaration<BridgeSet>; 18] = {
    use Field::{
        DestinationPort, EtherSource, InputInterface, NeighbourTarget, OutputInterface, Protocol,
    };
    const S4: Field = Field::Source(Family::V4);
    const S6: Field = Field::Source(Family::V6);
    const D4: Field = Field::Destination(Family::V4);
    const D6: Field = Field::Destination(Family::V6);
    [
        SetDeclaration::new(BridgeSet::Ports, "pod-ports", &[InputInterface])
            .why("ports of local pods"),
        SetDeclaration::new(BridgeSet::Restricted, "restricted-ports", &[InputInterface])
            .why("ports of local pods that a policy restricts"),
        SetDeclaration::new(BridgeSet::Addresses4, "pod-addresses", &[InputInterface, S4])
            .why("the IPv4 addresses of the pod behind each port"),
        SetDeclaration::new(BridgeSet::Addresses6, "pod-addresses6", &[InputInterface, S6])
            .why("the IPv6 addresses of the pod behind each port"),
        SetDeclaration::new(BridgeSet::Targets, "pod-targets", &[InputInterface, NeighbourTarget])
            .why("the same, as neighbour advertisements have them"),
        SetDeclaration::new(BridgeSet::Macs, "pod-macs", &[InputInterface, EtherSource])
            .why("the Ethernet address of the pod behind each port"),
        SetDeclaration::new(BridgeSet::TakenMacs, "taken-macs", &[EtherSource])
            .why("the Ethernet addresses of local pods and of bridges"),
        SetDeclaration::new(BridgeSet::Taken4, "taken", &[S4])
            .why("the IPv4 addresses of pods and nodes"),
        SetDeclaration::new(BridgeSet::Taken6, "taken6", &[S6])
            .why("the IPv6 addresses of pods and nodes"),
        SetDeclaration::new(BridgeSet::TakenTargets, "taken-targets", &[NeighbourTarget])
            .why("the same, as neighbour advertisements have them"),
        SetDeclaration::new(BridgeSet::Nodes4, "nodes", &[D4]).why("the IPv4 addresses of nodes"),
        SetDeclaration::new(BridgeSet::Nodes6, "nodes6", &[D6]).why("the IPv6 addresses of nodes"),
        SetDeclaration::new(BridgeSet::TunnelPorts, "tunnel-ports", &[Protocol, DestinationPort])
            .why("where the node takes packets out of packets"),
        SetDeclaration::new(BridgeSet::TunnelProtocols, "tunnel-protocols", &[Protocol])
            .why("by which the node takes packets out of packets"),
        SetDeclaration::new(BridgeSet::IngressIsolated, "ingress-isolated", &[OutputInterface])
            .why("ports of local pods that a policy isolates for ingress"),
        SetDeclaration::new(BridgeSet::EgressIsolated, "egress-isolated", &[InputInterface])
            .why("ports of local pods that a policy isolates for egress"),
        SetDeclaration::new(BridgeSet::CutOff, "cut-off", &[InputInterface])
            .why("ports of restricted pods whose frames IP rules do not see"),
        SetDeclaration::new(BridgeSet::NodeVeths, "node-veths", &[InputInterface])
            .why("veths by which the node itself is behind a port"),
    ]
};

impl BridgeSet {
    pub(super) fn id(self) -> SetId {
        SetId(self as u8)
    }

    /// The driver's set.
    pub(super) fn declared(self) -> Set {
        SETS[self as usize].declared(self.id())
    }

    /// Matches packets whose values are in the set.
    pub(super) fn has(self) -> Statement {
        Statement::In(self.declared().lookup())
    }

    /// As [`Self::has`], with other fields than those of the declaration.
    pub(super) fn has_of(self, fields: &[Field]) -> Statement {
        Statement::In(self.declared().lookup_of(fields.to_vec()))
    }
}

pub(super) fn all() -> impl Iterator<Item = BridgeSet> {
    SETS.iter().map(|declaration| declaration.set)
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
