//! Flows of pods that became known late.

use super::cases::a_service_with_endpoints;
use super::*;

const UDP: Protocol = Protocol::Udp;

/// A pod that became known late: its earlier flows were masqueraded, and would not be now.
#[test]
fn masqueraded_flows_of_a_late_pod_are_stale() {
    let node = "192.168.0.2:4000";
    let adopted = |generation, address: &str| {
        let mut set = pods(generation, &[(address, "veth9")]);
        set.pods.iter_mut().for_each(|pod| pod.adopted = true);
        set.pods.extend(pods(generation, &[("10.1.0.1", "cni0")]).pods);
        Event::Pods(set)
    };
    let flow = |destination: &str, reply_source: &str, reply_destination: &str| TrackedFlow {
        reply_destination: at(reply_destination),
        ..entry(UDP, "10.1.0.9:4000", destination, reply_source)
    };
    let cases = [
        ("masqueraded", flow("10.96.0.1:53", "10.1.0.1:5353", node), true),
        ("source kept", flow("10.96.0.1:53", "10.1.0.1:5353", "10.1.0.9:4000"), false),
        ("hairpin", flow("10.96.0.1:53", "10.1.0.9:5353", node), false),
        ("masqueraded for all clients", flow("203.0.113.7:53", "10.1.0.1:5353", node), false),
        ("a node port, for all clients", flow("192.168.0.2:30053", "10.1.0.1:5353", node), false),
        ("no service's", flow("198.51.100.1:53", "198.51.100.1:53", node), false),
        (
            "another's",
            TrackedFlow {
                source: at("10.1.0.7:4000"),
                ..flow("10.96.0.1:53", "10.1.0.1:5353", node)
            },
            false,
        ),
    ];
    let mut tracked = Tracked::new();
    candidates_after(&mut tracked, a_service_with_endpoints());
    let itself = dns_slice("own", "dns", vec![endpoint("10.1.0.9", Some(HERE))]);
    candidates_after(&mut tracked, vec![slice_is(&itself)]);
    let candidates = candidates_after(&mut tracked, vec![adopted(2, "10.1.0.9")]);
    for (name, entry, stale) in cases {
        assert_eq!(flushed(&tracked, &candidates, &[entry]).len() == 1, stale, "{name}");
    }
    // What is searched for something else may have TCP, too, which a client of TCP notices.
    let masqueraded = flow("10.96.0.1:53", "10.1.0.1:5353", node);
    let tcp = TrackedFlow { transport: Transport::Named(Protocol::Tcp), ..masqueraded };
    let none = HashSet::new();
    assert_eq!(StaleFilter::new(&candidates, &tracked.planner, &none).treatment(&tcp), None);
    assert!(candidates_after(&mut tracked, vec![adopted(3, "10.1.0.9")]).is_empty(), "only once");
    // With egress masquerade the flow stays masqueraded.
    candidates_after(&mut tracked, vec![Event::Egress(denizen_model::Egress::default())]);
    assert_eq!(flushed(&tracked, &candidates, &[masqueraded]), []);
}

#[test]
fn which_pods_are_late() {
    let mut tracked = Tracked::new();
    let candidate = |tracked: &mut _, set| {
        let candidates = candidates_after(tracked, vec![Event::Pods(set)]);
        let from = |ip: &str| entry(UDP, &format!("{ip}:1"), "10.96.0.1:53", "10.1.0.1:5353");
        ["10.1.0.1", "10.1.0.9"].map(|ip| candidates.concern(&from(ip)))
    };
    // A pod of the first set may have been added while no agent ran: it waits for the services.
    candidates_after(&mut tracked, vec![Event::Pods(pods(1, &[("10.1.0.1", "veth1")]))]);
    let mut services = a_service_with_endpoints();
    services.retain(|event| !matches!(event, Event::Pods(_)));
    let candidates = candidates_after(&mut tracked, services);
    assert!(candidates.is_late(ip("10.1.0.1")));
    let both = |generation, first: &'static str| {
        pods(generation, &[("10.1.0.1", first), ("10.1.0.9", "veth9")])
    };
    assert_eq!(candidate(&mut tracked, both(2, "veth1")), [false, false], "its ADD waited");
    assert_eq!(candidate(&mut tracked, both(3, "new")), [true, false], "renamed");
}
