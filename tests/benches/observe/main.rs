//! What observing costs: `cargo bench -p denizen-tests --bench observe`, as root.
//!
//! First `denizen-agent connections` of a table with 100,000 entries: time and memory. Then clients
//! that connect without pause to a service, beside a `trace` of another client and beside `drops
//! --watch` (`beside`). It prints, and asserts no time: times belong to the machine they were taken
//! on.

#![expect(
    clippy::disallowed_methods,
    reason = "a bench reads the clock and /proc, and runs the commands that it measures"
)]

mod beside;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::bench::{Bench, Memory, own_program};
use denizen_tests::kernel::ctnetlink::{self, FlowEntry};
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::probe::Protocol;

const ENTRIES: u32 = 100_000;
const RUNS: usize = 5;

fn main() -> ExitCode {
    Bench { processes: &[(&["connections"], connections)], ..Bench::default() }.run(|_| observe())
}

/// The measured command. It also prints the peak of its memory, in KiB.
fn connections(_: &[String]) -> Result<ExitCode> {
    let ended = denizen_agent::cli::run();
    eprintln!("{}", Memory::own()?.most);
    ended
}

fn observe() -> Result<()> {
    let fixture = Fixture::new("bench-observe")?;
    let dns = [Port::tcp("dns", 53, 5353).over(Protocol::Udp)];
    let load = [Port::tcp("http", 80, beside::PORT)];
    let objects = [
        fixture.service("dns", 20, &dns, &[Host::Routed])?,
        fixture.service("load", 10, &load, &[Host::Routed])?,
        fixture.service("web", 11, &[Port::tcp("http", 80, PORT)], &[Host::Routed])?,
    ];
    fixture.cluster.manifests.put("services", &objects.concat())?;
    let mut agent = fixture.cluster.start_agent()?;
    agent.quiet();
    table(&fixture, &agent)?;
    beside::measure(&fixture, &agent)
}

/// `connections` of a large table.
fn table(fixture: &Fixture, agent: &Agent) -> Result<()> {
    let node = &fixture.cluster.world.node;
    let frontend = SocketAddr::new(service_ips(20)[0], 53);
    let endpoint = SocketAddr::new(fixture.address(Host::Routed, frontend.ip())?, 5353);
    let flow = |number: u32| {
        let client = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 200, 0, 0)) + number / 30_000);
        let client = SocketAddr::new(client.into(), (10_000 + number % 30_000) as u16);
        FlowEntry { client, frontend, endpoint }
    };
    node.run(|| ctnetlink::fill(ENTRIES, flow))??;
    println!("\n## connections, {ENTRIES} entries\n");
    for arguments in [
        &["--output", "text"][..],
        &["--output", "json"],
        &["--service", "default/dns"],
        &["--pod", "default/bridged"],
    ] {
        let runs = (0..RUNS).map(|_| run(node, agent, arguments));
        let best = runs.collect::<Result<Vec<_>>>()?.into_iter().min().context("a run")?;
        let (took, memory) = best;
        let what = arguments.join(" ");
        println!("{what:<28}{:>8.1} ms{memory:>8} KiB at most", took.as_secs_f64() * 1e3);
    }
    node.output("conntrack", &["-F"])?;
    Ok(())
}

fn run(node: &Netns, agent: &Agent, arguments: &[&str]) -> Result<(Duration, u64)> {
    let mut command = own_program("connections")?;
    command.arg("--run-dir").arg(agent.run_dir()).args(arguments).stdout(Stdio::null());
    let begun = Instant::now();
    let output = node.run(|| command.output())??;
    let took = begun.elapsed();
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{printed}");
    Ok((took, printed.trim().parse().context(printed.to_string())?))
}
