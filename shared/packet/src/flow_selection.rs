//! A part of the conntrack table.

use std::fmt;

use crate::{Family, Protocol, TrackedFlow};

/// Selects flows of the conntrack table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowSelection {
    /// The family of the flows' packets.
    pub family: Family,
    /// The flows' transport protocol; `None` for any.
    pub protocol: Option<Protocol>,
    /// Whether only TCP connections whose SYN is unanswered are selected.
    pub unanswered_syns: bool,
}

impl FlowSelection {
    /// Whether a flow is selected.
    pub fn has(&self, flow: &TrackedFlow) -> bool {
        self.family == flow.family()
            && self.protocol.is_none_or(|protocol| flow.protocol() == Some(protocol))
            && (!self.unanswered_syns || flow.is_unanswered_syn)
    }

    /// Whether a flow is selected, and stays so until it ends. An unanswered SYN may be answered.
    pub fn keeps(&self, flow: &TrackedFlow) -> bool {
        !self.unanswered_syns && self.has(flow)
    }
}

impl fmt::Display for FlowSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.family.fmt(f)?;
        if let Some(protocol) = self.protocol {
            write!(f, ", {protocol}")?;
        }
        if self.unanswered_syns { f.write_str(", unanswered SYNs") } else { Ok(()) }
    }
}
