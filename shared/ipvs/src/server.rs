//! Virtual servers, the real servers behind them, and what can be done with them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A flag of a virtual server that keeps a client with one real server (`IP_VS_SVC_F_PERSISTENT`).
/// Only such a one may have port 0, and then takes what comes to the ports of its address that have
/// no virtual server (`ip_vs_service_find`).
pub const PERSISTENT: u32 = 0x0001;

/// A flag of the schedulers `sh` and `mh`: if the real server that a client's hash names takes no
/// new connections, another one is chosen; without it such a client is refused
/// (`IP_VS_SVC_F_SCHED1`, ipvsadm's `sh-fallback` and `mh-fallback`).
pub const FALLBACK: u32 = 0x0008;

/// A flag of the schedulers `sh` and `mh`: the client's port counts too, not its address alone
/// (`IP_VS_SVC_F_SCHED2`, ipvsadm's `sh-port` and `mh-port`).
pub const PORT_HASHED: u32 = 0x0010;

/// What identifies a virtual server: the destination of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerKey {
    /// Address and port.
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
    /// The scheduler's name. The kernel loads the module `ip_vs_<name>`, and refuses the command
    /// with `ENOENT` if there is none. At most 15 bytes.
    pub scheduler: Arc<str>,
    /// [`PERSISTENT`], [`FALLBACK`], [`PORT_HASHED`], and what others may have set
    /// (`IP_VS_SVC_F_*`). The bit by which the kernel says that it has the server
    /// (`IP_VS_SVC_F_HASHED`) is left out.
    pub flags: u32,
}

/// Who answers. It translates addresses and ports (ipvsadm's `--masquerading`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RealServer {
    /// Where it listens; of the same family as the virtual server's address.
    pub at: SocketAddr,
    /// Its share of new connections. With 0 it gets none, and keeps those that it has.
    pub weight: u32,
}

/// A real server as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedServer {
    /// Address and weight.
    pub real: RealServer,
    /// It translates addresses, or it is on this node and its packets need not be sent anywhere.
    /// Others (`Tunnel`, `Route`) are not made by this driver.
    pub translates: bool,
    /// Established TCP connections. UDP flows are never active.
    pub active: u32,
    /// All other connections that are remembered.
    pub inactive: u32,
}

/// How long IPVS remembers a silent connection. It forgets connection tracking's entry with it,
/// however long that would have lasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// An established TCP connection; in whole seconds, as all of these.
    pub tcp: Duration,
    /// A TCP connection with a closed end.
    pub tcp_fin: Duration,
    /// A UDP flow.
    pub udp: Duration,
}

/// What this kernel's IPVS is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Its version, `major << 16 | minor << 8 | patch`.
    pub version: u32,
    /// How many rows the table of connections has.
    pub connection_rows: u32,
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Adds a virtual server without real servers. Refused with `EEXIST` if there is one.
    Add(VirtualServer),
    /// Replaces scheduler and flags. Refused with `ESRCH` if there is no such server. For a moment
    /// no scheduler chooses, and new connections are refused.
    Change(VirtualServer),
    /// Removes a virtual server and its real servers.
    Remove(ServerKey),
    /// Adds a real server. Refused with `EEXIST` if there is one.
    AddReal(ServerKey, RealServer),
    /// Replaces its weight. Refused with `ENOENT` if there is no such real server.
    ChangeReal(ServerKey, RealServer),
    /// Removes a real server. What becomes of its connections, the setting `expire_nodest_conn`
    /// says: with 1 their next packet ends them, and TCP is reset.
    RemoveReal(ServerKey, SocketAddr),
}
