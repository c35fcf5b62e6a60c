//! Istio's annotations, row by row.

use super::*;

const VALIDATED: (&str, &str) = (
    "sidecar.istio.io/status",
    r#"{"initContainers":["istio-validation","istio-proxy"],"containers":null,"revision":"default"}"#,
);

fn istio() -> RedirectConfig {
    entry(json!({ "profile": "istio" })).unwrap()
}

fn of_istio(annotations: Annotations<'_>) -> Result<Option<Redirect>, String> {
    decide(&istio(), &[&[VALIDATED], annotations].concat())
}

#[test]
fn istio_s_pods_are_redirected_as_istio_cni_does_it() {
    let expected = json!({
        "profile": "istio", "inboundPort": 15006, "outboundPort": 15001, "proxyUid": 1337,
        "proxyGid": 1337, "alwaysSkipInboundPorts": ["15008", "15020", "15021", "15090"],
        "skipOutboundPorts": ["15020"], "interfaces": ["eth0"], "hairpin": "inbound",
    });
    let redirect = of_istio(&[]).unwrap();
    assert_eq!(serde_json::to_value(redirect).unwrap(), expected);
}

#[test]
fn what_the_injector_did_selects() {
    let cases = [
        ("validated", Some(VALIDATED.1), true),
        ("it redirects itself", Some(r#"{"initContainers":["istio-init"]}"#), false),
        ("a gateway", Some(r#"{"initContainers":null,"containers":["istio-proxy"]}"#), false),
        ("nothing of it", Some("{}"), false),
        ("not injected", None, false),
    ];
    for (name, status, selected) in cases {
        let annotations = Vec::from_iter(status.map(|status| (VALIDATED.0, status)));
        assert_eq!(decide(&istio(), &annotations).unwrap().is_some(), selected, "{name}");
    }
    let refused = decide(&istio(), &[(VALIDATED.0, "injected")]).unwrap_err();
    assert!(refused.contains("annotation sidecar.istio.io/status is malformed"), "{refused}");
}

/// Each annotation: values that differ from the default.
#[test]
fn istio_s_annotations_override_values() {
    const INCLUDE_PORTS: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
    const INCLUDE_RANGES: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
    let cases: [(Annotations<'_>, Value); 15] = [
        (&[("sidecar.istio.io/interceptionMode", "REDIRECT")], json!({})),
        (
            &[("traffic.sidecar.istio.io/excludeInboundPorts", "15020, 80")],
            json!({ "skipInboundPorts": ["15020", "80"] }),
        ),
        (&[("traffic.sidecar.istio.io/excludeInboundPorts", "*")], json!({ "inboundPort": null })),
        (
            &[("traffic.sidecar.istio.io/excludeOutboundPorts", "")],
            json!({ "skipOutboundPorts": null }),
        ),
        (
            &[("traffic.sidecar.istio.io/excludeOutboundPorts", "*")],
            json!({ "outboundPort": null }),
        ),
        (
            &[("traffic.sidecar.istio.io/excludeOutboundIPRanges", "10.0.0.0/8,fd00::/16")],
            json!({ "skipOutboundCidrs": ["10.0.0.0/8", "fd00::/16"] }),
        ),
        (&[("traffic.sidecar.istio.io/includeInboundPorts", "*")], json!({})),
        (
            &[("traffic.sidecar.istio.io/includeInboundPorts", "80,443")],
            json!({ "onlyInboundPorts": ["80", "443"] }),
        ),
        (&[("traffic.sidecar.istio.io/includeInboundPorts", "")], json!({ "inboundPort": null })),
        (&[(INCLUDE_RANGES, "*"), (INCLUDE_PORTS, "5432")], json!({})),
        (&[(INCLUDE_PORTS, "5432")], json!({})),
        (&[(INCLUDE_RANGES, "")], json!({ "outboundPort": null })),
        (
            &[(INCLUDE_RANGES, ""), (INCLUDE_PORTS, "5432")],
            json!({ "onlyOutboundPorts": ["5432"] }),
        ),
        (
            &[(INCLUDE_PORTS, "5432"), (INCLUDE_RANGES, "10.0.0.0/8")],
            json!({ "onlyOutboundPorts": ["5432"], "onlyOutboundCidrs": ["10.0.0.0/8"] }),
        ),
        (&[("traffic.sidecar.istio.io/excludeInterfaces", "net1")], json!({})),
    ];
    let default = serde_json::to_value(of_istio(&[]).unwrap()).unwrap();
    for (annotations, changes) in cases {
        let mut expected = default.as_object().unwrap().clone();
        expected.extend(changes.as_object().unwrap().clone());
        expected.retain(|_, value| !value.is_null());
        let redirect = of_istio(annotations).unwrap().expect("it is selected");
        let mut redirect = serde_json::to_value(redirect).unwrap().as_object().unwrap().clone();
        redirect.remove("annotations");
        assert_eq!(redirect, expected, "{annotations:?}");
    }
}

#[test]
fn a_pod_that_wants_certificates_alone_is_left_alone() {
    let neither = [
        ("traffic.sidecar.istio.io/includeInboundPorts", ""),
        ("traffic.sidecar.istio.io/includeOutboundIPRanges", ""),
    ];
    assert_eq!(of_istio(&neither).unwrap(), None);
}

#[test]
fn what_denizen_does_not_do_for_istio_is_named() {
    let cases = [
        ("sidecar.istio.io/interceptionMode", "TPROXY", "\"TPROXY\" is not \"REDIRECT\""),
        ("istio.io/reroute-virtual-interfaces", "br0", "does not redirect virtual interfaces"),
        (
            "traffic.sidecar.istio.io/kubevirtInterfaces",
            "br0",
            "does not redirect virtual interfaces",
        ),
        ("traffic.sidecar.istio.io/includeInboundPorts", "http", "\"http\" is neither a port"),
        ("traffic.sidecar.istio.io/includeOutboundIPRanges", "x", "\"x\" is neither an address"),
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "0", "\"0\" is neither a port"),
    ];
    for (annotation, text, why) in cases {
        let message = of_istio(&[(annotation, text)]).expect_err(annotation);
        let begin = format!("pod shop/web-0: annotation {annotation}: ");
        assert!(message.starts_with(&begin) && message.contains(why), "{message}");
    }
    let excluded = [("traffic.sidecar.istio.io/excludeInterfaces", "eth0")];
    let message = of_istio(&excluded).unwrap_err();
    assert!(message.contains("no interface is left"), "{message}");
    let other = ("redirect.denizen.io/interfaces", "net1");
    let redirect = of_istio(&[excluded[0], other]).unwrap().unwrap();
    assert_eq!(redirect.interfaces, ["net1"]);
}
