//! What the backend ipvs costs next to nftables, with ten thousand services: see
//! `tests/benches/ipvs.rs`. Times are the guest's own.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::bench::Memory;
use denizen_tests::bench::timing::{Samples, text, timed};
use denizen_tests::binary;
use denizen_tests::kernel::vm;
use denizen_tests::node::fixture::{Fixture, Host, service_ips};
use denizen_tests::node::netns::checked;
use denizen_tests::packets::long_connection;
use denizen_tests::packets::probe::Probe;

const ENDPOINTS: u32 = 4;

/// The number of the service that changes, above all others.
const CHANGING: u32 = 1 << 14;

/// Documents in one file.
const IN_A_FILE: u32 = 250;

/// An emulated processor reads and programs for minutes of its own time.
const TIMEOUT: Duration = Duration::from_secs(900);

/// How often something short is done.
const TIMES: usize = 100;

/// How often a service changes, and changes back.
const CHANGES: usize = 3;

/// How long [`for_long`] connects: ten runs of IPVS's estimator, which runs every two seconds.
const LONG: Duration = Duration::from_secs(20);

/// How often a client connects in [`for_long`]. Durations count from when a connection is due: what
/// delays the client's sleep delays its packets, too.
const EVERY: Duration = Duration::from_millis(10);

/// Starts one backend after the other on the same services.
pub(crate) fn measure() -> Result<()> {
    let services: u32 = std::env::var(vm::SERVICES)?.parse()?;
    let fixture = long_connection::fixture("ipvs-bench")?;
    for first in (0..services).step_by(IN_A_FILE as usize) {
        let mut text = String::new();
        for service in first..(first + IN_A_FILE).min(services) {
            document(&mut text, service, ENDPOINTS)?;
        }
        fixture.cluster.manifests.put_text(&format!("many-{first:05}"), &text)?;
    }
    put_changing(&fixture, ENDPOINTS)?;
    let figures = ["nftables", "ipvs"].map(|backend| of(&fixture, backend));
    let [nftables, ipvs] = figures;
    let (nftables, ipvs) = (nftables?, ipvs?);
    println!("{services} services of {ENDPOINTS} endpoints: nftables, ipvs, ratio");
    for ((title, one), (_, other)) in nftables.iter().zip(&ipvs) {
        println!("  {title}: {one:.1}, {other:.1}, {:.2}", other / one);
    }
    Ok(())
}

fn document(text: &mut String, service: u32, endpoints: u32) -> Result<()> {
    let ip = Ipv4Addr::from(0x0a60_8000 + service);
    write!(
        text,
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: many-{service}, namespace: default}}\n\
         spec: {{type: ClusterIP, clusterIP: {ip}, clusterIPs: [{ip}], ipFamilies: [IPv4], \
         ports: [{{name: http, port: 80, protocol: TCP, targetPort: 8080}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: many-{service}, namespace: default, \
         labels: {{kubernetes.io/service-name: many-{service}}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: 8080, protocol: TCP}}]\nendpoints:\n"
    )?;
    for endpoint in 0..endpoints {
        let ip = Ipv4Addr::from(0x0a80_0000 + service * 8 + endpoint + 1);
        writeln!(text, "- {{addresses: [{ip}], conditions: {{ready: true}}, nodeName: node-2}}")?;
    }
    Ok(())
}

/// Measures a backend: figures, each with its title.
fn of(fixture: &Fixture, backend: &str) -> Result<Vec<(&'static str, f64)>> {
    println!("{backend}:");
    let before = kernel_memory()?;
    let flag = format!("--backend={backend}");
    let settings = fixture.cluster.settings_with([flag.as_str()]);
    let begun = Instant::now();
    let mut agent = Agent::spawn(&fixture.cluster.world.node, settings)?;
    agent.wait_programmed(TIMEOUT)?;
    let (cold, status) = (begun.elapsed(), agent.status()?);
    ensure!(status["errors"].as_array().is_some_and(Vec::is_empty), "{status}");
    let mut figures = vec![
        ("start to all programmed, ms", milliseconds(cold)),
        ("agent's memory, MiB", resident(&agent)? / 1024.0),
        ("kernel's memory, MiB", (kernel_memory()? - before) / 1024.0),
        ("one change, ms", change(fixture, &agent)?),
        ("a connection to a service, median, ms", connections(fixture, TIMES)?.0),
        ("removal of a veth, median, ms", removal(fixture)?),
    ];
    if backend == "ipvs" {
        for on in ["0", "1"] {
            fixture.cluster.world.node.sysctl("net.ipv4.vs.run_estimation", on)?;
            let (median, longest) = for_long(fixture)?;
            println!(
                "  run_estimation {on}: a connection {median:.2} ms, the longest {longest:.2} ms"
            );
        }
    }
    let longest = for_long(fixture)?.1;
    figures.push(("a connection to a service, longest, ms", longest));
    agent.terminate()?;
    let mut cleanup = Command::new(binary::ours("denizen-agent")?);
    let (removed, took) =
        timed(|| fixture.cluster.world.node.run(|| checked(cleanup.arg("cleanup"))));
    removed??;
    println!("  cleaned up within {}", text(took));
    figures.iter().for_each(|(title, value)| println!("  {title}: {value:.2}"));
    Ok(figures)
}

/// A service gets one endpoint more and loses it, [`CHANGES`] times: the median time from the event
/// to the kernel's acknowledgement.
fn change(fixture: &Fixture, agent: &Agent) -> Result<f64> {
    let before = agent.status()?["endpoints"].as_u64().context("endpoints")?;
    let once = |more: u64| -> Result<Duration> {
        let last = agent.status()?["lastSync"]["at"].clone();
        // The time of a sync has whole seconds: the next sync's must differ.
        thread::sleep(Duration::from_secs(2));
        put_changing(fixture, ENDPOINTS + more as u32)?;
        let status = agent.until("the change", TIMEOUT, |status| {
            status["endpoints"] == before + more && status["lastSync"]["at"] != last
        })?;
        let took = status["lastSync"]["milliseconds"].as_f64().context("the last sync")?;
        Ok(Duration::from_secs_f64(took / 1e3))
    };
    let all: Samples = (0..CHANGES).flat_map(|_| [1, 0]).map(once).collect::<Result<_>>()?;
    Ok(milliseconds(all.median()))
}

/// Writes the manifest of the service that changes.
fn put_changing(fixture: &Fixture, endpoints: u32) -> Result<()> {
    let mut text = String::new();
    document(&mut text, CHANGING, endpoints)?;
    fixture.cluster.manifests.put_text("changing", &text)
}

/// Connections of a pod, one after the other: the median and the longest, in milliseconds.
fn connections(fixture: &Fixture, times: usize) -> Result<(f64, f64)> {
    let all: Samples = (0..times).map(|_| connection(fixture)).collect::<Result<_>>()?;
    Ok((milliseconds(all.median()), milliseconds(all.quantile(100))))
}

/// As [`connections`], for a while, one at each [`EVERY`].
fn for_long(fixture: &Fixture) -> Result<(f64, f64)> {
    let (begun, mut all) = (Instant::now(), Vec::new());
    let mut due = Duration::ZERO;
    while due < LONG {
        due += EVERY;
        thread::sleep(due.saturating_sub(begun.elapsed()));
        connection(fixture)?;
        all.push(begun.elapsed().saturating_sub(due));
    }
    let all: Samples = all.into_iter().collect();
    Ok((milliseconds(all.median()), milliseconds(all.quantile(100))))
}

fn connection(fixture: &Fixture) -> Result<Duration> {
    let to = SocketAddr::new(service_ips(11)[0], 7);
    let (connected, took) =
        fixture.place(Host::Bridged).0.run(|| timed(|| Probe::tcp(to).connect()))?;
    connected.context("the echo service")?;
    Ok(took)
}

/// A pod's interface goes: the kernel tells all that have a route through it.
fn removal(fixture: &Fixture) -> Result<f64> {
    let node = &fixture.cluster.world.node;
    let once = |_| {
        node.ip("link add bench0 type veth peer name bench1\nlink set bench0 up")?;
        let (removed, took) = timed(|| node.ip("link del bench0"));
        removed.map(|()| took)
    };
    let all: Samples = (0..10).map(once).collect::<Result<_>>()?;
    Ok(milliseconds(all.median()))
}

/// The agent's resident memory, in KiB.
fn resident(agent: &Agent) -> Result<f64> {
    Ok(Memory::of(agent.pid())?.resident as f64)
}

/// The kernel's own memory, in KiB.
fn kernel_memory() -> Result<f64> {
    let all = fs::read_to_string("/proc/meminfo")?;
    let fields = ["Slab:", "Percpu:", "VmallocUsed:"].map(|name| field(&all, name));
    fields.into_iter().sum()
}

fn field(text: &str, name: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.with_context(|| name.to_owned())?.parse()?)
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
