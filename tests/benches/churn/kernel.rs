//! The kernel's notifications of changes in nf_tables.

use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use denizen_tests::node::netns::Netns;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt,
    socket, sockopt,
};

use crate::cluster::fresh;

/// `NFNLGRP_NFTABLES` (linux/netfilter/nfnetlink.h), as a bit of the groups that a socket listens
/// to.
const NFTABLES: u32 = 1 << (7 - 1);

/// The socket's receive buffer, in bytes, for notifications that nobody has read yet.
const BUFFER: usize = 16 << 20;

/// Notifications of changes that bring a fresh address.
#[derive(Debug)]
pub struct Notifications {
    seen: Receiver<(usize, Instant)>,
    changes: usize,
}

impl Notifications {
    /// Listens from now on to the notifications of `node`'s kernel, for this many changes.
    pub fn listen(node: &Netns, changes: usize) -> Result<Self> {
        let made = node.run(|| {
            let protocol = SockProtocol::NetlinkNetFilter;
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
        })?;
        let netlink = made.context("no netlink socket")?;
        setsockopt(&netlink, sockopt::RcvBufForce, &BUFFER)?;
        bind(netlink.as_raw_fd(), &NetlinkAddr::new(0, NFTABLES))?;
        let (tell, seen) = channel();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 20];
            while let Ok(length) = recv(netlink.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                let now = Instant::now();
                for number in fresh_addresses(&buffer[..length], changes) {
                    if tell.send((number, now)).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Self { seen, changes })
    }

    /// When each change was first notified; an error if one does not come within `timeout` of
    /// another.
    pub fn all(&self, timeout: Duration) -> Result<Vec<Instant>> {
        let mut first = vec![None; self.changes];
        let mut missing = self.changes;
        while missing > 0 {
            let next = self.seen.recv_timeout(timeout);
            let (number, at) =
                next.with_context(|| format!("{missing} changes never came to the kernel"))?;
            if first[number].is_none() {
                first[number] = Some(at);
                missing -= 1;
            }
        }
        Ok(first.into_iter().flatten().collect())
    }
}

/// The changes whose address is somewhere in these messages.
fn fresh_addresses(bytes: &[u8], changes: usize) -> impl Iterator<Item = usize> {
    let [first, second, ..] = fresh(0);
    bytes.windows(4).filter_map(move |four| {
        let number = usize::from(u16::from_be_bytes([four[2], four[3]]));
        (four.starts_with(&[first, second]) && number < changes).then_some(number)
    })
}
