//! What the operator settled about this node, beside what decides about services.

use std::fmt;

/// One of the 32 bits of a packet's mark.
///
/// Invariant: below 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MarkBit(u8);

impl MarkBit {
    /// The bit that means: masquerade this connection. kube-proxy's `masqueradeBit`, so that a
    /// packet that both mark means the same to both.
    pub const MASQUERADE: Self = Self(14);

    /// The bit of a connection's mark (never of a packet's) that means: denizen forwarded it to an
    /// endpoint.
    pub const ADMITTED: Self = Self(12);

    /// The bit by which a bridge's table tells the IP tables through which port a packet came in.
    /// Others beside kube-proxy's use 7 (AWS), 8 to 11 (Cilium), 13 (portmap), 15 (kubelet), and 16
    /// to 31 (Calico).
    pub const PORT: Self = Self(6);

    /// The bit of this number; `None` when marks have no such bit.
    pub fn new(number: u8) -> Option<Self> {
        (number < 32).then_some(Self(number))
    }

    /// The mark with this bit alone.
    pub fn mask(self) -> u32 {
        1 << self.0
    }
}

impl fmt::Display for MarkBit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.mask())
    }
}

/// What the operator settled about this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeSide {
    /// Connections whose first packet has it are masqueraded. Every other bit of a mark is somebody
    /// else's, and is kept.
    pub masquerade_bit: MarkBit,
    /// What is forwarded to endpoints is let through others' chains in the forward hook. Such
    /// connections get [`MarkBit::ADMITTED`].
    pub open_forward: bool,
    /// On its way from a bridge's port to the IP rules, a packet has it if the port is a pod's.
    pub port_bit: MarkBit,
}

impl Default for NodeSide {
    fn default() -> Self {
        Self { masquerade_bit: MarkBit::MASQUERADE, open_forward: false, port_bit: MarkBit::PORT }
    }
}
