use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use proptest::prelude::*;

use super::super::lower::{FrontendState, lower};
use super::super::name::{Class, ServiceSet, ServiceTable};
use super::super::number::Numbers;
use denizen_fixture::{ip, port, service};
use denizen_model::{Family, Protocol, SessionAffinity};
use denizen_nft::{Value, read_endpoint};
use denizen_plan::{
    Endpoint, Endpoints, Frontend, FrontendAddress, FrontendKey, FrontendKind, Masquerade, Outcome,
    frontends,
};

pub fn at(n: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 8080))
}

/// Forwards to these, or rejects where there are none.
pub fn to(endpoints: impl IntoIterator<Item = u16>) -> Outcome {
    let endpoint = |n| Endpoint { address: at(n), local: n % 2 == 0 };
    Endpoints::new(endpoints.into_iter().map(endpoint).collect())
        .map_or(Outcome::Reject, Outcome::Forward)
}

pub fn key(address: &str) -> FrontendKey {
    FrontendKey {
        address: FrontendAddress::Ip(ip(address)),
        protocol: Protocol::Tcp,
        port: port(80),
    }
}

pub fn frontend(key: FrontendKey, inside: Outcome) -> Frontend {
    let any =
        frontends(&denizen_plan::fixture::settings(), None, &service("web", &["10.96.0.10"]), &[]);
    let [any] = <[Frontend; 1]>::try_from(any).unwrap();
    Frontend {
        key,
        kind: FrontendKind::ClusterIp,
        inside,
        masquerade: Masquerade::UnlessLocalPod,
        ..any
    }
}

/// Slot by slot, and the size of the class.
fn programmed(
    state: &FrontendState,
    key: &FrontendKey,
) -> (BTreeMap<u32, SocketAddr>, Option<u32>) {
    let set = ServiceSet::Endpoints.declared(ServiceTable::Ip(Family::V4));
    let mut slots = BTreeMap::new();
    for element in state.elements(key).iter().filter(|element| element.set == set.id) {
        let text = set.key_text(&element.key).to_string();
        let slot = text.rsplit(" . ").next().unwrap().parse().unwrap();
        let Value::Data(data) = &element.value else { panic!("{element:?} has no endpoint") };
        let endpoint = read_endpoint(Family::V4, data).unwrap();
        assert_eq!(slots.insert(slot, endpoint.into()), None, "two in slot {slot}");
    }
    let mut classes = state.classes(key);
    (slots, classes.next().map(|Class { size, .. }| size))
}

fn check(
    key: &FrontendKey,
    before: &BTreeMap<u32, SocketAddr>,
    state: &FrontendState,
    wanted: &BTreeSet<u16>,
) -> BTreeMap<u32, SocketAddr> {
    let (slots, size) = programmed(state, key);
    let count = wanted.len() as u32;
    assert_eq!(slots.keys().copied().collect::<Vec<_>>(), (0..count).collect::<Vec<_>>(), "gaps");
    assert_eq!(
        slots.values().copied().collect::<BTreeSet<_>>(),
        wanted.iter().map(|n| at(*n)).collect()
    );
    assert_eq!(size.is_some(), count > 0);
    if let Some(size) = size {
        assert!(
            size.is_power_of_two() && count <= size && count * 4 > size,
            "{count} in a class of {size}"
        );
    }
    for (slot, endpoint) in before {
        let stays = slots.values().any(|now| now == endpoint);
        if stays && *slot < count {
            assert_eq!(slots.get(slot), Some(endpoint), "moved without need");
        }
    }
    slots
}

proptest! {
    #[test]
    fn slots_hold_their_invariants(
        steps in proptest::collection::vec(proptest::collection::btree_set(0_u16..100, 0..90), 1..30),
        remembers: bool,
    ) {
        let key = key("10.96.0.10");
        let affinity = match remembers {
            true => SessionAffinity::ClientIp { seconds: 300 },
            false => SessionAffinity::None,
        };
        let (mut now, mut before, mut numbers) = (None, BTreeMap::new(), Numbers::default());
        for wanted in steps {
            let frontend = Frontend { affinity, ..frontend(key, to(wanted.iter().copied())) };
            let state = lower(&frontend, now.as_ref(), &mut numbers);
            before = check(&key, &before, &state, &wanted);
            prop_assert_eq!(&lower(&frontend, Some(&state), &mut numbers), &state, "said twice");
            now = Some(state);
        }
    }
}

#[test]
fn a_class_is_left_late_and_only_downwards() {
    let key = key("10.96.0.10");
    let mut now: Option<FrontendState> = None;
    let mut numbers = Numbers::default();
    let steps =
        [(1, 1), (2, 2), (3, 4), (5, 8), (4, 8), (3, 8), (2, 2), (65, 128), (33, 128), (32, 32)];
    for (count, size) in steps {
        let state = lower(&frontend(key, to(0..count)), now.as_ref(), &mut numbers);
        assert_eq!(programmed(&state, &key).1, Some(size), "{count} endpoints");
        now = Some(state);
    }
}
