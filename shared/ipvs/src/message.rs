//! Commands and answers as bytes (linux/ip_vs.h).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use denizen_netlink::{Attributes, Writer};
use nix::libc;

use super::server::{
    Command, Info, ObservedServer, RealServer, ServerKey, Timeouts, VirtualServer,
};

// IPVS_CMD_*
const NEW_SERVICE: u8 = 1;
const SET_SERVICE: u8 = 2;
const DEL_SERVICE: u8 = 3;
pub const GET_SERVICE: u8 = 4;
const NEW_DEST: u8 = 5;
const SET_DEST: u8 = 6;
const DEL_DEST: u8 = 7;
pub const GET_DEST: u8 = 8;
pub const SET_CONFIG: u8 = 12;
pub const GET_CONFIG: u8 = 13;
pub const GET_INFO: u8 = 15;
pub const FLUSH: u8 = 17;

// IPVS_CMD_ATTR_*
const SERVICE: u16 = 1;
const DEST: u16 = 2;
const TIMEOUT_TCP: u16 = 4;
const TIMEOUT_TCP_FIN: u16 = 5;
const TIMEOUT_UDP: u16 = 6;

// IPVS_SVC_ATTR_*
const SVC_AF: u16 = 1;
const SVC_PROTOCOL: u16 = 2;
const SVC_ADDR: u16 = 3;
const SVC_PORT: u16 = 4;
const SVC_SCHED_NAME: u16 = 6;
const SVC_FLAGS: u16 = 7;
const SVC_TIMEOUT: u16 = 8;
const SVC_NETMASK: u16 = 9;

// IPVS_DEST_ATTR_*
const DEST_ADDR: u16 = 1;
const DEST_PORT: u16 = 2;
const DEST_FWD_METHOD: u16 = 3;
const DEST_WEIGHT: u16 = 4;
const DEST_U_THRESH: u16 = 5;
const DEST_L_THRESH: u16 = 6;
const DEST_ACTIVE_CONNS: u16 = 7;
const DEST_INACT_CONNS: u16 = 8;
const DEST_ADDR_FAMILY: u16 = 11;

// IPVS_INFO_ATTR_*
const INFO_VERSION: u16 = 1;
const INFO_CONN_TAB_SIZE: u16 = 2;

/// `IP_VS_SVC_F_HASHED`: the kernel has the server in its table. Only the kernel sets it.
const HASHED: u32 = 0x0002;
/// The bits of `IPVS_DEST_ATTR_FWD_METHOD` that say how packets are sent on
/// (`IP_VS_CONN_F_FWD_MASK`).
const FORWARDING: u32 = 0x0007;
/// `IP_VS_CONN_F_MASQ`.
const MASQUERADING: u32 = 0;
/// `IP_VS_CONN_F_LOCALNODE`, which the kernel makes of [`MASQUERADING`] for addresses of its own.
const LOCAL_NODE: u32 = 1;

impl Command {
    /// The command's number.
    pub(super) fn number(&self) -> u8 {
        match self {
            Self::Add(_) => NEW_SERVICE,
            Self::Change(_) => SET_SERVICE,
            Self::Remove(_) => DEL_SERVICE,
            Self::AddReal(..) => NEW_DEST,
            Self::ChangeReal(..) => SET_DEST,
            Self::RemoveReal(..) => DEL_DEST,
        }
    }

    /// Its attributes.
    pub(super) fn write(&self, writer: &mut Writer) {
        match self {
            Self::Add(server) | Self::Change(server) => write_server(writer, server),
            Self::Remove(key) => write_key(writer, key),
            Self::AddReal(key, real) | Self::ChangeReal(key, real) => {
                write_key(writer, key);
                write_real(writer, real);
            }
            Self::RemoveReal(key, at) => {
                write_key(writer, key);
                let open = writer.begin(DEST);
                write_real_address(writer, *at);
                writer.end(open);
            }
        }
    }
}

/// The virtual server that a command is about.
pub fn write_key(writer: &mut Writer, key: &ServerKey) {
    let open = writer.begin(SERVICE);
    write_server_key(writer, key);
    writer.end(open);
}

fn write_server(writer: &mut Writer, server: &VirtualServer) {
    let open = writer.begin(SERVICE);
    write_server_key(writer, &server.key);
    writer.put_str(SVC_SCHED_NAME, &server.scheduler);
    // `struct ip_vs_flags`: the flags, and which of them count.
    let [flags, mask] = [server.flags, !HASHED].map(u32::to_ne_bytes);
    writer.put(SVC_FLAGS, &[flags, mask].concat());
    // Both only matter for persistent servers, but are mandatory. The mask makes one address a
    // client.
    writer.put(SVC_TIMEOUT, &0_u32.to_ne_bytes());
    let netmask = match server.key.at.ip() {
        IpAddr::V4(_) => u32::MAX,
        IpAddr::V6(_) => 128,
    };
    writer.put(SVC_NETMASK, &netmask.to_ne_bytes());
    writer.end(open);
}

fn write_server_key(writer: &mut Writer, key: &ServerKey) {
    writer.put(SVC_AF, &family(key.at.ip()).to_ne_bytes());
    writer.put(SVC_PROTOCOL, &u16::from(key.protocol).to_ne_bytes());
    writer.put(SVC_ADDR, &padded(key.at.ip()));
    writer.put(SVC_PORT, &key.at.port().to_be_bytes());
}

fn write_real(writer: &mut Writer, real: &RealServer) {
    let open = writer.begin(DEST);
    write_real_address(writer, real.at);
    // No thresholds.
    let numbers = [
        (DEST_FWD_METHOD, MASQUERADING),
        (DEST_WEIGHT, real.weight),
        (DEST_U_THRESH, 0),
        (DEST_L_THRESH, 0),
    ];
    for (attribute, number) in numbers {
        writer.put(attribute, &number.to_ne_bytes());
    }
    writer.end(open);
}

fn write_real_address(writer: &mut Writer, at: SocketAddr) {
    writer.put(DEST_ADDR_FAMILY, &family(at.ip()).to_ne_bytes());
    writer.put(DEST_ADDR, &padded(at.ip()));
    writer.put(DEST_PORT, &at.port().to_be_bytes());
}

/// The timeouts of a [`SET_CONFIG`]. (Zero would leave one unchanged.)
pub fn write_timeouts(writer: &mut Writer, timeouts: &Timeouts) {
    let all = [
        (TIMEOUT_TCP, timeouts.tcp),
        (TIMEOUT_TCP_FIN, timeouts.tcp_fin),
        (TIMEOUT_UDP, timeouts.udp),
    ];
    for (attribute, timeout) in all {
        let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
        writer.put(attribute, &seconds.to_ne_bytes());
    }
}

/// The virtual server in an answer; `None` for one that matches packets by their mark.
pub fn read_server(answer: Attributes<'_>) -> Option<VirtualServer> {
    let server = answer.nested(SERVICE);
    let protocol = u8::try_from(u16_of(server, SVC_PROTOCOL)?).ok()?;
    let ip = address(u16_of(server, SVC_AF)?, server.find(SVC_ADDR)?)?;
    let port = port(server.find(SVC_PORT)?)?;
    let flags = server.find(SVC_FLAGS)?.first_chunk().copied().map(u32::from_ne_bytes)?;
    Some(VirtualServer {
        key: ServerKey { at: SocketAddr::new(ip, port), protocol },
        scheduler: server.find_str(SVC_SCHED_NAME)?.into(),
        flags: flags & !HASHED,
    })
}

/// The real server in an answer. `server` is its virtual server: a kernel before 3.18 does not
/// repeat the family.
pub fn read_real(answer: Attributes<'_>, server: &ServerKey) -> Option<ObservedServer> {
    let real = answer.nested(DEST);
    let family = u16_of(real, DEST_ADDR_FAMILY).unwrap_or_else(|| family(server.at.ip()));
    let ip = address(family, real.find(DEST_ADDR)?)?;
    let method = u32_of(real, DEST_FWD_METHOD)? & FORWARDING;
    Some(ObservedServer {
        real: RealServer {
            at: SocketAddr::new(ip, port(real.find(DEST_PORT)?)?),
            weight: u32_of(real, DEST_WEIGHT)?,
        },
        translates: method == MASQUERADING || method == LOCAL_NODE,
        active: u32_of(real, DEST_ACTIVE_CONNS)?,
        inactive: u32_of(real, DEST_INACT_CONNS)?,
    })
}

/// Reads the answer to [`GET_CONFIG`].
pub fn read_timeouts(answer: Attributes<'_>) -> Option<Timeouts> {
    let seconds = |kind| Some(Duration::from_secs(u32_of(answer, kind)?.into()));
    Some(Timeouts {
        tcp: seconds(TIMEOUT_TCP)?,
        tcp_fin: seconds(TIMEOUT_TCP_FIN)?,
        udp: seconds(TIMEOUT_UDP)?,
    })
}

/// Reads the answer to [`GET_INFO`].
pub fn read_info(answer: Attributes<'_>) -> Option<Info> {
    Some(Info {
        version: u32_of(answer, INFO_VERSION)?,
        connection_rows: u32_of(answer, INFO_CONN_TAB_SIZE)?,
    })
}

fn family(ip: IpAddr) -> u16 {
    let family = match ip {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    family as u16
}

/// `union nf_inet_addr`.
fn padded(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn address(family: u16, bytes: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
        _ => None,
    }
}

fn port(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().copied().map(u16::from_be_bytes)
}

fn u16_of(attributes: Attributes<'_>, kind: u16) -> Option<u16> {
    attributes.find(kind)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn u32_of(attributes: Attributes<'_>, kind: u16) -> Option<u32> {
    attributes.find(kind)?.first_chunk().copied().map(u32::from_ne_bytes)
}
