//! Unanswered SYNs in a table of the kernel's.

use denizen_netlink::{Socket, Writer};
use nix::libc;
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::Conntrack;
use crate::message::write_tuple;

/// IPS_CONFIRMED, and with it IPS_SEEN_REPLY.
const UNANSWERED: u32 = 1 << 3;
const ANSWERED: u32 = UNANSWERED | 1 << 1;
const TCP: FlowSelection =
    FlowSelection { family: Family::V4, protocol: Some(Protocol::Tcp), unanswered_syns: false };

/// Makes an entry of a client's port, in the state SYN_SENT, or gives one that is there this
/// status.
fn put(port: u16, status: u32, is_new: bool) {
    let mut socket = Socket::open().unwrap();
    let sequence = socket.sequences(1);
    let new = if is_new { libc::NLM_F_CREATE | libc::NLM_F_EXCL } else { 0 };
    let flags = (libc::NLM_F_ACK | new) as u16;
    let mut request = Writer::default();
    let message = request.begin_message(0x100, flags, sequence, libc::AF_INET as u8, 0);
    let client = SocketAddr::from(([10, 9, 0, 9], port));
    let (service, endpoint) = (([10, 96, 0, 1], 80).into(), ([10, 1, 0, 1], 8080).into());
    for (attribute, source, destination) in [(1, client, service), (2, endpoint, client)] {
        let tcp = Transport::Named(Protocol::Tcp);
        write_tuple(&mut request, attribute, tcp, source, destination);
    }
    request.put_u32(3, status);
    if is_new {
        let (info, tcp) = (request.begin(4), request.begin(1));
        request.put(1, &[1]);
        request.end(tcp);
        request.end(info);
        request.put_u32(7, 600);
    }
    request.end_message(message);
    socket.send(request.bytes()).unwrap();
    socket.outcome(sequence).unwrap();
}

fn read(conntrack: &mut Conntrack, part: FlowSelection) -> Vec<TrackedFlow> {
    let mut entries = Vec::new();
    conntrack.read(part, |entry| entries.push(entry)).unwrap();
    entries.sort_unstable_by_key(|entry| entry.source);
    entries
}

#[test]
fn what_was_answered_since_it_was_read_stays() {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
        let mut conntrack = Conntrack::open(BIT).unwrap();
        for (port, status) in [(4000, UNANSWERED), (4001, UNANSWERED), (4002, ANSWERED)] {
            put(port, status, true);
        }
        let unanswered = read(&mut conntrack, FlowSelection { unanswered_syns: true, ..TCP });
        let ports = |entries: &[TrackedFlow]| -> Vec<u16> {
            entries.iter().map(|entry| entry.source.port()).collect()
        };
        assert_eq!(ports(&unanswered), [4000, 4001]);
        put(4001, ANSWERED, false);
        let mut done = 0;
        conntrack.treat(Treatment::DeleteUnanswered, &unanswered, &mut done).unwrap();
        assert_eq!((done, ports(&read(&mut conntrack, TCP))), (1, vec![4001, 4002]));
    });
    thread.join().unwrap();
}
