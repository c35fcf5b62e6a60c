//! The tables of kube-proxy's nftables mode.

use denizen_nft::{Family, Kernel, NftError};
use nix::errno::Errno;

/// Their name.
const KUBE_PROXYS: &str = "kube-proxy";

/// Removes them; how many there were.
///
/// # Errors
/// [`NftError`].
pub fn remove_kube_proxys() -> Result<usize, NftError> {
    let mut removed = 0;
    for family in [Family::Ip, Family::Ip6] {
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
