//! The kernel's tracked connections in terms of pods and services, for `denizen-agent connections`.
//!
//! The command reads them itself, through a netlink socket of its own, and asks the running agent
//! only for names: the agent's loop does not wait for a dump of a large table. Nothing is kept:
//! each entry is decoded as it comes (`tracked`), named (`connection`), and counted (`totals`). The
//! status page has the same in short (`summary`).

mod connection;
mod filter;
mod reader;
mod summary;
#[cfg(test)]
mod tests;
mod totals;
mod tracked;

pub use connection::NamedConnection;
pub use filter::{ConnectionFilter, NoSuchName};
pub use reader::{ConnectionReader, TrackedEvent};
pub use summary::{Summary, SummaryBuilder};
pub use totals::{ServiceTotal, Totals};
pub use tracked::Tracked;
