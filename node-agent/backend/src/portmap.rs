//! Removes the CNI plugin portmap's NAT rules for containers that are gone. If portmap is no longer
//! in the runtime's list, nobody else removes them, and they may lead to another pod that got the
//! address.
//!
//! The rules are recognised by their comments. With iptables, the jump to a container's own chain
//! has a comment with the container's id; with nftables the comment is the id.

mod legacy;
mod nft;

use std::collections::BTreeSet;
use std::sync::Arc;

use thiserror::Error;

use denizen_iptables::IptablesError;
use denizen_model::Family;
use denizen_netlink::NetlinkError;
use denizen_nft::NftError;

/// The chain from which portmap's rules lead to the chains of containers.
const ENTRY: &str = "CNI-HOSTPORT-DNAT";
/// The prefix of the names of containers' chains.
const CONTAINER_CHAIN: &str = "CNI-DN-";

/// Why portmap's rules cannot be read or removed.
#[derive(Debug, Error)]
pub enum PortmapError {
    /// nf_tables cannot be read.
    #[error("portmap's rules in nf_tables")]
    Netlink(#[from] NetlinkError),
    /// nf_tables cannot be changed.
    #[error("portmap's rules in nf_tables")]
    Refused(#[from] NftError),
    /// Legacy iptables is in use, and cannot be read or changed.
    #[error("portmap's rules in legacy iptables")]
    Legacy(#[from] IptablesError),
}

/// The ids of the containers that portmap has rules for.
///
/// # Errors
/// [`PortmapError`].
pub fn containers() -> Result<BTreeSet<Arc<str>>, PortmapError> {
    let mut found = nft::containers()?;
    for family in Family::BOTH {
        found.extend(legacy::rules(family)?.into_iter().map(|rule| rule.container));
    }
    Ok(found)
}

/// Removes portmap's rules for containers that are gone. Its rules for other containers stay.
///
/// # Errors
/// The first error. Everything that could be removed was.
pub fn remove(is_gone: &dyn Fn(&str) -> bool) -> Result<(), PortmapError> {
    let mut result = nft::remove(is_gone);
    for family in Family::BOTH {
        result = result.and(legacy::remove(family, is_gone).map_err(Into::into));
    }
    result
}

/// Whether portmap's rules could be removed, if there are any; if not, the reason.
pub fn removable() -> Result<(), String> {
    match legacy::is_readable() {
        true => Ok(()),
        false => Err("legacy iptables is in use here and may have rules of portmap, which only \
             iptables' programs can remove: use the image `iptables`"
            .to_owned()),
    }
}

/// The container's id in the comment of portmap's jump to the container's chain: `dnat name: "pods"
/// id: "3f1c"`.
fn container_in(comment: &str) -> Option<&str> {
    let (_, id) = comment.strip_prefix("dnat name: ")?.rsplit_once(" id: \"")?;
    id.strip_suffix('"')
}

#[cfg(test)]
mod tests;
