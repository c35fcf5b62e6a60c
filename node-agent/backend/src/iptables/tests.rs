//! How many rules there are, and what a change touches.

use std::collections::BTreeMap;

use super::DesiredRules;
use crate::BackendName;
use denizen_fixture::*;
use denizen_iptables::{ChainId, Desired, Lines};
use denizen_model::{Event, Listing, Protocol, Service, Slice, TrafficPolicy};
use denizen_plan::fixture::*;
use denizen_plan::{NodePortAddresses, PlanChanges, Planner, Policy};

struct Rules {
    planner: Planner,
    wanted: DesiredRules,
}

impl Rules {
    fn of(events: Vec<Event>) -> Self {
        let node_ports = NodePortAddresses::All { localhost: true };
        let policy = Policy { node_ports, ..policy() };
        let planner = Planner::new(policy, BackendName::Iptables.capabilities());
        let mut rules = Self { planner, wanted: DesiredRules::offline() };
        let plan = rules.planner.plan();
        rules.wanted.update(plan, &PlanChanges::from_nothing(plan));
        rules.take(events);
        rules.take(Listing::SERVICES.map(Event::Listed).into());
        rules
    }

    fn take(&mut self, events: Vec<Event>) {
        self.planner.apply(events);
        let changes = self.planner.update();
        self.wanted.update(self.planner.plan(), &changes);
    }

    /// What changed in IPv4 since the last time.
    fn changes(&mut self) -> BTreeMap<ChainId, Option<Lines>> {
        self.wanted.rules[0].take_changes()
    }
}

fn service_event(service: Service) -> Event {
    Event::Service(service.name.clone(), Some(service))
}

fn slice_event(slice: Slice) -> Event {
    Event::Slice(slice.name.clone(), Some(slice))
}

/// A service and its slice of so many endpoints, every other one on this node.
fn served(n: usize, service: Service, endpoints: usize) -> Vec<Event> {
    let node = |e| if e % 2 == 0 { HERE } else { AWAY };
    let at = |e: usize| endpoint(&format!("10.{}.{}.{}", n / 250, n % 250, e + 1), Some(node(e)));
    let slice = slice(&service.name.name, &service.name.name, (0..endpoints).map(at).collect());
    let mut events = vec![service_event(service)];
    events.extend((endpoints > 0).then(|| slice_event(slice)));
    events
}

fn cluster_ip(n: usize) -> Service {
    service(&format!("c{n}"), &[&format!("10.96.{}.{}", n / 250, n % 250 + 1)])
}

/// As in kube-proxy's own test of sizes: a node port too.
fn load_balancer(n: usize) -> Service {
    let port = 30000 + u16::try_from(n).unwrap();
    Service {
        ports: vec![service_port("http", Protocol::Tcp, 80, Some(port))],
        load_balancer_ips: vec![ip(&format!("198.51.{}.{}", n / 250, n % 250 + 1))],
        ..cluster_ip(n)
    }
}

fn local_load_balancer(n: usize) -> Service {
    Service {
        external_policy: TrafficPolicy::Local,
        health_check_node_port: Some(port(31000 + u16::try_from(n).unwrap())),
        ..load_balancer(n)
    }
}

/// Rules of IPv4 by table, jumps from the kernel's own chains not counted.
fn count(rules: Rules) -> (usize, usize) {
    let mut tables = BTreeMap::new();
    rules.wanted.rules[0]
        .for_each(|(table, _), lines| *tables.entry(table.to_string()).or_insert(0) += lines.len());
    (tables["nat"], tables["filter"])
}

/// kube-proxy's own counts: reference.md §11, from its `number_generated_rules_test.go`.
#[test]
fn no_more_rules_than_kube_proxy_has() {
    assert_eq!(count(Rules::of(vec![])), (5, 4), "the fixed part");
    for (services, endpoints) in [(1, 0), (1, 1), (10, 10), (100, 4)] {
        let idle = usize::from(endpoints == 0);
        let all = |kind: fn(usize) -> Service| {
            (0..services).flat_map(|n| served(n, kind(n), endpoints)).collect()
        };
        let (nat, filter) = count(Rules::of(all(cluster_ip)));
        let each = if idle == 1 { 0 } else { 2 + 3 * endpoints };
        assert_eq!(
            (nat, filter),
            (5 + services * each, 4 + services * idle),
            "{services} × {endpoints}"
        );
        let most = if idle == 1 { 0 } else { 10 + 3 * endpoints };
        // Under policy Local there is a chain of the local endpoints besides: every other one.
        for (kind, more) in [
            (load_balancer as fn(usize) -> Service, 0),
            (local_load_balancer, endpoints.div_ceil(2)),
        ] {
            let (nat, filter) = count(Rules::of(all(kind)));
            assert!(nat <= 5 + services * (most + more), "{services} × {endpoints}: {nat}");
            assert!(filter <= 4 + services * (1 + 3 * idle), "{services} × {endpoints}: {filter}");
        }
    }
}

#[test]
fn an_endpoints_change_touches_its_service_alone() {
    let mut rules = Rules::of((0..50).flat_map(|n| served(n, cluster_ip(n), 4)).collect());
    rules.changes();
    rules.take(served(7, cluster_ip(7), 5));
    let changed: Vec<String> =
        rules.changes().into_keys().map(|(_, chain)| chain.to_string()).collect();
    // The service's chain and the new endpoint's.
    assert_eq!(changed.len(), 2, "{changed:?}");
    rules.take(vec![Event::Service(cluster_ip(8).name, None)]);
    let changed = rules.changes();
    let removed = changed.values().filter(|lines| lines.is_none()).count();
    assert_eq!((changed.len(), removed), (1 + 5, 5), "{changed:?}");
}
