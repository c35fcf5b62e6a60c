//! Who would gain or lose access if policies were applied or deleted.
//!
//! Two plans are compared: one of the current facts, and one of the facts after the change. The
//! firewall's own code makes both, as if one node had a pod of each kind. Pods that no policy can
//! tell apart form one *profile*. Only profiles are compared with each other, not pods: even large
//! clusters have only some hundreds of profiles.
//!
//! A node is treated as a node other than the pod's own: a pod's own node can always reach it.
//!
//! | file | does |
//! | --- | --- |
//! | `facts` | reduces the facts to what policies can tell apart, and plans |
//! | `end` | the ends of connections: pods, nodes, other addresses |
//! | `compared_plan` | one of the two plans: what passes, and which policy decides |
//! | `compare` | compares profiles, and folds rows that are equal |

mod compare;
mod compared_plan;
mod end;
mod facts;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use self::compare::PlanComparison;
use self::facts::ImpactInputs;
use crate::{AddressRange, Decider, Direction, PermittedPorts};
use denizen_model::{Event, Family, PodName};

/// What a change of policies would change.
#[derive(Debug)]
pub struct Impact {
    /// All ends that were compared.
    pub ends: Vec<ImpactEnd>,
    /// Groups of ends that no policy distinguishes, as indices into [`Self::ends`].
    pub profiles: Vec<Vec<usize>>,
    pub rows: Vec<ImpactRow>,
    /// The families of the pods' addresses.
    pub families: Vec<Family>,
    /// Pods that are not compared, because they have no address yet, or no longer.
    pub without_address: Vec<PodName>,
    /// Addresses of pods and nodes, as indices into [`Self::ends`].
    addresses: HashMap<IpAddr, usize>,
    /// The ranges that nodes give their pods addresses from.
    pod_ranges: Vec<IpNetwork>,
}

impl Impact {
    /// Who has an address, as an index into [`Self::ends`]. `None` if that is not known: no pod has
    /// it, but a node may give it to one.
    pub fn end_at(&self, address: IpAddr) -> Option<usize> {
        if let Some(place) = self.addresses.get(&address) {
            return Some(*place);
        }
        if self.pod_ranges.iter().any(|range| range.contains(address)) {
            return None;
        }
        let is_there = |end: &ImpactEnd| match end {
            ImpactEnd::Range(range) => (range.first..=range.last).contains(&address),
            ImpactEnd::Pod(_) | ImpactEnd::Node(_) | ImpactEnd::Elsewhere => false,
        };
        let is_elsewhere = |end: &ImpactEnd| *end == ImpactEnd::Elsewhere;
        let range = self.ends.iter().position(is_there);
        range.or_else(|| self.ends.iter().position(is_elsewhere))
    }
}

/// One end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImpactEnd {
    Pod(PodName),
    /// A node, or a pod that uses its node's network: the name, or the address if it is unknown.
    Node(Arc<str>),
    /// Addresses outside the cluster that policies name.
    Range(AddressRange),
    /// All other addresses.
    Elsewhere,
}

/// Access is gained or lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AccessChange {
    Lost,
    Gained,
}

/// The same change for all pairs of these subjects and peers. A pod is never its own peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImpactRow {
    pub change: AccessChange,
    /// The direction whose policies decide: if both refuse, the one that a packet reaches first.
    pub direction: Direction,
    /// The pods whose policies decide, as indices into [`Impact::profiles`].
    pub subjects: Vec<usize>,
    /// The ends that send to the subjects or receive from them, as indices into
    /// [`Impact::profiles`].
    pub peers: Vec<usize>,
    /// The destination's ports.
    pub ports: PermittedPorts,
    pub families: Vec<Family>,
    /// Who decides now.
    pub before: Decider,
    /// Who would decide.
    pub after: Decider,
}

/// What `change` would change: events of policies. `facts`: the current Namespaces, pods, policies
/// and Nodes, every Node as [`Event::OtherNode`].
pub fn impact(facts: Vec<Event>, change: Vec<Event>) -> Impact {
    let facts = ImpactInputs::new(facts, &change);
    let before = facts.plan(&[]);
    let after = facts.plan(&change);
    PlanComparison::new(&facts, &before, &after, &change).run()
}
