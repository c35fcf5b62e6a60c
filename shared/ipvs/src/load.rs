//! The kernel's module.

use denizen_netlink::{Socket, Writer};
use nix::libc;

use super::kernel::{Ipvs, IpvsError};

/// `NFNL_SUBSYS_NFT_COMPAT` and `NFNL_MSG_COMPAT_GET` (linux/netfilter/nf_tables_compat.h).
const NFT_COMPAT_GET: u16 = 11 << 8;
const NFTA_COMPAT_NAME: u16 = 1;
const NFTA_COMPAT_REV: u16 = 2;
const NFTA_COMPAT_TYPE: u16 = 3;

/// Loads the kernel's module `ip_vs`, if it is not there. (The kernel itself loads the modules of
/// schedulers, when a virtual server needs one.)
///
/// For this the kernel executes the node's `modprobe`, which reads the node's own files and
/// settings, so the caller needs only `CAP_NET_ADMIN`. Not every kernel has an alias by which
/// generic netlink would load the module. But every kernel loads an extension of iptables when
/// asked for it by name: `xt_ipvs`, which needs the module.
///
/// # Errors
///
/// [`IpvsError::Missing`] if the kernel still has no IPVS afterwards.
pub fn load() -> Result<(), IpvsError> {
    match Ipvs::open() {
        Err(IpvsError::Missing) => {}
        opened => return opened.map(drop),
    }
    let mut socket = Socket::open().map_err(IpvsError::netlink("open netlink to nf_tables"))?;
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let open = request.begin_message(NFT_COMPAT_GET, 0, sequence, libc::AF_INET as u8, 0);
    request.put_str(NFTA_COMPAT_NAME, "ipvs");
    request.put_u32(NFTA_COMPAT_REV, 0);
    request.put_u32(NFTA_COMPAT_TYPE, 0);
    request.end_message(open);
    // The answer does not matter: what counts is whether IPVS is there.
    let _ = socket.ask(request.bytes(), sequence, |_| ());
    Ipvs::open().map(drop)
}
