//! The kernel's word of who changed what in nf_tables.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use nix::libc;
use tokio::sync::Notify;

use super::message::kind;
use super::name::TABLE;
use denizen_netlink::{Message, NetlinkError, Socket};

/// Listens to the changes of nf_tables in this network namespace.
///
/// Opened after the first load: the kernel writes a notification for every element while somebody
/// listens, which doubles the cost of a large batch.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    own: Option<u32>,
    /// Told of changes of other tables.
    elsewhere: Arc<Notify>,
    /// Our table was touched in the batch whose end has not come yet.
    touched: bool,
}

impl Watch {
    /// Listens from now on. `own` is the portid of the socket whose changes are our own, `None`
    /// where no table of nf_tables is ours; `elsewhere` is told when somebody changes tables that
    /// are not ours. (A process id would not do: the kernel names it as the host knows it, not as a
    /// container's process knows itself.)
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn open(own: Option<u32>, elsewhere: &Arc<Notify>) -> Result<Self, NetlinkError> {
        const NFNLGRP_NFTABLES: libc::c_int = 7;
        let socket = Socket::open()?;
        socket.join(NFNLGRP_NFTABLES)?;
        Ok(Self { socket, own, elsewhere: Arc::clone(elsewhere), touched: false })
    }

    /// Reads all that is there: whether somebody else touched our tables. Notifications that were
    /// lost count as if they had been about us.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn foreign_change(&mut self) -> Result<bool, NetlinkError> {
        let mut foreign = false;
        let Self { socket, own, elsewhere, touched } = self;
        loop {
            let more = socket.receive(false, |message| match ended_by(&message) {
                Some(portid) => {
                    let ours = std::mem::take(touched);
                    foreign |= ours && Some(portid) != *own;
                    if !ours && Some(portid) != *own {
                        elsewhere.notify_one();
                    }
                }
                None => *touched |= own.is_some() && is_ours(&message),
            });
            match more {
                Ok(true) => {}
                Ok(false) => return Ok(foreign),
                Err(NetlinkError::Overflow) => {
                    foreign = true;
                    elsewhere.notify_one();
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

/// Every message about a table, or what is in it, has the table's name first.
fn is_ours(message: &Message<'_>) -> bool {
    message.attributes().find_str(1) == Some(TABLE)
}
