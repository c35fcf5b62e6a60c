//! The flags for this node's marks, forwarding, counters and egress masquerade.

use std::path::PathBuf;

use clap::Args;

use super::ConfigError;
use denizen_plan::{MarkBit, NodeSide};

/// The flags for this node, as written.
#[derive(Debug, Clone, Args)]
pub struct NodeSideArgs {
    /// The bit of the packet mark for connections to masquerade; 14 is the mark 0x4000
    #[arg(
        long,
        visible_alias = "iptables-masquerade-bit",
        value_name = "0..31",
        default_value = "14",
        value_parser = mark_bit
    )]
    pub masquerade_bit: MarkBit,

    /// The bit of the packet mark that --detect-local bridge-port and pod-state=port-exact set in
    /// the bridge family for the IP rules; 6 is the mark 0x40
    #[arg(long, value_name = "0..31", default_value = "6", value_parser = mark_bit)]
    pub bridge_port_bit: MarkBit,

    /// If another firewall's FORWARD chain drops by default, add rules there that accept
    /// connections to services and host ports; `cleanup` removes them
    #[arg(long)]
    pub open_forward: bool,

    /// Count connections to each service port: denizen_service_connections_total. With services in
    /// iptables it has no effect, and `status` warns
    #[arg(long)]
    pub service_metrics: bool,

    /// Masquerade what local pods send outside the ranges in this file, ip-masq-agent's
    /// configuration (nonMasqueradeCIDRs, masqLinkLocal, masqLinkLocalIPv6, resyncInterval)
    #[arg(long, value_name = "FILE")]
    pub egress_masquerade_config: Option<PathBuf>,
}

impl NodeSideArgs {
    /// Checks the flags.
    ///
    /// # Errors
    /// [`ConfigError::SameBit`].
    pub fn check(&self) -> Result<NodeSide, ConfigError> {
        let side = NodeSide {
            masquerade_bit: self.masquerade_bit,
            port_bit: self.bridge_port_bit,
            open_forward: self.open_forward,
            count_connections: self.service_metrics,
        };
        if side.masquerade_bit == side.port_bit {
            return Err(ConfigError::SameBit(side.port_bit));
        }
        Ok(side)
    }
}

fn mark_bit(text: &str) -> Result<MarkBit, String> {
    let bit = text.parse().ok().and_then(MarkBit::new);
    bit.ok_or_else(|| "a bit of the mark is a number from 0 to 31".to_owned())
}
