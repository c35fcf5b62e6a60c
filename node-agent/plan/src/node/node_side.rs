//! Settings of this node: mark bits, forwarding and counters.

use std::fmt;

/// One of the 32 bits of a packet's mark.
///
/// Invariant: below 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MarkBit(u8);

impl MarkBit {
    /// The bit that means: masquerade this connection. The same as kube-proxy's `masqueradeBit`, so
    /// that the mark means the same to both.
    pub const MASQUERADE: Self = Self(14);

    /// The bit of a connection's mark (never of a packet's) that means: denizen forwarded it to an
    /// endpoint.
    pub const ADMITTED: Self = Self(12);

    /// The bit of a connection's mark (never of a packet's) that means: it was permitted, and a
    /// policy forbids it now. The firewall drops its packets.
    pub const FORBIDDEN: Self = Self(5);

    /// The bit of a connection's mark (never of a packet's) that means: IPVS forwards it to an
    /// endpoint outside this node's network namespace. The firewall checks its packets in the
    /// output hook, where IPVS sends them on.
    pub const FORWARDED_BY_IPVS: Self = Self(4);

    /// The bit of a packet's mark by which the bridge family's table tells the IP families' tables
    /// that a packet came from a pod's port. Besides kube-proxy's bit, other programs use 7 (AWS),
    /// 8 to 11 (Cilium), 13 (portmap), 15 (kubelet), and 16 to 31 (Calico).
    pub const PORT: Self = Self(6);

    /// The bit of this number; `None` if a mark has no such bit.
    pub fn new(number: u8) -> Option<Self> {
        (number < 32).then_some(Self(number))
    }

    /// The mark with only this bit set.
    pub const fn mask(self) -> u32 {
        1 << self.0
    }
}

impl fmt::Display for MarkBit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.mask())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeSide {
    /// Connections whose first packet has this bit are masqueraded. All other bits of a mark belong
    /// to others and are kept.
    pub masquerade_bit: MarkBit,
    /// Other firewalls' chains in the forward hook get rules that accept connections to endpoints.
    /// Such connections get [`MarkBit::ADMITTED`].
    pub open_forward: bool,
    /// Connections to services are counted by their address and port.
    pub count_connections: bool,
    /// A packet has this bit between a bridge's port and the IP rules, if the port is a pod's.
    pub port_bit: MarkBit,
}

impl Default for NodeSide {
    fn default() -> Self {
        Self {
            masquerade_bit: MarkBit::MASQUERADE,
            open_forward: false,
            count_connections: false,
            port_bit: MarkBit::PORT,
        }
    }
}
