//! `loadBalancerSourceRanges` by the thousand.

use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::time::{ClockId, clock_gettime};

use crate::Backend;
use crate::nftables::Nftables;
use denizen_fixture::{endpoint, ip, service, slice};
use denizen_model::{Event, Listing, Service};
use denizen_plan::fixture::{CAPABLE, policy};
use denizen_plan::{PlanChanges, Planner};

const SERVICES: u32 = 10;
/// Ranges of each service, of each family.
const RANGES: u32 = 300;
/// The most that one change may cost. It cost ten times as much; now it is a tenth.
const MOST: Duration = Duration::from_secs(1);

/// No two ranges are neighbours. All from `first` on.
fn restricted(n: u32, first: u32) -> Event {
    let range = |number: u32| {
        let (v4, v6) = (number * 512, number * 2);
        [
            format!("{}/24", std::net::Ipv4Addr::from(0x2000_0000 + v4)),
            format!("2001:db8:{:x}:{:x}::/64", v6 >> 16, v6 & 0xffff),
        ]
    };
    let ranges = (first..first + RANGES).flat_map(|at| range(n * 2 * RANGES + at));
    let ranges: Vec<_> = ranges.map(|range| range.parse().unwrap()).collect();
    let service = Service {
        load_balancer_ips: vec![ip(&format!("198.51.100.{n}")), ip(&format!("2001:db9::{n}"))],
        source_ranges: ranges.into(),
        ..service(&format!("web-{n}"), &[&format!("10.96.0.{n}"), &format!("fd00:96::{n}")])
    };
    Event::Service(service.name.clone(), Some(service))
}

fn endpoints(n: u32, last: u32) -> Event {
    let of = slice(
        &format!("web-{n}-a"),
        &format!("web-{n}"),
        vec![endpoint(&format!("10.1.{n}.{last}"), None)],
    );
    Event::Slice(of.name.clone(), Some(of))
}

/// Plans and programs these facts. Returns the processor time of programming.
fn change(planner: &mut Planner, backend: &mut Nftables, events: Vec<Event>) -> Duration {
    planner.apply(events);
    let changes = planner.update();
    backend.update(planner.plan(), &changes);
    let begun = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    backend.sync().unwrap();
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap() - begun)
}

/// The kernel took 20 ms for each range that went, and meanwhile a removed endpoint stayed.
#[test]
fn thousands_of_source_ranges_come_change_and_go_within_a_second() {
    let alone = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
        let mut planner = Planner::new(policy(), CAPABLE);
        let mut backend = Nftables::open().unwrap();
        backend.update(planner.plan(), &PlanChanges::from_nothing(planner.plan()));
        let mut facts: Vec<Event> = (1..=SERVICES).map(|n| restricted(n, 0)).collect();
        facts.extend((1..=SERVICES).map(|n| endpoints(n, 1)));
        facts.extend(Listing::SERVICES.map(Event::Listed));
        facts.push(Event::Pods(denizen_fixture::pods(1, &[])));
        for (what, events) in [
            ("all come", facts),
            ("a few of each change", (1..=SERVICES).map(|n| restricted(n, 6)).collect()),
            ("an endpoint and a service's ranges change", vec![endpoints(1, 2), restricted(1, 9)]),
            ("one service goes", vec![Event::Service(service("web-2", &[]).name, None)]),
            (
                "half go",
                (1..=SERVICES / 2)
                    .map(|n| Event::Service(service(&format!("web-{n}"), &[]).name, None))
                    .collect(),
            ),
        ] {
            let took = change(&mut planner, &mut backend, events);
            println!("{what}: {took:?}");
            assert!(took < MOST, "{what}: {took:?}");
            backend.tables.iter_mut().for_each(|kept| kept.keeper.note_foreign_change());
            assert!(backend.resync().unwrap().is_none(), "{what}: all is as it should be");
        }
    });
    alone.join().unwrap();
}
