//! What kube-proxy has in the kernel: it runs here, or ran here. Only reads.

use super::owner::Owner;
use super::{iptables, iptables_nft, ipvs, kube_proxy_nftables};
use denizen_iptables::IptablesError;
use denizen_netlink::NetlinkError;
use thiserror::Error;

/// Why it is not known what kube-proxy has in the kernel.
#[derive(Debug, Error)]
pub enum FoundError {
    /// nf_tables cannot be read.
    #[error("cannot read nf_tables to find kube-proxy's rules")]
    Netlink(#[from] NetlinkError),
    /// Legacy iptables has tables, and they cannot be read.
    #[error("cannot read legacy iptables to find kube-proxy's chains")]
    Iptables(#[from] IptablesError),
}

/// What of kube-proxy is in the kernel, in words. In the network namespace of the calling thread.
///
/// # Errors
/// [`FoundError`].
pub fn kube_proxys() -> Result<Vec<&'static str>, FoundError> {
    let found = [
        (kube_proxy_nftables::is_there()?, "the nftables table kube-proxy"),
        (iptables_nft::has_chains(Owner::KubeProxy)?, "kube-proxy's chains in iptables-nft"),
        (iptables::has_legacy_chains(Owner::KubeProxy)?, "kube-proxy's chains in iptables-legacy"),
        (ipvs::virtual_servers() > 0, "virtual servers of ipvs"),
    ];
    Ok(found.into_iter().filter_map(|(is_there, what)| is_there.then_some(what)).collect())
}
