//! `cleanup`: removes what denizen, and where that is asked for kube-proxy, left on this node.

use anyhow::Context;
use clap::Args;

use super::block_on;
use crate::backend::iptables::{self, Whose};
use crate::backend::nftables::{Kernel, Nftables, remove_kube_proxys};
use crate::host::{forward, ipvs, sysctl};

#[derive(Debug, Args)]
pub(super) struct CleanupArgs {
    /// Remove what kube-proxy left too, of its iptables, ipvs and nftables modes. End it first
    #[arg(long)]
    kube_proxy: bool,
}

/// Removes what it can; the first thing that it cannot is the error.
pub(super) fn cleanup(args: &CleanupArgs) -> anyhow::Result<()> {
    let mut results = vec![
        forward::cleanup()
            .context("cannot remove denizen's rules from other firewalls' chains")
            .map(|chains| {
                if chains > 0 {
                    println!("removed denizen's rules from {chains} of other firewalls' chains");
                }
            }),
        tables().map(|count| println!("removed {}", counted(count, "nftables table"))),
        chains(args.kube_proxy).map(|chains| tell(chains, "iptables chain")),
    ];
    if args.kube_proxy {
        let tables = remove_kube_proxys().context("cannot remove kube-proxy's nftables tables");
        results.push(tables.map(|tables| tell(tables, "kube-proxy nftables table")));
        results.push(of_ipvs());
    }
    // Whoever else needs it keeps neighbours out by rules of their own, as denizen did.
    if sysctl::loopback_is_open() {
        println!(
            "left is net.ipv4.conf.all.route_localnet=1, for node ports on 127.0.0.1: set it to 0 unless kube-proxy \
             or another needs it, for no rule of denizen's keeps neighbours out any more"
        );
    }
    results.into_iter().collect()
}

/// Where there is kube-proxy's device, the virtual servers are taken for its.
fn of_ipvs() -> anyhow::Result<()> {
    let servers = ipvs::virtual_servers();
    let is_kube_proxys = block_on(ipvs::remove_device())?;
    tell(usize::from(is_kube_proxys), "kube-proxy ipvs device");
    match (servers, is_kube_proxys) {
        (0, _) => {}
        (_, true) => {
            ipvs::flush().context("cannot remove kube-proxy's virtual servers")?;
            tell(servers, "virtual server");
        }
        (_, false) => println!(
            "left are {servers} virtual servers of ipvs, which may be anybody's; `ipvsadm --clear` removes them all"
        ),
    }
    Ok(())
}

fn tables() -> anyhow::Result<usize> {
    let mut kernel = Kernel::open().context("cannot open netlink to nf_tables")?;
    Ok(Nftables::cleanup(&mut kernel)?)
}

fn chains(of_kube_proxy: bool) -> anyhow::Result<usize> {
    Ok(match of_kube_proxy {
        true => iptables::cleanup(Whose::Everybodys)?,
        // Programs are executed only where there may be something to remove.
        false if iptables::was_here() => iptables::cleanup(Whose::Denizens)?,
        false => 0,
    })
}

fn tell(count: usize, what: &str) {
    if count > 0 {
        println!("removed {}", counted(count, what));
    }
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
