//! The flag of routes to other nodes' pods.

use clap::{Args, ValueEnum};

/// `--routing-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoutingMode {
    /// Others route.
    Off,
    /// Routes to the other nodes' pod CIDRs through their InternalIPs.
    Direct,
}

/// The flag, as written.
#[derive(Debug, Clone, Copy, Args)]
pub struct RoutingArgs {
    /// How this node reaches the pods of other nodes. off: another program sees to it. direct:
    /// routes to each Node's podCIDRs lead through its InternalIP, where that is on a network of
    /// this node's
    #[arg(long, value_enum, value_name = "MODE", default_value = "off")]
    pub routing_mode: RoutingMode,
}

impl RoutingArgs {
    /// Whether the Nodes of others are needed.
    pub(super) fn needs_nodes(self) -> bool {
        match self.routing_mode {
            RoutingMode::Off => false,
            RoutingMode::Direct => true,
        }
    }
}
