//! Fills the conntrack table of this thread's network namespace, as packets would, and empties it.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use denizen_netlink::{Socket, Writer};

/// A translated flow of UDP over IPv4.
#[derive(Debug, Clone, Copy)]
pub struct FlowEntry {
    /// The sender of the first packet.
    pub client: SocketAddr,
    /// The destination of the first packet.
    pub frontend: SocketAddr,
    /// Where replies come from.
    pub endpoint: SocketAddr,
}

/// Netlink requests in one datagram.
const AT_ONCE: u32 = 500;
const NLM_F_ACK: u16 = 4;
/// NLM_F_ACK, NLM_F_CREATE and NLM_F_EXCL.
const FLAGS: u16 = NLM_F_ACK | 0x400 | 0x200;

/// Makes an entry for each of `count` flows.
pub fn fill(count: u32, flow: impl Fn(u32) -> FlowEntry) -> Result<()> {
    let mut socket = Socket::open()?;
    for first in (0..count).step_by(AT_ONCE as usize) {
        let mut requests = Writer::default();
        let mut last = 0;
        for number in first..count.min(first + AT_ONCE) {
            last = socket.sequences(1);
            create(&mut requests, last, flow(number));
        }
        socket.send(requests.bytes())?;
        let refused = socket.refusals(last)?;
        ensure!(refused.is_empty(), "{refused:?}");
    }
    Ok(())
}

/// Removes every entry, of both families.
pub fn forget() -> Result<()> {
    let mut socket = Socket::open()?;
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let message = request.begin_message(0x102, NLM_F_ACK, sequence, 0, 0);
    request.end_message(message);
    socket.send(request.bytes())?;
    let refused = socket.refusals(sequence)?;
    ensure!(refused.is_empty(), "{refused:?}");
    Ok(())
}

fn create(requests: &mut Writer, sequence: u32, flow: FlowEntry) {
    let FlowEntry { client, frontend, endpoint } = flow;
    let message = requests.begin_message(0x100, FLAGS, sequence, 2, 0);
    for (kind, source, destination) in [(1, client, frontend), (2, endpoint, client)] {
        let tuple = requests.begin(kind);
        let addresses = requests.begin(1);
        for (kind, end) in [(1, source), (2, destination)] {
            if let IpAddr::V4(ip) = end.ip() {
                requests.put(kind, &ip.octets());
            }
        }
        requests.end(addresses);
        let ports = requests.begin(2);
        requests.put(1, &[17]);
        requests.put(2, &source.port().to_be_bytes());
        requests.put(3, &destination.port().to_be_bytes());
        requests.end(ports);
        requests.end(tuple);
    }
    requests.put_u32(7, 600);
    requests.end_message(message);
}
