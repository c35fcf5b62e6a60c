//! The events of an index, for lists and for changes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::index::SentObjects;
use denizen_model::{Event, OtherNode, ServiceName};
use denizen_object::{Decoder, ObjectKind, RawObject};

const NODE: &str = "node-1";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn index(kind: ObjectKind) -> SentObjects {
    SentObjects::new(kind, Decoder::new(NODE.into()), at(100))
}

/// An item of a list, which has no kind of its own.
fn service(name: u8, variant: u8) -> String {
    json!({
        "metadata": { "namespace": "d", "name": format!("s{name}"), "managedFields": [{ "f": variant }] },
        "spec": { "clusterIP": format!("10.0.{variant}.{name}"), "ports": [{ "port": 80 }] },
    })
    .to_string()
}

/// A service whose ports are not a list, so nothing of it can be used.
fn broken(name: u8) -> String {
    service(name, 1).replace("[{\"port\":80}]", "7")
}

fn slice(name: &str, triggered: &str) -> String {
    json!({
        "metadata": {
            "namespace": "d", "name": name, "labels": { "kubernetes.io/service-name": "s1" },
            "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": triggered },
        },
        "addressType": "IPv4", "ports": [{ "name": "", "port": 80 }],
        "endpoints": [{ "addresses": ["10.1.0.1"] }],
    })
    .to_string()
}

fn list_one(index: &mut SentObjects, object: &str) {
    index.list(&RawObject::json(index.kind(), object));
}

fn changed(index: &mut SentObjects, object: &str) -> Vec<Event> {
    index.changed(&RawObject::json(index.kind(), object))
}

fn deleted(index: &mut SentObjects, object: &str) -> Vec<Event> {
    index.deleted(&RawObject::json(index.kind(), object))
}

fn listed(index: &mut SentObjects, objects: &[String]) -> Vec<Event> {
    index.begin_list();
    objects.iter().for_each(|object| list_one(index, object));
    index.complete()
}

fn problems(index: &SentObjects) -> Vec<String> {
    index.problems().cloned().collect()
}

/// Applies events to a map from name to address.
fn apply(known: &mut BTreeMap<String, String>, events: Vec<Event>) {
    for event in events {
        let Event::Service(name, service) = event else {
            panic!("not of services: {event:?}");
        };
        match service {
            Some(service) => {
                known.insert(name.to_string(), service.cluster_ips[0].to_string());
            }
            None => assert!(known.remove(&name.to_string()).is_some(), "{name} was never sent"),
        }
    }
}

#[test]
fn a_list_yields_deletions_first_then_changes() {
    let mut index = index(ObjectKind::Service);
    assert_eq!(listed(&mut index, &[service(1, 1), service(2, 1)]).len(), 2);
    assert_eq!(listed(&mut index, &[service(1, 1), service(2, 1)]), []);
    let events = listed(&mut index, &[service(2, 2), service(3, 1)]);
    let gone = ServiceName::new("d", "s1");
    assert_eq!(events.len(), 3);
    assert_eq!(events[0], Event::Service(gone, None), "its address may be another's now");
    assert_eq!(listed(&mut index, &[]).len(), 2);
    assert_eq!(listed(&mut index, &[]), [], "something is still known");
}

#[test]
fn the_last_of_two_objects_with_one_name_counts() {
    let mut index = index(ObjectKind::Service);
    let mut known = BTreeMap::new();
    for (objects, expected) in [([1, 2], "10.0.2.1"), ([1, 2], "10.0.2.1"), ([3, 2], "10.0.2.1")] {
        let objects = objects.map(|variant| service(1, variant));
        apply(&mut known, listed(&mut index, &objects));
        assert_eq!(known["d/s1"], expected);
    }
}

#[test]
fn an_incomplete_list_changes_nothing() {
    let mut index = index(ObjectKind::Service);
    listed(&mut index, &[service(1, 1)]);
    index.begin_list();
    list_one(&mut index, &service(1, 2));
    assert_eq!(listed(&mut index, &[service(1, 1)]), []);
}

#[test]
fn a_broken_object_is_named_and_keeps_its_last_state() {
    let mut index = index(ObjectKind::Service);
    listed(&mut index, &[service(1, 1), service(2, 1)]);
    assert_eq!(changed(&mut index, &broken(1)), []);
    let named = problems(&index);
    assert!(named[0].starts_with("Service d/s1: spec.ports: invalid type"), "{named:?}");
    assert_eq!(listed(&mut index, &[broken(1), service(2, 1)]), [], "it still exists");
    assert_eq!(problems(&index), named);
    assert_eq!(deleted(&mut index, &broken(1)).len(), 1);
    assert!(problems(&index).is_empty());
    assert_eq!(changed(&mut index, "{\"metadata\":7}"), []);
    assert!(problems(&index)[0].contains("without a readable name"), "{:?}", problems(&index));
    assert_eq!(listed(&mut index, &[service(2, 1)]), []);
    assert!(problems(&index).is_empty());
}

#[test]
fn of_many_problems_only_some_are_named() {
    let mut index = index(ObjectKind::Service);
    let ports: Vec<_> = (0..5000).map(|_| json!({ "port": 0 })).collect();
    let object = json!({
        "metadata": { "namespace": "d", "name": "s" }, "spec": { "clusterIP": "10.0.0.1", "ports": ports },
    });
    assert_eq!(changed(&mut index, &object.to_string()).len(), 1);
    let named = problems(&index);
    assert_eq!(named.len(), 11);
    assert_eq!(named[10], "Service d/s: and 4990 more");
}

#[test]
fn a_trigger_after_the_start_follows_its_slice() {
    let cases = [
        ("after the start", "1970-01-01T00:02:00.5Z", true),
        ("before the start", "1970-01-01T00:01:00Z", false),
        ("no time", "yesterday", false),
    ];
    for (name, text, counts) in cases {
        let mut index = index(ObjectKind::EndpointSlice);
        let events = changed(&mut index, &slice("e", text));
        assert!(matches!(events[0], Event::Slice(_, Some(_))), "{name}");
        assert_eq!(events.len(), if counts { 2 } else { 1 }, "{name}");
        if let [_, Event::Triggered(_, when)] = events[..] {
            assert_eq!(when, "1970-01-01T00:02:00.5Z".parse().unwrap(), "{name}");
        }
    }
}

#[test]
fn other_nodes_are_ignored() {
    let mut index = index(ObjectKind::Node);
    let node = |name: &str| json!({ "metadata": { "name": name } }).to_string();
    assert_eq!(changed(&mut index, &node("another")), []);
    assert!(index.lacks_own_node().is_some());
    assert!(matches!(changed(&mut index, &node(NODE))[..], [Event::Node(Some(_))]));
    assert_eq!(deleted(&mut index, &node("another")), []);
    assert!(index.lacks_own_node().is_none());
    assert_eq!(deleted(&mut index, &node(NODE)), [Event::Node(None)]);
    assert!(index.lacks_own_node().is_some());
}

#[test]
fn other_nodes_are_told_from_this_one_where_they_are_wanted() {
    let decoder = Decoder::new(NODE.into()).with_other_nodes(true);
    let mut index = SentObjects::new(ObjectKind::Node, decoder, at(100));
    let node = |name: &str, range: &str| {
        let address = json!({ "type": "InternalIP", "address": "192.0.2.7" });
        json!({ "metadata": { "name": name, "creationTimestamp": "2026-11-20T12:00:00Z" },
                "spec": { "podCIDRs": [range] }, "status": { "addresses": [address] } })
        .to_string()
    };
    let other = |range: &str| {
        let node = OtherNode {
            created: "2026-11-20T12:00:00Z".into(),
            internal: vec!["192.0.2.7".parse().unwrap()],
            external: Vec::new(),
            pod_cidrs: vec![range.parse().unwrap()],
            labels: denizen_model::Labels::default(),
        };
        Event::OtherNode("another".into(), Some(node))
    };
    let gone = Event::OtherNode("another".into(), None);
    assert_eq!(changed(&mut index, &node("another", "10.1.2.0/24")), [other("10.1.2.0/24")]);
    assert_eq!(changed(&mut index, &node("another", "10.1.2.0/24")), []);
    assert!(index.lacks_own_node().is_some());
    assert!(matches!(changed(&mut index, &node(NODE, "10.1.1.0/24"))[..], [Event::Node(Some(_))]));
    assert_eq!(deleted(&mut index, &node("another", "10.1.2.0/24")), std::slice::from_ref(&gone));
    assert_eq!(changed(&mut index, &node("another", "10.1.3.0/24")), [other("10.1.3.0/24")]);
    index.begin_list();
    list_one(&mut index, &node(NODE, "10.1.1.0/24"));
    assert_eq!(index.complete(), [gone]);
    assert!(index.lacks_own_node().is_none());
}

#[derive(Debug, Clone)]
enum WatchStep {
    Put(u8, u8),
    Delete(u8),
    /// A list of the existing objects, sent in parts.
    List,
    /// The watch misses these changes; a list follows.
    Away(Vec<(u8, u8)>),
}

fn step() -> impl Strategy<Value = WatchStep> {
    let change = || (0..4_u8, 0..3_u8);
    let changes = move || proptest::collection::vec(change(), 0..5);
    prop_oneof![
        4 => change().prop_map(|(name, variant)| WatchStep::Put(name, variant)),
        2 => (0..4_u8).prop_map(WatchStep::Delete),
        1 => Just(WatchStep::List),
        1 => changes().prop_map(WatchStep::Away),
    ]
}

/// Variant 0 is a deletion.
fn change(exist: &mut BTreeMap<u8, u8>, (name, variant): (u8, u8)) {
    if variant == 0 {
        exist.remove(&name);
    } else {
        exist.insert(name, variant);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Applying all events yields the existing objects.
    #[test]
    fn any_changes_yield_the_existing_objects(steps in proptest::collection::vec(step(), 1..30)) {
        let (mut index, mut exist) = (index(ObjectKind::Service), BTreeMap::new());
        let mut known = BTreeMap::new();
        for step in steps {
            let events = match step {
                WatchStep::Put(name, variant) => {
                    exist.insert(name, variant);
                    changed(&mut index, &service(name, variant))
                }
                WatchStep::Delete(name) => match exist.remove(&name) {
                    Some(variant) => deleted(&mut index, &service(name, variant)),
                    None => continue,
                },
                WatchStep::List => {
                    index.begin_list();
                    let mut events = Vec::new();
                    for (name, variant) in &exist {
                        list_one(&mut index, &service(*name, *variant));
                        events.extend(index.flush());
                    }
                    events.extend(index.complete());
                    events
                }
                WatchStep::Away(meanwhile) => {
                    meanwhile.into_iter().for_each(|one| change(&mut exist, one));
                    let objects = exist.iter().map(|(name, variant)| service(*name, *variant));
                    listed(&mut index, &objects.collect::<Vec<_>>())
                }
            };
            apply(&mut known, events);
            let right: BTreeMap<_, _> = exist
                .iter()
                .map(|(name, variant)| (format!("d/s{name}"), format!("10.0.{variant}.{name}")))
                .collect();
            prop_assert_eq!(&known, &right);
        }
    }
}
