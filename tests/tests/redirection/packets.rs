//! Connections of a redirected pod, each with the rule that it must count for.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use denizen_tests::peers::sidecar::{CLIENT_UID, PROXY_UID, Redirected, Sidecar, fetch, serve};
use serde_json::{Value, json};

use super::context::{BY_PROXY, From, Mesh, TAKEN_IN, TAKEN_OUT, bridge};

const INBOUND: u16 = 4143;
const OUTBOUND: u16 = 4140;

const TO_ITSELF: &str = "outbound proxy-init/ignore-loopback";

/// To whom.
#[derive(Debug, Clone, Copy)]
enum To {
    Node,
    Pod,
    Localhost,
}

/// A connection: what it is, who makes it, to which port of whom, the proxy's port that takes it,
/// and the rules that count it.
type Case<'a> = (&'a str, From, To, u16, Option<u16>, &'a [&'a str]);

const CASES: [Case<'static>; 14] = [
    ("outbound", From::Pod(CLIENT_UID), To::Node, 8080, Some(OUTBOUND), &[TAKEN_OUT, BY_PROXY]),
    ("outbound of root", From::Pod(0), To::Node, 8080, Some(OUTBOUND), &[TAKEN_OUT, BY_PROXY]),
    ("the proxy's own", From::Pod(PROXY_UID), To::Node, 8080, None, &[BY_PROXY]),
    (
        "another user",
        From::Pod(1000),
        To::Node,
        8080,
        None,
        &["outbound denizen/ignore-user-id-1000"],
    ),
    (
        "a port that is skipped",
        From::Pod(CLIENT_UID),
        To::Node,
        4567,
        None,
        &["outbound proxy-init/ignore-port-4567-4568"],
    ),
    (
        "the last of a range",
        From::Pod(CLIENT_UID),
        To::Node,
        4568,
        None,
        &["outbound proxy-init/ignore-port-4567-4568"],
    ),
    ("behind it", From::Pod(CLIENT_UID), To::Node, 4569, Some(OUTBOUND), &[TAKEN_OUT, BY_PROXY]),
    ("to itself", From::Pod(CLIENT_UID), To::Pod, 8080, None, &[TO_ITSELF]),
    ("to localhost", From::Pod(CLIENT_UID), To::Localhost, 8080, None, &[TO_ITSELF]),
    ("the proxy to itself", From::Pod(PROXY_UID), To::Pod, 8080, None, &[BY_PROXY]),
    ("inbound", From::Node, To::Pod, 8080, Some(INBOUND), &[TAKEN_IN, BY_PROXY]),
    ("probes", From::Node, To::Pod, 4191, None, &["inbound proxy-init/ignore-port-4191"]),
    ("skipped", From::Node, To::Pod, 4567, None, &["inbound proxy-init/ignore-port-4567-4568"]),
    ("before it", From::Node, To::Pod, 4566, Some(INBOUND), &[TAKEN_IN, BY_PROXY]),
];

fn check_case(mesh: &Mesh, sidecar: &Sidecar, pod: IpAddr, node: IpAddr, case: &Case<'_>) {
    let (name, from, to, port, taken, counted) = *case;
    let ip = match to {
        To::Node => node,
        To::Pod => pod,
        To::Localhost if pod.is_ipv4() => "127.0.0.1".parse().unwrap(),
        To::Localhost => "::1".parse().unwrap(),
    };
    let to = SocketAddr::new(ip, port);
    let before = mesh.counts();
    let output = match from {
        From::Pod(uid) => fetch(&mesh.base.pod, uid, to),
        From::Node => fetch(&mesh.base.node, CLIENT_UID, to),
    };
    assert_eq!(output, Some(port.to_string()), "{name}: {to}");
    let explained = match from {
        From::Pod(CLIENT_UID | 0) => Some(mesh.explained(&pod.to_string(), to)),
        From::Pod(_) => None,
        From::Node => Some(mesh.explained(&node.to_string(), to)),
    };
    if let Some(explained) = explained {
        let expected = (counted[0].to_owned(), taken.map(u64::from));
        assert_eq!(explained, [expected], "{name}: {to}");
    }
    let source = if from == From::Node { node } else { pod };
    let taken = taken.map(|port| Redirected { port, source, to });
    let seen: Vec<_> = sidecar.taken();
    // What the pod sends is redirected to its loopback, with the source that it had.
    assert_eq!(seen, Vec::from_iter(taken), "{name}: {to}");
    let rise = |(rule, count): (String, u64)| {
        let rise = count - before.get(&rule).unwrap_or(&0);
        (rise > 0).then_some((rule, rise))
    };
    let rises: BTreeMap<_, _> = mesh.counts().into_iter().filter_map(rise).collect();
    let counted = counted.iter().map(|rule| ((*rule).to_owned(), 1)).collect::<BTreeMap<_, _>>();
    assert_eq!(rises, counted, "{name}: {to}");
}

fn every_connection_behind(first: Value) {
    let mesh = Mesh::new(first, &json!({ "profile": "linkerd", "skipOutboundUids": [1000] }), &[]);
    let result = mesh.add().unwrap();
    let sidecar = Sidecar::run(&mesh.base.pod, &[INBOUND, OUTBOUND]);
    for port in [8080, 4191, 4566, 4567, 4568, 4569] {
        serve(&mesh.base.node, port);
        serve(&mesh.base.pod, port);
    }
    for (pod, node) in Mesh::addresses(&result).into_iter().zip(["10.85.0.1", "fd00:85::1"]) {
        for case in &CASES {
            check_case(&mesh, &sidecar, pod, node.parse().unwrap(), case);
        }
    }
}

#[test]
fn every_connection_of_a_bridged_pod_goes_where_it_should() {
    every_connection_behind(bridge());
}

#[test]
fn every_connection_of_a_routed_pod_goes_where_it_should() {
    every_connection_behind(json!({ "type": "ptp" }));
}

/// What linkerd's network-validator does: an address to which nobody has a route but the default
/// one answers from the outbound port.
#[test]
fn linkerd_s_validator_succeeds() {
    let mesh = Mesh::bridged(&json!({ "profile": "linkerd" }), &[]);
    mesh.add().unwrap();
    serve(&mesh.base.pod, OUTBOUND);
    for target in ["1.1.1.1:20001", "[fd00::1]:20001"] {
        let output = fetch(&mesh.base.pod, CLIENT_UID, target.parse().unwrap());
        assert_eq!(output, Some(OUTBOUND.to_string()), "{target}");
    }
}

/// Networks, listed ports, several interfaces and IPv6, each as the packets see it.
#[test]
fn what_else_can_be_skipped_is_skipped() {
    let redirect = |object: &Value| {
        let mut object = object.clone();
        object["profile"] = "linkerd".into();
        object
    };
    let node = ["10.85.0.1", "fd00:85::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
    let skipped: [(Value, From, [Option<&str>; 2]); 6] = [
        (
            json!({ "skipOutboundCidrs": ["10.85.0.0/25"] }),
            From::Pod(CLIENT_UID),
            [Some("outbound proxy-init/ignore-subnet-10.85.0.0/25"), None],
        ),
        (
            json!({ "skipOutboundCidrs": ["fd00:85::/33", "10.85.0.128/25"] }),
            From::Pod(CLIENT_UID),
            [None, Some("outbound proxy-init/ignore-subnet-fd00:85::/33")],
        ),
        (
            json!({ "skipInboundCidrs": ["10.85.0.1"] }),
            From::Node,
            [Some("inbound proxy-init/ignore-subnet-10.85.0.1/32"), None],
        ),
        (
            json!({ "ipv6": "bypass" }),
            From::Pod(CLIENT_UID),
            [None, Some("outbound denizen/ignore-ipv6")],
        ),
        (json!({ "ipv6": "bypass" }), From::Node, [None, Some("inbound denizen/ignore-ipv6")]),
        (json!({ "onlyInboundPorts": [8080] }), From::Node, [None, None]),
    ];
    for (object, from, rules) in skipped {
        // A bridge tells its network that it snoops on multicast (IGMP, from the node's address), a
        // moment after it is up, and a rule that asks for the source alone counts that, too.
        let mesh = Mesh::new(json!({ "type": "ptp" }), &redirect(&object), &[]);
        let pods = Mesh::addresses(&mesh.add().unwrap());
        let sidecar = Sidecar::run(&mesh.base.pod, &[INBOUND, OUTBOUND]);
        serve(&mesh.base.node, 8080);
        serve(&mesh.base.pod, 8080);
        for ((pod, node), rule) in pods.into_iter().zip(node).zip(rules) {
            let taken = match (rule, from) {
                (Some(_), _) => None,
                (None, From::Node) => Some(INBOUND),
                (None, From::Pod(_)) => Some(OUTBOUND),
            };
            let all = match from {
                From::Node if object["onlyInboundPorts"].is_array() => {
                    "inbound proxy-init/redirect-port-8080-to-proxy-port"
                }
                From::Node => TAKEN_IN,
                From::Pod(_) => TAKEN_OUT,
            };
            let counted: &[&str] = match &rule {
                Some(rule) => std::slice::from_ref(rule),
                None => &[all, BY_PROXY],
            };
            let to = if from == From::Node { To::Pod } else { To::Node };
            check_case(&mesh, &sidecar, pod, node, &("skipped", from, to, 8080, taken, counted));
        }
    }
}
