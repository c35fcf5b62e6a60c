//! `cleanup`: removes what denizen, and where that is asked for kube-proxy, left on this node.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::block_on;
use crate::agent::{AloneError, alone_here};
use crate::backend::iptables::{self, Whose};
use crate::backend::nftables::{Kernel, Nftables, remove_kube_proxys};
use crate::config::RunDirArgs;
use crate::describe::describe;
use crate::forward;
use crate::sysctl::Loopback;
use crate::sysctl::SYSCTLS;
use crate::takeover::ipvs;

#[derive(Debug, Args)]
pub(super) struct CleanupArgs {
    /// Remove what kube-proxy left too, of its iptables, ipvs and nftables modes. End it first.
    /// Beside a running agent, only that is removed
    #[arg(long)]
    kube_proxy: bool,

    #[command(flatten)]
    run_dir: RunDirArgs,

    /// Where the kernel's settings are, as for `run`: what denizen set for node ports on 127.0.0.1
    /// is set back
    #[arg(long, value_name = "DIR", default_value = SYSCTLS)]
    sysctl_dir: PathBuf,
}

/// Removes what it can; the first thing that it cannot is the error.
pub(super) fn cleanup(args: &CleanupArgs) -> anyhow::Result<()> {
    let mut results = Vec::new();
    // A running agent would put everything of its own back; one that starts meanwhile, half of it.
    let alone = alone_here();
    match &alone {
        Ok(_) => results.extend(denizens(args)),
        Err(AloneError::Another { process }) if args.kube_proxy => {
            println!("left are the rules of the running agent (process {process})");
        }
        Err(AloneError::Another { .. }) => {
            drop(alone.context("nothing is removed while an agent runs: stop it first")?)
        }
        Err(AloneError::Lock(_)) => drop(alone?),
    }
    if args.kube_proxy {
        results.extend(kube_proxys());
    }
    results.into_iter().collect()
}

/// What is kube-proxy's too: denizen's chains are looked for where its sets are gone as well.
fn denizens(args: &CleanupArgs) -> Vec<anyhow::Result<()>> {
    // First: no rule keeps neighbours out of there afterwards.
    close_loopback(&Loopback::new(&args.sysctl_dir, &args.run_dir.run_dir));
    vec![
        forward::cleanup()
            .context("cannot remove denizen's rules from other firewalls' chains")
            .map(|chains| {
                if chains > 0 {
                    println!("removed denizen's rules from {chains} of other firewalls' chains");
                }
            }),
        tables().map(|count| println!("removed {}", counted(count, "nftables table"))),
        chains(args.kube_proxy).map(|chains| tell(chains, "iptables chain")),
    ]
}

/// Sets `route_localnet` back where denizen set it. Whoever else needs it keeps neighbours out by
/// rules of their own, as denizen did.
fn close_loopback(loopback: &Loopback) {
    match loopback.set_back() {
        Ok(true) => println!("set net.ipv4.conf.all.route_localnet back to 0"),
        Ok(false) => {}
        Err(error) => println!("{}", describe(&error)),
    }
    if loopback.is_open() {
        println!(
            "left is net.ipv4.conf.all.route_localnet=1: set it to 0 unless kube-proxy or another needs it, for no \
             rule of denizen's keeps neighbours out of 127.0.0.0/8 any more"
        );
    }
}

/// Ipvs' rules and sets go last: without them it translates, but answers that are not masqueraded
/// go astray.
fn kube_proxys() -> [anyhow::Result<()>; 3] {
    let tables = remove_kube_proxys().context("cannot remove kube-proxy's nftables tables");
    let ipvs = of_ipvs();
    let chains =
        iptables::cleanup(Whose::KubeProxys).context("cannot remove kube-proxy's iptables chains");
    [
        tables.map(|tables| tell(tables, "kube-proxy nftables table")),
        ipvs,
        chains.map(|chains| tell(chains, "kube-proxy iptables chain")),
    ]
}

/// Where there is kube-proxy's device, the virtual servers are taken for its. It goes last, so that
/// a call that stopped half way can be made again; until then the node takes services' addresses
/// for its own.
fn of_ipvs() -> anyhow::Result<()> {
    let servers = ipvs::virtual_servers();
    let Some(device) = block_on(ipvs::device())? else {
        if servers > 0 {
            println!(
                "left are {} of ipvs, which may be anybody's; `ipvsadm --clear` removes them all",
                counted(servers, "virtual server")
            );
        }
        return Ok(());
    };
    let carried = ipvs::connections();
    if servers > 0 {
        ipvs::flush().context("cannot remove kube-proxy's virtual servers")?;
    }
    block_on(ipvs::remove(device))?;
    tell(1, "kube-proxy ipvs device");
    tell(servers, "virtual server");
    if carried > 0 {
        println!("ended {}, which ipvs carried", counted(carried, "connection"));
    }
    Ok(())
}

fn tables() -> anyhow::Result<usize> {
    let mut kernel = Kernel::open().context("cannot open netlink to nf_tables")?;
    Ok(Nftables::cleanup(&mut kernel)?)
}

/// Programs are executed only where there may be something to remove.
fn chains(thoroughly: bool) -> anyhow::Result<usize> {
    match thoroughly || iptables::was_here() {
        true => Ok(iptables::cleanup(Whose::Denizens)?),
        false => Ok(0),
    }
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
