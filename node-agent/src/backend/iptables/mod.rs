//! iptables: services are chains, named and shaped as kube-proxy's, for nodes and habits that have
//! iptables.
//!
//! `service` and `fixed` lower the plan to rules, `ruleset` knows which chains a change touches,
//! and the text of a rule (`rule`) is the very text that `iptables-save` reads back. `save` and
//! `edit` compare with what the kernel holds; `tools` executes the programs, in a `worker` thread;
//! `ipset` and `removal` speak netlink. Where a pod's port of a bridge must be right, the nftables
//! backend's table of the bridge tells it by a bit of the mark.

mod backend;
mod cleanup;
mod contender;
mod edit;
mod egress;
mod family_writer;
mod fixed;
mod ipset;
mod isolate;
mod name;
mod pods;
mod refusal;
mod refusals;
mod removal;
mod rule;
mod ruleset;
mod save;
mod search;
mod service;
mod sync;
#[cfg(test)]
mod tests;
mod text;
mod told;
mod tools;
mod worker;

pub use cleanup::{cleanup, cleanup_other_than, was_here};
pub use name::Whose;
pub use sync::Iptables;
pub use text::Rendering;
pub use told::Wanted;
pub use tools::{IptablesError, Variant};
