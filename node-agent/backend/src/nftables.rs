//! nftables: services are data, not rules.
//!
//! A constant number of chains and rules (`program`) looks up maps whose elements are the services
//! and their endpoints (`lower`). There is one table per family, and each change is one netlink
//! batch. Tables are declared (`name`), and chains written (`rule`), in the terms of the driver,
//! `denizen_nft`; its [`Keeper`](denizen_nft::Keeper) brings the kernel to what a `Table` holds.

mod affinity;
mod backend;
mod client;
mod draw;
mod element;
mod leaving;
mod local;
mod lower;
mod name;
mod number;
mod probe;
mod program;
mod rule;
mod source_range;
mod table;
mod table_config;
#[cfg(test)]
mod tests;

pub(crate) use backend::Programmed;
pub use backend::{Nftables, NoKernel, render};
pub use leaving::only_refuse;
pub use name::TABLE;
pub use probe::{probe, probe_arp, probe_ports};
