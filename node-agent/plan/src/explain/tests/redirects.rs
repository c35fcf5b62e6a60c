//! What happens inside redirected pods. Tests of the plugin compare it with packets.

use std::sync::Arc;

use super::*;

/// The pod redirects, and the service `web` has it as an endpoint.
fn redirecting(with: serde_json::Value) -> Planner {
    let mut planner = planner(Detector::PodState, false);
    let mut redirect = serde_json::json!({
        "profile": "linkerd", "inboundPort": 4143, "outboundPort": 4140, "proxyUid": 2102,
        "interfaces": ["eth0"], "skipOutboundPorts": ["443"],
    });
    redirect.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    let mut pods = pods(2, &[(HERE_1, "cni0")]);
    pods.pods[0].redirect = Some(Arc::new(serde_json::from_value(redirect).unwrap()));
    planner.apply(vec![Event::Pods(pods)]);
    planner.update();
    planner
}

#[test]
fn the_path_begins_and_ends_inside_redirected_pods() {
    let forward = PacketVerdict::Forward;
    let cases = [
        (
            "out through a service, and in again",
            case(
                HERE_1,
                "10.96.0.10:80",
                forward,
                false,
                &[
                    "1. outbound inside default/pod-0: redirected to port 4140",
                    "proxy-init/redirect-all-outgoing-to-proxy-port",
                    "10.1.2.3 is pod default/pod-0",
                    "inbound inside default/pod-0 (to 10.1.2.3:8080): redirected to port 4143",
                    "proxy-init/redirect-all-incoming-to-proxy-port",
                ],
            ),
            2,
        ),
        (
            "a skipped port",
            case(
                HERE_1,
                "8.8.8.8:443",
                PacketVerdict::Untouched,
                false,
                &["outbound inside default/pod-0: not redirected", "ignore-port-443"],
            ),
            1,
        ),
        (
            "no TCP",
            case(
                HERE_1,
                "8.8.8.8:53/udp",
                PacketVerdict::Untouched,
                false,
                &["outbound inside default/pod-0: not redirected", "only TCP is redirected"],
            ),
            1,
        ),
        (
            "to itself",
            case(
                HERE_1,
                "10.1.2.3:80",
                PacketVerdict::Untouched,
                false,
                &["not redirected", "rule proxy-init/ignore-loopback"],
            ),
            1,
        ),
        (
            "from outside, with the node's address",
            case(
                "8.8.8.8",
                "203.0.113.7:80",
                forward,
                true,
                &[
                    "inbound inside default/pod-0 (to 10.1.2.3:8080): redirected",
                    "skipInboundCidrs",
                ],
            ),
            1,
        ),
        ("between others", case("8.8.8.8", AT_AWAY, PacketVerdict::Untouched, false, &[]), 0),
    ];
    let planner = redirecting(serde_json::json!({ "skipInboundCidrs": ["192.168.0.2/32"] }));
    for (name, case, rows) in cases {
        let explanation = explained(&planner, &FirstPacket::parse(case.from, case.to).unwrap());
        assert_eq!(explanation.redirects.len(), rows, "{name}: {explanation}");
        check(&planner, &[case]);
    }
}

/// What another interface, a direction without a port and a port that is not listed have in common.
#[test]
fn what_no_rule_matches_is_not_redirected() {
    let cases = [
        serde_json::json!({ "interfaces": ["net1"] }),
        serde_json::json!({ "outboundPort": null }),
        serde_json::json!({ "onlyOutboundPorts": ["81"] }),
    ];
    for with in cases {
        let explanation =
            explained(&redirecting(with), &FirstPacket::parse(HERE_1, "8.8.8.8:80").unwrap());
        let row = &explanation.redirects[0];
        assert_eq!((row.port, row.rule.as_deref()), (None, None), "{explanation}");
        assert!(explanation.to_string().contains("no rule of the pod matches"), "{explanation}");
    }
}

const AT_AWAY: &str = "10.9.9.9:8080";
