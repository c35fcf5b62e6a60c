//! nftables: services are data, not rules.
//!
//! A constant number of chains and rules (`program`), and maps whose elements are the services and
//! their endpoints (`lower`). One table a family, one netlink batch a change (`kernel`).

mod affinity;
mod backend;
mod bridge;
mod client;
mod draw;
mod dump;
mod element;
mod encode;
mod expression;
pub mod foreign;
mod isolate;
mod kernel;
mod local;
mod lower;
mod message;
mod name;
mod number;
mod probe;
mod program;
mod rejected;
mod rule;
mod salvage;
mod set;
mod shape;
mod structure;
mod sync;
mod table;
mod table_state;
#[cfg(test)]
mod tests;
mod text;
mod watch;
mod write;

pub use foreign::remove_kube_proxys;
pub use kernel::{Kernel, NftablesError};
pub use message::kind;
pub use probe::{probe, probe_ports};
pub use sync::{Nftables, NoKernel};
pub use text::Rendering;
pub use watch::Watch;
