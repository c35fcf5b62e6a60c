//! The tables of kube-proxy's nftables mode.

use denizen_netlink::NetlinkError;
use denizen_nft::{Kernel, NftError, TableFamily};
use nix::errno::Errno;

const KUBE_PROXYS: &str = "kube-proxy";

/// Whether such a table exists.
///
/// # Errors
/// [`NetlinkError`].
pub fn is_there() -> Result<bool, NetlinkError> {
    let tables = Kernel::open()?.tables(|table| (table.name()? == KUBE_PROXYS).then_some(()))?;
    Ok(!tables.is_empty())
}

/// Removes them. Returns how many there were.
///
/// # Errors
/// [`NftError`].
pub fn remove_kube_proxys() -> Result<usize, NftError> {
    let mut removed = 0;
    for family in [TableFamily::Ip, TableFamily::Ip6] {
        let mut kernel = Kernel::open().map_err(|source| NftError::Netlink {
            family,
            doing: "remove kube-proxy's",
            source,
        })?;
        match kernel.write(family, |batch| batch.delete_table(KUBE_PROXYS)) {
            Ok(()) => removed += 1,
            Err(error) if error.errno() == Some(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}
