//! Connections of local pods to destinations that are not services.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use denizen_model::{Egress, Family, family_of};

/// Egress masquerade: towards which destinations pods keep their address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EgressMasquerade {
    /// By family; `None` if nothing of the family is masqueraded.
    kept: [Option<Vec<IpNetwork>>; 2],
}

/// The source address that a destination sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenAs {
    /// The pod's, because the destination is in this range.
    Pod(IpNetwork),
    /// The node's.
    Node,
}

impl EgressMasquerade {
    /// From the configuration; `None` if egress masquerade is off.
    pub fn new(egress: Option<&Egress>) -> Self {
        let kept = |family| {
            let egress = egress.filter(|egress| egress.covers(family))?;
            Some(egress.kept(family).collect())
        };
        Self { kept: Family::BOTH.map(kept) }
    }

    /// The ranges of this family towards which pods keep their address; `None` if nothing of the
    /// family is masqueraded.
    pub fn kept(&self, family: Family) -> Option<&[IpNetwork]> {
        self.kept[family as usize].as_deref()
    }

    /// The source address that a destination sees, after services are translated; `None` if denizen
    /// does not decide it.
    pub fn seen_as(&self, destination: IpAddr) -> Option<SeenAs> {
        let mut kept = self.kept(family_of(destination))?.iter();
        let range = kept.find(|range| range.contains(destination));
        Some(range.map_or(SeenAs::Node, |range| SeenAs::Pod(*range)))
    }
}
