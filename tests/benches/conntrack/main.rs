//! What it costs to find and delete stale flows: `cargo bench -p denizen-tests --bench conntrack`,
//! as root.
//!
//! 100,000 flows of UDP, 1,000 of them stale, through the agent's own reader and filter, in a
//! network namespace that is made here; next to `conntrack -L`, which only reads, and `conntrack
//! -D`, which deletes what matches one address (`stale`). And how much memory the agent takes when
//! a policy forbids 200,000 flows (`forbidden`). It prints, and asserts no time: times belong to
//! the machine they were taken on. Words behind `--` choose parts.

#![expect(
    clippy::disallowed_methods,
    reason = "a bench reads the clock and the programs that it compares with"
)]

mod forbidden;

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use denizen_backend::BackendName;
use denizen_conntrack::Conntrack;
use denizen_fixture as fixture;
use denizen_model::{Event, Listing, Protocol, Service, Slice, SlicePort};
use denizen_packet::{TrackedFlow, Treatment};
use denizen_plan::MarkBit;
use denizen_plan::conntrack::{CandidateTracker, StaleCandidates, StaleFilter};
use denizen_plan::{
    Detector, NodePortAddresses, NodeSide, PermittedRanges, Planner, Policy, Scheduler, Settings,
};
use denizen_tests::bench::{Bench, Memory};
use denizen_tests::kernel::ctnetlink::{self, FlowEntry};
use denizen_tests::node::cni::Namespace;

const FLOWS: u32 = 100_000;
const STALE: u32 = 1_000;
const SERVICES: u32 = 100;
/// Searches for stale flows, each in a freshly filled table; the quickest counts.
const RUNS: usize = 5;
const PIECE: usize = 1024;

fn main() -> ExitCode {
    Bench { parts: &["stale", "forbidden"], ..Bench::default() }.run(|chosen| {
        if chosen.has("stale") {
            stale();
        }
        if chosen.has("forbidden") {
            forbidden::report()?;
        }
        Ok(())
    })
}

fn stale() {
    println!("\n## {FLOWS} flows of UDP, {STALE} of them stale, {SERVICES} services\n");
    let namespace = Namespace::new();
    let best = |what: &str, job: fn() -> Duration| {
        let runs = (0..RUNS).map(|_| {
            namespace.run(|| {
                empty();
                fill();
            });
            namespace.run(job)
        });
        let best = runs.min().unwrap_or_default();
        println!("{what:<44}{:>8.1} ms", best.as_secs_f64() * 1e3);
        best.as_secs_f64()
    };
    let plain = best("conntrack -L", || program(&["-L", "-p", "udp", "-o", "id"]));
    let deletion = best("conntrack -D of one dead endpoint's flows", || {
        program(&["-D", "-p", "udp", "-r", "10.9.0.1"])
    });
    let ours = best("denizen: read, filter, delete", find_stale);
    let idle = best("denizen: the same, with nothing stale left", || {
        find_stale();
        find_stale()
    });
    println!(
        "\nours is {:.2} of the plain listing, {:.2} of the deletion",
        ours / plain,
        ours / deletion
    );
    println!("with nothing stale: {:.2} of the plain listing", idle / plain);
}

fn service_ip(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + n)
}

/// The address of endpoint `n`: each service has two.
fn endpoint(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 1, 0, 0)) + n)
}

/// The planner that the stale filter consults, and all frontends as stale candidates.
fn known() -> (Planner, StaleCandidates) {
    let policy = Policy {
        settings: Settings {
            node_name: "bench".into(),
            masquerade_all: false,
            node_hints: false,
            permitted: PermittedRanges::default(),
        },
        detector: Detector::PodState,
        node_ports: NodePortAddresses::Primary,
        node_side: NodeSide::default(),
        services: true,
        pod_ranges: Vec::new(),
        firewall: None,
        host_ports: None,
        scheduler: Scheduler::default(),
    };
    let mut planner = Planner::new(policy, BackendName::Nftables.capabilities());
    planner.apply(Listing::SERVICES.map(Event::Listed).into());
    planner.apply((0..SERVICES).flat_map(facts).collect());
    let changes = planner.update();
    let mut tracker = CandidateTracker::default();
    tracker.update(planner.plan(), &changes);
    let candidates = tracker.take(planner.plan());
    (planner, candidates)
}

fn facts(n: u32) -> [Event; 2] {
    let (name, ip) = (format!("s{n}"), service_ip(n).to_string());
    let ports = vec![fixture::service_port("dns", Protocol::Udp, 53, None)];
    let service = Service { ports, ..fixture::service(&name, &[&ip]) };
    let endpoint = |n| fixture::endpoint(&endpoint(n).to_string(), None);
    let port = SlicePort { name: "dns".into(), protocol: Protocol::Udp, port: fixture::port(5353) };
    let endpoints = vec![endpoint(n * 2), endpoint(n * 2 + 1)];
    let slice = Slice { ports: vec![port], ..fixture::slice(&name, &name, endpoints) };
    [
        Event::Service(service.name.clone(), Some(service)),
        Event::Slice(slice.name.clone(), Some(slice)),
    ]
}

fn stale_of(
    planner: &Planner,
    of: &StaleCandidates,
    mut entries: Vec<TrackedFlow>,
) -> Vec<TrackedFlow> {
    let none = HashSet::new();
    let mut filter = StaleFilter::new(of, planner, &none);
    entries.retain(|entry| filter.treatment(entry).is_some_and(Treatment::deletes));
    entries
}

/// One search for stale flows, as the agent does it.
fn find_stale() -> Duration {
    let (planner, candidates) = known();
    let mut conntrack = Conntrack::open(MarkBit::FORBIDDEN.mask()).expect("a netlink socket");
    let memory = || Memory::own().expect("this process has memory");
    let before = memory().resident;
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let begun = Instant::now();
    let (mut stale, mut piece) = (Vec::new(), Vec::with_capacity(PIECE));
    for part in candidates.parts() {
        let read = conntrack.read(part, |entry| {
            if candidates.concern(&entry) {
                piece.push(entry);
            }
            if piece.len() == PIECE {
                let piece = std::mem::replace(&mut piece, Vec::with_capacity(PIECE));
                stale.extend(stale_of(&planner, &candidates, piece));
            }
        });
        read.expect("the entries can be read");
    }
    stale.extend(stale_of(&planner, &candidates, piece));
    let mut deleted = 0;
    conntrack.treat(Treatment::Delete, &stale, &mut deleted).expect("the entries can be deleted");
    let took = begun.elapsed();
    let peak = memory().most.saturating_sub(before);
    if deleted > 0 {
        assert_eq!(deleted, STALE as usize, "exactly the stale ones");
        println!("    {deleted} deleted; the look took {peak} KiB beyond what the process had");
    }
    took
}

fn program(arguments: &[&str]) -> Duration {
    let mut conntrack = Command::new("conntrack");
    let quiet = conntrack.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    let begun = Instant::now();
    let status = quiet.status().expect("conntrack is installed");
    assert!(status.success(), "conntrack {arguments:?}: {status}");
    begun.elapsed()
}

fn empty() {
    program(&["-F"]);
}

/// Makes the conntrack entries that packets would make.
fn fill() {
    ctnetlink::fill(FLOWS, flow).expect("the kernel takes them");
}

fn flow(n: u32) -> FlowEntry {
    let client = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 8, 0, 0)) + n / 30_000);
    let service = n % SERVICES;
    let endpoint = match n % (FLOWS / STALE) {
        // Every service has stale flows, so listing the entries of one address would not find them.
        0 => Ipv4Addr::new(10, 9, 0, 1),
        _ => endpoint(service * 2 + n / SERVICES % 2),
    };
    FlowEntry {
        client: SocketAddr::new(client.into(), (10_000 + n % 30_000) as u16),
        frontend: SocketAddr::new(service_ip(service).into(), 53),
        endpoint: SocketAddr::new(endpoint.into(), 5353),
    }
}
