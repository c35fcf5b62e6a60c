//! What it costs to look: `cargo bench -p denizen-tests --bench observe`, as root.
//!
//! First `denizen-agent connections` of a table with 100,000 entries: time and memory. Then clients
//! that connect without pause to a service, alone, beside a `trace` of another client, and beside
//! `drops --watch`, in turns. It prints, and asserts no time: times belong to the machine they were
//! taken on.

#![expect(
    clippy::disallowed_methods,
    reason = "a bench reads the clock and /proc, and runs the commands that it measures"
)]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::ctnetlink::{self, Flow};
use denizen_tests::fixture::{Fixture, PORT, Who, service_ips};
use denizen_tests::manifest::Port;
use denizen_tests::netns::Netns;
use denizen_tests::probe::Protocol;
use denizen_tests::tracing::Tracing;
use denizen_tests::watching::Watching;
use socket2::SockRef;

const ENTRIES: u32 = 100_000;
const LOOKS: usize = 5;
const TURNS: usize = 5;
const TURN: Duration = Duration::from_secs(3);
const CLIENTS: usize = 2;
/// Where only the load's own listener is.
const LOAD_PORT: u16 = 9090;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.first().map(String::as_str) {
        // The bench starts itself anew to be the command that is measured.
        Some("connections") => {
            let ended = denizen_agent::cli::run();
            eprintln!("{}", most_memory());
            ended
        }
        _ if !words.iter().any(|word| word == "--bench") => {
            println!("not run: this is a bench, and `cargo test` builds it only");
            Ok(ExitCode::SUCCESS)
        }
        _ => observe().map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::FAILURE
    })
}

/// The most that this process had in memory, in KiB.
fn most_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_default()
}

fn observe() -> Result<()> {
    let fixture = Fixture::new("bench-observe")?;
    let dns = [Port::tcp("dns", 53, 5353).over(Protocol::Udp)];
    let load = [Port::tcp("http", 80, LOAD_PORT)];
    let objects = [
        fixture.service("dns", 20, &dns, &[Who::Routed])?,
        fixture.service("load", 10, &load, &[Who::Routed])?,
        fixture.service("web", 11, &[Port::tcp("http", 80, PORT)], &[Who::Routed])?,
    ];
    fixture.cluster.manifests.put("services", &objects.concat())?;
    let mut agent = fixture.cluster.start_agent()?;
    agent.quiet();
    table(&fixture, &agent)?;
    beside(&fixture, &agent)
}

/// `connections` of a large table.
fn table(fixture: &Fixture, agent: &Agent) -> Result<()> {
    let node = &fixture.cluster.world.node;
    let frontend = SocketAddr::new(service_ips(20)[0], 53);
    let endpoint = SocketAddr::new(fixture.address(Who::Routed, frontend.ip())?, 5353);
    let flow = |number: u32| {
        let client = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 200, 0, 0)) + number / 30_000);
        let client = SocketAddr::new(client.into(), (10_000 + number % 30_000) as u16);
        Flow { client, frontend, endpoint }
    };
    node.run(|| ctnetlink::fill(ENTRIES, flow))??;
    println!("\n## connections, {ENTRIES} entries\n");
    for arguments in [
        &["--output", "text"][..],
        &["--output", "json"],
        &["--service", "default/dns"],
        &["--pod", "default/bridged"],
    ] {
        let looks = (0..LOOKS).map(|_| look(node, agent, arguments));
        let best = looks.collect::<Result<Vec<_>>>()?.into_iter().min().context("a look")?;
        let (took, memory) = best;
        let what = arguments.join(" ");
        println!("{what:<28}{:>8.1} ms{memory:>8} KiB at most", took.as_secs_f64() * 1e3);
    }
    node.output("conntrack", &["-F"])?;
    Ok(())
}

fn look(node: &Netns, agent: &Agent, arguments: &[&str]) -> Result<(Duration, u64)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("connections").arg("--run-dir").arg(agent.run_dir()).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begun = Instant::now();
    let output = node.run(|| command.output())??;
    let took = begun.elapsed();
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    Ok((took, said.trim().parse().context(said.to_string())?))
}

/// Connections a second, alone and beside what looks.
fn beside(fixture: &Fixture, agent: &Agent) -> Result<()> {
    let node = &fixture.cluster.world.node;
    let to = SocketAddr::new(service_ips(10)[0], 80);
    let at = SocketAddr::new(fixture.address(Who::Routed, to.ip())?, LOAD_PORT);
    let listener = fixture.routed.netns.run(|| TcpListener::bind(at))??;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let followed = SocketAddr::new(service_ips(11)[0], 80);
    let source = fixture.address(Who::Remote, to.ip())?.to_string();
    let arguments = ["--from", &source, "--to", &followed.to_string(), "--count", "1000"];
    println!("\n## connections a second, {CLIENTS} clients\n");
    println!("{:>12}{:>12}{:>14}", "alone", "trace", "drops --watch");
    let mut sums = [0.0; 3];
    for _ in 0..TURNS {
        let alone = rate(fixture, to, None)?;
        let tracing = Tracing::start(node, agent, &arguments)?;
        let traced = rate(fixture, to, Some(followed))?;
        tracing.kill()?;
        let watching = Watching::start(node, agent, &["drops"])?;
        let watched = rate(fixture, to, None)?;
        watching.kill()?;
        println!("{alone:>12.0}{traced:>12.0}{watched:>14.0}");
        for (sum, rate) in sums.iter_mut().zip([alone, traced, watched]) {
            *sum += rate;
        }
    }
    let share = |sum: f64| 100.0 * sum / sums[0];
    println!(
        "\nbeside a trace {:.1} % of alone, beside drops {:.1} %",
        share(sums[1]),
        share(sums[2])
    );
    Ok(())
}

/// Connections a second of clients that connect without pause. Meanwhile another one asks what is
/// followed, now and then.
fn rate(fixture: &Fixture, to: SocketAddr, followed: Option<SocketAddr>) -> Result<f64> {
    let stop = Arc::new(AtomicBool::new(false));
    let clients = (0..CLIENTS).map(|_| {
        let stop = stop.clone();
        fixture.cluster.world.client.spawn(move || connect(to, &stop))
    });
    let clients = clients.collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    while begun.elapsed() < TURN {
        std::thread::sleep(Duration::from_millis(200));
        if let Some(followed) = followed {
            let outcome = fixture.ask(Who::Remote, followed, Protocol::Tcp)?;
            ensure!(outcome.endpoint().is_some(), "{outcome:?}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    let took = begun.elapsed();
    let mut connected = 0;
    for client in clients {
        connected += client.join().ok().context("a client panicked")???;
    }
    Ok(f64::from(connected) / took.as_secs_f64())
}

/// Each connection is reset, so that its port can be used again at once.
fn connect(to: SocketAddr, stop: &AtomicBool) -> std::io::Result<u32> {
    let mut connected = 0;
    while !stop.load(Ordering::Relaxed) {
        let stream = std::net::TcpStream::connect(to)?;
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        connected += 1;
    }
    Ok(connected)
}
