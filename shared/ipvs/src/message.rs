//! Commands and answers as bytes (linux/ip_vs.h).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use denizen_netlink::{Attributes, Writer};
use nix::libc;

use super::server::{
    Info, IpvsCommand, ObservedServer, RealServer, ServerKey, Timeouts, VirtualServer,
};

const IPVS_CMD_NEW_SERVICE: u8 = 1;
const IPVS_CMD_SET_SERVICE: u8 = 2;
const IPVS_CMD_DEL_SERVICE: u8 = 3;
pub const IPVS_CMD_GET_SERVICE: u8 = 4;
const IPVS_CMD_NEW_DEST: u8 = 5;
const IPVS_CMD_SET_DEST: u8 = 6;
const IPVS_CMD_DEL_DEST: u8 = 7;
pub const IPVS_CMD_GET_DEST: u8 = 8;
pub const IPVS_CMD_SET_CONFIG: u8 = 12;
pub const IPVS_CMD_GET_CONFIG: u8 = 13;
pub const IPVS_CMD_GET_INFO: u8 = 15;
pub const IPVS_CMD_FLUSH: u8 = 17;

const IPVS_CMD_ATTR_SERVICE: u16 = 1;
const IPVS_CMD_ATTR_DEST: u16 = 2;
const IPVS_CMD_ATTR_TIMEOUT_TCP: u16 = 4;
const IPVS_CMD_ATTR_TIMEOUT_TCP_FIN: u16 = 5;
const IPVS_CMD_ATTR_TIMEOUT_UDP: u16 = 6;

const IPVS_SVC_ATTR_AF: u16 = 1;
const IPVS_SVC_ATTR_PROTOCOL: u16 = 2;
const IPVS_SVC_ATTR_ADDR: u16 = 3;
const IPVS_SVC_ATTR_PORT: u16 = 4;
const IPVS_SVC_ATTR_SCHED_NAME: u16 = 6;
const IPVS_SVC_ATTR_FLAGS: u16 = 7;
const IPVS_SVC_ATTR_TIMEOUT: u16 = 8;
const IPVS_SVC_ATTR_NETMASK: u16 = 9;

const IPVS_DEST_ATTR_ADDR: u16 = 1;
const IPVS_DEST_ATTR_PORT: u16 = 2;
const IPVS_DEST_ATTR_FWD_METHOD: u16 = 3;
const IPVS_DEST_ATTR_WEIGHT: u16 = 4;
const IPVS_DEST_ATTR_U_THRESH: u16 = 5;
const IPVS_DEST_ATTR_L_THRESH: u16 = 6;
const IPVS_DEST_ATTR_ACTIVE_CONNS: u16 = 7;
const IPVS_DEST_ATTR_INACT_CONNS: u16 = 8;
const IPVS_DEST_ATTR_ADDR_FAMILY: u16 = 11;

const IPVS_INFO_ATTR_VERSION: u16 = 1;
const IPVS_INFO_ATTR_CONN_TAB_SIZE: u16 = 2;

/// The kernel has the server in its table. Only the kernel sets this flag.
const IP_VS_SVC_F_HASHED: u32 = 0x0002;
/// The bits of `IPVS_DEST_ATTR_FWD_METHOD` that say how packets are sent on.
const IP_VS_CONN_F_FWD_MASK: u32 = 0x0007;
const IP_VS_CONN_F_MASQ: u32 = 0;
/// The kernel puts this in place of [`IP_VS_CONN_F_MASQ`] if the real server has an address of this
/// node.
const IP_VS_CONN_F_LOCALNODE: u32 = 1;

impl IpvsCommand {
    /// The generic netlink command (`IPVS_CMD_…`).
    pub(super) fn number(&self) -> u8 {
        match self {
            Self::Add(_) => IPVS_CMD_NEW_SERVICE,
            Self::Change(_) => IPVS_CMD_SET_SERVICE,
            Self::Remove(_) => IPVS_CMD_DEL_SERVICE,
            Self::AddReal(..) => IPVS_CMD_NEW_DEST,
            Self::ChangeReal(..) => IPVS_CMD_SET_DEST,
            Self::RemoveReal(..) => IPVS_CMD_DEL_DEST,
        }
    }

    /// Writes the command's attributes.
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
                let open = writer.begin(IPVS_CMD_ATTR_DEST);
                write_real_address(writer, *at);
                writer.end(open);
            }
        }
    }
}

/// The virtual server that a command is about.
pub fn write_key(writer: &mut Writer, key: &ServerKey) {
    let open = writer.begin(IPVS_CMD_ATTR_SERVICE);
    write_server_key(writer, key);
    writer.end(open);
}

fn write_server(writer: &mut Writer, server: &VirtualServer) {
    let open = writer.begin(IPVS_CMD_ATTR_SERVICE);
    write_server_key(writer, &server.key);
    writer.put_str(IPVS_SVC_ATTR_SCHED_NAME, &server.scheduler);
    // `struct ip_vs_flags`: the flags, and a mask of those to be set.
    let [flags, mask] = [server.flags, !IP_VS_SVC_F_HASHED].map(u32::to_ne_bytes);
    writer.put(IPVS_SVC_ATTR_FLAGS, &[flags, mask].concat());
    // Both only matter for persistent servers, but are mandatory. The mask makes one address a
    // client.
    writer.put(IPVS_SVC_ATTR_TIMEOUT, &0_u32.to_ne_bytes());
    let netmask = match server.key.at.ip() {
        IpAddr::V4(_) => u32::MAX,
        IpAddr::V6(_) => 128,
    };
    writer.put(IPVS_SVC_ATTR_NETMASK, &netmask.to_ne_bytes());
    writer.end(open);
}

fn write_server_key(writer: &mut Writer, key: &ServerKey) {
    writer.put(IPVS_SVC_ATTR_AF, &family(key.at.ip()).to_ne_bytes());
    writer.put(IPVS_SVC_ATTR_PROTOCOL, &u16::from(key.protocol).to_ne_bytes());
    writer.put(IPVS_SVC_ATTR_ADDR, &padded(key.at.ip()));
    writer.put(IPVS_SVC_ATTR_PORT, &key.at.port().to_be_bytes());
}

fn write_real(writer: &mut Writer, real: &RealServer) {
    let open = writer.begin(IPVS_CMD_ATTR_DEST);
    write_real_address(writer, real.at);
    // No thresholds.
    let numbers = [
        (IPVS_DEST_ATTR_FWD_METHOD, IP_VS_CONN_F_MASQ),
        (IPVS_DEST_ATTR_WEIGHT, real.weight),
        (IPVS_DEST_ATTR_U_THRESH, 0),
        (IPVS_DEST_ATTR_L_THRESH, 0),
    ];
    for (attribute, number) in numbers {
        writer.put(attribute, &number.to_ne_bytes());
    }
    writer.end(open);
}

fn write_real_address(writer: &mut Writer, at: SocketAddr) {
    writer.put(IPVS_DEST_ATTR_ADDR_FAMILY, &family(at.ip()).to_ne_bytes());
    writer.put(IPVS_DEST_ATTR_ADDR, &padded(at.ip()));
    writer.put(IPVS_DEST_ATTR_PORT, &at.port().to_be_bytes());
}

/// The timeouts of a [`IPVS_CMD_SET_CONFIG`]. (The kernel ignores a timeout of zero.)
pub fn write_timeouts(writer: &mut Writer, timeouts: &Timeouts) {
    let all = [
        (IPVS_CMD_ATTR_TIMEOUT_TCP, timeouts.tcp),
        (IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, timeouts.tcp_fin),
        (IPVS_CMD_ATTR_TIMEOUT_UDP, timeouts.udp),
    ];
    for (attribute, timeout) in all {
        let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
        writer.put(attribute, &seconds.to_ne_bytes());
    }
}

/// The virtual server in an answer; `None` for one that matches packets by their mark.
pub fn read_server(answer: Attributes<'_>) -> Option<VirtualServer> {
    let server = answer.nested(IPVS_CMD_ATTR_SERVICE);
    let protocol = u8::try_from(u16_of(server, IPVS_SVC_ATTR_PROTOCOL)?).ok()?;
    let ip = address(u16_of(server, IPVS_SVC_ATTR_AF)?, server.find(IPVS_SVC_ATTR_ADDR)?)?;
    let port = port(server.find(IPVS_SVC_ATTR_PORT)?)?;
    let flags = server.find(IPVS_SVC_ATTR_FLAGS)?.first_chunk().copied().map(u32::from_ne_bytes)?;
    Some(VirtualServer {
        key: ServerKey { at: SocketAddr::new(ip, port), protocol },
        scheduler: server.find_str(IPVS_SVC_ATTR_SCHED_NAME)?.into(),
        flags: flags & !IP_VS_SVC_F_HASHED,
    })
}

/// The real server in an answer. `server` is its virtual server: a kernel before 3.18 does not
/// repeat the family.
pub fn read_real(answer: Attributes<'_>, server: &ServerKey) -> Option<ObservedServer> {
    let real = answer.nested(IPVS_CMD_ATTR_DEST);
    let family = u16_of(real, IPVS_DEST_ATTR_ADDR_FAMILY).unwrap_or_else(|| family(server.at.ip()));
    let ip = address(family, real.find(IPVS_DEST_ATTR_ADDR)?)?;
    let method = u32_of(real, IPVS_DEST_ATTR_FWD_METHOD)? & IP_VS_CONN_F_FWD_MASK;
    Some(ObservedServer {
        real: RealServer {
            at: SocketAddr::new(ip, port(real.find(IPVS_DEST_ATTR_PORT)?)?),
            weight: u32_of(real, IPVS_DEST_ATTR_WEIGHT)?,
        },
        translates: method == IP_VS_CONN_F_MASQ || method == IP_VS_CONN_F_LOCALNODE,
        active: u32_of(real, IPVS_DEST_ATTR_ACTIVE_CONNS)?,
        inactive: u32_of(real, IPVS_DEST_ATTR_INACT_CONNS)?,
    })
}

/// Reads the answer to [`IPVS_CMD_GET_CONFIG`].
pub fn read_timeouts(answer: Attributes<'_>) -> Option<Timeouts> {
    let seconds = |kind| Some(Duration::from_secs(u32_of(answer, kind)?.into()));
    Some(Timeouts {
        tcp: seconds(IPVS_CMD_ATTR_TIMEOUT_TCP)?,
        tcp_fin: seconds(IPVS_CMD_ATTR_TIMEOUT_TCP_FIN)?,
        udp: seconds(IPVS_CMD_ATTR_TIMEOUT_UDP)?,
    })
}

/// Reads the answer to [`IPVS_CMD_GET_INFO`].
pub fn read_info(answer: Attributes<'_>) -> Option<Info> {
    Some(Info {
        version: u32_of(answer, IPVS_INFO_ATTR_VERSION)?,
        connection_rows: u32_of(answer, IPVS_INFO_ATTR_CONN_TAB_SIZE)?,
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
