//! What becomes of connections of local pods beyond services.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::model::{Egress, Family, family_of};

/// Egress masquerade: towards which destinations pods keep their address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EgressMasquerade {
    /// By family; `None` where nothing of it is masqueraded.
    kept: [Option<Vec<IpNetwork>>; 2],
}

/// Whose address a destination sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenAs {
    /// The pod's, for the destination lies in this range.
    Pod(IpNetwork),
    /// The node's.
    Node,
}

impl EgressMasquerade {
    /// As the operator asks for it; `None`: that is left to others.
    pub fn new(egress: Option<&Egress>) -> Self {
        let kept = |family| {
            let asked = egress.filter(|egress| egress.covers(family))?;
            Some(asked.kept(family).collect())
        };
        Self { kept: Family::BOTH.map(kept) }
    }

    /// The ranges of this family towards which pods keep their address; `None` where nothing of
    /// the family is masqueraded.
    pub fn kept(&self, family: Family) -> Option<&[IpNetwork]> {
        self.kept[family as usize].as_deref()
    }

    /// As whom a pod is seen by a destination that is no service's any more; `None` where denizen
    /// has no say in it.
    pub fn seen_as(&self, destination: IpAddr) -> Option<SeenAs> {
        let mut kept = self.kept(family_of(destination))?.iter();
        let range = kept.find(|range| range.contains(destination));
        Some(range.map_or(SeenAs::Node, |range| SeenAs::Pod(*range)))
    }
}
