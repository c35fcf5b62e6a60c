use crate::{Endpoints, NodeLocation, select};
use denizen_fixture::*;
use denizen_model::{EndpointState, Family, Protocol, Slice, SliceEndpoint, SlicePort};

const ZONE: &str = "zone-a";

fn hinted(address: &str, zones: &[&str], nodes: &[&str]) -> SliceEndpoint {
    SliceEndpoint {
        zone_hints: zones.iter().map(|zone| (*zone).into()).collect(),
        node_hints: nodes.iter().map(|node| (*node).into()).collect(),
        ..endpoint(address, Some(AWAY))
    }
}

/// The last bytes of the addresses of the two sets.
fn selected(slices: &[Slice], zone: Option<&str>, node_hints: bool) -> (Vec<u8>, Vec<u8>) {
    let here = NodeLocation { node: HERE, zone, node_hints };
    let port = service_port("http", Protocol::Tcp, 80, None);
    let selection = select(&port, Family::V4, slices.iter(), here);
    let last = |endpoints: &Option<Endpoints>| -> Vec<u8> {
        let each = endpoints.iter().flat_map(|endpoints| endpoints.iter());
        each.map(|endpoint| match endpoint.address.ip() {
            std::net::IpAddr::V4(ip) => ip.octets()[3],
            std::net::IpAddr::V6(ip) => ip.octets()[15],
        })
        .collect()
    };
    (last(&selection.cluster), last(&selection.local))
}

#[test]
fn endpoints_are_those_that_kube_proxy_would_use() {
    let (here, away) = (Some(HERE), Some(AWAY));
    type SelectionCase = (&'static str, Vec<SliceEndpoint>, &'static [u8], &'static [u8]);
    let cases: [SelectionCase; 13] = [
        ("none", vec![], &[], &[]),
        ("ready ones", vec![endpoint("10.0.0.1", here), endpoint("10.0.0.2", away)], &[1, 2], &[1]),
        ("no node is never local", vec![endpoint("10.0.0.1", None)], &[1], &[]),
        (
            "down ones never count",
            vec![down("10.0.0.1", here), endpoint("10.0.0.2", away)],
            &[2],
            &[],
        ),
        ("only down ones", vec![down("10.0.0.1", here)], &[], &[]),
        (
            "draining ones only where none is ready",
            vec![draining("10.0.0.1", here), endpoint("10.0.0.2", away)],
            &[2],
            &[1],
        ),
        (
            "draining ones, all of them, where none is ready anywhere",
            vec![draining("10.0.0.1", here), draining("10.0.0.2", away), down("10.0.0.3", here)],
            &[1, 2],
            &[1],
        ),
        (
            "hints for this zone",
            vec![hinted("10.0.0.1", &[ZONE], &[]), hinted("10.0.0.2", &["zone-b"], &[])],
            &[1],
            &[],
        ),
        (
            "a ready endpoint without a hint: all",
            vec![hinted("10.0.0.1", &[ZONE], &[]), endpoint("10.0.0.2", away)],
            &[1, 2],
            &[],
        ),
        (
            "hints for other zones only: all",
            vec![hinted("10.0.0.1", &["zone-b"], &[]), hinted("10.0.0.2", &["zone-c"], &[])],
            &[1, 2],
            &[],
        ),
        (
            "hints for this node come before those for the zone",
            vec![hinted("10.0.0.1", &[ZONE], &[AWAY]), hinted("10.0.0.2", &[ZONE], &[HERE])],
            &[2],
            &[],
        ),
        (
            "hints for other nodes only: the zone's",
            vec![hinted("10.0.0.1", &[ZONE], &[AWAY]), hinted("10.0.0.2", &["zone-b"], &[AWAY])],
            &[1],
            &[],
        ),
        (
            "hints do not bind the local set, nor what is not ready",
            vec![
                SliceEndpoint {
                    node: here.map(Into::into),
                    ..hinted("10.0.0.1", &["zone-b"], &[])
                },
                hinted("10.0.0.2", &[ZONE], &[]),
                draining("10.0.0.3", here),
            ],
            &[2],
            &[1],
        ),
    ];
    for (name, endpoints, cluster, local) in cases {
        let slices = [slice("s", "web", endpoints)];
        assert_eq!(
            selected(&slices, Some(ZONE), true),
            (cluster.to_vec(), local.to_vec()),
            "{name}"
        );
    }
}

#[test]
fn hints_need_a_zone_and_the_gate() {
    let zones = [slice(
        "s",
        "web",
        vec![hinted("10.0.0.1", &[ZONE], &[]), hinted("10.0.0.2", &["b"], &[])],
    )];
    assert_eq!(selected(&zones, None, true).0, [1, 2]);
    let nodes = [slice(
        "s",
        "web",
        vec![hinted("10.0.0.1", &[], &[HERE]), hinted("10.0.0.2", &[], &[AWAY])],
    )];
    assert_eq!(selected(&nodes, Some(ZONE), false).0, [1, 2]);
    assert_eq!(selected(&nodes, Some(ZONE), true).0, [1]);
}

#[test]
fn one_address_in_two_slices_is_one_endpoint_and_a_running_pod_beats_a_terminating_one() {
    let old = || draining("10.0.0.1", Some(HERE));
    let new = || endpoint("10.0.0.1", Some(AWAY));
    for (name, first, second) in [("old first", old(), new()), ("new first", new(), old())] {
        let slices = [slice("a", "web", vec![first]), slice("b", "web", vec![second])];
        assert_eq!(selected(&slices, None, true), (vec![1], vec![]), "{name}");
    }
}

#[test]
fn slices_of_other_ports_protocols_and_families_are_somebody_elses() {
    let with = |name: &str, protocol| Slice {
        ports: vec![SlicePort { name: name.into(), protocol, port: port(8080) }],
        ..slice("s", "web", vec![endpoint("10.0.0.1", None)])
    };
    assert_eq!(selected(&[with("http", Protocol::Tcp)], None, true).0, [1]);
    assert_eq!(selected(&[with("https", Protocol::Tcp)], None, true).0, [0_u8; 0]);
    assert_eq!(selected(&[with("http", Protocol::Udp)], None, true).0, [0_u8; 0]);
    let other = Slice { family: Family::V6, ..with("http", Protocol::Tcp) };
    assert_eq!(selected(&[other], None, true).0, [0_u8; 0]);
}

#[test]
fn missing_conditions_mean_what_the_api_says() {
    use EndpointState::{Down, Draining, Ready, Unready};
    let (yes, no, none) = (Some(true), Some(false), None);
    let cases = [
        ("all missing", none, none, none, Ready),
        ("ready", yes, yes, no, Ready),
        ("ready while terminating (publishNotReadyAddresses)", yes, yes, yes, Ready),
        ("not ready", no, no, no, Down),
        ("not ready, serving, not terminating", no, yes, no, Unready),
        ("not ready, serving missing", no, none, no, Unready),
        ("not ready, serving missing, terminating", no, none, yes, Draining),
        ("terminating and no longer serving", no, no, yes, Down),
        ("terminating missing", no, yes, none, Unready),
    ];
    for (name, ready, serving, terminating, expected) in cases {
        assert_eq!(EndpointState::from_conditions(ready, serving, terminating), expected, "{name}");
    }
}
