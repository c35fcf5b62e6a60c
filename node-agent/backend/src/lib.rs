//! Backends program the kernel from a plan. A backend renders and never decides.

mod affinity;
pub mod chosen;
pub mod firewall;
pub mod forward;
pub mod host_ports;
pub mod iptables;
pub mod ipvs;
pub mod kube_ipvs0;
mod loopback;
pub mod nftables;
pub mod portmap;
pub mod refusals;
mod service_drops;
pub mod sysctl;
pub mod takeover;
#[cfg(test)]
mod tests;
pub mod why;

pub use self::affinity::{Affinity, Clients, FullMapCounts};
pub use self::service_drops::{ServiceDropReason, ServiceDrops};
pub use denizen_iptables::RestoreFailures;
pub use denizen_nft::Repair;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use denizen_model::{Family, Protocol};
use denizen_plan::{Capabilities, Frontend, FrontendKey, Listed, Plan, PlanChanges};

/// A backend, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendName {
    /// Services are data in maps of nf_tables.
    Nftables,
    /// Services are chains of iptables, as kube-proxy's.
    Iptables,
    /// As [`Self::Nftables`], and IPVS balances where it can.
    Ipvs,
    /// Another program serves services.
    None,
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::None => "none",
        })
    }
}

impl BackendName {
    /// The backend with this name, as `--backend` has it.
    pub fn named(text: &str) -> Option<Self> {
        let all = [Self::Nftables, Self::Iptables, Self::Ipvs, Self::None];
        all.into_iter().find(|name| name.to_string() == text)
    }

    /// Whether it counts connections to services.
    pub fn counts_connections(self) -> bool {
        match self {
            Self::Nftables | Self::Ipvs => true,
            Self::Iptables | Self::None => false,
        }
    }

    /// Its capabilities. As in kube-proxy's iptables mode, iptables leaves addresses and ports
    /// without a service alone. It refuses a service without endpoints in the filter table,
    /// whatever the source: only frontends with endpoints check source ranges.
    pub fn capabilities(self) -> Capabilities {
        let able = match self {
            Self::Nftables | Self::Ipvs => true,
            Self::Iptables | Self::None => false,
        };
        Capabilities {
            unused_addresses: able,
            guards_loopback_first: able,
            restricts_first: able,
            balances_by_ipvs: self == Self::Ipvs,
        }
    }
}

/// Renders plans, and keeps the kernel as the last plan says.
pub trait Backend {
    /// Why programming failed.
    type Error: std::error::Error + 'static;

    /// Takes a new plan. `changes` is the difference from the plan before. Pure: nothing is read or
    /// written.
    fn update(&mut self, plan: &Plan, changes: &PlanChanges);

    /// Programs the plan. After an error, call it again: it starts from what it observes.
    ///
    /// # Errors
    /// The kernel's.
    fn sync(&mut self) -> Result<Repair, Self::Error>;

    /// Reads our rules from the kernel and repairs what others changed.
    ///
    /// # Errors
    /// As [`Self::sync`].
    fn resync(&mut self) -> Result<Repair, Self::Error>;

    /// A cheap check whether others removed what is programmed. If so, call [`Self::resync`].
    fn has_foreign_change(&mut self) -> bool {
        false
    }

    /// The state after an attempt. Cheap.
    fn report(&mut self) -> Report;

    /// Figures for status and metrics. The cost grows with the number of services.
    fn figures(&mut self) -> Figures;

    /// Turns on or off, with the next [`Self::sync`], that rules show the packets that they drop or
    /// refuse ([`denizen_nft::sampled`]). Returns whether this backend can.
    fn sample_drops(&mut self, on: bool) -> bool;

    /// The rejected rules of this frontend, with the reasons; empty if none is known.
    fn rejected(&self, frontend: &Frontend) -> Vec<String>;

    /// The kernel's real servers of the virtual server at this frontend, in the kernel's order;
    /// `None` if there is no virtual server, or it is not ready for connections.
    fn listed(&mut self, _server: &FrontendKey) -> Option<Vec<Listed>> {
        None
    }

    /// Waits until [`Self::sync`] has something to do without a new plan.
    fn wait(&mut self) -> impl Future<Output = ()>;
}

/// The state of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The whole plan is in the kernel. A backend that executes programs is not done when
    /// [`Backend::sync`] returns; [`Backend::wait`] returns when to call it again.
    pub is_programmed: bool,
    /// The plan's pods are in the kernel, even if the rest is not.
    pub has_pods: bool,
    /// Most services are served in spite of rejected rules.
    pub serves: bool,
    /// The rules that the kernel rejects, as text. Everything else is programmed.
    pub rejected: Vec<String>,
    /// The other program that keeps rewriting these rules. Nothing more is written or repaired.
    pub contended: Option<String>,
    /// Repairs of others' changes since the last report, except those that [`Backend::resync`]
    /// returned.
    pub repaired: Repair,
    /// Frontends of an earlier run that were found in the kernel at the start and no longer exist.
    /// Flows through them are stale, and nothing else remembers them. Each is reported once.
    pub left_frontends: Vec<FrontendKey>,
    /// How often to look for changes by others.
    pub resync_interval: Duration,
    /// The endpoints that drain now.
    pub draining: BTreeSet<Draining>,
}

/// An endpoint that keeps its connections and gets no new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Draining {
    /// The frontend that chose it.
    pub frontend: FrontendKey,
    pub endpoint: SocketAddr,
}

/// The connections that an endpoint has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointConnections {
    /// Established connections.
    pub active: u32,
    /// Connections that are closing or closed.
    pub inactive: u32,
}

/// Established connections that ended because their endpoint was removed, since IPVS is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndedConnections {
    /// The endpoint's pod had ended.
    pub pod_ended: u64,
    /// They were open for longer than an endpoint drains.
    pub timed_out: u64,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            is_programmed: true,
            has_pods: false,
            serves: true,
            rejected: Vec::new(),
            contended: None,
            repaired: Repair::default(),
            left_frontends: Vec::new(),
            // The kernel's notifications report most changes earlier.
            resync_interval: Duration::from_secs(600),
            draining: BTreeSet::new(),
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
    /// What the rules dropped and refused since they were made; `None` if it is not known.
    pub drops: Option<ServiceDrops>,
    /// With `--service-metrics`: connections to services, counted when they begin. A counter is
    /// removed a day after its last connection, and then begins anew.
    pub connections: BTreeMap<FrontendConnections, u64>,
    /// With iptables: failed writes of each family's rules.
    pub restore_failures: [RestoreFailures; 2],
    /// The figures of session affinity.
    pub affinity: Affinity,
    /// The connections of each draining endpoint.
    pub draining: BTreeMap<Draining, EndpointConnections>,
    /// Connections that ended with their endpoint.
    pub ended: EndedConnections,
    /// Figures that could not be read, and why.
    pub errors: Vec<String>,
}

/// What connections to services are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontendConnections {
    /// Their original destination: an address of a service or, with a node port, of the node.
    pub at: SocketAddr,
    pub protocol: Protocol,
}

/// How many elements one set or map of one family should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetSize {
    pub family: Family,
    /// The set's name in the kernel.
    pub set: String,
    pub elements: usize,
}
