//! Routes, and the commands that change them.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;

use ipnetwork::IpNetwork;
use nix::libc;

/// The table in which every packet is looked up (`RT_TABLE_MAIN`).
pub const MAIN: u32 = libc::RT_TABLE_MAIN as u32;

/// The table of the node's own addresses (`RT_TABLE_LOCAL`).
pub const LOCAL: u32 = libc::RT_TABLE_LOCAL as u32;

/// What identifies a route: a table holds one for each prefix and metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey {
    /// The table's number.
    pub table: u32,
    /// The addresses that the route leads to. Bits behind the prefix are ignored.
    pub destination: IpNetwork,
    /// Of several routes to one prefix, the one with the lowest metric counts. A route that this
    /// driver adds must not have metric 0: for IPv6 the kernel turns 0 into 1024, and in a removal
    /// 0 stands for any metric.
    pub metric: u32,
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} metric {} table {}", self.destination, self.metric, self.table)
    }
}

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouteTarget {
    /// Packets are sent through a link.
    Unicast {
        /// The gateway; `None` if the destination itself is a neighbour.
        gateway: Option<IpAddr>,
        /// The link's index.
        link: u32,
    },
    /// The packet is for this node.
    Local {
        /// Index of the link that the address counts as being on: the loopback's.
        link: u32,
    },
    /// The packet is dropped. A local sender gets `EINVAL`.
    Blackhole,
    /// The packet is refused. A local sender gets `EHOSTUNREACH`, others an ICMP error.
    Unreachable,
}

/// A route that this driver can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    /// Where it stands in its table.
    pub key: RouteKey,
    /// What happens to its packets.
    pub target: RouteTarget,
    /// The source address for this node's own packets that have none yet (`ip route`'s `src`). It
    /// must be an address of this node.
    pub source: Option<IpAddr>,
    /// The largest TCP window of connections along it (`ip route`'s `window`).
    pub window: Option<NonZeroU32>,
}

/// A route as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedRoute {
    /// Where it stands in its table.
    pub key: RouteKey,
    /// The program that made it (`RTPROT_*`, `/etc/iproute2/rt_protos`).
    pub protocol: u8,
    /// What happens to its packets; `None` for a target that this driver does not make: several
    /// next hops, tunnels, `prohibit`, `throw`, broadcast …
    pub target: Option<RouteTarget>,
    /// The source address of the node's own packets to it (`RTA_PREFSRC`).
    pub source: Option<IpAddr>,
    /// The largest window of TCP connections along it.
    pub window: Option<NonZeroU32>,
}

impl ObservedRoute {
    /// Whether it equals `route`, whichever program made it.
    pub fn is(&self, route: &Route) -> bool {
        let Route { key, target, source, window } = *route;
        let observed = (self.key, self.target, self.source, self.window);
        observed == (key, Some(target), source, window)
    }
}

/// How packets to an address leave this node, by all tables and rules (`ip route get`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The link; for an address of this node, the loopback or the link that has it.
    pub link: u32,
    /// The gateway; `None` if the destination is a neighbour or this node.
    pub gateway: Option<IpAddr>,
    /// The source address of packets that have none yet.
    pub source: Option<IpAddr>,
    /// The destination is this node.
    pub is_local: bool,
}

/// A rule of policy routing (`ip rule`), as far as it is read: which packets are looked up in which
/// table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyRoutingRule {
    /// Rules with a lower number come first.
    pub priority: u32,
    /// The table's number; 0 if the rule leads to none.
    pub table: u32,
}

/// A change of one route. The added routes have the protocol of the [`Routes`](crate::Routes) that
/// applies the command, and only routes of that protocol are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteCommand {
    /// Adds a route. Rejected with `EEXIST` if there is a route with this key, of any program.
    Add(Route),
    /// Adds a route, or replaces the route with its key, *whichever program* made that. There is no
    /// moment without a route.
    Replace(Route),
    /// Removes the route with this key. Rejected with `ESRCH` if there is no such route of the
    /// protocol.
    Remove(RouteKey),
}
