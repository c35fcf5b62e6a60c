//! `cleanup`: removes what denizen, and if requested kube-proxy, left on this node.

mod files;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use super::{ask, block_on};
use crate::agent::{NamespaceLockError, lock_namespace, process_named};
use crate::config::RunDirArgs;
use denizen_backend::firewall::Firewall;
use denizen_backend::forward;
use denizen_backend::host_ports::HostPorts;
use denizen_backend::ipvs::Kernel;
use denizen_backend::kube_ipvs0;
use denizen_backend::nftables::{self, Nftables};
use denizen_backend::sysctl::{BridgeFilter, Loopback, SYSCTLS};
use denizen_backend::takeover::{Owner, iptables, ipvs, remove_kube_proxys};
use denizen_conntrack::Conntrack;
use denizen_ipvs::ServerKey;
use denizen_nft::Kernel as NfTables;
use denizen_plan::MarkBit;
use denizen_routing::bird;
use denizen_routing::routes::{AnnouncedRoutes, LearnedRoutes, PodRoutes, Unserved};
use denizen_state::firewall::note_whether_off;
use denizen_text::{describe, print_line};

#[derive(Debug, Args)]
pub(super) struct CleanupArgs {
    /// Also remove what kube-proxy left, of its iptables, ipvs and nftables modes. Stop it first.
    /// If an agent is running, only that is removed
    #[arg(long)]
    kube_proxy: bool,

    #[command(flatten)]
    run_dir: RunDirArgs,

    /// Directory of the kernel's settings, as for `run`: the setting for node ports on 127.0.0.1 is
    /// set back
    #[arg(long, value_name = "DIR", default_value = SYSCTLS)]
    sysctl_dir: PathBuf,
}

/// Removes what it can. Returns the first failure.
pub(super) fn cleanup(args: &CleanupArgs) -> anyhow::Result<()> {
    let mut results = Vec::new();
    let mut planned = BTreeSet::new();
    // A running agent would program its rules again, and an agent that starts meanwhile would lose
    // a part of its rules. The lock prevents both.
    let namespace_lock = lock_namespace();
    match &namespace_lock {
        Ok(_) => results.extend(remove_denizens(args)),
        Err(NamespaceLockError::Another { process }) if args.kube_proxy => {
            print_line(format_args!(
                "an agent is running ({}): its rules are kept",
                process_named(*process)
            ));
            planned = virtual_servers_of_agent(&args.run_dir.run_dir);
        }
        Err(NamespaceLockError::Another { .. }) => {
            drop(namespace_lock.context("an agent is running: stop it first")?)
        }
        Err(NamespaceLockError::Lock(_)) => drop(namespace_lock?),
    }
    if args.kube_proxy {
        results.extend(remove_kube_proxys_rules(&planned));
    }
    results.into_iter().collect()
}

/// Removes denizen's own rules. With --kube-proxy it searches for chains even if the sets are gone.
fn remove_denizens(args: &CleanupArgs) -> Vec<anyhow::Result<()>> {
    // Before the rules are removed: afterwards no rule protects 127.0.0.0/8 from neighbours.
    let run_dir = &args.run_dir.run_dir;
    close_loopback(&Loopback::new(&args.sysctl_dir, run_dir));
    for bridge in BridgeFilter::new(&args.sysctl_dir, run_dir).set_back() {
        print_line(format_args!(
            "set nf_call_iptables and nf_call_ip6tables of bridge {bridge} back"
        ));
    }
    vec![
        // Before the rules: routers should send no more packets here.
        announcements().map(|routes| print_removed(routes, "announcement")),
        forward::cleanup()
            .context("cannot remove denizen's rules from other firewalls' chains")
            .map(|chains| {
                if chains > 0 {
                    print_line(format_args!(
                        "removed denizen's rules from {chains} of other firewalls' chains"
                    ));
                }
            }),
        // As long as the addresses of virtual servers are still routed here, rules refuse new
        // connections to them.
        only_refuse().context("cannot refuse new connections to virtual servers"),
        virtual_servers().map(|count| print_removed(count, "virtual server")),
        tables()
            .map(|count| print_line(format_args!("removed {}", counted(count, "nftables table")))),
        arp_table().map(|count| print_removed(count, "nftables table of ARP")),
        chains(args.kube_proxy).map(|chains| print_removed(chains, "iptables chain")),
        routes().map(|routes| print_removed(routes, "route")),
        learned(run_dir),
        release_plugin(run_dir),
        files::remove(run_dir),
    ]
}

/// Tells a plugin that is still configured not to wait for the removed firewall.
fn release_plugin(run_dir: &Path) -> anyhow::Result<()> {
    let noted = if run_dir.is_dir() { note_whether_off(run_dir, true) } else { Ok(()) };
    noted.context("cannot tell the plugin that NetworkPolicies are not enforced any more")
}

/// Sets `route_localnet` back if denizen set it. Other programs that need it have their own rules
/// that protect 127.0.0.0/8 from neighbours, as denizen does.
fn close_loopback(loopback: &Loopback) {
    match loopback.set_back() {
        Ok(true) => print_line("set net.ipv4.conf.all.route_localnet back to 0"),
        Ok(false) => {}
        Err(error) => print_line(describe(&error)),
    }
    if loopback.is_open() {
        print_line(
            "net.ipv4.conf.all.route_localnet is still 1, and no rule of denizen protects 127.0.0.0/8 from \
             neighbours any more. Set it to 0 unless kube-proxy or another program needs it",
        );
    }
}

/// kube-proxy's rules and sets for ipvs go last: without them ipvs still translates, but answers
/// that are not masqueraded do not find their way back.
fn remove_kube_proxys_rules(planned: &BTreeSet<ServerKey>) -> [anyhow::Result<()>; 3] {
    let tables = remove_kube_proxys().context("cannot remove kube-proxy's nftables tables");
    let ipvs = remove_ipvs(planned);
    let chains =
        iptables::cleanup(Owner::KubeProxy).context("cannot remove kube-proxy's iptables chains");
    [
        tables.map(|tables| print_removed(tables, "kube-proxy nftables table")),
        ipvs,
        chains.map(|chains| print_removed(chains, "kube-proxy iptables chain")),
    ]
}

/// The virtual servers that the running agent plans: none with other backends.
fn virtual_servers_of_agent(run_dir: &Path) -> BTreeSet<ServerKey> {
    match ask(run_dir, async |agent| agent.virtual_servers().await) {
        Ok(planned) => {
            planned.into_iter().map(|(protocol, at)| ServerKey { at, protocol }).collect()
        }
        Err(error) => {
            print_line(format_args!("{error:#}: connections that ipvs carries are ended"));
            BTreeSet::new()
        }
    }
}

/// If kube-proxy's device exists, all virtual servers count as kube-proxy's, except those that a
/// running agent plans, which it keeps. The device goes last, so that an interrupted call can be
/// repeated; until then the node treats service addresses as its own.
fn remove_ipvs(planned: &BTreeSet<ServerKey>) -> anyhow::Result<()> {
    let Some(device) = block_on(kube_ipvs0::device())? else {
        let servers = ipvs::virtual_servers();
        if servers > 0 {
            print_line(format_args!(
                "kept {} of ipvs, because they may not be kube-proxy's; `ipvsadm --clear` removes all",
                counted(servers, "virtual server")
            ));
        }
        return Ok(());
    };
    let carried = ipvs::connections(&planned.iter().map(|key| key.at).collect());
    let (before, mut kept) = (ipvs::all_virtual_servers(), 0);
    if before > 0 {
        // As in kube-proxy's own clean-up: nothing shows which program made a virtual server.
        kept = Kernel::remove_foreign(planned)
            .context("cannot remove kube-proxy's virtual servers")?;
    }
    block_on(kube_ipvs0::remove(device))?;
    print_removed(1, "kube-proxy ipvs device");
    print_removed(before.saturating_sub(ipvs::all_virtual_servers()), "virtual server");
    if kept > 0 {
        let kept = counted(kept, "virtual server");
        print_line(format_args!("left {kept} to the agent, with their connections"));
    }
    if carried > 0 {
        print_line(format_args!("ended {}, which ipvs carried", counted(carried, "connection")));
    }
    Ok(())
}

fn routes() -> anyhow::Result<usize> {
    let removed = PodRoutes::open().and_then(|mut routes| routes.remove());
    removed.context("cannot remove the routes to other nodes' pods")
}

/// Removes BIRD's configuration, which has passwords, and, unless BIRD still runs, the routes that
/// it has learned.
fn learned(run_dir: &Path) -> anyhow::Result<()> {
    let folder = run_dir.join(bird::FOLDER);
    for name in [bird::CONFIGURATION, bird::NEXT] {
        match std::fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).context("cannot remove BIRD's configuration");
            }
            Ok(()) | Err(_) => {}
        }
    }
    if UnixStream::connect(folder.join(bird::SOCKET)).is_ok() {
        bail!(
            "BIRD is running, and keeps its sessions and its routes: stop it, and run this again"
        );
    }
    let removed = LearnedRoutes::open().and_then(|mut routes| routes.remove());
    print_removed(
        removed.context("cannot remove the routes that BIRD has learned")?,
        "learned route",
    );
    Ok(())
}

fn announcements() -> anyhow::Result<usize> {
    AnnouncedRoutes::remove_all().context("cannot withdraw the announcements")
}

fn tables() -> anyhow::Result<usize> {
    let mut kernel = NfTables::open().context("cannot open netlink to nf_tables")?;
    let services = Nftables::remove_all_but_arp(&mut kernel)?;
    let firewall = Firewall::cleanup(&mut kernel)?;
    if firewall > 0 {
        let mut conntrack = Conntrack::open(MarkBit::FORBIDDEN.mask())
            .context("cannot open netlink to conntrack")?;
        conntrack.unmark_all().context("forbidden connections keep their mark")?;
    }
    Ok(services + firewall + Unserved::remove(&mut kernel)? + HostPorts::remove(&mut kernel)?)
}

fn arp_table() -> anyhow::Result<usize> {
    let mut kernel = NfTables::open().context("cannot open netlink to nf_tables")?;
    Ok(Nftables::remove_arp(&mut kernel)?)
}

fn only_refuse() -> anyhow::Result<()> {
    let mut kernel = NfTables::open().context("cannot open netlink to nf_tables")?;
    Ok(nftables::only_refuse(&mut kernel, &Kernel::routed()?)?)
}

fn virtual_servers() -> anyhow::Result<usize> {
    Kernel::cleanup().context("cannot remove denizen's virtual servers")
}

/// Removes iptables chains. It executes programs only if there may be something to remove.
fn chains(thoroughly: bool) -> anyhow::Result<usize> {
    match thoroughly || iptables::was_here() {
        true => Ok(iptables::cleanup(Owner::Denizen)?),
        false => Ok(0),
    }
}

fn print_removed(count: usize, what: &str) {
    if count > 0 {
        print_line(format_args!("removed {}", counted(count, what)));
    }
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
