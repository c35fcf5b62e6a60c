//! The socket, against the kernel.

use super::*;
use crate::message::Writer;

/// `struct ifaddrmsg`: the IPv4 addresses of the interface with this index.
fn addresses_of(index: u32) -> [u8; 8] {
    let [a, b, c, d] = index.to_ne_bytes();
    [libc::AF_INET as u8, 0, 0, 0, a, b, c, d]
}

#[test]
fn a_dump_that_the_kernel_ends_with_an_error_is_refused() {
    let mut socket = Socket::route().expect("a socket");
    socket.check_strictly().expect("a kernel of 4.20 or later");
    let mut list = |index| {
        let sequence = socket.sequences(1);
        let mut writer = Writer::default();
        let open = writer.begin_message_with(
            libc::RTM_GETADDR,
            libc::NLM_F_DUMP as u16,
            sequence,
            &addresses_of(index),
        );
        writer.end_message(open);
        socket.dump(writer.bytes(), sequence, |_| {})
    };
    list(0).expect("all addresses");
    // There is no such interface, which the kernel finds within the dump.
    let error = list(i32::MAX as u32).expect_err("no addresses of no interface");
    assert_eq!(error.errno(), Some(Errno::ENODEV), "{error}");
}

#[test]
fn each_request_of_a_datagram_has_its_own_answer() {
    let mut socket = Socket::route().expect("a socket");
    let links = ["lo", "no-such-link", "lo"];
    let first = socket.sequences(3);
    let mut writer = Writer::default();
    for (sequence, link) in (first..).zip(links) {
        let open = writer.begin_message_with(libc::RTM_GETLINK, 0, sequence, &[0; 16]);
        writer.put_str(libc::IFLA_IFNAME, link);
        writer.end_message(open);
    }
    let mut answers = Vec::new();
    let each = |sequence: u32, answer: Result<Message<'_>, KernelRejection>| {
        let name =
            answer.map(|link| link.attributes_after(16).find_str(libc::IFLA_IFNAME) == Some("lo"));
        answers.push((sequence - first, name.map_err(|rejection| rejection.errno)));
    };
    socket.ask_all(writer.bytes(), each).expect("answers");
    assert_eq!(answers, [(0, Ok(true)), (1, Err(Errno::ENODEV)), (2, Ok(true))]);
}
