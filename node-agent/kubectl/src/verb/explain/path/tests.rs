use serde_json::{Value, json};

use super::*;

const END: &str = "10.0.2.7:8080";

fn says(verdict: &str, policies: Value) -> Explanation {
    let endpoints = if verdict == "forward" { json!([END]) } else { json!([]) };
    serde_json::from_value(
        json!({ "verdict": verdict, "endpoints": endpoints, "policies": policies }),
    )
    .unwrap()
}

fn row(direction: &str, result: &str, endpoint: Option<&str>) -> Value {
    json!({ "direction": direction, "pod": "a/b", "endpoint": endpoint,
            "isolatedBy": ["a/deny"], "result": result })
}

fn path(sent: &Explanation) -> EndpointPath {
    let owner = AddressOwner { pod: None, node: Some("n2".to_owned()) };
    let mut path = EndpointPath::new(sent, format!("{END}/tcp"), END.parse().unwrap(), owner);
    path.source = Some("10.0.1.5".parse().unwrap());
    path
}

#[test]
fn a_missing_route_refuses_though_policies_permit() {
    let there = || serde_json::from_value(json!({ "reachable": true, "interface": "eth0" }));
    let silent = || Err(NoAnswer::new(NoAnswer::FAILED, "unknown variant `route`"));
    let missing = || Ok(RouteAnswer::default());
    let cases = [
        (Ok(there().unwrap()), Ok(there().unwrap()), ConnectionVerdict::Permitted),
        // Older agents know no routes.
        (silent(), silent(), ConnectionVerdict::Permitted),
        (missing(), Ok(there().unwrap()), ConnectionVerdict::Refused),
        (Ok(there().unwrap()), missing(), ConnectionVerdict::Refused),
    ];
    for (out, back, expected) in cases {
        let mut path = path(&says("forward", json!([])));
        path.note_route(out);
        path.note_ingress(&says("untouched", json!([])));
        path.note_return_route(back);
        assert_eq!(path.verdict, expected, "{path:?}");
    }
    let mut path = path(&says("forward", json!([])));
    path.note_ingress(&says("untouched", json!([])));
    path.note_return_route(missing());
    let reasons: Vec<String> = path.reasons().collect();
    assert_eq!(reasons, ["way back: no route to 10.0.1.5"]);
}

#[test]
fn the_first_refusal_decides_and_the_unknown_is_not_permitted() {
    let open = || says("untouched", json!([]));
    let egress = |result| says("forward", json!([row("egress", result, Some(END))]));
    let ingress = |verdict, result| says(verdict, json!([row("ingress", result, None)]));
    let cases = [
        (egress("permitted"), Some(open()), ConnectionVerdict::Permitted),
        (egress("open"), Some(ingress("untouched", "permitted")), ConnectionVerdict::Permitted),
        (egress("refused"), None, ConnectionVerdict::Refused),
        (egress("pending"), None, ConnectionVerdict::Refused),
        (egress("denied"), None, ConnectionVerdict::Refused),
        (egress("accepted"), Some(ingress("untouched", "accepted")), ConnectionVerdict::Permitted),
        (egress("accepted"), Some(ingress("drop", "denied")), ConnectionVerdict::Refused),
        (egress("open"), None, ConnectionVerdict::Unknown),
        (egress("open"), Some(ingress("drop", "refused")), ConnectionVerdict::Refused),
        (egress("open"), Some(says("reject", json!([]))), ConnectionVerdict::Refused),
        (egress("open"), Some(says("drop", json!([]))), ConnectionVerdict::Refused),
        (egress("open"), Some(says("unknown", json!([]))), ConnectionVerdict::Unknown),
        (egress("of a newer release"), Some(open()), ConnectionVerdict::Unknown),
        (
            egress("open"),
            Some(ingress("untouched", "of a newer release")),
            ConnectionVerdict::Unknown,
        ),
    ];
    for (sent, received, expected) in cases {
        let mut path = path(&sent);
        if let Some(received) = &received {
            path.note_ingress(received);
        }
        assert_eq!(path.verdict, expected, "{path:?}");
    }
}

#[test]
fn several_endpoints_come_to_one_verdict() {
    use ConnectionVerdict::{Partly, Permitted, Refused, Unknown};
    let cases = [
        (vec![], Unknown),
        (vec![Permitted, Permitted], Permitted),
        (vec![Permitted, Refused, Permitted], Partly),
        (vec![Refused, Refused], Refused),
        (vec![Permitted, Unknown], Unknown),
        (vec![Refused, Permitted, Unknown], Unknown),
    ];
    for (paths, expected) in cases {
        assert_eq!(ConnectionVerdict::of_all(paths.iter().copied()), expected, "{paths:?}");
    }
}

#[test]
fn where_a_packet_goes_on() {
    let to: SocketAddr = "10.0.9.9:80".parse().unwrap();
    let end: SocketAddr = END.parse().unwrap();
    assert_eq!(says("forward", json!([])).targets(None), Ok(vec![end]));
    assert_eq!(says("untouched", json!([])).targets(Some(to)), Ok(vec![to]));
    assert_eq!(says("untouched", json!([])).targets(None), Err(ConnectionVerdict::Unknown));
    assert_eq!(says("reject", json!([])).targets(Some(to)), Err(ConnectionVerdict::Refused));
    assert_eq!(says("foreign", json!([])).targets(Some(to)), Err(ConnectionVerdict::Unknown));
    let dropped = says("drop", json!([row("egress", "refused", None)]));
    assert_eq!(dropped.targets(Some(to)), Ok(vec![to]));
    let some = Explanation { masqueraded: vec![END.to_owned()], ..Explanation::default() };
    assert!(some.is_masqueraded(end) && !some.is_masqueraded(to));
}
