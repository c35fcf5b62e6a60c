//! Stale entries, by cases and by a property test.

mod cases;
mod forbidden;
mod late;
mod property;

use std::collections::HashSet;
use std::net::SocketAddr;

use super::{CandidateTracker, StaleCandidates, StaleFilter};
use crate::fixture::*;
use crate::{Planner, Policy};
use denizen_fixture::*;
use denizen_model::{Event, Listing, Protocol, Service, Slice, SliceEndpoint, SlicePort};
use denizen_packet::{FlowSelection, TrackedFlow, Transport, Treatment};

/// A plan and its candidates. Node ports are on the node's first addresses.
struct Tracked {
    planner: Planner,
    tracker: CandidateTracker,
}

impl Tracked {
    fn new() -> Self {
        Self::with(policy())
    }

    fn with(policy: Policy) -> Self {
        let planner = Planner::new(policy, CAPABLE);
        Self { planner, tracker: CandidateTracker::default() }
    }

    fn apply(&mut self, events: Vec<Event>) {
        self.planner.apply(events);
    }
}

/// Applies events, and returns the candidates that follow.
fn candidates_after(tracked: &mut Tracked, events: Vec<Event>) -> StaleCandidates {
    tracked.apply(events);
    let changes = tracked.planner.update();
    tracked.tracker.update(tracked.planner.plan(), &changes);
    tracked.tracker.take(tracked.planner.plan())
}

/// The entries that a flush would delete.
fn flushed(
    tracked: &Tracked,
    candidates: &StaleCandidates,
    entries: &[TrackedFlow],
) -> Vec<TrackedFlow> {
    let parts = candidates.parts();
    let none = HashSet::new();
    let mut filter = StaleFilter::new(candidates, &tracked.planner, &none);
    let read = entries
        .iter()
        .filter(|entry| parts.iter().any(|part| part.has(entry)))
        .filter(|entry| candidates.concern(entry));
    let deleted = read.filter(|entry| filter.treatment(entry).is_some_and(Treatment::deletes));
    deleted.copied().collect()
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect(text)
}

/// An entry that is deleted if it is stale: of TCP, one of an unanswered SYN.
fn entry(protocol: Protocol, source: &str, destination: &str, reply_source: &str) -> TrackedFlow {
    TrackedFlow {
        id: 7,
        transport: Transport::Named(protocol),
        source: at(source),
        destination: at(destination),
        reply_source: at(reply_source),
        reply_destination: at(source),
        is_marked: false,
        is_mid_stream: false,
        is_unanswered_syn: protocol == Protocol::Tcp,
    }
}

/// Every protocol at port 53, and node port 30053.
fn dns(name: &str, ips: &[&str]) -> Service {
    Service {
        ports: vec![
            service_port("udp", Protocol::Udp, 53, Some(30053)),
            service_port("sctp", Protocol::Sctp, 53, Some(30053)),
            service_port("tcp", Protocol::Tcp, 53, Some(30053)),
        ],
        ..service(name, ips)
    }
}

/// The endpoints of [`dns`], at port 5353.
fn dns_slice(name: &str, service: &str, endpoints: Vec<SliceEndpoint>) -> Slice {
    let port = |(name, protocol): (&str, Protocol)| SlicePort {
        name: name.into(),
        protocol,
        port: port(5353),
    };
    let protocols = [("udp", Protocol::Udp), ("sctp", Protocol::Sctp), ("tcp", Protocol::Tcp)];
    Slice { ports: protocols.map(port).into(), ..slice(name, service, endpoints) }
}

fn service_is(service: &Service) -> Event {
    Event::Service(service.name.clone(), Some(service.clone()))
}

fn service_gone(service: &Service) -> Event {
    Event::Service(service.name.clone(), None)
}

fn slice_is(slice: &Slice) -> Event {
    Event::Slice(slice.name.clone(), Some(slice.clone()))
}

fn all_listed() -> Vec<Event> {
    Listing::SERVICES.map(Event::Listed).into()
}
