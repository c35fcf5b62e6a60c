//! iptables: services are chains with kube-proxy's names and structure, for nodes that have
//! iptables and people who know it.
//!
//! `service`, `fixed` and `egress` render the plan to rules; `ruleset_config` has the node's part
//! of the plan for them. `ruleset` knows which chains a change touches, and the text of a rule
//! (`rule`) is the same that `iptables-save` prints. The driver, [`denizen_iptables`], writes them
//! to the kernel; `schema` describes our chains for it. If the port of a bridge matters, the
//! nftables backend's bridge table passes it on as a bit of the mark.

mod backend;
mod contender;
mod desired_rules;
mod drop_counters;
mod egress;
mod fixed;
mod name;
mod observed;
mod pods;
mod rule;
mod ruleset;
mod ruleset_config;
mod schema;
mod service;
mod sync;
#[cfg(test)]
mod tests;
mod text;

use thiserror::Error;

pub use backend::render;
pub use contender::processes_called;
pub use desired_rules::DesiredRules;
pub use name::{MARK_MASQ, OWNER, SETS, is_a_proxys};
pub use observed::is_ours;
pub use schema::SCHEMA;
pub use sync::Iptables;
pub use text::IptablesRendering;

use denizen_iptables as iptables;

/// Why the rules could not be programmed.
#[derive(Debug, Error)]
pub enum IptablesError {
    /// iptables' programs or the sets failed.
    #[error(transparent)]
    Driver(#[from] iptables::IptablesError),
    /// The bridge's table could not be programmed.
    #[error(transparent)]
    Bridge(#[from] denizen_nft::NftError),
}
