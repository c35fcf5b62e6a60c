//! From decisions to the kernel. A backend never decides; it renders.

mod affinity;
pub mod chosen;

pub mod iptables;
pub mod nftables;
#[cfg(test)]
mod tests;
pub mod why;

pub use self::affinity::{Affinity, Clients, Crowded};

use std::fmt;
use std::time::Duration;

use crate::model::Family;
use crate::plan::{Capabilities, Changes, Frontend, FrontendKey, Plan};
use denizen_nft::IpVersion;

impl From<Family> for IpVersion {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4,
            Family::V6 => Self::V6,
        }
    }
}

impl From<IpVersion> for Family {
    fn from(version: IpVersion) -> Self {
        match version {
            IpVersion::V4 => Self::V4,
            IpVersion::V6 => Self::V6,
        }
    }
}

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

impl BackendName {
    /// What it can do. As in kube-proxy's iptables mode, iptables leaves alone what no service has,
    /// and it refuses in the filter table, before the nat table's chains restrict sources.
    pub fn capabilities(self) -> Capabilities {
        let able = match self {
            Self::Nftables => true,
            Self::Iptables => false,
        };
        Capabilities { unused_addresses: able, guards_loopback_first: able, restricts_first: able }
    }
}

/// Renders plans, and keeps the kernel as the last one says.
pub trait Backend {
    /// Why the kernel is not as it should be.
    type Error: std::error::Error + 'static;

    /// Takes in what is wanted: `changes` is what differs from the plan before. Pure: nothing is
    /// read or written.
    fn update(&mut self, plan: &Plan, changes: &Changes);

    /// Programs what is wanted. After an error, run it again: it starts from what it observes.
    ///
    /// # Errors
    /// The kernel's.
    fn sync(&mut self) -> Result<Repair, Self::Error>;

    /// Looks at what the kernel holds of ours and repairs what somebody else changed.
    ///
    /// # Errors
    /// As [`Self::sync`].
    fn resync(&mut self) -> Result<Repair, Self::Error>;

    /// Where it stands. Cheap: asked after every attempt.
    fn report(&mut self) -> Report;

    /// How much there is, for whoever asks now and then: it may cost as much as there is.
    fn figures(&mut self) -> Figures;

    /// Which rules of this frontend are not in the kernel, and why; empty while all of them are, as
    /// far as is known.
    fn rejected(&self, frontend: &Frontend) -> Vec<String>;

    /// Waits until [`Self::sync`] has something to do that no event tells of.
    fn wait(&mut self) -> impl Future<Output = ()>;
}

/// Where a backend stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// All that is wanted is in the kernel. A backend that executes programs is not done when
    /// [`Backend::sync`] returns; [`Backend::wait`] then tells when to call it again.
    pub settled: bool,
    /// The pods that are wanted are in the kernel, whatever became of the rest.
    pub has_pods: bool,
    /// What is rejected leaves most services served.
    pub serves: bool,
    /// What the kernel rejects and what is left out until it is wanted otherwise, in words;
    /// everything else is programmed.
    pub rejected: Vec<String>,
    /// Who else goes on writing these rules, so that nothing more is written or repaired here.
    pub contended: Option<String>,
    /// What was repaired of somebody else's changes since the last report, other than by a call of
    /// [`Backend::resync`] that said so.
    pub repaired: Repair,
    /// Frontends that an earlier run programmed, that were found when the kernel was read first,
    /// and that are none any more: flows through them are stale, and nothing else remembers them.
    /// Each is reported once.
    pub left_frontends: Vec<FrontendKey>,
    /// How often to look whether somebody else changed something.
    pub look_every: Duration,
}

impl Default for Report {
    /// All is well, as far as is known.
    fn default() -> Self {
        Self {
            settled: true,
            has_pods: false,
            serves: true,
            rejected: Vec::new(),
            contended: None,
            repaired: Repair::default(),
            left_frontends: Vec::new(),
            // Behind the kernel's own notifications.
            look_every: Duration::from_secs(600),
        }
    }
}

/// Figures of what is programmed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// How many elements each set of the rules should have.
    pub sizes: Vec<SetSize>,
    /// Packets that found no endpoint in any slot.
    pub missed_lookups: u64,
    /// How many clients are remembered for session affinity.
    pub affinity: Affinity,
    /// What could not be found out, and why.
    pub errors: Vec<String>,
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
