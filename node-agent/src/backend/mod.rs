//! From decisions to the kernel. A backend never decides; it renders.

pub mod nftables;
pub mod why;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::model::PodSet;
use crate::plan::{Detector, Door, NodeSide, Plan};

/// What a backend is told. Pure: nothing reaches a kernel by it, so that rules can be looked at without one.
pub trait Told {
    /// The pods of this node are these.
    fn set_pods(&mut self, pods: &PodSet);

    /// These addresses may be handed to themselves through a service.
    fn set_hairpins(&mut self, addresses: &BTreeSet<IpAddr>);

    /// Node ports are served on these addresses.
    fn set_node_port_addresses(&mut self, addresses: &[IpAddr]);

    /// These doors are decided otherwise, or are gone.
    fn set_doors(&mut self, plan: &Plan, doors: &BTreeSet<Door>);

    /// The picture of services, endpoints and the node is complete from now on.
    fn set_complete(&mut self);

    /// Local traffic is told apart so, from now on; `ranges` of both families are what the detector stands
    /// for, where it stands for ranges.
    fn set_detector(&mut self, detector: &Detector, ranges: &[IpNetwork]);

    /// What the operator settled about this node.
    fn set_node_side(&mut self, node_side: &NodeSide);

    /// Cluster IPs come from these ranges, of both families.
    fn set_service_ranges(&mut self, ranges: &[IpNetwork]);
}

/// A backend with a kernel.
pub trait Backend: Told {
    /// Why the kernel is not as it should be.
    type Error: std::error::Error + 'static;

    /// Programs what was told. After an error, run it again: it starts from what it observes.
    ///
    /// # Errors
    /// The kernel's.
    fn sync(&mut self) -> Result<Repair, Self::Error>;

    /// Looks at what the kernel holds of ours and repairs what somebody else changed.
    ///
    /// # Errors
    /// As [`Self::sync`].
    fn resync(&mut self) -> Result<Repair, Self::Error>;

    /// Packets that found no endpoint in any slot.
    ///
    /// # Errors
    /// The kernel's.
    fn missed_lookups(&mut self) -> Result<u64, Self::Error>;
}

/// What a look at the kernel found, and did about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repair {
    /// The table's chains or sets were not ours, and all was programmed anew.
    pub rebuilt: bool,
    /// Chains that were missing or foreign.
    pub chains: usize,
    /// Elements that were missing, wrong or foreign.
    pub elements: usize,
}

impl Repair {
    /// Everything was as it should be.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
