//! The agent's own engine: a cold start, changes, a restart.

use std::net::IpAddr;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use denizen_agent::engine::Engine;
use denizen_backend::BackendName;
use denizen_backend::chosen::BackendConfig;
use denizen_model::{Event, Service, ServiceName, Slice};
use denizen_observe::status::metrics::SyncExtent;
use denizen_tests::node::cni::Namespace;

use crate::clock::{Cost, Samples, cost, text, timed};
use crate::manifests::{self, policy, spare_ip};
use crate::memory::kernel_memory;

/// Cold starts, each in a namespace of its own; the quickest counts.
const STARTS: usize = 3;
/// Changes of one endpoint.
const CHANGES: usize = 400;
/// Changes of every other kind.
const FEWER: usize = 100;

/// What it cost to program so many services.
pub struct Programmed {
    pub services: usize,
    pub cold: Cost,
    pub endpoint: Costs,
}

/// Many changes of one kind.
pub struct Costs(Vec<Cost>);

impl Costs {
    /// From the fact to the kernel's acknowledgement.
    pub fn whole(&self) -> Samples {
        self.0.iter().map(|cost| cost.whole).collect()
    }

    /// The thread's processor time for the change, in the kernel too.
    fn work(&self) -> Samples {
        self.0.iter().map(|cost| cost.work).collect()
    }

    /// The part of it in netlink batches.
    pub fn commit(&self) -> Samples {
        self.0.iter().map(|cost| cost.commit).collect()
    }
}

/// The backend that is measured.
pub const NFTABLES: BackendConfig =
    BackendConfig { name: BackendName::Nftables, iptables_variant: None };

/// Measures every size, and prints it.
pub fn all(sizes: &[usize]) -> Vec<Programmed> {
    println!("\n## Denizen's engine, services of 4 endpoints\n");
    sizes.iter().copied().map(measured).collect()
}

fn measured(services: usize) -> Programmed {
    let folder = manifests::folder(services);
    let (facts, parsing) = timed(|| manifests::facts(folder.path()));
    println!("{services} services: manifests parsed in {}", text(parsing));
    // The kernel frees the memory of ended namespaces with a delay.
    sleep(Duration::from_secs(2));
    let others = facts.clone();
    let (programmed, kernel) = Namespace::new().run(move || {
        let before = kernel_memory();
        let (engine, cold) = started(facts.clone());
        let kernel =
            kernel_memory().zip(before).map(|(after, before)| after.saturating_sub(before));
        (changed(services, engine, cold, facts), kernel)
    });
    let again = (1..STARTS).map(|_| {
        let facts = others.clone();
        Namespace::new().run(move || started(facts).1)
    });
    let starts: Vec<Cost> = again.chain([programmed.cold]).collect();
    let cold = starts.into_iter().min_by_key(|cost| cost.whole).unwrap_or_default();
    println!(
        "  cold: {} ({} of work), kernel {}; its memory: {:.1} MiB",
        text(cold.whole),
        text(cold.work),
        text(cold.commit),
        kernel.unwrap_or_default() as f64 / 1024.0
    );
    Programmed { cold, ..programmed }
}

fn changed(services: usize, mut engine: Engine, cold: Cost, facts: Vec<Event>) -> Programmed {
    let endpoint = endpoint_changes(&mut engine, &facts, &mut || {});
    other_changes(&mut engine, &facts);
    drop(engine);
    restart(facts);
    Programmed { services, cold, endpoint }
}

/// From parsed facts to the kernel.
pub fn started(facts: Vec<Event>) -> (Engine, Cost) {
    cost(|| {
        let mut engine = Engine::open(policy(), NFTABLES).expect("netlink, as root");
        engine.apply(facts);
        sync(&mut engine);
        engine
    })
}

fn sync(engine: &mut Engine) {
    engine.decide();
    engine.program(SyncExtent::Partial, "").result.expect("the kernel takes the change");
}

/// A restart without any memory: the engine reads what is there, and finds it right.
fn restart(facts: Vec<Event>) {
    let (mut engine, again) = started(facts);
    println!(
        "  restart: {} ({} of work; reading {}, kernel {} for the changes above undone)",
        text(again.whole),
        text(again.work),
        text(again.observe),
        text(again.commit)
    );
    resync(&mut engine, "when nobody changed anything");
    let changed = Command::new("nft").args(["add", "table", "ip", "other"]).status();
    assert!(changed.expect("nft is installed").success());
    resync(&mut engine, "when somebody changed another table");
}

/// Replaces one endpoint of one service, again and again; `between` runs before each change.
pub fn endpoint_changes(engine: &mut Engine, facts: &[Event], between: &mut dyn FnMut()) -> Costs {
    let world = ServiceFacts::of(facts);
    many(engine, "one endpoint replaced", CHANGES, |n| {
        between();
        let mut slice = world.slice(n).clone();
        slice.endpoints[n % 4].address = IpAddr::V4(spare_ip(n));
        vec![event_of(slice)]
    })
}

fn resync(engine: &mut Engine, what: &str) {
    let (pass, took) = cost(|| engine.program(SyncExtent::Full, ""));
    pass.result.expect("the kernel can be read");
    println!(
        "  a look {what}: {} (reading {}); repaired: {}",
        text(took.whole),
        text(took.observe),
        pass.drift.elements
    );
}

fn other_changes(engine: &mut Engine, facts: &[Event]) {
    let world = ServiceFacts::of(facts);
    many(engine, "one endpoint more, a class up", FEWER, |n| {
        let mut slice = world.slice(n).clone();
        let mut fifth = slice.endpoints[0].clone();
        fifth.address = IpAddr::V4(spare_ip(CHANGES + n));
        slice.endpoints.push(fifth);
        vec![event_of(slice)]
    });
    many(engine, "one service more", FEWER, |n| {
        let (service, slice) = world.another(n);
        vec![Event::Service(service.name.clone(), Some(service)), event_of(slice)]
    });
    many(engine, "one service fewer", FEWER, |n| {
        let (service, slice) = world.another(n);
        vec![Event::Service(service.name, None), Event::Slice(slice.name, None)]
    });
    many(engine, "one pod more", FEWER, |n| vec![Event::Pods(manifests::programmed_pods(n + 1))]);
}

fn many(
    engine: &mut Engine,
    what: &str,
    times: usize,
    mut facts: impl FnMut(usize) -> Vec<Event>,
) -> Costs {
    let one = |n| {
        let facts = facts(n);
        let ((), cost) = cost(|| {
            engine.apply(facts);
            sync(engine);
        });
        cost
    };
    let costs = Costs((0..times).map(one).collect());
    let columns =
        [("in all", costs.whole()), ("of work", costs.work()), ("kernel", costs.commit())];
    let columns = columns.map(|(name, samples)| {
        let (half, most) = (text(samples.median()), text(samples.quantile(99)));
        format!("{half:>9} {most:>9} {name}")
    });
    println!("  {what:<30} p50 p99: {}", columns.join(" | "));
    costs
}

fn event_of(slice: Slice) -> Event {
    Event::Slice(slice.name.clone(), Some(slice))
}

/// The services and slices among some facts. A service and its slice have the same index.
struct ServiceFacts {
    services: Vec<Service>,
    slices: Vec<Slice>,
}

impl ServiceFacts {
    fn of(facts: &[Event]) -> Self {
        let mut services = Vec::new();
        let mut slices = Vec::new();
        for fact in facts {
            if let Event::Service(_, Some(service)) = fact {
                services.push(service.clone());
            } else if let Event::Slice(_, Some(slice)) = fact {
                slices.push(slice.clone());
            }
        }
        Self { services, slices }
    }

    /// The slice of change `number`. A prime step spreads the changes over all slices.
    fn slice(&self, number: usize) -> &Slice {
        &self.slices[number * 7919 % self.slices.len()]
    }

    /// A service that does not exist yet.
    fn another(&self, number: usize) -> (Service, Slice) {
        let (mut service, mut slice) = (self.services[0].clone(), self.slices[0].clone());
        service.name = ServiceName::new("another", &format!("service-{number}"));
        service.cluster_ips = vec![IpAddr::V4(spare_ip((1 << 18) + number))];
        slice.service = service.name.clone();
        slice.name.name = format!("service-{number}-h2d9c").into();
        (service, slice)
    }
}
