//! iptables: services are chains, named and shaped as kube-proxy's, for nodes and habits that have
//! iptables.
//!
//! `service`, `fixed` and `egress` render the plan to rules, `ruleset` knows which chains a change
//! touches, and the text of a rule (`rule`) is the very text that `iptables-save` reads back. The
//! driver, [`crate::iptables`], brings them into the kernel; `schema` tells it about our chains.
//! Where a pod's port of a bridge must be right, the nftables backend's table of the bridge tells
//! it by a bit of the mark.

mod backend;
mod contender;
mod egress;
mod fixed;
mod name;
mod observed;
mod pods;
mod rule;
mod ruleset;
mod schema;
mod service;
mod sync;
#[cfg(test)]
mod tests;
mod text;
mod wanted;

use thiserror::Error;

pub use backend::render;
pub use name::{MARK_MASQ, OWNER, SETS, is_a_proxys};
pub use observed::is_ours;
pub use schema::SCHEMA;
pub use sync::Iptables;
pub use text::Rendering;
pub use wanted::Wanted;

use super::nftables::NftablesError;
use crate::iptables;

/// Why the rules are not as they should be.
#[derive(Debug, Error)]
pub enum IptablesError {
    /// iptables' programs, or the sets.
    #[error(transparent)]
    Driver(#[from] iptables::IptablesError),
    /// The table that tells of a bridge's ports is not as it should be.
    #[error(transparent)]
    Bridge(#[from] NftablesError),
}
