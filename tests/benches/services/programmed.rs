//! The agent's own engine: a cold start, changes, a restart.

use std::net::IpAddr;

use denizen_agent::engine::{Engine, Policy};
use denizen_agent::model::{Event, Service, ServiceName, Slice};
use denizen_agent::plan::{Detector, NodePortAddresses, Settings};
use denizen_tests::cni::Namespace;

use crate::clock::{Cost, Samples, cost, text, timed};
use crate::manifests::{self, NODE, spare_ip};
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

    /// The kernel's part.
    pub fn commit(&self) -> Samples {
        self.0.iter().map(|cost| cost.commit).collect()
    }
}

/// As an agent on an ordinary node has it.
pub fn policy() -> Policy {
    Policy {
        settings: Settings {
            node_name: NODE.into(),
            masquerade_all: false,
            node_hints: false,
        },
        detector: Detector::PodState,
        node_ports: NodePortAddresses::Primary,
    }
}

/// Measures every size, and prints it.
pub fn all(sizes: &[usize]) -> Vec<Programmed> {
    println!("\n## Denizen's engine, services of 4 endpoints\n");
    sizes.iter().copied().map(measured).collect()
}

fn measured(services: usize) -> Programmed {
    let folder = manifests::folder(services);
    let (facts, parsing) = timed(|| manifests::facts(folder.path()));
    println!("{services} services: manifests parsed in {}", text(parsing));
    let mut starts = Vec::new();
    for _ in 1..STARTS {
        let facts = facts.clone();
        starts.push(Namespace::new().run(move || started(facts).1));
    }
    Namespace::new().run(move || {
        let before = kernel_memory();
        let (mut engine, last) = started(facts.clone());
        let kernel = kernel_memory().saturating_sub(before);
        starts.push(last);
        let cold = starts.into_iter().min_by_key(|cost| cost.whole).unwrap_or(last);
        println!(
            "  cold: {} (kernel {}, {:.1} MiB there)",
            text(cold.whole),
            text(cold.commit),
            kernel as f64 / 1024.0
        );
        let endpoint = endpoint_changes(&mut engine, &facts, &mut || {});
        other_changes(&mut engine, &facts);
        drop(engine);
        restart(facts);
        Programmed {
            services,
            cold,
            endpoint,
        }
    })
}

/// From parsed facts to the kernel.
pub fn started(facts: Vec<Event>) -> (Engine, Cost) {
    cost(|| {
        let mut engine = Engine::open(policy()).expect("netlink, as root");
        engine.apply(facts);
        engine.sync().expect("the kernel takes the rules");
        engine
    })
}

/// The agent starts anew, remembering nothing: it reads what is there, and finds it right.
fn restart(facts: Vec<Event>) {
    let (mut engine, again) = started(facts);
    println!(
        "  restart: {} (reading {}, kernel {} for the changes above undone)",
        text(again.whole),
        text(again.observe),
        text(again.commit)
    );
    let (looked, look) = cost(|| engine.resync());
    let repair = looked.expect("the kernel can be read");
    println!(
        "  a look at unchanged tables: {} (reading {}); repaired: {}",
        text(look.whole),
        text(look.observe),
        repair.elements
    );
}

/// One endpoint of one service in another's place, again and again; `between` runs after each.
pub fn endpoint_changes(engine: &mut Engine, facts: &[Event], between: &mut dyn FnMut()) -> Costs {
    let world = World::of(facts);
    many(engine, "one endpoint replaced", CHANGES, |n| {
        between();
        let mut slice = world.slice(n).clone();
        slice.endpoints[n % 4].address = IpAddr::V4(spare_ip(n));
        vec![said(slice)]
    })
}

fn other_changes(engine: &mut Engine, facts: &[Event]) {
    let world = World::of(facts);
    many(engine, "one endpoint more, a class up", FEWER, |n| {
        let mut slice = world.slice(n).clone();
        let mut fifth = slice.endpoints[0].clone();
        fifth.address = IpAddr::V4(spare_ip(CHANGES + n));
        slice.endpoints.push(fifth);
        vec![said(slice)]
    });
    many(engine, "one service more", FEWER, |n| {
        let (service, slice) = world.another(n);
        vec![Event::Service(service.name.clone(), Some(service)), said(slice)]
    });
    many(engine, "one service fewer", FEWER, |n| {
        let (service, slice) = world.another(n);
        vec![Event::Service(service.name, None), Event::Slice(slice.name, None)]
    });
    many(engine, "one pod more", FEWER, |n| {
        vec![Event::Pods(manifests::programmed_pods(n + 1))]
    });
}

fn many(engine: &mut Engine, what: &str, times: usize, mut facts: impl FnMut(usize) -> Vec<Event>) -> Costs {
    let one = |n| {
        let facts = facts(n);
        let (synced, cost) = cost(|| {
            engine.apply(facts);
            engine.sync()
        });
        synced.expect("the kernel takes the change");
        cost
    };
    let costs = Costs((0..times).map(one).collect());
    let (whole, commit) = (costs.whole(), costs.commit());
    println!(
        "  {what:<30} p50 {:>9}  p99 {:>9}   kernel p50 {:>9}  p99 {:>9}",
        text(whole.median()),
        text(whole.quantile(99)),
        text(commit.median()),
        text(commit.quantile(99))
    );
    costs
}

fn said(slice: Slice) -> Event {
    Event::Slice(slice.name.clone(), Some(slice))
}

/// The services and slices among some facts, each service's slice at the same place.
struct World {
    services: Vec<Service>,
    slices: Vec<Slice>,
}

impl World {
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

    /// Spread over all of them: a prime step.
    fn slice(&self, number: usize) -> &Slice {
        &self.slices[number * 7919 % self.slices.len()]
    }

    /// A service that is not there yet.
    fn another(&self, number: usize) -> (Service, Slice) {
        let (mut service, mut slice) = (self.services[0].clone(), self.slices[0].clone());
        service.name = ServiceName::new("another", &format!("service-{number}"));
        service.cluster_ips = vec![IpAddr::V4(spare_ip((1 << 18) + number))];
        slice.service = service.name.clone();
        slice.name.name = format!("service-{number}-h2d9c").into();
        (service, slice)
    }
}
