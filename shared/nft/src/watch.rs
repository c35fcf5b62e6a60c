//! The kernel's notifications of changes in nf_tables, and of who made them.

use std::os::fd::{AsRawFd, RawFd};

use denizen_netlink::{Message, NetlinkError, Socket};
use nix::libc;

use crate::batch::kind;
use crate::observed::about;

/// Listens to the changes of nf_tables in this network namespace.
///
/// Best opened after the first load: while any program listens, the kernel writes a notification
/// for every element, which doubles the cost of a large batch.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    tables: &'static [&'static str],
    own: Vec<u32>,
    /// A watched table was changed by another program, in a batch whose last notification has not
    /// come yet.
    touched: bool,
}

/// Which tables other programs changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Whether watched tables were changed, in any family.
    pub watched_tables_changed: bool,
    /// Whether tables that are not watched were changed.
    pub other_tables_changed: bool,
}

impl Watch {
    /// Listens from now on to what happens to tables of these names, and to all others. `own` are
    /// the portids of the sockets whose changes are the client's own; empty if the client has no
    /// table. (A process id would not do: the kernel reports the id in the host's pid namespace,
    /// and a process in a container does not know it.)
    pub fn open(tables: &'static [&'static str], own: Vec<u32>) -> Result<Self, NetlinkError> {
        const NFNLGRP_NFTABLES: libc::c_int = 7;
        let socket = Socket::open()?;
        socket.join(NFNLGRP_NFTABLES)?;
        Ok(Self { socket, tables, own, touched: false })
    }

    /// Reads all pending notifications: what others changed since the last call. If notifications
    /// were lost, everything counts as changed.
    pub fn changes(&mut self) -> Result<Changes, NetlinkError> {
        let mut changes = Changes::default();
        let Self { socket, tables, own, touched } = self;
        loop {
            let more = socket.receive(false, |message| match ended_by(&message) {
                Some(portid) => {
                    let is_table = std::mem::take(touched);
                    let is_foreign = !own.contains(&portid);
                    changes.watched_tables_changed |= is_table && is_foreign;
                    changes.other_tables_changed |= !is_table && is_foreign;
                }
                // Most notifications are about our own batches, of hundreds of elements.
                None if own.is_empty() || own.contains(&message.portid) => {}
                None => {
                    *touched |= tables.iter().any(|table| about(table, &message).is_some());
                }
            });
            match more {
                Ok(true) => {}
                Ok(false) => return Ok(changes),
                Err(NetlinkError::Overflow) => {
                    changes = Changes { watched_tables_changed: true, other_tables_changed: true };
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The portid that a batch came from, if this message is the one that ends its notifications.
fn ended_by(message: &Message<'_>) -> Option<u32> {
    (message.kind == kind(libc::NFT_MSG_NEWGEN)).then_some(message.portid)
}
