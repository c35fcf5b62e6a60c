//! What kube-proxy's ipvs mode leaves besides chains and sets, which `cleanup --kube-proxy` removes.

use std::fs;

use anyhow::Context;
use futures_util::StreamExt;
use nix::errno::Errno;
use nix::libc;
use rtnetlink::new_connection;

use crate::netlink::{NetlinkError, Socket, Writer};

/// linux/genetlink.h.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// linux/ip_vs.h.
const IPVS_CMD_FLUSH: u8 = 17;

/// The device that has every service address.
const DEVICE: &str = "kube-ipvs0";

/// Removes kube-proxy's device of ipvs, which makes the node believe that services' addresses are its own;
/// whether there was one.
///
/// # Errors
/// The kernel's.
pub async fn remove_device() -> anyhow::Result<bool> {
    let (connection, handle, _) = new_connection().context("cannot open netlink to the links")?;
    tokio::spawn(connection);
    let mut found = handle.link().get().match_name(DEVICE.to_owned()).execute();
    match found.next().await {
        Some(Ok(link)) => {
            let removed = handle.link().del(link.header.index).execute().await;
            removed.with_context(|| format!("cannot remove {DEVICE}"))?;
            Ok(true)
        }
        Some(Err(rtnetlink::Error::NetlinkError(error))) if error.raw_code() == -(Errno::ENODEV as i32) => {
            Ok(false)
        }
        Some(Err(error)) => Err(error).with_context(|| format!("cannot look for {DEVICE}")),
        None => Ok(false),
    }
}

/// Removes all virtual servers, as kube-proxy's own clean-up does: they cannot be told apart.
///
/// # Errors
/// The kernel's.
pub fn flush() -> Result<(), NetlinkError> {
    let mut socket = Socket::generic()?;
    let sequence = socket.sequences(2);
    let asked = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0, sequence, |message| {
        message.put_str(CTRL_ATTR_FAMILY_NAME, "IPVS");
    });
    socket.send(&asked)?;
    let mut family = None;
    socket.receive(true, |message| {
        let id = message.attributes().find(CTRL_ATTR_FAMILY_ID);
        family = id.and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes);
    })?;
    let family = family.ok_or(NetlinkError::Unacknowledged)?;
    let acknowledged = libc::NLM_F_ACK as u16;
    socket.send(&request(
        family,
        IPVS_CMD_FLUSH,
        acknowledged,
        sequence + 1,
        |_| {},
    ))?;
    socket.outcome(sequence + 1)
}

fn request(kind: u16, command: u8, flags: u16, sequence: u32, fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    let open = writer.begin_message(kind, flags, sequence, command, 0);
    fill(&mut writer);
    writer.end_message(open);
    writer.into_bytes()
}

/// How many virtual servers ipvs has, whoever's.
pub fn virtual_servers() -> usize {
    #[expect(clippy::disallowed_methods, reason = "the kernel's list of virtual servers")]
    let list = fs::read_to_string("/proc/net/ip_vs").unwrap_or_default();
    let kinds = ["TCP ", "UDP ", "SCTP ", "FWM "];
    list.lines()
        .filter(|line| kinds.iter().any(|kind| line.starts_with(kind)))
        .count()
}
