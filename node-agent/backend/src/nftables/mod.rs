//! nftables: services are data, not rules.
//!
//! A constant number of chains and rules (`program`), and maps whose elements are the services and
//! their endpoints (`lower`). One table a family, one netlink batch a change. Tables are declared
//! (`set`), and chains written (`statement`), in the terms of the driver, `denizen_nft`.

mod affinity;
mod backend;
mod bridge;
mod carried;
mod client;
mod draw;
mod element;
mod error;
mod leaving;
mod local;
mod lower;
mod name;
mod number;
mod probe;
mod program;
mod rejected;
mod rule;
mod salvage;
mod set;
mod statement;
mod sync;
mod table;
mod table_config;
mod table_state;
#[cfg(test)]
mod tests;
mod write;

pub use backend::render;
pub use error::NftablesError;
pub use name::TABLE;
pub use probe::{probe, probe_arp, probe_ports};
pub use sync::{Nftables, NoKernel};
