//! The flags about this node, beside those that decide about services.

use std::path::PathBuf;

use clap::Args;

use crate::plan::{MarkBit, NodeSide};

/// What is settled about this node, as written.
#[derive(Debug, Clone, Args)]
pub struct NodeSideArgs {
    /// The bit of a packet's mark that means: masquerade this connection; 14 is the mark 0x4000
    #[arg(long, visible_alias = "iptables-masquerade-bit", value_name = "0..31", default_value = "14", value_parser = mark_bit)]
    pub masquerade_bit: MarkBit,

    /// Where another firewall's FORWARD drops by default, put rules there that let services' connections
    /// through; `cleanup` removes them
    #[arg(long)]
    pub open_forward: bool,

    /// Masquerade what this node's pods send out of the ranges in this file, which is ip-masq-agent's
    /// configuration (nonMasqueradeCIDRs, masqLinkLocal, masqLinkLocalIPv6, resyncInterval); nftables only
    #[arg(long, value_name = "FILE")]
    pub egress_masquerade_config: Option<PathBuf>,
}

impl NodeSideArgs {
    /// As the rules need it.
    pub fn settled(&self) -> NodeSide {
        NodeSide {
            masquerade_bit: self.masquerade_bit,
            open_forward: self.open_forward,
        }
    }
}

fn mark_bit(text: &str) -> Result<MarkBit, String> {
    let bit = text.parse().ok().and_then(MarkBit::new);
    bit.ok_or_else(|| "a mark has the bits 0 to 31".to_owned())
}
