//! What this node decapsulates: packets of its tunnel links, and packets to the ports of
//! Foo-over-UDP, which are not links.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enums of netlink-packet-route list every kind of link and attribute"
)]

use std::collections::BTreeSet;

use denizen_netlink::{NetlinkError, Socket, Writer};
use nix::libc;
use rtnetlink::packet_route::link::{
    InfoBareUdp, InfoData, InfoGeneve, InfoKind, InfoVxlan, LinkAttribute, LinkInfo, LinkMessage,
};

use denizen_model::Tunnel;

/// IANA's numbers of protocols that encapsulate packets.
const IPIP: u8 = 4;
const IPV6: u8 = 41;
const GRE: u8 = 47;
const MPLS: u8 = 137;

/// GTP's ports for user data (3GPP TS 29.060; the older one for GTPv0).
const GTP: [u16; 2] = [2152, 3386];
/// AMT's port (RFC 7450).
const AMT: u16 = 2268;
/// PFCP's port (3GPP TS 29.244).
const PFCP: u16 = 8805;

/// What a link decapsulates; empty if it is not a tunnel. WireGuard and IPsec are excluded: they
/// accept nothing without a key.
pub(super) fn tunnels_of(message: &LinkMessage) -> BTreeSet<Tunnel> {
    let infos = message.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    infos.flatten().flat_map(of_info).collect()
}

fn of_info(info: &LinkInfo) -> Vec<Tunnel> {
    let protocols = |numbers: &[u8]| numbers.iter().copied().map(Tunnel::Protocol).collect();
    match info {
        LinkInfo::Kind(kind) => match kind {
            InfoKind::IpIp => protocols(&[IPIP, MPLS]),
            InfoKind::SitTun | InfoKind::Ip6Tnl => protocols(&[IPIP, IPV6, MPLS]),
            InfoKind::GreTun
            | InfoKind::GreTap
            | InfoKind::GreTun6
            | InfoKind::GreTap6
            | InfoKind::ErSpan
            | InfoKind::Ip6ErSpan => protocols(&[GRE]),
            InfoKind::Gtp => GTP.map(Tunnel::Udp).into(),
            InfoKind::Amt => vec![Tunnel::Udp(AMT)],
            InfoKind::Pfcp => vec![Tunnel::Udp(PFCP)],
            _ => Vec::new(),
        },
        LinkInfo::Data(data) => match data {
            InfoData::Vxlan(all) => ports(all, |info| match info {
                InfoVxlan::Port(port) => Some(*port),
                _ => None,
            }),
            InfoData::Geneve(all) => ports(all, |info| match info {
                InfoGeneve::Port(port) => Some(*port),
                _ => None,
            }),
            InfoData::BareUdp(all) => ports(all, |info| match info {
                InfoBareUdp::Port(port) => Some(*port),
                _ => None,
            }),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

fn ports<T>(infos: &[T], port: impl Fn(&T) -> Option<u16>) -> Vec<Tunnel> {
    infos.iter().filter_map(port).map(Tunnel::Udp).collect()
}

// Constants of linux/genetlink.h and linux/fou.h that libc lacks.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const FOU_CMD_GET: u8 = 3;
const FOU_ATTR_PORT: u16 = 1;
/// Length of `struct genlmsghdr`.
const GENLMSGHDR: usize = 4;

/// The ports of Foo-over-UDP in this thread's network namespace. The kernel sends no notification
/// when they change.
pub(super) fn foo_over_udp() -> Result<BTreeSet<Tunnel>, NetlinkError> {
    let mut socket = Socket::generic()?;
    let mut family = None;
    // Asking for the family by its name makes the kernel load its module.
    dump(&mut socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, |attributes| {
        if attributes.find_str(CTRL_ATTR_FAMILY_NAME) == Some("fou") {
            let id = attributes.find(CTRL_ATTR_FAMILY_ID).and_then(|id| id.try_into().ok());
            family = id.map(u16::from_ne_bytes);
        }
    })?;
    let mut ports = BTreeSet::new();
    if let Some(family) = family {
        dump(&mut socket, family, FOU_CMD_GET, |attributes| {
            let port = attributes.find(FOU_ATTR_PORT).and_then(|port| port.try_into().ok());
            ports.extend(port.map(u16::from_be_bytes).map(Tunnel::Udp));
        })?;
    }
    Ok(ports)
}

fn dump(
    socket: &mut Socket,
    family: u16,
    command: u8,
    mut each: impl FnMut(denizen_netlink::Attributes<'_>),
) -> Result<(), NetlinkError> {
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let flags = libc::NLM_F_DUMP as u16;
    let open = request.begin_message_with(family, flags, sequence, &[command, 1, 0, 0]);
    request.end_message(open);
    socket.dump(request.bytes(), sequence, |answer| each(answer.attributes_after(GENLMSGHDR)))
}
