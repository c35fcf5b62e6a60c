//! Commands and answers as bytes (`struct rtmsg` and its attributes).

use std::net::IpAddr;
use std::num::NonZeroU32;

use denizen_netlink::{Attributes, Message, Writer};
use ipnetwork::IpNetwork;
use nix::libc;

use crate::route::{
    ObservedRoute, Path, PolicyRoutingRule, Route, RouteCommand, RouteKey, RouteTarget,
};

/// Length of `struct rtnexthop`.
const RTNEXTHOP: usize = 8;
/// Length of `struct rtmsg`.
pub const RTMSG: usize = 12;
// Offsets in `struct rtmsg`.
const FAMILY: usize = 0;
const PREFIX: usize = 1;
const SOURCE_PREFIX: usize = 2;
const TABLE: usize = 4;
const PROTOCOL: usize = 5;
const SCOPE: usize = 6;
const TYPE: usize = 7;
const FLAGS: usize = 8;

// RTA_*, and RTAX_* within RTA_METRICS, which libc lacks.
const RTAX_WINDOW: u16 = 3;
const RTA_VIA: u16 = 18;
const RTA_ENCAP: u16 = 22;
const RTA_NH_ID: u16 = 30;

/// `FRA_TABLE` and `FRA_PRIORITY` (linux/fib_rules.h), which libc lacks.
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;

/// Attributes of routes whose target is none of [`RouteTarget`].
const UNSUPPORTED_TARGETS: [u16; 4] = [libc::RTA_MULTIPATH, RTA_VIA, RTA_ENCAP, RTA_NH_ID];

impl RouteCommand {
    /// The message's type and its flags.
    pub(crate) fn kind(&self) -> (u16, u16) {
        let flags = match self {
            Self::Add(_) => libc::NLM_F_CREATE | libc::NLM_F_EXCL,
            Self::Replace(_) => libc::NLM_F_CREATE | libc::NLM_F_REPLACE,
            Self::Remove(_) => 0,
        };
        match self {
            Self::Add(_) | Self::Replace(_) => (libc::RTM_NEWROUTE, flags as u16),
            Self::Remove(_) => (libc::RTM_DELROUTE, flags as u16),
        }
    }

    /// The header of the message.
    pub(crate) fn header(&self, protocol: u8) -> [u8; RTMSG] {
        match self {
            Self::Add(route) | Self::Replace(route) => {
                let (kind, scope) = match route.target {
                    RouteTarget::Unicast { gateway: Some(_), .. } => {
                        (libc::RTN_UNICAST, libc::RT_SCOPE_UNIVERSE)
                    }
                    RouteTarget::Unicast { gateway: None, .. } => {
                        (libc::RTN_UNICAST, libc::RT_SCOPE_LINK)
                    }
                    RouteTarget::Local { .. } => (libc::RTN_LOCAL, libc::RT_SCOPE_HOST),
                    RouteTarget::Blackhole => (libc::RTN_BLACKHOLE, libc::RT_SCOPE_UNIVERSE),
                    RouteTarget::Unreachable => (libc::RTN_UNREACHABLE, libc::RT_SCOPE_UNIVERSE),
                };
                header(&route.key, protocol, kind, scope)
            }
            // Removes a route of any type and scope.
            Self::Remove(key) => header(key, protocol, libc::RTN_UNSPEC, libc::RT_SCOPE_NOWHERE),
        }
    }

    /// Writes the command's attributes (`RTA_…`).
    pub(crate) fn write(&self, writer: &mut Writer) {
        match self {
            Self::Add(route) | Self::Replace(route) => write_route(writer, route),
            Self::Remove(key) => write_key(writer, key),
        }
    }
}

fn header(key: &RouteKey, protocol: u8, kind: u8, scope: u8) -> [u8; RTMSG] {
    let mut header = list_header(family(key.destination.ip()), protocol);
    header[PREFIX] = key.destination.prefix();
    header[SCOPE] = scope;
    header[TYPE] = kind;
    header
}

/// The header of a request for the routes of a family and a protocol.
pub fn list_header(family: u8, protocol: u8) -> [u8; RTMSG] {
    let mut header = [0; RTMSG];
    header[FAMILY] = family;
    header[PROTOCOL] = protocol;
    header
}

/// The header of a request for the path to an address.
pub fn path_header(to: IpAddr) -> [u8; RTMSG] {
    let mut header = list_header(family(to), libc::RTPROT_UNSPEC);
    header[PREFIX] = IpNetwork::from(to).prefix();
    header
}

/// The address that a request is about.
pub fn write_destination(writer: &mut Writer, to: IpAddr) {
    write_address(writer, libc::RTA_DST, to);
}

fn write_route(writer: &mut Writer, route: &Route) {
    write_key(writer, &route.key);
    let (gateway, link) = match route.target {
        RouteTarget::Unicast { gateway, link } => (gateway, Some(link)),
        RouteTarget::Local { link } => (None, Some(link)),
        RouteTarget::Blackhole | RouteTarget::Unreachable => (None, None),
    };
    if let Some(gateway) = gateway {
        write_address(writer, libc::RTA_GATEWAY, gateway);
    }
    if let Some(link) = link {
        writer.put(libc::RTA_OIF, &link.to_ne_bytes());
    }
    if let Some(source) = route.source {
        write_address(writer, libc::RTA_PREFSRC, source);
    }
    if let Some(window) = route.window {
        let open = writer.begin(libc::RTA_METRICS);
        writer.put(RTAX_WINDOW, &window.get().to_ne_bytes());
        writer.end(open);
    }
}

/// The table that a message is about. The header only has room for numbers up to 255.
pub fn write_table(writer: &mut Writer, table: u32) {
    writer.put(libc::RTA_TABLE, &table.to_ne_bytes());
}

fn write_key(writer: &mut Writer, key: &RouteKey) {
    write_table(writer, key.table);
    write_destination(writer, key.destination.network());
    writer.put(libc::RTA_PRIORITY, &key.metric.to_ne_bytes());
}

fn write_address(writer: &mut Writer, attribute: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => writer.put(attribute, &address.octets()),
        IpAddr::V6(address) => writer.put(attribute, &address.octets()),
    }
}

/// Reads a route; `None` if the message is not one, is of another family, or is a copy that a
/// lookup made (`RTM_F_CLONED`).
pub fn read_route(message: &Message<'_>) -> Option<ObservedRoute> {
    let header: &[u8; RTMSG] = message.payload.first_chunk()?;
    let flags = u32::from_ne_bytes(*header[FLAGS..].first_chunk()?);
    if flags & libc::RTM_F_CLONED != 0 {
        return None;
    }
    let all = message.attributes_after(RTMSG);
    let destination = match all.find(libc::RTA_DST) {
        Some(bytes) => address(bytes)?,
        None => IpNetwork::from(unspecified(header[FAMILY])?).ip(),
    };
    let number = |attribute| all.find(attribute).and_then(u32_of);
    let key = RouteKey {
        table: number(libc::RTA_TABLE).unwrap_or_else(|| header[TABLE].into()),
        destination: IpNetwork::new(destination, header[PREFIX]).ok()?,
        metric: number(libc::RTA_PRIORITY).unwrap_or(0),
    };
    let has_unsupported_target = header[SOURCE_PREFIX] != 0
        || all.clone().any(|(attribute, _)| UNSUPPORTED_TARGETS.contains(&attribute));
    let gateway = all.find(libc::RTA_GATEWAY).and_then(address);
    let target = match (header[TYPE], number(libc::RTA_OIF)) {
        _ if has_unsupported_target => None,
        (libc::RTN_UNICAST, Some(link)) => Some(RouteTarget::Unicast { gateway, link }),
        (libc::RTN_LOCAL, Some(link)) => Some(RouteTarget::Local { link }),
        (libc::RTN_BLACKHOLE, _) => Some(RouteTarget::Blackhole),
        (libc::RTN_UNREACHABLE, _) => Some(RouteTarget::Unreachable),
        _ => None,
    };
    let source = all.find(libc::RTA_PREFSRC).and_then(address);
    let window = all.nested(libc::RTA_METRICS).find(RTAX_WINDOW).and_then(u32_of);
    let window = window.and_then(NonZeroU32::new);
    Some(ObservedRoute { key, protocol: header[PROTOCOL], target, source, window })
}

/// Reads a path; `None` if the route does not lead anywhere (`blackhole` and so on).
pub fn read_path(message: &Message<'_>) -> Option<Path> {
    let header: &[u8; RTMSG] = message.payload.first_chunk()?;
    let all = message.attributes_after(RTMSG);
    let is_local = header[TYPE] == libc::RTN_LOCAL;
    let is_path = is_local || header[TYPE] == libc::RTN_UNICAST;
    Some(Path {
        link: all.find(libc::RTA_OIF).and_then(u32_of).filter(|_| is_path)?,
        gateway: gateway(all),
        source: all.find(libc::RTA_PREFSRC).and_then(address),
        is_local,
    })
}

/// Reads the gateways of a route: one, or one for each of several next hops.
pub fn read_gateways(message: &Message<'_>) -> Vec<IpAddr> {
    let all = message.attributes_after(RTMSG);
    let mut gateways = Vec::from_iter(gateway(all));
    let mut hops = all.find(libc::RTA_MULTIPATH).unwrap_or_default();
    // Each is a `struct rtnexthop`, whose first field is its whole length, and attributes.
    while let Some(length) = hops.first_chunk().map(|length| u16::from_ne_bytes(*length)) {
        let Some(hop) = hops.get(..length.into()).filter(|hop| hop.len() >= RTNEXTHOP) else {
            break;
        };
        gateways.extend(gateway(Attributes::new(&hop[RTNEXTHOP..])));
        hops = hops.get(hop.len().next_multiple_of(4)..).unwrap_or_default();
    }
    gateways
}

/// The gateway in these attributes. A gateway of the other family is in `RTA_VIA`.
fn gateway(attributes: Attributes<'_>) -> Option<IpAddr> {
    let via = attributes.find(RTA_VIA).and_then(|via| address(via.get(2..)?));
    attributes.find(libc::RTA_GATEWAY).and_then(address).or(via)
}

/// Reads a rule (`struct fib_rule_hdr`, whose fields up to the table are those of `struct rtmsg`).
pub fn read_rule(message: &Message<'_>) -> Option<PolicyRoutingRule> {
    let header: &[u8; RTMSG] = message.payload.first_chunk()?;
    let all = message.attributes_after(RTMSG);
    let number = |attribute| all.find(attribute).and_then(u32_of);
    Some(PolicyRoutingRule {
        priority: number(FRA_PRIORITY).unwrap_or(0),
        table: number(FRA_TABLE).unwrap_or_else(|| header[TABLE].into()),
    })
}

/// The number of an address's family (`AF_INET` or `AF_INET6`).
pub fn family(address: IpAddr) -> u8 {
    let family = match address {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    family as u8
}

fn unspecified(family: u8) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(std::net::Ipv4Addr::UNSPECIFIED.into()),
        libc::AF_INET6 => Some(std::net::Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

fn u32_of(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}
