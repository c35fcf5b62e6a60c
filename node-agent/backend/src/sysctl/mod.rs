//! Kernel settings (sysctls, and switches of bridges) that rules depend on.
//!
//! Which settings are wanted is pure ([`setting`], [`conntrack`]). Only [`file`](mod@file) reads
//! and writes them, and [`reconciler`] remembers which could not be set.

pub mod bridge;
pub mod conntrack;
pub mod file;
mod former_switches;
pub mod hairpin;
pub mod loopback;
pub mod reconciler;
pub mod setting;
pub mod vlan;

pub use bridge::BridgeFilter;
pub use conntrack::Conntrack;
pub use file::{SYSCTLS, value};
pub use hairpin::{HairpinMode, HairpinPorts};
pub use loopback::Loopback;
pub use reconciler::{Reconciler, cpus, set_up};
pub use setting::{
    IPVS_CONNTRACK, Setting, Wanted, bridge_filter, for_ipvs, host_ports_on_loopback, live,
    on_loopback,
};
