//! Tables of another service proxy, which are only ever removed.

use nix::errno::Errno;
use nix::libc;

use super::kernel::NftablesError;
use super::message::kind;
use super::name::Layer;
use crate::model::Family;
use denizen_netlink::{NetlinkError, Socket, Writer};

/// kube-proxy's, of its nftables mode.
const KUBE_PROXYS: &str = "kube-proxy";

/// Removes the tables of kube-proxy's nftables mode; how many there were.
///
/// # Errors
/// The kernel's.
pub fn remove_kube_proxys() -> Result<usize, NftablesError> {
    let mut removed = 0;
    for layer in Family::BOTH.map(Layer::Ip) {
        let is_removed = remove(layer).map_err(|source| NftablesError::Netlink {
            layer,
            doing: "remove kube-proxy's",
            source,
        })?;
        removed += usize::from(is_removed);
    }
    Ok(removed)
}

fn remove(layer: Layer) -> Result<bool, NetlinkError> {
    const NAME: u16 = 1;
    let mut socket = Socket::open()?;
    let first = socket.sequences(3);
    let subsystem = libc::NFNL_SUBSYS_NFTABLES as u16;
    let mut batch = Writer::default();
    let edge = |writer: &mut Writer, message: i32, sequence| {
        let open = writer.begin_message(message as u16, 0, sequence, 0, subsystem);
        writer.end_message(open);
    };
    edge(&mut batch, libc::NFNL_MSG_BATCH_BEGIN, first);
    let flags = libc::NLM_F_ACK as u16;
    let open = batch.begin_message(kind(libc::NFT_MSG_DELTABLE), flags, first + 1, layer.number(), 0);
    batch.put_str(NAME, KUBE_PROXYS);
    batch.end_message(open);
    edge(&mut batch, libc::NFNL_MSG_BATCH_END, first + 2);
    socket.send(&batch.into_bytes())?;
    match socket.outcome(first + 1) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(false),
        done => done.map(|()| true),
    }
}
