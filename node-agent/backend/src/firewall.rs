//! The pod firewall in nf_tables, whichever backend serves services.
//!
//! The number of chains and rules is constant (`program`; `ip_chains` puts the chains together).
//! They look up sets and maps (`schema`), whose elements are this node's pods, their permissions,
//! and the identities of addresses (`element`). There is one table for each IP version and one for
//! bridges (`table`); [`denizen_nft::Keeper`]s bring them into the kernel. What an isolated pod
//! sends or receives is dropped unless a look-up permits it: [`denizen_plan::FirewallPlan`] decides
//! what is permitted.

mod attached;
mod bridge;
mod drop_reason;
mod element;
mod forwarded_by_ipvs;
mod ip_chains;
mod neighbour;
mod noted;
mod number;
pub mod other_engine;
mod pod_elements;
mod port_range;
mod program;
mod records;
mod report;
mod rule;
mod schema;
mod sync;
mod table;
#[cfg(test)]
mod tests;
mod tunnel;

pub use denizen_state::firewall::TABLE;

pub use self::drop_reason::refused_text;
pub use self::records::Records;
pub use self::report::{Dropped, FirewallReport};
pub use self::sync::{Firewall, probe, remove_left_over, render};
