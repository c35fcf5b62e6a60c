//! From decisions to the kernel. A backend never decides; it renders.

mod affinity;
pub mod chosen;

pub mod iptables;
pub mod nftables;
pub mod why;

pub use self::affinity::{Affinity, Clients, Crowded};

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::model::{Egress, Family, PodSet};
use crate::plan::{Detector, Frontend, FrontendKey, NodePortAddresses, NodeSide, Plan};

/// A backend, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendName {
    /// Services are data in maps of nf_tables.
    Nftables,
    /// Services are chains of iptables, as kube-proxy's.
    Iptables,
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        })
    }
}

/// What a backend is told. Pure: nothing reaches a kernel by it, so that rules can be looked at
/// without one.
pub trait Told {
    /// The pods of this node are these.
    fn set_pods(&mut self, pods: &PodSet);

    /// These addresses may be handed to themselves through a service.
    fn set_hairpins(&mut self, addresses: &BTreeSet<IpAddr>);

    /// Node ports are served there; `addresses` are those that `wanted` stands for now.
    fn set_node_port_addresses(&mut self, wanted: &NodePortAddresses, addresses: &[IpAddr]);

    /// Load balancers ask at these ports of the node whether it serves. Only a backend that accepts
    /// packets at all has to do anything about it.
    fn set_health_ports(&mut self, ports: &BTreeSet<NonZeroU16>);

    /// These frontends are decided otherwise, or are gone.
    fn set_frontends(&mut self, plan: &Plan, keys: &BTreeSet<FrontendKey>);

    /// The picture of services, endpoints and the node is complete from now on.
    fn set_complete(&mut self);

    /// Local traffic is told apart so, from now on; `ranges` of both families are what the detector
    /// stands for, where it stands for ranges.
    fn set_detector(&mut self, detector: &Detector, ranges: &[IpNetwork]);

    /// What local pods send beyond these ranges is masqueraded; `None`: denizen leaves that to
    /// others.
    fn set_egress(&mut self, egress: Option<&Egress>);

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

    /// How many elements each set of the rules should have.
    fn sizes(&self) -> Vec<SetSize> {
        Vec::new()
    }

    /// Frontends that an earlier run programmed, that were found when the kernel was read first,
    /// and that are none any more: flows through them are stale, and nothing else remembers them.
    /// Each is told once.
    fn left_frontends(&mut self) -> Vec<FrontendKey> {
        Vec::new()
    }

    /// Packets that found no endpoint in any slot.
    ///
    /// # Errors
    /// The kernel's.
    fn missed_lookups(&mut self) -> Result<u64, Self::Error>;

    /// How many clients are remembered for session affinity.
    ///
    /// # Errors
    /// The kernel's.
    fn affinity(&mut self) -> Result<Affinity, Self::Error> {
        Ok(Affinity::default())
    }

    /// Whether all that was told is in the kernel. A backend that executes programs is not done
    /// when [`Self::sync`] returns; [`Self::news`] then tells when to call it again.
    fn is_settled(&self) -> bool {
        true
    }

    /// Whether the pods that were told are in the kernel, whatever became of the rest.
    fn has_pods(&self) -> bool {
        false
    }

    /// How often to look whether somebody else changed something.
    fn look_every(&self) -> Duration {
        // Behind the kernel's own notifications.
        Duration::from_secs(600)
    }

    /// What was repaired of somebody else's changes since this was last asked, other than by a call
    /// of [`Self::resync`] that said so.
    fn repaired(&mut self) -> Repair {
        Repair::default()
    }

    /// What was refused and is left out until it is wanted otherwise, in words; everything else is
    /// programmed.
    fn refused(&self) -> Vec<String> {
        Vec::new()
    }

    /// Which rules of this frontend are not in the kernel, and why; empty while all of them are, as
    /// far as is known.
    fn rejected(&self, _frontend: &Frontend) -> Vec<String> {
        Vec::new()
    }

    /// Whether what is refused leaves most services served.
    fn serves(&self) -> bool {
        true
    }

    /// Who else goes on writing these rules, so that nothing more is written or repaired here.
    fn contended(&self) -> Option<&str> {
        None
    }

    /// Waits until [`Self::sync`] has something to do that no event tells of.
    fn news(&mut self) -> impl Future<Output = ()> {
        std::future::pending()
    }
}

/// How many elements one set or map of one family should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetSize {
    /// The family.
    pub family: Family,
    /// The set's name in the kernel.
    pub set: String,
    /// How many.
    pub elements: usize,
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
