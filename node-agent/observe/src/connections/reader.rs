//! Reads the conntrack table, and listens to its changes.

use std::collections::BTreeSet;

use denizen_netlink::{Message, NetlinkError, Socket, Writer};
use nix::libc;

use super::Tracked;
use denizen_conntrack::write_dump;
use denizen_model::{Family, Protocol};
use denizen_packet::FlowSelection;

const IPCTNL_MSG_CT_NEW: u16 = message(0);
const IPCTNL_MSG_CT_GET: u16 = message(1);
const IPCTNL_MSG_CT_DELETE: u16 = message(2);
const NFNLGRP_CONNTRACK_NEW: libc::c_int = 1;
const NFNLGRP_CONNTRACK_DESTROY: libc::c_int = 3;

const fn message(kind: u16) -> u16 {
    (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | kind
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackedEvent {
    New(Tracked),
    Ended(Tracked),
}

impl TrackedEvent {
    fn parse(message: &Message<'_>) -> Option<Self> {
        match message.kind {
            IPCTNL_MSG_CT_NEW => Tracked::parse(message).map(Self::New),
            IPCTNL_MSG_CT_DELETE => Tracked::parse(message).map(Self::Ended),
            _ => None,
        }
    }
}

/// A socket to connection tracking, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct ConnectionReader {
    socket: Socket,
}

impl ConnectionReader {
    /// Opens the socket. A lack of permission only shows with the first request.
    pub fn open() -> Result<Self, NetlinkError> {
        Socket::open().map(|socket| Self { socket })
    }

    /// Passes every entry to `each`.
    pub fn read_all(&mut self, each: impl FnMut(Tracked)) -> Result<(), NetlinkError> {
        let mut request = Writer::default();
        let sequence = self.socket.sequences(1);
        let every_family = 0;
        let flags = libc::NLM_F_DUMP as u16;
        let open = request.begin_message(IPCTNL_MSG_CT_GET, flags, sequence, every_family, 0);
        request.end_message(open);
        self.dump(&request, sequence, each)
    }

    /// Passes every entry of these families and protocols to `each`. The kernel filters, but walks
    /// the whole table for each pair.
    pub fn read(
        &mut self,
        parts: &BTreeSet<(Family, Protocol)>,
        mut each: impl FnMut(Tracked),
    ) -> Result<(), NetlinkError> {
        for (family, protocol) in parts {
            let mut request = Writer::default();
            let sequence = self.socket.sequences(1);
            let part = FlowSelection {
                family: *family,
                protocol: Some(*protocol),
                unanswered_syns: false,
            };
            write_dump(&mut request, sequence, part);
            // Kernels before 5.8 ignore the protocol.
            self.dump(&request, sequence, |tracked| {
                if part.has(&tracked.entry) {
                    each(tracked);
                }
            })?;
        }
        Ok(())
    }

    fn dump(
        &mut self,
        request: &Writer,
        sequence: u32,
        mut each: impl FnMut(Tracked),
    ) -> Result<(), NetlinkError> {
        self.socket.dump(request.bytes(), sequence, |message| {
            Tracked::parse(&message).into_iter().for_each(&mut each);
        })
    }

    /// Subscribes to connections that begin and end.
    pub fn listen(&self) -> Result<(), NetlinkError> {
        let groups = [NFNLGRP_CONNTRACK_NEW, NFNLGRP_CONNTRACK_DESTROY];
        groups.into_iter().try_for_each(|group| self.socket.join(group))
    }

    /// Waits for events, and passes each to `each`.
    ///
    /// # Errors
    /// [`NetlinkError::Overflow`] when events were lost, else [`NetlinkError::Io`].
    pub fn receive(&mut self, mut each: impl FnMut(TrackedEvent)) -> Result<(), NetlinkError> {
        let received = self.socket.receive(true, |message| {
            TrackedEvent::parse(&message).into_iter().for_each(&mut each);
        });
        received.map(drop)
    }
}
