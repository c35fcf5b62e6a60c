//! Flows of pods that became known late.

use super::cases::a_service_with_endpoints;
use super::*;

const UDP: Protocol = Protocol::Udp;

/// A pod that became known late: what it sent before was masqueraded, and would not be now.
#[test]
fn masqueraded_flows_of_a_pod_that_is_found_late() {
    let node = "192.168.0.2:4000";
    let adopted = |generation, address: &str| {
        let mut set = pods(generation, &[(address, "veth9")]);
        set.pods.iter_mut().for_each(|pod| pod.adopted = true);
        set.pods.extend(pods(generation, &[("10.1.0.1", "cni0")]).pods);
        Event::Pods(set)
    };
    let flow = |destination: &str, reply_source: &str, seen_as: &str| Entry {
        seen_as: at(seen_as),
        ..entry(UDP, "10.1.0.9:4000", destination, reply_source)
    };
    let cases = [
        ("masqueraded", flow("10.96.0.1:53", "10.1.0.1:5353", node), true),
        ("source kept", flow("10.96.0.1:53", "10.1.0.1:5353", "10.1.0.9:4000"), false),
        ("handed to itself", flow("10.96.0.1:53", "10.1.0.9:5353", node), false),
        ("masqueraded for everybody", flow("203.0.113.7:53", "10.1.0.1:5353", node), false),
        ("a node port's, for everybody", flow("192.168.0.2:30053", "10.1.0.1:5353", node), false),
        ("no service's", flow("198.51.100.1:53", "198.51.100.1:53", node), false),
        (
            "another's",
            Entry { source: at("10.1.0.7:4000"), ..flow("10.96.0.1:53", "10.1.0.1:5353", node) },
            false,
        ),
    ];
    let mut engine = engine();
    told(&mut engine, a_service_with_endpoints());
    let itself = dns_slice("own", "dns", vec![endpoint("10.1.0.9", Some(HERE))]);
    told(&mut engine, vec![slice_is(&itself)]);
    let candidates = told(&mut engine, vec![adopted(2, "10.1.0.9")]);
    for (name, entry, stale) in cases {
        assert_eq!(looked(&engine, &candidates, &[entry]).len() == 1, stale, "{name}");
    }
    assert!(told(&mut engine, vec![adopted(3, "10.1.0.9")]).is_empty(), "told once");
    // Where the operator has pods' traffic masqueraded on its way out, it stays so.
    engine.apply(vec![Event::Egress(crate::model::Egress::default())]);
    let masqueraded = flow("10.96.0.1:53", "10.1.0.1:5353", node);
    assert_eq!(looked(&engine, &candidates, &[masqueraded]), []);
}

#[test]
fn which_pods_are_late() {
    let mut engine = engine();
    let candidate = |engine: &mut _, set| {
        let candidates = told(engine, vec![Event::Pods(set)]);
        let from = |ip: &str| entry(UDP, &format!("{ip}:1"), "10.96.0.1:53", "10.1.0.1:5353");
        ["10.1.0.1", "10.1.0.9"].map(|ip| candidates.concern(&from(ip)))
    };
    // What was there before the agent may have come while none ran: it waits for the services.
    told(&mut engine, vec![Event::Pods(pods(1, &[("10.1.0.1", "veth1")]))]);
    let mut services = a_service_with_endpoints();
    services.retain(|event| !matches!(event, Event::Pods(_)));
    let candidates = told(&mut engine, services);
    assert!(candidates.is_late(ip("10.1.0.1")));
    let both = |generation, first: &'static str| {
        pods(generation, &[("10.1.0.1", first), ("10.1.0.9", "veth9")])
    };
    assert_eq!(candidate(&mut engine, both(2, "veth1")), [false, false], "its ADD waited");
    assert_eq!(candidate(&mut engine, both(3, "new")), [true, false], "renamed");
}
