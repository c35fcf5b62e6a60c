//! The device of kube-proxy's ipvs mode. Its addresses distinguish kube-proxy's virtual servers
//! from ours. `cleanup --kube-proxy` removes it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Context;
use futures_util::StreamExt;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use rtnetlink::new_connection;

/// The device that has every service address.
const DEVICE: &str = "kube-ipvs0";

/// The index of kube-proxy's ipvs device, if it exists. The device has the addresses of services,
/// so the node takes them for its own.
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

/// The addresses of the [`device`]; none if there is no such device.
///
/// # Errors
/// The kernel's.
pub fn addresses() -> Result<BTreeSet<IpAddr>, Errno> {
    let all = getifaddrs()?.filter(|address| address.interface_name == DEVICE);
    let ip = |address: SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    };
    Ok(all.filter_map(|address| ip(address.address?)).collect())
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
