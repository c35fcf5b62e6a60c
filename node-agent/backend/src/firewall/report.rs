//! Counters and state of the firewall's tables.

use serde::{Deserialize, Serialize};

use super::drop_reason::DropReason;
use denizen_nft::{Chain, Kernel, NftError, Schema};

/// Packets dropped, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Dropped {
    /// No policy permitted them to reach a pod.
    pub ingress: u64,
    /// No policy permitted a pod to send them.
    pub egress: u64,
    /// The pod's policies were not known yet.
    pub pending: u64,
    /// A policy forbids their connections since these were established.
    pub forbidden: u64,
    /// A pod's interface sent them with another address.
    pub spoofed: u64,
    /// Frames of pods that no rule can look into: tagged, or neither IPv4, IPv6 nor ARP.
    #[serde(default)]
    pub frame: u64,
    /// Pods announced routes.
    #[serde(default)]
    pub router: u64,
    /// Pods sent them to tunnels of nodes.
    #[serde(default)]
    pub tunnel: u64,
}

/// The firewall's state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FirewallReport {
    /// Elements in all sets together.
    pub elements: usize,
    /// Changes of elements that are decided and not in the kernel yet.
    pub waiting: usize,
    /// What the kernel rejected, as text.
    pub rejected: Vec<String>,
    /// Packets dropped since the rules were made.
    pub dropped: Dropped,
    /// Figures that could not be read, and why.
    pub errors: Vec<String>,
}

impl Dropped {
    fn slot(&mut self, reason: DropReason) -> &mut u64 {
        use denizen_plan::Direction::{Egress, Ingress};
        match reason {
            DropReason::Refused(Ingress) => &mut self.ingress,
            DropReason::Refused(Egress) => &mut self.egress,
            DropReason::Pending => &mut self.pending,
            DropReason::Forbidden => &mut self.forbidden,
            DropReason::Spoofed => &mut self.spoofed,
            DropReason::Frame => &mut self.frame,
            DropReason::Router => &mut self.router,
            DropReason::Tunnel => &mut self.tunnel,
        }
    }

    /// Adds what the rules of a table have counted.
    pub(super) fn add(
        &mut self,
        kernel: &mut Kernel,
        schema: &Schema,
        chains: &[Chain],
    ) -> Result<(), NftError> {
        let counted = kernel.packets_by_reason(schema, chains, |rule| {
            DropReason::ALL.into_iter().find(|reason| reason.text() == rule.why)
        })?;
        counted.into_iter().for_each(|(reason, packets)| *self.slot(reason) += packets);
        Ok(())
    }
}
