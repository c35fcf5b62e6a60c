//! The reasons for which the firewall's rules drop packets.

use denizen_plan::Direction;

/// Why a rule drops packets, as far as the counters distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// No policy permits it.
    Refused(Direction),
    /// The pod's policies are not known yet.
    Pending,
    /// It belongs to a connection that was permitted once and is now forbidden.
    Forbidden,
    /// The source is not the pod's.
    Spoofed,
    /// A frame that no rule can look into: tagged, or neither IPv4, IPv6 nor ARP.
    Frame,
    /// It announces a route: pods are no routers.
    Router,
    /// It is for a tunnel of a node, where it would come out with any source.
    Tunnel,
}

impl DropReason {
    pub const ALL: [Self; 8] = [
        Self::Refused(Direction::Ingress),
        Self::Refused(Direction::Egress),
        Self::Pending,
        Self::Forbidden,
        Self::Spoofed,
        Self::Frame,
        Self::Router,
        Self::Tunnel,
    ];

    /// The rule's comment on the node.
    pub fn text(self) -> &'static str {
        match self {
            Self::Refused(Direction::Ingress) => "no policy permits this to reach the pod",
            Self::Refused(Direction::Egress) => "no policy permits the pod to reach this",
            Self::Pending => "the pod's policies are not known yet",
            Self::Forbidden => "a policy forbids this connection since it was established",
            Self::Frame => "tagged, or neither IPv4, IPv6 nor ARP: no rule can look into it",
            Self::Router => "announces a route, and pods are no routers",
            Self::Tunnel => "for a tunnel of a node, where it would come out with any source",
            Self::Spoofed => "a pod's interface sends with no address of the pod",
        }
    }
}

/// The comment of a rule that drops what no policy permits.
pub fn refused_text(direction: Direction) -> &'static str {
    DropReason::Refused(direction).text()
}
