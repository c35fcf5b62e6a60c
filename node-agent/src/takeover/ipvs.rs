//! What kube-proxy's ipvs mode leaves besides chains and sets, which `cleanup --kube-proxy`
//! removes.

use std::fs;

use anyhow::Context;
use futures_util::StreamExt;
use nix::errno::Errno;
use nix::libc;
use rtnetlink::new_connection;

use denizen_netlink::{NetlinkError, Socket, Writer};

/// linux/genetlink.h.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// linux/ip_vs.h.
const IPVS_CMD_FLUSH: u8 = 17;

/// Why NetworkPolicies and ipvs do not go together: ipvs takes a packet in the input hook, and
/// sends it on through the output hook.
pub const PASSES_BY: &str = "ipvs serves services here, and what it forwards does not pass the hook where \
                             NetworkPolicies are enforced: use another mode of the service proxy";

/// The device that has every service address.
const DEVICE: &str = "kube-ipvs0";

/// Kube-proxy's device of ipvs, which makes the node believe that services' addresses are its own:
/// its index, where it is.
///
/// # Errors
/// The kernel's.
pub async fn device() -> anyhow::Result<Option<u32>> {
    let (connection, handle, _) = new_connection().context("cannot open netlink to the links")?;
    tokio::spawn(connection);
    let mut found = handle.link().get().match_name(DEVICE.to_owned()).execute();
    match found.next().await {
        Some(Ok(link)) => Ok(Some(link.header.index)),
        Some(Err(rtnetlink::Error::NetlinkError(error)))
            if error.raw_code() == -(Errno::ENODEV as i32) =>
        {
            Ok(None)
        }
        Some(Err(error)) => Err(error).with_context(|| format!("cannot look for {DEVICE}")),
        None => Ok(None),
    }
}

/// Removes the [`device`] of this index.
///
/// # Errors
/// The kernel's.
pub async fn remove(device: u32) -> anyhow::Result<()> {
    let (connection, handle, _) = new_connection().context("cannot open netlink to the links")?;
    tokio::spawn(connection);
    let removed = handle.link().del(device).execute().await;
    removed.with_context(|| format!("cannot remove {DEVICE}"))
}

/// Removes all virtual servers, as kube-proxy's own clean-up does: nothing shows whose they are.
///
/// # Errors
/// The kernel's.
pub fn flush() -> Result<(), NetlinkError> {
    let mut socket = Socket::generic()?;
    let sequence = socket.sequences(2);
    let asked = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0, sequence, |message| {
        message.put_str(CTRL_ATTR_FAMILY_NAME, "IPVS");
    });
    let family = socket.ask(&asked, sequence, |message| {
        let id = message.attributes().find(CTRL_ATTR_FAMILY_ID);
        id.and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes)
    })?;
    let family = family.ok_or(NetlinkError::Unacknowledged)?;
    let acknowledged = libc::NLM_F_ACK as u16;
    socket.send(&request(family, IPVS_CMD_FLUSH, acknowledged, sequence + 1, |_| {}))?;
    socket.outcome(sequence + 1)
}

fn request(
    kind: u16,
    command: u8,
    flags: u16,
    sequence: u32,
    fill: impl FnOnce(&mut Writer),
) -> Vec<u8> {
    let mut writer = Writer::default();
    let open = writer.begin_message(kind, flags, sequence, command, 0);
    fill(&mut writer);
    writer.end_message(open);
    writer.into_bytes()
}

/// How many virtual servers ipvs has, whoever's.
pub fn virtual_servers() -> usize {
    lines("ip_vs", |line| {
        ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|kind| line.starts_with(kind))
    })
}

/// How many connections ipvs carries that are open.
pub fn connections() -> usize {
    lines("ip_vs_conn", |line| line.contains(" ESTABLISHED "))
}

fn lines(list: &str, counts: impl Fn(&str) -> bool) -> usize {
    let list = format!("/proc/net/{list}");
    #[expect(clippy::disallowed_methods, reason = "the kernel's own lists of what ipvs has")]
    let list = fs::read_to_string(list).unwrap_or_default();
    list.lines().filter(|line| counts(line)).count()
}
