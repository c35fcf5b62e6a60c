//! `cleanup`: removes what denizen, and where that is asked for kube-proxy, left on this node.

use anyhow::Context;
use clap::Args;

use crate::backend::iptables::{self, Whose};
use crate::backend::nftables::{Kernel, Nftables};
use crate::host::forward;

#[derive(Debug, Args)]
pub(super) struct CleanupArgs {
    /// Remove what kube-proxy left too, of its iptables mode. End it first
    #[arg(long)]
    kube_proxy: bool,
}

pub(super) fn cleanup(args: &CleanupArgs) -> anyhow::Result<()> {
    let opened = forward::cleanup().context("cannot remove denizen's rules from other firewalls' chains");
    let mut kernel = Kernel::open().context("cannot open netlink to nf_tables")?;
    let tables = Nftables::cleanup(&mut kernel)?;
    println!("removed {}", counted(tables, "nftables table"));
    let chains = match args.kube_proxy {
        true => iptables::cleanup(Whose::Everybodys)?,
        // Programs are executed only where there may be something to remove.
        false if iptables::was_here() => iptables::cleanup(Whose::Denizens)?,
        false => 0,
    };
    if chains > 0 {
        println!("removed {}", counted(chains, "iptables chain"));
    }
    let opened = opened?;
    if opened > 0 {
        println!("removed denizen's rules from {opened} of other firewalls' chains");
    }
    Ok(())
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
