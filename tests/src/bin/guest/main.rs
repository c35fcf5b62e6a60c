//! The first process of the guest that [`denizen_tests::kernel::vm`] boots: runs what the tests'
//! own kernel cannot, prints the results, and switches the guest off.

#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and execute programs; denizen does not"
)]

mod check;
mod clock;
mod context;
mod flow_table;
mod ipvs;
mod kernel_socket;
mod node_local_dns;
mod observe;
mod policies;
mod single;
mod vlan;

use std::fs;
use std::panic::catch_unwind;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::kernel::vm;
use denizen_tests::node::netns::checked;
use denizen_tests::quickstart;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};

/// A test: what it is called, and its function.
type GuestTest = (&'static str, fn() -> Result<()>);

/// What one guest runs, in this order, by the word that chooses the boot.
const BOOTS: [(&str, &[GuestTest]); 5] = [
    (vm::NODE, &NODE),
    (vm::IPVS, &IPVS),
    (vm::WITHOUT_IPV6, &WITHOUT_IPV6),
    (vm::CHURN, &CHURN),
    (vm::BENCH, &BENCH),
];

/// An ordinary node.
const NODE: [GuestTest; 12] = [
    ("the quick start", the_quick_start),
    ("pods in VLANs of a bridge", vlan::pods_are_local),
    ("policies for pods in a VLAN of a bridge", vlan::isolated_pods_are_cut_off),
    ("packets are followed", observe::packets_are_followed),
    ("faults are found", check::faults_are_found),
    ("a clock that jumps disturbs nothing", clock::jumps),
    (
        "a socket of the kernel's own is redirected",
        kernel_socket::is_redirected_unless_its_port_is_skipped,
    ),
    ("NodeLocal DNSCache beside nftables", node_local_dns::beside_nftables),
    ("NodeLocal DNSCache beside iptables", node_local_dns::beside_iptables),
    ("nftables takes over from ipvs, and back", ipvs::takeover::nftables_takes_over),
    ("iptables, legacy, takes over from ipvs", || {
        ipvs::takeover::iptables_takes_over(Variant::Legacy)
    }),
    ("iptables, nft, takes over from ipvs", || ipvs::takeover::iptables_takes_over(Variant::Nft)),
];

/// The backend ipvs.
const IPVS: [GuestTest; 23] = [
    ("IPVS does what its driver says", ipvs::driver::agrees_with_ipvsadm),
    ("IPVS balances for the backend ipvs", ipvs::backend::serves),
    ("nobody notices what changes behind IPVS", ipvs::backend::nobody_notices),
    ("connections go on without their virtual server", ipvs::leaving::connections_go_on),
    ("who clears IPVS is noticed", ipvs::cleared::is_repaired),
    ("policies hold for what IPVS carries", ipvs::policies::hold),
    ("connections through IPVS live and end", ipvs::connections::live_and_end),
    ("hosts that make it hard are served by ipvs", ipvs::hosts::are_served),
    ("host ports are served beside ipvs", ipvs::host_ports::are_served),
    ("connections through IPVS are counted", ipvs::figures::connections_are_counted),
    ("what is refused beside IPVS is noted", ipvs::figures::refused_flows_are_noted),
    ("what began before the rules gets nothing by ipvs", ipvs::earlier::are_refused),
    ("neighbours do not learn services' addresses", ipvs::neighbours::are_not_told),
    ("an agent is killed in its first load", ipvs::kills::first_load),
    ("an agent is killed in a change", ipvs::kills::changes),
    ("a cleanup is killed", ipvs::kills::cleanups),
    ("what drains is shown", ipvs::draining::is_shown),
    ("ipvs takes over from ipvs, and back", ipvs::handover::nobody_notices),
    ("packets through IPVS are followed", observe::packets_through_ipvs_are_followed),
    ("whom a hash chooses is predicted", ipvs::hashed::are_predicted),
    ("the flow table holds for ipvs", flow_table::flows),
    ("the detection matrix holds for ipvs", flow_table::detection),
    ("modules of IPVS are loaded", ipvs::modules::are_loaded),
];

/// A kernel without IPv6.
const WITHOUT_IPV6: [GuestTest; 1] =
    [("every backend serves without IPv6", single::every_backend_serves)];

/// For a guest with two processors.
const CHURN: [GuestTest; 1] = [("policies change while clients connect", policies::change)];

/// What `cargo bench` measures.
const BENCH: [GuestTest; 1] = [("ten thousand services", ipvs::cost::measure)];

/// Modules that the kernel loads for nobody: kube-proxy loads the first, a node's setup the second.
const MODULES: [&str; 2] = ["ip_vs_rr", "br_netfilter"];

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        // The quick start's pods execute the program that the quick start is in: here, this one.
        Some(quickstart::serve::WORD) => quickstart::serve::main(&arguments[1..]),
        _ if std::process::id() == 1 => boot(),
        _ => Err(anyhow::anyhow!(
            "only the guest's kernel starts this: see `cargo nextest run stock_kernel`"
        )),
    };
    outcome.map_or_else(
        |error| {
            eprintln!("guest: {error:#}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Switches the guest off, whatever came of it: the kernel panics when its first process ends.
fn boot() -> Result<()> {
    // The bound counts the guest's time, which nobody outside can read.
    thread::spawn(|| {
        thread::sleep(vm::bound());
        println!("the guest did not end within {:?}", vm::bound());
        off()
    });
    let chosen = ready().and_then(|()| chosen_tests());
    let failed = chosen.map(|tests| tests.into_iter().filter(|test| !is_well(test)).count());
    match failed {
        Ok(0) => println!("{}", vm::VERDICT),
        Ok(failed) => println!("{failed} failed"),
        Err(error) => println!("the guest cannot be made ready: {error:#}"),
    }
    off()
}

/// What this guest was booted for: a boot's tests, or some of them.
fn chosen_tests() -> Result<Vec<GuestTest>> {
    let asked = std::env::var(vm::BOOT).context("a boot is asked for")?;
    let boot = BOOTS.iter().find(|(word, _)| *word == asked);
    let (_, tests) = boot.with_context(|| format!("there is no boot {asked}"))?;
    let only = std::env::var(vm::ONLY).unwrap_or_default();
    let is_asked = |(name, _): &&GuestTest| vm::word(name).contains(&only);
    let tests: Vec<GuestTest> = tests.iter().filter(is_asked).copied().collect();
    ensure!(!tests.is_empty(), "no test of {asked} is called like {only}");
    Ok(tests)
}

fn is_well(&(name, test): &GuestTest) -> bool {
    let (started, busy_before) = (Instant::now(), busy());
    let outcome = catch_unwind(test).unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked")));
    match &outcome {
        Ok(()) => {
            let busy = busy().saturating_sub(busy_before);
            println!("{name}: well, after {:?}, busy for {busy:?}", started.elapsed());
        }
        Err(error) => println!("{name}: {} {:?}: {error:#}", vm::FAILED, started.elapsed()),
    }
    outcome.is_ok()
}

/// For how long the guest's processors were not idle: only that costs time outside.
fn busy() -> Duration {
    const TICK: u64 = 10;
    const IDLE: [usize; 2] = [3, 4];
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let busy = ticks.enumerate().filter(|(index, _)| !IDLE.contains(index));
    Duration::from_millis(
        TICK * busy.filter_map(|(_, ticks)| ticks.parse::<u64>().ok()).sum::<u64>(),
    )
}

/// The quick start's checks, with everything that they execute, on a kernel that many nodes have.
fn the_quick_start() -> Result<()> {
    let code = quickstart::run(false)?;
    ensure!(code == ExitCode::SUCCESS, "its checks failed");
    Ok(())
}

/// Mounts what a booted machine has. `/tmp` stays as it was packed: this repository may lie below
/// it.
fn ready() -> Result<()> {
    let mounts = [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/run"),
        ("tmpfs", "/dev/shm"),
    ];
    for (kind, at) in mounts {
        fs::create_dir_all(at)?;
        let nothing: Option<&str> = None;
        mount(Some(kind), at, Some(kind), MsFlags::empty(), nothing)
            .with_context(|| at.to_owned())?;
    }
    checked(Command::new("modprobe").arg("--all").args(MODULES))?;
    Ok(())
}

fn off() -> Result<()> {
    reboot(RebootMode::RB_POWER_OFF)?;
    Ok(())
}
