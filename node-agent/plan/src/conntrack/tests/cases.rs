//! Stale entries by cases.

use super::*;
use crate::NodePortAddresses;
use denizen_model::{PodSet, TrafficPolicy};

const UDP: Protocol = Protocol::Udp;

/// A service with an endpoint of every kind, on a node of three addresses.
pub(super) fn a_service_with_endpoints() -> Vec<Event> {
    let dns = Service {
        external_ips: vec![ip("203.0.113.7")],
        ..dns("dns", &["10.96.0.1", "fd00:96::1"])
    };
    let unready = SliceEndpoint {
        state: denizen_model::EndpointState::Unready,
        ..endpoint("10.1.0.3", None)
    };
    let elsewhere =
        SliceEndpoint { zone_hints: vec!["b".into()], ..endpoint("10.1.0.5", Some(AWAY)) };
    let here = SliceEndpoint { zone_hints: vec!["a".into()], ..endpoint("10.1.0.1", Some(HERE)) };
    let endpoints =
        vec![here, draining("10.1.0.2", None), unready, down("10.1.0.4", None), elsewhere];
    let mut events = all_listed();
    events.extend([
        Event::Node(Some(node(Some("a"), &["192.168.0.2"], &[]))),
        Event::Addresses(vec![
            address("10.1.2.1", "cni0"),
            address("127.0.0.1", "lo"),
            address("192.168.0.2", "eth0"),
        ]),
        Event::Pods(pods(1, &[("10.1.0.1", "cni0")])),
        service_is(&dns),
        slice_is(&dns_slice("e4", "dns", endpoints)),
        slice_is(&dns_slice("e6", "dns", vec![endpoint("fd00::1", None)])),
    ]);
    events
}

#[test]
fn at_a_frontend_the_reply_source_decides() {
    let (cluster_ip, node_port) = ("10.96.0.1:53", "192.168.0.2:30053");
    let cases = [
        ("selected", cluster_ip, "10.1.0.1:5353", false),
        ("draining, not selected", cluster_ip, "10.1.0.2:5353", false),
        ("serving, though not ready", cluster_ip, "10.1.0.3:5353", false),
        ("of another zone, not selected", cluster_ip, "10.1.0.5:5353", false),
        ("no longer serving", cluster_ip, "10.1.0.4:5353", true),
        ("no endpoint at all", cluster_ip, "10.1.0.99:5353", true),
        ("an endpoint's other port", cluster_ip, "10.1.0.1:53", true),
        ("never translated", cluster_ip, cluster_ip, true),
        ("the external IP", "203.0.113.7:53", "10.1.0.1:5353", false),
        ("the external IP, gone", "203.0.113.7:53", "10.1.0.4:5353", true),
        ("IPv6", "[fd00:96::1]:53", "[fd00::1]:5353", false),
        ("IPv6, gone", "[fd00:96::1]:53", "[fd00::2]:5353", true),
        ("the node port", node_port, "10.1.0.1:5353", false),
        ("the node port, gone", node_port, "10.1.0.4:5353", true),
        ("the node port, never translated", node_port, node_port, true),
        (
            "an address that does not serve node ports, gone",
            "10.1.2.1:30053",
            "10.1.0.4:5353",
            true,
        ),
        ("a program of the node's at the same number", "127.0.0.1:30053", "127.0.0.1:30053", false),
        ("somebody else's node port", "192.168.0.9:30053", "10.1.0.4:5353", false),
        ("another port of the cluster IP", "10.96.0.1:54", "10.1.0.99:54", false),
        ("another address", "10.96.0.2:53", "10.1.0.99:5353", false),
    ];
    let mut tracked = Tracked::new();
    let candidates = candidates_after(&mut tracked, a_service_with_endpoints());
    for (name, destination, reply_source, stale) in cases {
        for protocol in Protocol::ALL {
            let source =
                if destination.starts_with('[') { "[fd00::9]:4000" } else { "10.9.0.9:4000" };
            let entry = entry(protocol, source, destination, reply_source);
            let found = flushed(&tracked, &candidates, &[entry]);
            assert_eq!(!found.is_empty(), stale, "{name}, {protocol}");
        }
    }
}

/// An address may be the node's own by a route, and be on no link.
#[test]
fn with_node_ports_at_every_address_translated_flows_are_the_nodes() {
    let all = NodePortAddresses::All { localhost: false };
    let v4_alone = NodePortAddresses::In(vec![range("0.0.0.0/0")]);
    for (node_ports, has_v6) in [(all, true), (v4_alone, false)] {
        let mut tracked = Tracked::with(Policy { node_ports, ..policy() });
        let candidates = candidates_after(&mut tracked, a_service_with_endpoints());
        let (v4, v6) = ("203.0.113.77:30053", "[2001:db8::77]:30053");
        let cases = [
            ("serving", v4, "10.1.0.1:5353", false),
            ("gone", v4, "10.1.0.4:5353", true),
            ("not translated", v4, v4, false),
            ("serving, IPv6", v6, "[fd00::1]:5353", false),
            ("gone, IPv6", v6, "[fd00::2]:5353", has_v6),
        ];
        for (name, destination, reply_source, stale) in cases {
            let source = if destination == v6 { "[fd00::9]:4000" } else { "10.9.0.9:4000" };
            let entry = entry(UDP, source, destination, reply_source);
            let found = flushed(&tracked, &candidates, &[entry]);
            assert_eq!(!found.is_empty(), stale, "{name}");
        }
    }
}

#[test]
fn tcp_that_was_answered_is_left_alone() {
    let mut tracked = Tracked::new();
    let mut candidates = candidates_after(&mut tracked, a_service_with_endpoints());
    let ended = vec![Event::Pods(pods(2, &[]))];
    candidates.absorb(candidates_after(&mut tracked, ended));
    let syns = [
        entry(Protocol::Tcp, "10.9.0.9:4000", "10.96.0.1:53", "10.1.0.4:5353"),
        entry(Protocol::Tcp, "10.9.0.9:4000", "10.96.0.1:53", "10.96.0.1:53"),
        entry(Protocol::Tcp, "10.9.0.9:4000", "192.168.0.2:30053", "10.1.0.1:5353"),
    ];
    assert_eq!(flushed(&tracked, &candidates, &syns), syns);
    let answered = syns.map(|syn| TrackedFlow { is_unanswered_syn: false, ..syn });
    assert!(answered.iter().all(|entry| !candidates.concern(entry)));
    let of_tcp =
        |part: &FlowSelection| part.protocol.is_none_or(|protocol| protocol == Protocol::Tcp);
    let parts: Vec<FlowSelection> = candidates.parts().into_iter().filter(of_tcp).collect();
    assert!(!parts.is_empty() && parts.iter().all(|part| part.unanswered_syns), "{parts:?}");
}

/// A plan without open candidates, and an entry through the frontend of a service that will
/// change.
fn settled() -> (Tracked, TrackedFlow) {
    let mut tracked = Tracked::new();
    let flow = entry(UDP, "10.9.0.9:4000", "10.96.0.1:53", "10.1.0.1:5353");
    let candidates = candidates_after(&mut tracked, a_service_with_endpoints());
    assert_eq!(flushed(&tracked, &candidates, &[flow]), []);
    (tracked, flow)
}

#[test]
fn flows_of_a_deleted_service_are_stale() {
    let (mut tracked, flow) = settled();
    let candidates = candidates_after(&mut tracked, vec![service_gone(&dns("dns", &[]))]);
    let untranslated = TrackedFlow { reply_source: flow.destination, ..flow };
    let at_node = TrackedFlow { destination: at("192.168.0.2:30053"), ..flow };
    let elsewhere = TrackedFlow { destination: at("192.168.0.9:30053"), ..flow };
    assert_eq!(
        flushed(&tracked, &candidates, &[flow, untranslated, at_node, elsewhere]),
        [flow, at_node]
    );
}

/// kubernetes #139628: a sender's packets went to the last endpoint's address for 13 hours.
#[test]
fn flows_of_a_service_without_endpoints_are_stale() {
    let (mut tracked, flow) = settled();
    let candidates =
        candidates_after(&mut tracked, vec![slice_is(&dns_slice("e4", "dns", vec![]))]);
    assert_eq!(flushed(&tracked, &candidates, &[flow]), [flow]);
}

/// No frontend changes when a draining endpoint ends.
#[test]
fn flows_of_a_draining_endpoint_are_stale_when_it_ends() {
    let (mut tracked, flow) = settled();
    let flow = TrackedFlow { reply_source: at("10.1.0.2:5353"), ..flow };
    let left = vec![endpoint("10.1.0.1", Some(HERE))];
    let candidates = candidates_after(&mut tracked, vec![slice_is(&dns_slice("e4", "dns", left))]);
    assert_eq!(flushed(&tracked, &candidates, &[flow]), [flow]);
}

/// Both services claim the address. Flows of the one that loses it bypass the one that has it
/// now.
#[test]
fn flows_of_the_previous_owner_of_a_frontend_are_stale() {
    let (mut tracked, flow) = settled();
    let flow = TrackedFlow { destination: at("203.0.113.7:53"), ..flow };
    let other = Service {
        external_ips: vec![ip("203.0.113.7")],
        created: "2020-01-01T00:00:00Z".into(),
        ..dns("older", &["10.96.0.2"])
    };
    let candidates = candidates_after(
        &mut tracked,
        vec![
            service_is(&other),
            slice_is(&dns_slice("o4", "older", vec![endpoint("10.1.0.6", None)])),
        ],
    );
    assert_eq!(flushed(&tracked, &candidates, &[flow]), [flow]);
}

#[test]
fn a_changed_traffic_policy_ends_no_flow() {
    let (mut tracked, flow) = settled();
    let away = TrackedFlow { reply_source: at("10.1.0.5:5353"), ..flow };
    let local = Service {
        internal_policy: TrafficPolicy::Local,
        ..dns("dns", &["10.96.0.1", "fd00:96::1"])
    };
    let candidates = candidates_after(&mut tracked, vec![service_is(&local)]);
    assert_eq!(flushed(&tracked, &candidates, &[flow, away]), []);
}

/// Only the first packet of a flow meets the rule that restricts the sources.
#[test]
fn flows_of_sources_that_are_no_longer_permitted_are_stale() {
    let (mut tracked, _) = settled();
    let mut balanced = Service {
        load_balancer_ips: vec![ip("203.0.113.8"), ip("2001:db8::8")],
        ..dns("dns", &["10.96.0.1", "fd00:96::1"])
    };
    candidates_after(&mut tracked, vec![service_is(&balanced)]);
    balanced.source_ranges =
        ["10.9.0.0/24", "10.8.0.0/16", "10.20.0.0/16", "fd00:9::/64"].map(range).to_vec().into();
    let candidates = candidates_after(&mut tracked, vec![service_is(&balanced)]);
    let (v4, v6) = ("203.0.113.8:53", "[2001:db8::8]:53");
    let cases = [
        ("in a range", "10.9.0.9:4000", v4, "10.1.0.1:5353", false),
        ("in the last range", "10.20.255.255:4000", v4, "10.1.0.1:5353", false),
        ("in no range", "10.9.1.9:4000", v4, "10.1.0.1:5353", true),
        ("below every range", "10.7.255.255:4000", v4, "10.1.0.1:5353", true),
        ("the node at the address itself", "203.0.113.8:4000", v4, "10.1.0.1:5353", true),
        ("at the cluster IP", "10.9.1.9:4000", "10.96.0.1:53", "10.1.0.1:5353", false),
        ("at the node port", "10.9.1.9:4000", "192.168.0.2:30053", "10.1.0.1:5353", false),
        ("IPv6, in a range", "[fd00:9::9]:4000", v6, "[fd00::1]:5353", false),
        ("IPv6, in no range", "[fd00:8::9]:4000", v6, "[fd00::1]:5353", true),
    ];
    for (name, source, destination, reply_source, stale) in cases {
        for protocol in Protocol::ALL {
            let entry = entry(protocol, source, destination, reply_source);
            let found = flushed(&tracked, &candidates, &[entry]);
            assert_eq!(!found.is_empty(), stale, "{name}, {protocol}");
            let answered = TrackedFlow { is_unanswered_syn: false, ..entry };
            let found = flushed(&tracked, &candidates, &[answered]);
            assert_eq!(!found.is_empty(), stale && protocol != Protocol::Tcp, "{name}, answered");
        }
    }
}

#[test]
fn changes_of_nothing_that_is_served_yield_no_candidates() {
    let (mut tracked, _) = settled();
    let mut pod = pods(2, &[("10.1.0.1", "cni0"), ("10.1.0.8", "cni0")]);
    pod.pods.reverse();
    let quiet = [
        slice_is(&slice("web", "web", vec![endpoint("10.1.0.7", None)])),
        slice_is(&slice("web", "web", vec![])),
        Event::Pods(pod),
        Event::Addresses(vec![
            address("10.1.2.1", "cni0"),
            address("127.0.0.1", "lo"),
            address("192.168.0.2", "eth0"),
            address("10.5.0.1", "veth5"),
        ]),
    ];
    for event in quiet {
        let name = format!("{event:?}");
        assert!(candidates_after(&mut tracked, vec![event]).is_empty(), "{name}");
    }
}

#[test]
fn flows_at_a_new_node_port_address_are_candidates() {
    let (mut tracked, flow) = settled();
    let unserved = TrackedFlow {
        destination: at("10.1.2.1:30053"),
        reply_source: at("10.1.2.1:30053"),
        ..flow
    };
    let other = node(Some("a"), &["10.1.2.1"], &[]);
    let candidates = candidates_after(&mut tracked, vec![Event::Node(Some(other))]);
    assert_eq!(flushed(&tracked, &candidates, &[unserved]), [unserved]);
}

#[test]
fn flows_of_deleted_pods_are_stale() {
    let these = |generation, addresses: &[&str]| {
        let named: Vec<_> = addresses.iter().map(|ip| (*ip, "cni0")).collect();
        pods(generation, &named)
    };
    let flows = [
        entry(UDP, "10.1.0.8:4000", "10.96.0.1:53", "10.1.0.1:5353"),
        entry(UDP, "10.9.0.9:4000", "192.168.0.2:4000", "10.1.0.8:4000"),
        entry(UDP, "10.9.0.9:4000", "10.1.0.8:4000", "10.1.0.8:4000"),
    ];
    let lost = PodSet {
        version: Some((denizen_state::Epoch("other".into()), denizen_state::Generation(1))),
        pods: Vec::new(),
    };
    let cases: [(&str, Vec<PodSet>, usize); 6] = [
        ("deleted", vec![these(2, &["10.1.0.1"])], 3),
        ("still there", vec![these(2, &["10.1.0.1", "10.1.0.8", "10.1.0.9"])], 0),
        ("the state file was lost", vec![lost.clone()], 0),
        ("the state file is gone", vec![PodSet::default()], 0),
        (
            "its address has another pod by now",
            vec![these(2, &["10.1.0.1"]), these(3, &["10.1.0.1", "10.1.0.8"])],
            0,
        ),
        ("deleted, and the file was lost after that", vec![these(2, &["10.1.0.1"]), lost], 3),
    ];
    for (name, steps, stale) in cases {
        let mut tracked = Tracked::new();
        candidates_after(&mut tracked, a_service_with_endpoints());
        candidates_after(&mut tracked, vec![Event::Pods(these(1, &["10.1.0.1", "10.1.0.8"]))]);
        let mut candidates = StaleCandidates::default();
        for pods in steps {
            candidates.absorb(candidates_after(&mut tracked, vec![Event::Pods(pods)]));
        }
        assert_eq!(flushed(&tracked, &candidates, &flows).len(), stale, "{name}");
    }
}

/// While the API is away, pods come and go.
#[test]
fn flows_of_deleted_pods_are_stale_even_without_services() {
    let mut tracked = Tracked::new();
    let flow = entry(UDP, "10.1.0.8:4000", "10.96.0.1:53", "10.1.0.1:5353");
    candidates_after(&mut tracked, vec![Event::Pods(pods(1, &[("10.1.0.8", "cni0")]))]);
    let candidates = candidates_after(&mut tracked, vec![Event::Pods(pods(2, &[]))]);
    assert_eq!(flushed(&tracked, &candidates, &[flow]), [flow]);
}
