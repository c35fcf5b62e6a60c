//! Virtual servers, the real servers behind them, and the commands that change them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A flag of a virtual server that keeps a client with one real server (`IP_VS_SVC_F_PERSISTENT`).
/// Only such a server may have port 0: then it takes packets to all ports of its address that have
/// no virtual server (`ip_vs_service_find`).
pub const PERSISTENT: u32 = 0x0001;

/// A flag of the schedulers `sh` and `mh`: if the real server that a client's hash names takes no
/// new connections, another one is chosen; without the flag such a client is refused
/// (`IP_VS_SVC_F_SCHED1`, ipvsadm's `sh-fallback` and `mh-fallback`).
pub const FALLBACK: u32 = 0x0008;

/// A flag of the schedulers `sh` and `mh`: the client's port counts too, not its address alone
/// (`IP_VS_SVC_F_SCHED2`, ipvsadm's `sh-port` and `mh-port`).
pub const PORT_HASHED: u32 = 0x0010;

/// What identifies a virtual server: the destination of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerKey {
    /// The virtual server's address and port.
    pub at: SocketAddr,
    /// The number in the IP header (IANA protocol numbers).
    pub protocol: u8,
}

impl fmt::Display for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.at, self.protocol)
    }
}

/// How a virtual server chooses among its real servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VirtualServer {
    /// What packets are addressed to.
    pub key: ServerKey,
    /// The scheduler's name. The kernel loads the module `ip_vs_<name>`, and rejects the command
    /// with `ENOENT` if there is none. At most 15 bytes.
    pub scheduler: Arc<str>,
    /// [`PERSISTENT`], [`FALLBACK`], [`PORT_HASHED`], and flags that other programs may set
    /// (`IP_VS_SVC_F_*`), without the kernel's own `IP_VS_SVC_F_HASHED`.
    pub flags: u32,
}

/// A real server. Packets to it are translated (ipvsadm's `--masquerading`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RealServer {
    /// The address and port where it listens; of the same family as the virtual server's address.
    pub at: SocketAddr,
    /// Its share of new connections. With 0 it gets none, but keeps the existing ones.
    pub weight: u32,
}

/// A real server as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedServer {
    /// Its address and weight.
    pub real: RealServer,
    /// Whether packets to it are translated, or it is on this node. Others (`Tunnel`, `Route`) are
    /// not made by this driver.
    pub translates: bool,
    /// Established TCP connections. UDP flows are never active.
    pub active: u32,
    /// All other connections that are remembered.
    pub inactive: u32,
}

/// How long IPVS remembers a silent connection. Then it also removes the connection tracking entry,
/// however long that would have lasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// An established TCP connection; in whole seconds, as all of these.
    pub tcp: Duration,
    /// A TCP connection that one end has closed.
    pub tcp_fin: Duration,
    /// The idle timeout of UDP flows.
    pub udp: Duration,
}

/// The kernel's IPVS: its version and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Its version, `major << 16 | minor << 8 | patch`.
    pub version: u32,
    /// How many rows its table of connections has.
    pub connection_rows: u32,
}

/// A change of a virtual server or of one of its real servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IpvsCommand {
    /// Adds a virtual server without real servers. Rejected with `EEXIST` if there is one.
    Add(VirtualServer),
    /// Replaces scheduler and flags. Rejected with `ESRCH` if there is no such server. For a moment
    /// there is no scheduler, and new connections are refused.
    Change(VirtualServer),
    /// Removes a virtual server and its real servers.
    Remove(ServerKey),
    /// Adds a real server. Rejected with `EEXIST` if there is one.
    AddReal(ServerKey, RealServer),
    /// Replaces its weight. Rejected with `ENOENT` if there is no such real server.
    ChangeReal(ServerKey, RealServer),
    /// Removes a real server. The setting `expire_nodest_conn` decides about its connections: with
    /// 1 their next packet ends them, and TCP is reset.
    RemoveReal(ServerKey, SocketAddr),
}
