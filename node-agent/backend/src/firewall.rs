//! The pod firewall in nf_tables, whichever backend serves services.
//!
//! A constant number of chains and rules (`program`, put together by `ip_chains`) over sets and
//! maps (`schema`), whose elements are this node's pods, what they may do, and who has which
//! identity (`element`). One table for each IP version, and one for bridges (`table`), which
//! [`denizen_nft::Keeper`]s bring into the kernel. Whatever is not found is dropped: see
//! [`denizen_plan::FirewallPlan`] for what is decided.

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
