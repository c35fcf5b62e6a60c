//! A random table of entries, compared with a separate definition of healthy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::{FrontendAddress, FrontendKey};
use denizen_model::ServiceName;

/// One step of the test.
#[derive(Debug, Clone)]
enum TableStep {
    /// Adds a service, with or without a node port, or removes it.
    Service(u8, Option<Option<u16>>),
    /// Sets the endpoints of a service.
    Endpoints(u8, BTreeMap<u8, EndpointLife>),
    /// A client sends its first packet to a frontend.
    Client(u8, Index),
    /// The agent programs its state, and flushes.
    Sync,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndpointLife {
    Ready,
    Draining,
    Down,
}

/// The expected state: node port and endpoints of each service.
#[derive(Debug, Default, Clone)]
struct TableFacts {
    services: BTreeMap<u8, Option<u16>>,
    endpoints: BTreeMap<u8, BTreeMap<u8, EndpointLife>>,
}

const PROTOCOLS: [(&str, Protocol); 2] = [("udp", Protocol::Udp), ("tcp", Protocol::Tcp)];
const NODE: &str = "192.168.0.2";

fn cluster_ip(service: u8) -> IpAddr {
    ip(&format!("10.96.0.{service}"))
}

fn endpoint_at(number: u8) -> SocketAddr {
    at(&format!("10.1.0.{number}:5353"))
}

fn node_port(service: u8) -> u16 {
    30000 + u16::from(service)
}

/// Even frontends are cluster IPs, odd ones node ports.
fn frontend_at(key: u8) -> SocketAddr {
    match key % 2 {
        0 => SocketAddr::new(cluster_ip(key / 2), 53),
        _ => SocketAddr::new(ip(NODE), node_port(key / 2)),
    }
}

impl TableFacts {
    fn take(&mut self, step: &TableStep) {
        match step {
            TableStep::Service(name, Some(port)) => drop(self.services.insert(*name, *port)),
            TableStep::Service(name, None) => drop(self.services.remove(name)),
            TableStep::Endpoints(name, all) => drop(self.endpoints.insert(*name, all.clone())),
            TableStep::Client(..) | TableStep::Sync => {}
        }
    }

    /// The service of this frontend.
    fn behind(&self, destination: SocketAddr) -> Option<u8> {
        let mut services = self.services.iter();
        let found = services.find(|(name, port)| {
            destination == SocketAddr::new(cluster_ip(**name), 53)
                || port.is_some_and(|port| destination == SocketAddr::new(ip(NODE), port))
        });
        found.map(|(name, _)| *name)
    }

    fn endpoints_in(&self, service: u8, states: &[EndpointLife]) -> Vec<SocketAddr> {
        let all = self.endpoints.get(&service).into_iter().flatten();
        all.filter(|(_, state)| states.contains(state))
            .map(|(number, _)| endpoint_at(*number))
            .collect()
    }

    /// The endpoint for a new flow; `None` if the rules refuse it.
    fn balanced(&self, destination: SocketAddr, choice: Index) -> Option<SocketAddr> {
        let Some(service) = self.behind(destination) else {
            return Some(destination);
        };
        let picks = [EndpointLife::Ready, EndpointLife::Draining]
            .map(|state| self.endpoints_in(service, &[state]));
        let picked = picks.into_iter().find(|picked| !picked.is_empty())?;
        Some(picked[choice.index(picked.len())])
    }

    fn is_healthy(&self, entry: &TrackedFlow) -> bool {
        if entry.protocol() == Some(Protocol::Tcp) && !entry.is_unanswered_syn {
            return true;
        }
        match self.behind(entry.destination) {
            Some(service) => self
                .endpoints_in(service, &[EndpointLife::Ready, EndpointLife::Draining])
                .contains(&entry.reply_source),
            // A flow without DNAT.
            None => !entry.is_translated(),
        }
    }

    /// The frontends in the kernel, as a restarted agent finds them.
    fn keys(&self) -> Vec<FrontendKey> {
        let of = |protocol, name: u8, node_port: Option<u16>| {
            let key = |address, number| FrontendKey { address, protocol, port: port(number) };
            let at_node =
                node_port.map(|port| key(FrontendAddress::Node(denizen_model::Family::V4), port));
            [Some(key(FrontendAddress::Ip(cluster_ip(name)), 53)), at_node]
        };
        let services = self.services.iter();
        let keys = services.flat_map(|(name, node_port)| {
            PROTOCOLS.into_iter().flat_map(move |(_, protocol)| of(protocol, *name, *node_port))
        });
        keys.flatten().collect()
    }
}

fn step() -> impl Strategy<Value = TableStep> {
    let service = || 0_u8..3;
    let states = proptest::sample::select(vec![
        EndpointLife::Ready,
        EndpointLife::Draining,
        EndpointLife::Down,
    ]);
    prop_oneof![
        3 => (service(), proptest::option::of(any::<bool>())).prop_map(|(name, how)| {
            TableStep::Service(name, how.map(|at_node| at_node.then(|| node_port(name))))
        }),
        4 => (service(), proptest::collection::btree_map(1_u8..6, states, 0..4))
            .prop_map(|(name, endpoints)| TableStep::Endpoints(name, endpoints)),
        8 => (0_u8..6, any::<Index>()).prop_map(|(key, choice)| TableStep::Client(key, choice)),
        4 => Just(TableStep::Sync),
    ]
}

/// The event of a step, and its subject.
fn event(step: &TableStep) -> Option<((u8, bool), Event)> {
    match step {
        TableStep::Service(number, Some(node_port)) => {
            let mut service = service(&format!("s{number}"), &[&cluster_ip(*number).to_string()]);
            let ports =
                PROTOCOLS.map(|(name, protocol)| service_port(name, protocol, 53, *node_port));
            service.ports = ports.into();
            Some(((*number, true), service_is(&service)))
        }
        TableStep::Service(number, None) => {
            let name = ServiceName::new("default", &format!("s{number}"));
            Some(((*number, true), Event::Service(name, None)))
        }
        TableStep::Endpoints(number, endpoints) => {
            let each = endpoints.iter().map(|(number, state)| {
                let address = endpoint_at(*number).ip().to_string();
                match state {
                    EndpointLife::Ready => endpoint(&address, None),
                    EndpointLife::Draining => draining(&address, None),
                    EndpointLife::Down => down(&address, None),
                }
            });
            let name = format!("s{number}");
            let slice = dns_slice(&name, &name, each.collect());
            Some(((*number, false), slice_is(&slice)))
        }
        TableStep::Client(..) | TableStep::Sync => None,
    }
}

fn started(known: impl IntoIterator<Item = Event>) -> Tracked {
    let mut tracked = Tracked::new();
    tracked.apply(all_listed());
    tracked.apply(vec![Event::Addresses(vec![address(NODE, "eth0")])]);
    tracked.apply(known.into_iter().collect());
    tracked
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// In batches of any size, with a restart of the agent: no healthy entry is ever deleted, and
    /// after each flush no stale entry is left.
    #[test]
    fn healthy_entries_stay_and_stale_ones_go(
        story in proptest::collection::vec(step(), 1..60),
        restart: Index,
    ) {
        let (mut tracked, mut facts, mut programmed) = (started([]), TableFacts::default(), TableFacts::default());
        let mut table: BTreeSet<TrackedFlow> = BTreeSet::new();
        let mut last_words = BTreeMap::new();
        let mut left = StaleCandidates::default();
        let restart = restart.index(story.len());
        for (n, step) in story.iter().chain([&TableStep::Sync]).enumerate() {
            if n == restart {
                tracked = started(last_words.values().cloned());
                programmed.keys().into_iter().for_each(|key| left.add_frontend(key));
            }
            facts.take(step);
            if let Some((about, event)) = event(step) {
                tracked.apply(vec![event.clone()]);
                last_words.insert(about, event);
            }
            match step {
                TableStep::Client(key, choice) => {
                    let (destination, source) = (frontend_at(*key), format!("10.9.0.9:{}", 4000 + n));
                    if let Some(reply_source) = programmed.balanced(destination, *choice) {
                        let (_, protocol) = PROTOCOLS[n % PROTOCOLS.len()];
                        let flow = entry(protocol, &source, "10.0.0.1:1", "10.0.0.1:1");
                        // Some were answered.
                        let is_unanswered_syn = flow.is_unanswered_syn && n % 3 > 0;
                        table.insert(TrackedFlow { destination, reply_source, is_unanswered_syn, ..flow });
                    }
                }
                TableStep::Sync => {
                    let mut candidates = candidates_after(&mut tracked, Vec::new());
                    candidates.absorb(std::mem::take(&mut left));
                    programmed = facts.clone();
                    for entry in flushed(&tracked, &candidates, &Vec::from_iter(table.iter().copied())) {
                        prop_assert!(!facts.is_healthy(&entry), "{entry:?} was healthy");
                        table.remove(&entry);
                    }
                    let stale: Vec<_> = table.iter().filter(|entry| !facts.is_healthy(entry)).collect();
                    prop_assert!(stale.is_empty(), "left: {stale:?}");
                }
                TableStep::Service(..) | TableStep::Endpoints(..) => {}
            }
        }
    }
}
