//! Packets that wait for a pod's MAC address.
//!
//! What the node forwards to an address on a bridge waits, for up to three seconds, until somebody
//! answers for the address. It has passed all IP rules by then. So what was sent before a pod was
//! there would reach it when it comes, whatever its policies say. So would what a connection of the
//! address' former pod lets through until it is deleted.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use denizen_netlink::{NetlinkError, Socket, Writer};
use nix::errno::Errno;
use nix::libc;
use nix::net::if_::if_nametoindex;
use tracing::debug;

use crate::plan::{Plan, Sides};

/// Length of `struct ndmsg`, and the offset of its interface index.
const NDMSG: usize = 12;
const INDEX: usize = 4;
/// `NDA_DST`.
const DESTINATION: u16 = 1;
/// Time limit for an answer of the kernel, which comes at once.
const ANSWER: Duration = Duration::from_secs(2);

/// Those of the addresses that are of restricted pods on bridges, each with its bridge.
pub(super) fn restricted_on_bridges(
    plan: &Plan,
    addresses: impl Iterator<Item = IpAddr>,
) -> impl Iterator<Item = (Arc<str>, IpAddr)> {
    let sides = |ip: &IpAddr| plan.firewall().and_then(|firewall| firewall.sides(*ip));
    let restricted = addresses.filter(move |ip| sides(ip).is_some_and(Sides::is_restricted));
    restricted.flat_map(|ip| {
        let bridged = plan.recorded().iter().filter(|pod| pod.shares_interface());
        let pods = bridged.filter(move |pod| pod.ips.contains(&ip));
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
    let mut header = [0; NDMSG];
    let (family, bytes) = match address {
        IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
    };
    header[0] = family as u8;
    header[INDEX..INDEX + 4].copy_from_slice(&index.to_ne_bytes());
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let flags = libc::NLM_F_ACK as u16;
    let open = request.begin_message_with(libc::RTM_DELNEIGH, flags, sequence, &header);
    request.put(DESTINATION, &bytes);
    request.end_message(open);
    socket.send(request.bytes())?;
    match socket.outcome(sequence) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
        outcome => outcome,
    }
}
