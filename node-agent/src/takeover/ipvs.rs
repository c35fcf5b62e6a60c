//! What kube-proxy's ipvs mode leaves besides chains and sets, which `cleanup --kube-proxy`
//! removes.

use std::fs;

use anyhow::Context;
use futures_util::StreamExt;
use nix::errno::Errno;
use rtnetlink::new_connection;

use crate::backend::ipvs::Kernel;

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

/// How many virtual servers ipvs has that are not the backend's.
pub fn virtual_servers() -> usize {
    let all = lines("ip_vs", |line| {
        ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|kind| line.starts_with(kind))
    });
    // Where the backend's cannot be told apart, they all count.
    let ours = if all > 0 { Kernel::count().unwrap_or(0) } else { 0 };
    all.saturating_sub(ours)
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
