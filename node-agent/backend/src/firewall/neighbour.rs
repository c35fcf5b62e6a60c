//! Packets that wait for a pod's MAC address.
//!
//! A packet that the node forwards to an address on a bridge, or to a routed pod whose interface is
//! up, waits for up to three seconds until somebody answers for the address. By then it has passed
//! all IP rules. So a packet from before a pod's policies were known would reach the pod once it
//! answers, whatever the policies say. So would a packet of a connection of the address' former
//! pod, if it passed before that connection was deleted.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use denizen_netlink::{Message, NetlinkError, Socket, Writer};
use nix::errno::Errno;
use nix::libc;
use nix::net::if_::if_nametoindex;
use tracing::debug;

use denizen_plan::{Plan, PodRules};

/// Length of `struct ndmsg`, and the offset of its interface index.
const NDMSG: usize = 12;
const INDEX: usize = 4;
/// The offset of its state.
const STATE: usize = 8;
/// `NUD_PERMANENT`: a configured entry has no waiting packets.
const PERMANENT: u16 = 0x80;
/// `NDA_DST`.
const DESTINATION: u16 = 1;
/// Up to this many addresses are queried one by one, more by a list of all entries. Each query
/// takes the kernel's lock of all links (rtnl), for which CNI plugins compete.
const SINGLE: usize = 4;
/// Time limit for an answer of the kernel, which normally comes at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The addresses of restricted pods among these, each with the interface that the node forwards to.
pub(super) fn restricted(
    plan: &Plan,
    addresses: impl Iterator<Item = IpAddr>,
) -> impl Iterator<Item = (Arc<str>, IpAddr)> {
    let pod_rules = |ip: &IpAddr| plan.firewall().and_then(|firewall| firewall.pod_rules(*ip));
    let restricted = addresses.filter(move |ip| pod_rules(ip).is_some_and(PodRules::is_restricted));
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
        socket.set_timeout(ANSWER_TIMEOUT)?;
        let is_listed = addresses.len() > SINGLE;
        let listed = is_listed.then(|| entries(&mut socket).ok()).flatten();
        // Bridged pods share their bridge. Nothing can wait on an interface that is gone.
        let mut indices = HashMap::new();
        addresses.iter().try_for_each(|(interface, address)| {
            let index = indices.entry(interface).or_insert_with(|| if_nametoindex(&**interface));
            match *index {
                Ok(index) if listed.as_ref().is_none_or(|all| all.contains(&(index, *address))) => {
                    delete(&mut socket, index, *address)
                }
                Ok(_) | Err(_) => Ok(()),
            }
        })
    });
    if let Err(error) = dropped {
        debug!(%error, "packets that wait for a new pod's address may reach it");
    }
}

/// All entries of the neighbour tables: interface and address.
fn entries(socket: &mut Socket) -> Result<HashSet<(u32, IpAddr)>, NetlinkError> {
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let flags = libc::NLM_F_DUMP as u16;
    let open = request.begin_message_with(libc::RTM_GETNEIGH, flags, sequence, &[0; NDMSG]);
    request.end_message(open);
    let mut entries = HashSet::new();
    socket.dump(request.bytes(), sequence, |entry| entries.extend(parse(&entry)))?;
    Ok(entries)
}

fn parse(entry: &Message<'_>) -> Option<(u32, IpAddr)> {
    let index = entry.payload.get(INDEX..)?.first_chunk().copied().map(u32::from_ne_bytes)?;
    let address = entry.attributes_after(NDMSG).find(DESTINATION)?;
    let v4 = || <[u8; 4]>::try_from(address).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(address).map(IpAddr::from);
    Some((index, v4().or_else(|_| v6()).ok()?))
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "ip shows what is left")]
    fn entries_of_many_addresses_are_removed_as_those_of_few() {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        let ip = |arguments: &str| {
            let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
            assert!(output.status.success(), "{arguments}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth0 up");
        let pods: Vec<IpAddr> = (1..=9)
            .flat_map(|n| [format!("10.0.0.{n}"), format!("fd00::{n}")])
            .map(|text| text.parse().unwrap())
            .collect();
        let mac = "lladdr 02:00:00:00:00:01 dev veth0";
        let stay: [IpAddr; 2] = ["10.0.0.77".parse().unwrap(), pods[0]];
        let expected: HashSet<_> = stay.into();
        for count in [SINGLE, pods.len()] {
            let some = &pods[1..count];
            for ip_address in &pods {
                ip(&format!("neigh replace {ip_address} {mac} nud stale"));
            }
            ip(&format!("neigh replace {} {mac} nud stale", stay[0]));
            ip(&format!("neigh replace {} {mac} nud permanent", stay[1]));
            let named: Vec<_> = some.iter().map(|ip| (Arc::from("veth0"), *ip)).collect();
            let configured = (Arc::from("veth0"), pods[0]);
            drop_waiting(&[named, vec![configured]].concat());
            let left = entries(&mut Socket::route().unwrap()).unwrap();
            let left: HashSet<_> = left.into_iter().map(|(_, ip)| ip).collect();
            let gone = some.iter().filter(|ip| left.contains(*ip)).collect::<Vec<_>>();
            assert!(gone.is_empty() && expected.is_subset(&left), "{count}: {left:?}");
        }
    }
}
