use serde_json::{Value, json};

use super::*;
use crate::{ObjectError, Warning};
use denizen_model::{EndpointState, Family};

/// A slice of a served service, with these fields replaced.
fn converted(changes: Value) -> (Option<denizen_model::Slice>, Vec<String>) {
    let mut object = json!({
        "metadata": {"name": "web-1", "namespace": "d", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.1.0.1"]}],
    });
    let Value::Object(changes) = changes else { panic!("not fields: {changes}") };
    object.as_object_mut().unwrap().extend(changes);
    let raw = EndpointSlice::deserialize(&object).unwrap();
    let mut warnings = Vec::new();
    let slice = slice(&raw, &mut warnings).unwrap();
    (slice, warnings.iter().map(Warning::to_string).collect())
}

#[test]
fn which_slices_are_used() {
    let labels =
        |labels: Value| json!({"metadata": {"name": "web-1", "namespace": "d", "labels": labels}});
    let v4 = Some(("d/web", Family::V4));
    let cases = [
        ("plain", json!({}), v4, 0),
        ("no labels", labels(json!(null)), None, 0),
        ("no service", labels(json!({"app": "x"})), None, 0),
        ("empty service", labels(json!({"kubernetes.io/service-name": ""})), None, 0),
        (
            "headless",
            labels(
                json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""}),
            ),
            None,
            0,
        ),
        (
            "another proxy's",
            labels(
                json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/service-proxy-name": ""}),
            ),
            None,
            0,
        ),
        ("IPv6", json!({"addressType": "IPv6", "endpoints": null}), Some(("d/web", Family::V6)), 0),
        (
            "host names",
            json!({"addressType": "FQDN", "endpoints": [{"addresses": ["web.example"]}]}),
            None,
            0,
        ),
        ("other addresses", json!({"addressType": "MAC"}), None, 1),
        ("no address type", json!({"addressType": ""}), None, 1),
    ];
    for (name, changes, expected, warnings) in cases {
        let (slice, warned) = converted(changes);
        let found = slice.map(|slice| (slice.service.to_string(), slice.family));
        let expected = expected.map(|(service, family)| (service.to_owned(), family));
        assert_eq!(found, expected, "{name}");
        assert_eq!(warned.len(), warnings, "{name}: {warned:?}");
    }
}

#[test]
fn ports() {
    let cases = [
        ("null", json!(null), vec![], 0),
        ("named", json!([{"name": "http", "port": 80, "protocol": "TCP"}]), vec!["http 80/tcp"], 0),
        ("without a protocol", json!([{"name": "http", "port": 80}]), vec!["http 80/tcp"], 0),
        ("empty name", json!([{"name": "", "port": 80}]), vec![" 80/tcp"], 0),
        ("no name", json!([{"port": 80}, {"name": "b", "port": 81}]), vec!["b 81/tcp"], 1),
        ("null name", json!([{"name": null, "port": 80}]), vec![], 1),
        ("no number", json!([{"name": "a"}, {"name": "b", "port": 81}]), vec!["b 81/tcp"], 1),
        ("null number", json!([{"name": "a", "port": null}]), vec![], 1),
        ("number 0", json!([{"name": "a", "port": 0}]), vec![], 1),
        ("other protocol", json!([{"name": "a", "port": 1, "protocol": "DCCP"}]), vec![], 1),
        (
            "SCTP and UDP",
            json!([
                {"name": "a", "port": 1, "protocol": "SCTP"},
                {"name": "a", "port": 1, "protocol": "UDP", "appProtocol": "x"}
            ]),
            vec!["a 1/sctp", "a 1/udp"],
            0,
        ),
    ];
    for (name, ports, expected, warnings) in cases {
        let (slice, warned) = converted(json!({"ports": ports}));
        let ports = slice.unwrap().ports;
        let shown: Vec<String> = ports
            .iter()
            .map(|port| format!("{} {}/{}", port.name, port.port, port.protocol))
            .collect();
        assert_eq!(shown, expected, "{name}");
        assert_eq!(warned.len(), warnings, "{name}: {warned:?}");
    }
}

#[test]
fn addresses() {
    let cases = [
        ("null", "IPv4", json!(null), vec![], 0),
        (
            "only the first counts",
            "IPv4",
            json!([{"addresses": ["10.1.0.1", "10.1.0.2"]}]),
            vec!["10.1.0.1"],
            0,
        ),
        (
            "leading zeros",
            "IPv4",
            json!([{"addresses": ["010.001.000.010"]}]),
            vec!["10.1.0.10"],
            0,
        ),
        ("IPv6", "IPv6", json!([{"addresses": ["FD00::0:1"]}]), vec!["fd00::1"], 0),
        (
            "the other family",
            "IPv4",
            json!([{"addresses": ["fd00::1"]}, {"addresses": ["10.1.0.2"]}]),
            vec!["10.1.0.2"],
            1,
        ),
        ("IPv4 in an IPv6 slice", "IPv6", json!([{"addresses": ["::ffff:10.1.0.1"]}]), vec![], 1),
        (
            "malformed",
            "IPv4",
            json!([{"addresses": ["pod"]}, {"addresses": ["10.1.0.2"]}]),
            vec!["10.1.0.2"],
            1,
        ),
        ("none", "IPv4", json!([{"addresses": []}, {}, {"addresses": null}]), vec![], 3),
        (
            "addresses of the node itself",
            "IPv4",
            json!([{"addresses": ["127.0.0.1"]}, {"addresses": ["0.0.0.0"]}, {"addresses": ["169.254.0.1"]}]),
            vec![],
            3,
        ),
        (
            "one twice",
            "IPv4",
            json!([{"addresses": ["10.1.0.1"]}, {"addresses": ["10.1.0.1"]}]),
            vec!["10.1.0.1", "10.1.0.1"],
            0,
        ),
    ];
    for (name, family, endpoints, expected, warnings) in cases {
        let (slice, warned) = converted(json!({"addressType": family, "endpoints": endpoints}));
        let endpoints = slice.unwrap().endpoints;
        let shown: Vec<String> =
            endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
        assert_eq!(shown, expected, "{name}");
        assert_eq!(warned.len(), warnings, "{name}: {warned:?}");
    }
}

#[test]
fn conditions() {
    use EndpointState::{Down, Draining, Ready, Unready};
    let cases = [
        ("missing", json!(null), Ready, false),
        ("empty", json!({}), Ready, false),
        ("nulls", json!({"ready": null, "serving": null, "terminating": null}), Ready, false),
        ("ready", json!({"ready": true, "serving": true, "terminating": false}), Ready, false),
        ("not ready, and serving unsaid", json!({"ready": false}), Unready, false),
        ("not ready but serving", json!({"ready": false, "serving": true}), Unready, false),
        ("neither ready nor serving", json!({"ready": false, "serving": false}), Down, false),
        (
            "terminating",
            json!({"ready": false, "serving": true, "terminating": true}),
            Draining,
            true,
        ),
        (
            "terminating, and serving unsaid",
            json!({"ready": false, "terminating": true}),
            Draining,
            true,
        ),
        (
            "terminating and not serving",
            json!({"ready": false, "serving": false, "terminating": true}),
            Down,
            true,
        ),
        ("ready though terminating", json!({"ready": true, "terminating": true}), Ready, true),
    ];
    for (name, conditions, state, terminating) in cases {
        let (slice, _) = converted(
            json!({"endpoints": [{"addresses": ["10.1.0.1"], "conditions": conditions}]}),
        );
        let endpoint = &slice.unwrap().endpoints[0];
        assert_eq!((endpoint.state, endpoint.terminating), (state, terminating), "{name}");
    }
}

#[test]
fn nodes_and_hints() {
    let cases = [
        ("nothing", json!({}), None, "", ""),
        ("nulls", json!({"nodeName": null, "hints": null}), None, "", ""),
        (
            "a node",
            json!({"nodeName": "n1", "zone": "z9", "targetRef": {"kind": "Pod"}}),
            Some("n1"),
            "",
            "",
        ),
        ("an empty node", json!({"nodeName": ""}), None, "", ""),
        ("zones", json!({"hints": {"forZones": [{"name": "a"}, {"name": "b"}]}}), None, "a b", ""),
        (
            "nodes",
            json!({"hints": {"forNodes": [{"name": "n1"}], "forZones": null}}),
            None,
            "",
            "n1",
        ),
        ("an empty hint", json!({"hints": {"forZones": [{"name": ""}, {}]}}), None, "", ""),
    ];
    for (name, mut endpoint, node, zones, nodes) in cases {
        endpoint["addresses"] = json!(["10.1.0.1"]);
        let (slice, warned) = converted(json!({"endpoints": [endpoint]}));
        let endpoint = &slice.unwrap().endpoints[0];
        assert_eq!(endpoint.node.as_deref(), node, "{name}");
        assert_eq!(endpoint.zone_hints.join(" "), zones, "{name}");
        assert_eq!(endpoint.node_hints.join(" "), nodes, "{name}");
        assert!(warned.is_empty(), "{name}: {warned:?}");
    }
}

#[test]
fn names() {
    let (slice, _) = converted(json!({"metadata": {
        "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}}}));
    let slice = slice.unwrap();
    assert_eq!(
        (slice.name.to_string(), slice.service.to_string()),
        ("default/web-1".into(), "default/web".into())
    );
    let error = super::slice(&EndpointSlice::default(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, ObjectError::Unnamed { .. }));
    assert_eq!(error.to_string(), "EndpointSlice without metadata.name");
}

#[test]
fn a_warning_names_object_field_and_value() {
    let (_, warned) =
        converted(json!({"endpoints": [{"addresses": ["10.1.0.1"]}, {"addresses": ["x"]}]}));
    assert_eq!(
        warned,
        ["EndpointSlice d/web-1: endpoints[1].addresses[0] \"x\": not an IP address: left out"]
    );
}
