//! What kube-proxy's ipvs mode leaves besides chains and sets, which `cleanup --kube-proxy` removes.

use std::fs;

use anyhow::Context;
use futures_util::StreamExt;
use nix::errno::Errno;
use rtnetlink::new_connection;

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

/// Virtual servers that ipvs has, whoever's: they cannot be told apart.
pub fn virtual_servers() -> usize {
    #[expect(clippy::disallowed_methods, reason = "the kernel's list of virtual servers")]
    let list = fs::read_to_string("/proc/net/ip_vs").unwrap_or_default();
    let kinds = ["TCP ", "UDP ", "SCTP ", "FWM "];
    list.lines()
        .filter(|line| kinds.iter().any(|kind| line.starts_with(kind)))
        .count()
}
