//! Kernel settings (sysctls, and switches of bridges) that rules depend on.
//!
//! Which settings are wanted is pure ([`setting`], [`conntrack`]). Only [`file`](mod@file) reads
//! and writes them, and [`reconciler`] remembers which could not be set.

pub mod bridge;
pub mod conntrack;
pub mod file;
pub mod hairpin;
pub mod loopback;
pub mod reconciler;
mod saved_switches;
pub mod setting;
pub mod vlan;

pub use bridge::BridgeFilter;
pub use conntrack::Conntrack;
pub use file::{SYSCTLS, value};
pub use hairpin::{HairpinMode, HairpinPorts};
pub use loopback::Loopback;
pub use reconciler::{Reconciler, cpus, set_up};
pub use setting::{
    IPVS_CONNTRACK, Setting, WantedValue, bridge_filter, for_ipvs, host_ports_on_loopback, live,
    on_loopback,
};

/// Which settings a call checks. The first call checks all, and so does each call after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckScope {
    /// Only if what is wanted has changed: cheap, for every pass.
    Changed,
    /// Also what was right at the last check: at changes of links (a changed switch of a bridge is
    /// one) and from time to time, since others may have changed it.
    All,
}
