//! Whatever happened before, the last state decides.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

/// A Service of this name, or none: both may have one address.
fn service(name: &'static str, cluster: &'static str) -> impl Strategy<Value = Option<Service>> {
    let kinds = [web(), local(), at(VIP), at("192.0.2.2"), at("10.1.3.9")];
    let named = move |service| Service { name: ServiceName::new("default", name), ..service };
    let created = select(vec!["", "2026-11-01", "2026-11-02"]);
    let service = (select(kinds.to_vec()), created).prop_map(move |(service, created)| Service {
        cluster_ips: vec![ip(cluster)],
        created: created.into(),
        ..named(service)
    });
    option::of(service)
}

/// The slice of that Service, or none.
fn served(name: &'static str) -> impl Strategy<Value = Option<Slice>> {
    let endpoint = select(vec![here(), away(), draining("10.1.1.6", Some(HERE))]);
    option::of(vec(endpoint, 0..3).prop_map(move |endpoints| slice(name, name, endpoints)))
}

/// This node and others: they come, go, and hand podCIDRs and addresses on. (That this node's own
/// object was deleted, and is not just unknown, is history by intent.)
fn nodes() -> impl Strategy<Value = (Node, Vec<(&'static str, OtherNode)>)> {
    let ranges = || select(vec!["10.1.1.0/24", "10.1.2.0/24", "10.1.3.0/24"]);
    let own = (select(vec!["192.0.2.1", "192.0.2.7"]), ranges())
        .prop_map(|(address, range_of)| node(None, &[address], &[range_of]));
    let others = ["192.0.2.2", "192.0.2.3", VIP];
    let other = (select(others.to_vec()), ranges(), select(vec!["", "2026-11-01"])).prop_map(
        |(address, range_of, created)| OtherNode {
            created: created.into(),
            ..other(address, range_of)
        },
    );
    let named = |others: Vec<OtherNode>| ["node-2", "node-3"].into_iter().zip(others).collect();
    (own, vec(other, 0..3).prop_map(named))
}

/// Pods of the podCIDR, and of other ranges.
fn recorded() -> impl Strategy<Value = PodSet> {
    let all = vec![("10.1.1.5", "v1"), ("10.9.0.5", "v2"), ("10.1.3.5", "v3")];
    subsequence(all, 0..=3).prop_map(|them| pods(1, &them))
}

fn state() -> impl Strategy<Value = AnnounceWorld> {
    let services = (service("web", "10.96.0.10"), service("dns", "10.96.0.11"));
    let slices = (served("web"), served("dns"));
    let drain = select(vec![Drain::No, Drain::Begun, Drain::Over]);
    let settings = (select(vec![AnnouncedPods::Auto, AnnouncedPods::Exact]), 1usize..6);
    let rejected = option::weighted(
        0.2,
        Just(FrontendKey {
            address: FrontendAddress::Ip(ip(VIP)),
            protocol: denizen_model::Protocol::Tcp,
            port: port(80),
        }),
    );
    let settings = (settings, rejected);
    (services, slices, nodes(), recorded(), drain, settings).prop_map(
        |(services, slices, (node, others), pods, drain, ((which, most), rejected))| {
            AnnounceWorld {
                settings: AnnounceSettings { pods: which, most, ..announce() },
                services: [services.0, services.1].into_iter().flatten().collect(),
                slices: [slices.0, slices.1].into_iter().flatten().collect(),
                node: Some(node),
                others,
                pods,
                drain,
                rejected,
                ..world()
            }
        },
    )
}

/// What removes whatever one state has and the next one has not.
fn removals(before: &AnnounceWorld, after: &AnnounceWorld) -> Vec<Event> {
    let stays = |name: &&str| after.others.iter().any(|(other, _)| other == name);
    let others = before.others.iter().map(|(name, _)| name).filter(|name| !stays(name));
    let others = others.map(|name| Event::OtherNode((*name).into(), None));
    let services = before.services.iter().map(|service| &service.name);
    let services =
        services.filter(|name| !after.services.iter().any(|service| service.name == **name));
    let services = services.map(|name| Event::Service(name.clone(), None));
    let slices = before.slices.iter().map(|slice| &slice.name);
    let slices = slices.filter(|name| !after.slices.iter().any(|slice| slice.name == **name));
    let slices = slices.map(|name| Event::Slice(name.clone(), None));
    others.chain(services).chain(slices).collect()
}

/// One part of the next state in place of what the last one has: a Service, its endpoints, or pods.
fn stepped(last: &AnnounceWorld, next: AnnounceWorld, part: usize) -> AnnounceWorld {
    fn replaced<T: Clone>(all: &[T], by: &[T], is_meant: impl Fn(&T) -> bool) -> Vec<T> {
        let kept = all.iter().filter(|object| !is_meant(object));
        kept.chain(by.iter().filter(|object| is_meant(object))).cloned().collect()
    }
    let name = ServiceName::new("default", ["web", "dns"][part % 2]);
    let mut world = last.clone();
    match part / 2 {
        0 => {
            world.services =
                replaced(&last.services, &next.services, |service| service.name == name)
        }
        1 => world.slices = replaced(&last.slices, &next.slices, |slice| slice.service == name),
        _ => world.pods = next.pods,
    }
    world
}

/// A state, and then changes of one part of it, or of everything.
fn history() -> impl Strategy<Value = Vec<AnnounceWorld>> {
    let step = (state(), option::weighted(0.8, 0usize..5));
    vec(step, 1..12).prop_map(|steps| {
        let mut history: Vec<AnnounceWorld> = Vec::new();
        for (next, part) in steps {
            history.push(match history.last().zip(part) {
                Some((last, part)) => stepped(last, next, part),
                None => next,
            });
        }
        history
    })
}

fn refused(decided: Option<&Announcements>) -> Vec<(IpNetwork, Withheld)> {
    let refused = decided.into_iter().flat_map(Announcements::refused);
    refused.map(|(prefix, withheld)| (*prefix, withheld.clone())).collect()
}

fn dropped(decided: Option<&Announcements>) -> BTreeSet<DroppedFrontend> {
    decided.into_iter().flat_map(|decided| decided.dropped.values().flatten()).cloned().collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    })]
    /// Services that share an address, endpoints, nodes and pods, in any order: incremental
    /// decisions equal those of a fresh start.
    #[test]
    fn announcements_are_a_function_of_the_last_state(history in history()) {
        let (mut planner, mut kept) = (history[0].planner(), AnnouncePlan::default());
        history[0].decide_again(&planner, &mut kept, None);
        for (before, after) in history.iter().zip(&history[1..]) {
            let mut noted = BTreeSet::new();
            for events in [removals(before, after), after.events()] {
                planner.apply(events);
                let changes = planner.update();
                noted.extend(concerned(planner.plan(), &changes).cloned());
            }
            let refused_before = refused(kept.decided());
            let dropped_before = dropped(kept.decided());
            let new = after.decide_again(&planner, &mut kept, Some(&noted));
            prop_assert_eq!(kept.decided(), Some(&after.decide()));
            let mut refused = refused(kept.decided());
            refused.retain(|withheld| !refused_before.contains(withheld));
            prop_assert_eq!(new.refused, refused);
            let new: BTreeSet<_> = new.dropped.into_iter().collect();
            prop_assert_eq!(new, &dropped(kept.decided()) - &dropped_before);
        }
        let (last, decided) = (history.last().unwrap(), kept.decided().unwrap());
        prop_assert!(decided.wanted.len() <= last.settings.most);
        for (_, other) in &last.others {
            let taken = |at: &IpNetwork| at.contains(other.internal[0]);
            prop_assert!(!decided.wanted.keys().any(taken), "{:?}", decided.wanted);
        }
    }
}
