//! In whatever order the facts come, the rules are those of a fresh start.

mod draining;
mod iptables;

use std::collections::{BTreeMap, BTreeSet};

use denizen_state::AttachmentId;
use denizen_state::socket::WaitFor;
use proptest::prelude::*;
use proptest::sample::Index;

use super::{Engine, EngineError, Progress};
use denizen_backend::nftables::{Nftables, NoKernel, render};
use denizen_backend::{Backend, BackendName, Figures, Repair, Report};
use denizen_fixture::*;
use denizen_model::{
    Egress, Event, Listing, PodSet, Protocol, Service, ServiceName, SliceName, TrafficPolicy,
};
use denizen_observe::status::metrics::SyncExtent;
use denizen_plan::fixture::*;
use denizen_plan::{
    Detector, FirewallSettings, Frontend, HostPortSettings, IfRefused, Plan, PlanChanges, Planner,
    Policy,
};

/// A plan and its rules.
struct NftablesPlan {
    planner: Planner,
    nftables: Nftables<NoKernel>,
}

impl NftablesPlan {
    fn new() -> Self {
        // The one whose constant rules depend on facts.
        let policy = Policy { detector: Detector::NodeCidr(None), ..policy() };
        let planner = Planner::new(policy, BackendName::Nftables.capabilities());
        let mut nftables = Nftables::offline();
        nftables.update(planner.plan(), &PlanChanges::from_nothing(planner.plan()));
        Self { planner, nftables }
    }

    fn apply(&mut self, events: Vec<Event>) {
        self.planner.apply(events);
    }

    fn decide(&mut self) {
        let changes = self.planner.update();
        self.nftables.update(self.planner.plan(), &changes);
    }

    fn text(&mut self) -> String {
        self.decide();
        self.nftables.rendering().to_string()
    }
}

/// What is programmed, but for what depends on the way: slots, sizes of classes, numbers, and
/// chains that nothing refers to any more.
fn history_independent(rules: &mut NftablesPlan) -> BTreeSet<String> {
    history_independent_lines(&rules.text())
}

fn history_independent_lines(text: &str) -> BTreeSet<String> {
    let (mut table, mut block) = ("", "");
    let mut found = BTreeSet::new();
    for line in text.lines() {
        match line.trim_start_matches('\t') {
            _ if line.starts_with("table ") => table = line,
            inner if line.starts_with("\t\t\t") => {
                found.insert(format!("{table} {block} {}", without_the_way(block, inner)));
            }
            inner if line.starts_with("\t\t") => {
                if !of_a_class(block) {
                    found.insert(format!("{table} {block} {inner}"));
                }
            }
            inner => block = inner,
        }
    }
    // Of an empty set no line tells that it may have elements.
    found.retain(|line| !line.ends_with("elements = {"));
    found
}

fn of_a_class(block: &str) -> bool {
    block.starts_with("chain ") && block.contains(|c: char| c.is_ascii_digit())
}

fn without_the_way(block: &str, element: &str) -> String {
    let Some((key, value)) = element.split_once(" : ") else {
        return element.to_owned();
    };
    if value.starts_with("goto ") {
        let words =
            value.trim_end_matches(',').split('-').filter(|word| word.parse::<u32>().is_err());
        return format!("{key} {}", words.collect::<Vec<_>>().join("-"));
    }
    let key = key.rsplit_once(" . ").map_or(key, |(key, _)| key);
    // The number of an endpoint, or of its service port, depends on who came first.
    if block.contains("affinity-slots") { key.to_owned() } else { format!("{key} {value}") }
}

/// What an event is about: the last word about it counts.
fn subject(event: &Event) -> String {
    match event {
        Event::Service(name, _) | Event::ForeignService(name, _) => format!("service {name}"),
        Event::Slice(name, _) => format!("slice {name}"),
        Event::Triggered(name, _) => format!("trigger {name}"),
        Event::Node(_) => "node".to_owned(),
        Event::OtherNode(name, _) => format!("node {name}"),
        Event::ServiceCidr(name, _) => format!("range {name}"),
        Event::Pods(_) => "pods".to_owned(),
        Event::Addresses(_) => "addresses".to_owned(),
        Event::Links(_) => "links".to_owned(),
        Event::Egress(_) => "egress".to_owned(),
        Event::Namespace(name, _) => format!("namespace {name}"),
        Event::ClusterPod(name, _) => format!("pod {name}"),
        Event::NetworkPolicy(name, _) => format!("policy {name}"),
        Event::ClusterNetworkPolicy(name, _) => format!("cluster policy {name}"),
        Event::Listed(listing) => format!("{listing:?}"),
        Event::Refused(listing) => format!("{listing:?} refused"),
        Event::PodCoverage(coverage) => format!("{coverage:?}"),
    }
}

fn a_service(name: u8, variant: u8) -> Event {
    let (text, own) = (format!("s{name}"), format!("10.96.0.{name}"));
    let base = || Service {
        created: format!("20{}", 20 + name % 2).into(),
        ..service(&text, &[&own, "fd00::10"])
    };
    let service = match variant {
        0 => return Event::Service(ServiceName::new("default", &text), None),
        1 => base(),
        2 => Service {
            external_ips: vec![ip("203.0.113.7")],
            load_balancer_ips: vec![ip("198.51.100.9")],
            source_ranges: vec![range("10.0.0.0/9")].into(),
            ..base()
        },
        3 => Service {
            external_policy: TrafficPolicy::Local,
            ports: vec![service_port("http", Protocol::Tcp, 80, Some(30080))],
            ..base()
        },
        4 => Service {
            internal_policy: TrafficPolicy::Local,
            affinity: denizen_model::SessionAffinity::ClientIp { seconds: 300 },
            ..base()
        },
        _ => Service {
            ports: vec![
                service_port("http", Protocol::Tcp, 80, None),
                service_port("http", Protocol::Udp, 80, None),
            ],
            ..base()
        },
    };
    Event::Service(service.name.clone(), Some(service))
}

fn a_slice(name: u8, owner: u8, endpoints: BTreeSet<u8>) -> Event {
    let text = format!("e{name}");
    let each = endpoints.iter().map(|n| match n % 3 {
        0 => endpoint(&format!("10.1.0.{n}"), Some(HERE)),
        1 => endpoint(&format!("10.1.0.{n}"), Some(AWAY)),
        _ => draining(&format!("10.1.0.{n}"), Some(HERE)),
    });
    let slice = slice(&text, &format!("s{owner}"), each.collect());
    let known = (!endpoints.is_empty()).then(|| slice.clone());
    Event::Slice(SliceName { namespace: "default".into(), name: text.into() }, known)
}

fn event() -> impl Strategy<Value = Event> {
    let nodes = [
        None,
        Some(node(None, &["192.168.0.2"], &["10.1.0.0/24"])),
        Some(node(Some("a"), &["192.168.0.3", "2001:db8::2"], &["fd00::/61"])),
    ];
    let links = [vec![], vec![address("10.1.2.1", "cni0"), address("192.168.0.2", "eth0")]];
    let known = [("10.1.2.3", "cni0"), ("10.1.0.3", "veth1")];
    prop_oneof![
        6 => (0_u8..4, 0_u8..6).prop_map(|(name, variant)| a_service(name, variant)),
        8 => (0_u8..4, 0_u8..4, proptest::collection::btree_set(0_u8..30, 0..12))
            .prop_map(|(name, owner, endpoints)| a_slice(name, owner, endpoints)),
        1 => proptest::sample::select(nodes.to_vec()).prop_map(Event::Node),
        1 => proptest::sample::select(links.to_vec()).prop_map(Event::Addresses),
        1 => (0_usize..3).prop_map(move |count| Event::Pods(pods(count as u64, &known[..count]))),
        1 => proptest::sample::subsequence(vec![range("10.0.0.0/8"), range("fd00::/8")], 0..=2)
            .prop_map(|kept| Event::Egress(Egress { v6: kept.len() > 1, kept })),
        1 => proptest::option::of(Just(vec![range("10.96.0.0/16")]))
            .prop_map(|ranges| Event::ServiceCidr("one".into(), ranges)),
    ]
}

fn same(one: &BTreeSet<String>, other: &BTreeSet<String>) -> Result<(), TestCaseError> {
    let differ: Vec<_> = one.symmetric_difference(other).collect();
    prop_assert!(differ.is_empty(), "differ: {differ:#?}");
    Ok(())
}

/// The last event about each subject.
fn last_words(events: &[Event]) -> Vec<Event> {
    let last: BTreeMap<String, Event> =
        events.iter().map(|event| (subject(event), event.clone())).collect();
    last.into_values().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// In batches of any size; some of them twice; after a reconnect, which tells all again; and
    /// whenever the lists become complete.
    #[test]
    fn any_way_ends_as_a_fresh_start(
        events in proptest::collection::vec(event(), 1..40),
        listed: [Index; 5],
        batch in 1_usize..6,
        reconnect: Index,
        doubled: bool,
    ) {
        let mut way = events.clone();
        for (listing, at) in Listing::SERVICES.into_iter().zip(listed) {
            way.insert(at.index(way.len()), Event::Listed(listing));
        }
        let mut rules = NftablesPlan::new();
        let reconnect = reconnect.index(way.len());
        for (n, some) in way.chunks(batch).enumerate() {
            rules.apply(some.to_vec());
            rules.decide();
            if doubled {
                rules.apply(some.to_vec());
                let has_services = rules.planner.plan().services().is_some();
                prop_assert!(
                    rules.planner.is_idle() || !has_services || some.len() > 1,
                    "said twice"
                );
                rules.decide();
            }
            if n * batch <= reconnect && reconnect < (n + 1) * batch {
                let seen = (n + 1) * batch;
                rules.apply(last_words(&way[..seen.min(way.len())]));
                rules.decide();
            }
        }
        let mut fresh = NftablesPlan::new();
        fresh.apply(last_words(&way));
        same(&history_independent(&mut rules), &history_independent(&mut fresh))?;
        let at_once = render(rules.planner.plan()).to_string();
        same(&history_independent_lines(&at_once), &history_independent(&mut rules))?;
    }

    /// What is about different things may come in any order.
    #[test]
    fn the_order_does_not_matter(events in proptest::collection::vec(event(), 1..30)) {
        let events = last_words(&events);
        let rules_of = |events: Vec<Event>| {
            let mut rules = NftablesPlan::new();
            rules.apply(Listing::SERVICES.map(Event::Listed).into());
            for event in events {
                rules.apply(vec![event]);
                rules.decide();
            }
            history_independent(&mut rules)
        };
        let reversed = events.iter().rev().cloned().collect();
        same(&rules_of(events), &rules_of(reversed))?;
    }
}

#[test]
fn services_wait_for_the_whole_picture_and_pods_do_not() {
    let mut rules = NftablesPlan::new();
    let events = vec![
        a_service(1, 1),
        a_slice(1, 1, [3].into()),
        Event::Pods(pods(1, &[("10.1.2.3", "cni0")])),
    ];
    rules.apply(events);
    rules.apply(Listing::SERVICES[1..].iter().copied().map(Event::Listed).collect());
    let early = rules.text();
    assert!(early.contains("\"cni0\" . 10.1.2.3 comment"), "{early}");
    assert!(!early.contains("10.96.0.1"), "{early}");
    rules.apply(vec![Event::Listed(Listing::SERVICES[0])]);
    assert!(!rules.planner.is_idle());
    assert!(rules.text().contains("10.96.0.1 . tcp . 80"));
    assert!(rules.planner.is_idle());
}

/// A backend whose kernel refuses the next change.
#[derive(Debug, Default)]
struct Refusing {
    refuses: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("refused")]
struct Refused;

impl Backend for Refusing {
    type Error = Refused;

    fn update(&mut self, _: &Plan, _: &PlanChanges) {}

    fn sync(&mut self) -> Result<Repair, Refused> {
        if std::mem::take(&mut self.refuses) { Err(Refused) } else { Ok(Repair::default()) }
    }

    fn resync(&mut self) -> Result<Repair, Refused> {
        self.sync()
    }

    fn report(&mut self) -> Report {
        Report::default()
    }

    fn figures(&mut self) -> Figures {
        Figures::default()
    }

    fn sample_drops(&mut self, _on: bool) -> bool {
        false
    }

    fn rejected(&self, _: &Frontend) -> Vec<String> {
        Vec::new()
    }

    async fn wait(&mut self) {}
}

fn refusing() -> Engine<Refusing> {
    Engine::new(policy(), CAPABLE, Refusing { refuses: true })
}

fn pass(
    engine: &mut Engine<Refusing>,
    extent: SyncExtent,
) -> Result<Progress, EngineError<Refused>> {
    engine.decide();
    engine.program(extent, "").result
}

/// Asks whether the first of these pods is programmed.
fn asked(known: &PodSet) -> WaitFor {
    let (epoch, generation) = known.version.clone().unwrap();
    let wait_for = known.pods[0].id.clone();
    WaitFor { wait_for, epoch, generation, removed: false, asked_at: None }
}

/// A change that failed and was then repaired by a look (the kernel's word of a foreign change
/// comes sooner than the next try) left the ADD that waited for it waiting.
#[test]
fn who_waits_for_a_pod_is_answered_by_a_repair_too() {
    let mut engine = refusing();
    let known = pods(7, &[("10.1.2.3", "cni0")]);
    let asked = asked(&known);
    engine.apply(vec![Event::Pods(known)]);
    assert!(pass(&mut engine, SyncExtent::Partial).is_err());
    assert!(!engine.has_programmed(&asked) && !engine.is_idle());
    assert!(pass(&mut engine, SyncExtent::Full).is_ok());
    assert!(engine.has_programmed(&asked) && engine.is_idle());
}

/// Which policies select a pod is not known before all of them are, also not for a pod that was
/// recorded before the agent started: nobody has isolated it yet.
#[test]
fn who_waits_for_a_pod_waits_for_the_first_lists_of_policies() {
    for (if_refused, is_answered) in [(IfRefused::Pending, false), (IfRefused::Open, true)] {
        let settings = FirewallSettings { if_refused, ..FirewallSettings::default() };
        let policy = Policy { firewall: Some(settings), ..policy() };
        let mut engine = Engine::new(policy, CAPABLE, Refusing { refuses: false });
        let (known, more) =
            (pods(7, &[("10.1.2.3", "cni0")]), pods(8, &[("10.1.2.3", "cni0"), ("10.1.2.4", "a")]));
        let later = WaitFor { wait_for: more.pods[1].id.clone(), ..asked(&more) };
        let all = [asked(&known), later];
        let mut apply = |events| {
            engine.apply(events);
            assert!(pass(&mut engine, SyncExtent::Partial).is_ok());
            all.each_ref().map(|asked| engine.has_programmed(asked))
        };
        apply(Listing::SERVICES.map(Event::Listed).into());
        apply(vec![Event::Pods(known)]);
        assert_eq!(apply(vec![Event::Pods(more)]), [false; 2]);
        let [policies, others @ ..] = Listing::FIREWALL;
        assert_eq!(apply(others.map(Event::Listed).into()), [false; 2]);
        assert_eq!(apply(vec![Event::Refused(policies)]), [is_answered; 2]);
        assert_eq!(apply(vec![Event::Listed(policies)]), [true; 2]);
    }
}

/// What an earlier run programmed stays until it is known where host ports are served.
#[test]
fn a_removal_waits_until_host_ports_are_decided() {
    let policy = Policy { host_ports: Some(HostPortSettings { localhost: true }), ..policy() };
    let mut engine = Engine::new(policy, CAPABLE, Refusing { refuses: false });
    let known = pods(7, &[("10.1.2.3", "cni0")]);
    let without_ports = asked(&known);
    let wait_for = AttachmentId::new("gone", "eth0");
    let removed = WaitFor { wait_for, removed: true, ..asked(&known) };
    engine.apply(vec![Event::Pods(known)]);
    assert!(pass(&mut engine, SyncExtent::Partial).is_ok());
    assert!(engine.has_programmed(&without_ports) && !engine.has_programmed(&removed));
    engine.apply(vec![Event::Listed(Listing::Addresses)]);
    assert!(pass(&mut engine, SyncExtent::Partial).is_ok());
    assert!(engine.has_programmed(&removed));
}
