use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::fixture::*;
use crate::{FrontendAddress, FrontendKey, PlanChanges, Planner, ServicePlan};
use denizen_fixture::*;
use denizen_model::{Event, Listing, Service, TrafficPolicy};

struct ClaimsWorld {
    planner: Planner,
}

impl ClaimsWorld {
    fn new() -> Self {
        let mut world = Self { planner: Planner::new(policy(), CAPABLE) };
        let listed = Listing::SERVICES.map(Event::Listed);
        world.tell(listed.into());
        world
    }

    fn tell(&mut self, events: Vec<Event>) -> PlanChanges {
        self.planner.apply(events);
        self.planner.update()
    }

    fn plan(&self) -> &ServicePlan {
        self.planner.plan().services().expect("all is listed")
    }

    fn owner(&self, at: &str) -> Option<String> {
        let key = FrontendKey {
            address: FrontendAddress::Ip(ip(at)),
            protocol: denizen_model::Protocol::Tcp,
            port: port(80),
        };
        self.plan().frontend(&key).map(|frontend| frontend.service_port.service.name.to_string())
    }
}

const CONTESTED: &str = "203.0.113.7";

/// A service that claims the contested address.
fn claims(name: &str, number: u8, created: &str) -> Event {
    let own = format!("10.96.0.{number}");
    let service = Service {
        external_ips: vec![ip(CONTESTED)],
        created: created.into(),
        ..service(name, &[&own])
    };
    Event::Service(service.name.clone(), Some(service))
}

fn gone(name: &str) -> Event {
    Event::Service(denizen_model::ServiceName::new("default", name), None)
}

#[test]
fn the_older_service_wins_whatever_came_first_and_the_loser_gets_it_afterwards() {
    let (old, new) = (
        || claims("z-old", 1, "2025-01-01T00:00:00Z"),
        || claims("a-new", 2, "2026-01-01T00:00:00Z"),
    );
    for events in [vec![old(), new()], vec![new(), old()]] {
        let mut world = ClaimsWorld::new();
        let conflicts: usize =
            events.into_iter().map(|event| world.tell(vec![event]).conflicts.len()).sum();
        assert_eq!((world.owner(CONTESTED).as_deref(), conflicts), (Some("z-old"), 1));
        assert!(world.tell(vec![new(), old()]).frontends.is_empty(), "nothing is new");
        let touched = world.tell(vec![gone("z-old")]);
        assert_eq!(world.owner(CONTESTED).as_deref(), Some("a-new"));
        assert_eq!(touched.frontends.len(), 2, "its own frontend, and the contested one");
        world.tell(vec![gone("a-new")]);
        assert_eq!((world.owner(CONTESTED), world.plan().frontends().count()), (None, 0));
    }
}

#[test]
fn a_cluster_ip_cannot_be_taken_over_by_an_external_ip() {
    let mut world = ClaimsWorld::new();
    let victim = service("victim", &[CONTESTED]);
    world.tell(vec![claims("thief", 2, "1990-01-01T00:00:00Z")]);
    let victim = Service { created: "2026-01-01T00:00:00Z".into(), ..victim };
    world.tell(vec![Event::Service(victim.name.clone(), Some(victim))]);
    assert_eq!(world.owner(CONTESTED).as_deref(), Some("victim"));
}

#[test]
fn a_slice_that_moves_takes_its_endpoints_along() {
    let mut world = ClaimsWorld::new();
    let service_at = |name: &str, at: &str| {
        let service = service(name, &[at]);
        Event::Service(service.name.clone(), Some(service))
    };
    let of = |owner: &str| {
        let slice = slice("s", owner, vec![endpoint("10.0.0.1", Some(HERE))]);
        Event::Slice(slice.name.clone(), Some(slice))
    };
    world.tell(vec![service_at("a", "10.96.0.1"), service_at("b", "10.96.0.2"), of("a")]);
    let served = |world: &ClaimsWorld| -> Vec<String> {
        let with = world.plan().frontends().filter(|f| f.inside.endpoints().is_some());
        with.map(|f| f.service_port.service.name.to_string()).collect()
    };
    assert_eq!(served(&world), ["a"]);
    assert_eq!(world.tell(vec![of("b")]).frontends.len(), 2);
    assert_eq!(served(&world), ["b"]);
    assert_eq!(Vec::from_iter(world.plan().hairpins().clone()), [ip("10.0.0.1")]);
    world.tell(vec![gone("b")]);
    assert_eq!(world.plan().hairpins().len(), 0);
}

proptest! {
    /// In whatever order services come and go, owners and local endpoints are those of a fresh
    /// start, and only frontends with another decision are touched.
    #[test]
    fn claims_do_not_depend_on_the_way(steps in proptest::collection::vec((0_u8..5, 0_u8..4), 1..40)) {
        let mut world = ClaimsWorld::new();
        let mut last = std::collections::BTreeMap::new();
        for (name, variant) in steps {
            let event = variant_of(name, variant);
            last.insert((name, variant == 3), event.clone());
            let before = owners(&world);
            let touched = world.tell(vec![event]);
            let after = owners(&world);
            let differ: BTreeSet<FrontendKey> = before.symmetric_difference(&after).map(|(key, _)| *key).collect();
            prop_assert!(differ.is_subset(&touched.frontends), "{differ:?} but touched {:?}", touched.frontends);
        }
        let mut fresh = ClaimsWorld::new();
        fresh.tell(last.into_values().collect());
        prop_assert_eq!(owners(&world), owners(&fresh));
        let local = |world: &ClaimsWorld| world.plan().hairpins().clone();
        prop_assert_eq!(local(&world), local(&fresh));
    }
}

fn variant_of(name: u8, variant: u8) -> Event {
    let text = format!("s{name}");
    match variant {
        0 => gone(&text),
        1 => claims(
            &text,
            name,
            ["", "2025-01-01T00:00:00Z", "2025-01-01T00:00:00Z", "2024-01-01T00:00:00Z", ""]
                [usize::from(name)],
        ),
        2 => {
            let local = Service {
                external_policy: TrafficPolicy::Local,
                external_ips: vec![ip(CONTESTED)],
                ..service(&text, &["10.96.0.99"])
            };
            Event::Service(local.name.clone(), Some(local))
        }
        _ => {
            let slice = slice(
                &text,
                &format!("s{}", (name + 1) % 5),
                vec![endpoint(&format!("10.0.0.{name}"), Some(HERE))],
            );
            Event::Slice(slice.name.clone(), Some(slice))
        }
    }
}

fn owners(world: &ClaimsWorld) -> BTreeSet<(FrontendKey, String)> {
    world.plan().frontends().map(|f| (f.key, format!("{f:?}"))).collect()
}
