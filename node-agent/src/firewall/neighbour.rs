//! Packets that wait for a pod's MAC address.
//!
//! What the node forwards to an address on a bridge, or to a routed pod whose interface is up,
//! waits, for up to three seconds, until somebody answers for the address. It has passed all IP
//! rules by then. So what was sent before a pod's policies were known would reach it when it
//! answers, whatever they say. So would what a connection of the address' former pod lets through
//! until it is deleted.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use denizen_netlink::{Message, NetlinkError, Socket, Writer};
use nix::errno::Errno;
use nix::libc;
use nix::net::if_::if_nametoindex;
use tracing::debug;

use crate::plan::{Plan, Sides};

/// Length of `struct ndmsg`, and the offset of its interface index.
const NDMSG: usize = 12;
const INDEX: usize = 4;
/// The offset of its state.
const STATE: usize = 8;
/// `NUD_PERMANENT`: nothing waits for what somebody has configured.
const PERMANENT: u16 = 0x80;
/// `NDA_DST`.
const DESTINATION: u16 = 1;
/// Time limit for an answer of the kernel, which comes at once.
const ANSWER: Duration = Duration::from_secs(2);

/// Those of the addresses that are of restricted pods, each with the interface that the node
/// forwards to.
pub(super) fn restricted(
    plan: &Plan,
    addresses: impl Iterator<Item = IpAddr>,
) -> impl Iterator<Item = (Arc<str>, IpAddr)> {
    let sides = |ip: &IpAddr| plan.firewall().and_then(|firewall| firewall.sides(*ip));
    let restricted = addresses.filter(move |ip| sides(ip).is_some_and(Sides::is_restricted));
    restricted.flat_map(|ip| {
        let pods = plan.recorded().iter().filter(move |pod| pod.ips.contains(&ip));
        pods.map(move |pod| (pod.interface.clone(), ip))
    })
}

/// Drops what waits for these addresses on these interfaces.
pub(super) fn drop_waiting(addresses: &[(Arc<str>, IpAddr)]) {
    if addresses.is_empty() {
        return;
    }
    let dropped = Socket::route().and_then(|mut socket| {
        socket.set_timeout(ANSWER)?;
        addresses.iter().try_for_each(|(interface, address)| {
            match if_nametoindex(&**interface) {
                Ok(index) => delete(&mut socket, index, *address),
                // Nothing can wait on an interface that is gone.
                Err(_) => Ok(()),
            }
        })
    });
    if let Err(error) = dropped {
        debug!(%error, "packets that wait for a new pod's address may reach it");
    }
}

/// Removes an entry of the neighbour table, and with it what waits there.
fn delete(socket: &mut Socket, index: u32, address: IpAddr) -> Result<(), NetlinkError> {
    let sequence = socket.sequences(1);
    let found = request(libc::RTM_GETNEIGH, 0, sequence, index, address);
    let state = |message: Message<'_>| message.payload.get(STATE..)?.first_chunk().copied();
    let is_configured = match socket.ask(found.bytes(), sequence, state) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(()),
        state => state?.is_some_and(|state| u16::from_ne_bytes(state) & PERMANENT != 0),
    };
    if is_configured {
        return Ok(());
    }
    let sequence = socket.sequences(1);
    let flags = libc::NLM_F_ACK as u16;
    socket.send(request(libc::RTM_DELNEIGH, flags, sequence, index, address).bytes())?;
    match socket.outcome(sequence) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
        outcome => outcome,
    }
}

/// A request about the entry of an address.
fn request(kind: u16, flags: u16, sequence: u32, index: u32, address: IpAddr) -> Writer {
    let mut header = [0; NDMSG];
    let (family, bytes) = match address {
        IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
    };
    header[0] = family as u8;
    header[INDEX..INDEX + 4].copy_from_slice(&index.to_ne_bytes());
    let mut request = Writer::default();
    let open = request.begin_message_with(kind, flags, sequence, &header);
    request.put(DESTINATION, &bytes);
    request.end_message(open);
    request
}
