use std::collections::BTreeSet;

use denizen_page::unstyled;
use hyper::header::{HOST, HeaderMap};

use super::*;
use denizen_backend::Affinity;
use denizen_observe::connections::{NamedConnection, Totals};
use denizen_observe::drops::{DropCount, DropCounts, DropVerdict};
use denizen_observe::status::view::{
    ConnectionFate, EndpointRow, FrontendRow, PodRow, ResultPart, ServiceRow, SideRow, SideState,
    SyncRow,
};
use denizen_observe::status::{
    DrainingSince, DrainingStatus, IpvsStatus, NetworkPolicyStatus, Status,
};
use denizen_observe::trace::NamedAddress;
use denizen_plan::explain::{ExplainStep, PacketVerdict};

/// A name that contains a script.
const HOSTILE: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>";

fn found<T>(row: T) -> ResultPart<T> {
    ResultPart { total: 7, shown: vec![row] }
}

fn hostile_view() -> View {
    let text = || HOSTILE.to_owned();
    let forward = || {
        let endpoint = EndpointRow { at: text(), local: true };
        ConnectionFate::Forward(found(endpoint))
    };
    let key = FrontendRow {
        kind: text(),
        at: text(),
        taken_by: Some(text()),
        inside: forward(),
        outside: Some(forward()),
    };
    View {
        node: text(),
        status: Status {
            flushed: 0,
            flushing: false,
            unrecorded_interfaces: 0,
            routing: None,
            announcements: None,
            bgp: None,
            host_ports: None,
            ipvs: Some(IpvsStatus {
                draining: vec![DrainingStatus {
                    service: text(),
                    endpoint: text(),
                    since: DrainingSince(Some(text())),
                    active: 3,
                    inactive: 2,
                }],
                ..IpvsStatus::default()
            }),
            redirected_pods: 0,
            unredirected_pods: 0,
            api: Vec::new(),
            backend: text(),
            backend_why: text(),
            detect_local: text(),
            synced: false,
            waiting_for: vec![text()],
            pods: 1,
            services: 1,
            endpoints: 1,
            generation: Some(1),
            last_sync: None,
            drift_repaired: 0,
            last_repair_milliseconds: None,
            missed_lookups: 0,
            network_policy_why: text(),
            network_policy_engine: Some(text()),
            network_policy: Some(NetworkPolicyStatus {
                waiting_for: vec![text()],
                unfiltered_bridges: vec![text()],
                ..NetworkPolicyStatus::default()
            }),
            affinity: Affinity::default(),
            errors: vec![text()],
            warnings: vec![text()],
        },
        pods: found(PodRow {
            name: text(),
            ips: vec![text()],
            interface: text(),
            port: Some(text()),
            redirect: Some(text()),
            policy: vec![SideRow {
                direction: text(),
                state: SideState::Isolated,
                policies: vec![text()],
            }],
        }),
        services: found(ServiceRow { name: text(), policies: vec![text()], keys: vec![key] }),
        drops: DropCounts {
            drops: vec![DropCount {
                table: text(),
                verdict: DropVerdict::Dropped,
                reason: text(),
                packets: 1,
            }],
            not_counted: Some(text()),
        },
        syncs: vec![SyncRow { at: text(), milliseconds: 1.0, what: text(), error: Some(text()) }],
    }
}

fn hostile_summary() -> Summary {
    let place =
        || NamedAddress { address: "10.0.0.1:80".parse().unwrap(), name: Some(HOSTILE.to_owned()) };
    let connection = NamedConnection {
        protocol: "tcp",
        state: None,
        client: place(),
        destination: place(),
        service: Some(HOSTILE.to_owned()),
        endpoint: Some(place()),
        draining_since: Some(DrainingSince(Some(HOSTILE.to_owned()))),
        masqueraded_as: None,
        seconds: Some(1),
    };
    let mut totals = Totals::default();
    totals.add(&connection);
    Summary { totals, newest: vec![connection], at: std::time::Duration::ZERO }
}

#[test]
fn every_value_is_escaped() {
    let asking = PageQuery {
        view: ViewQuery { search: HOSTILE.to_owned(), skip: 3 },
        from: HOSTILE.to_owned(),
        to: HOSTILE.to_owned(),
        connections: true,
        every: Some(5),
    };
    let explanation = Explanation {
        verdict: PacketVerdict::Forward,
        service: Some(HOSTILE.to_owned()),
        endpoints: vec![HOSTILE.to_owned()],
        masquerade: true,
        masqueraded: Vec::new(),
        local: true,
        policies: Vec::new(),
        redirects: Vec::new(),
        host_port: None,
        virtual_server: None,
        steps: vec![ExplainStep { what: HOSTILE.to_owned(), why: HOSTILE.to_owned() }],
    };
    let refused: Answered<Explanation> = Err(HOSTILE.to_owned());
    let counted: Answered<Arc<Summary>> = Ok(Arc::new(hostile_summary()));
    for explanation in [Some(&Ok(explanation)), Some(&refused), None] {
        for view in [Ok(hostile_view()), Err(HOSTILE.to_owned())] {
            let summary = Some(&counted);
            let page = draw::document(&asking, &view, explanation, summary).into_string();
            assert!(page.contains("&lt;script&gt;alert(1)"), "it is shown: {page}");
            for alive in ["<script", "<img", "\"'>", "onerror=alert(2)>"] {
                assert!(!page.contains(alive), "{alive} in {page}");
            }
        }
    }
}

fn explanation() -> Explanation {
    let step = |what: &str| ExplainStep { what: what.to_owned(), why: "so it is".to_owned() };
    Explanation {
        verdict: PacketVerdict::Forward,
        service: Some("default/web:http".to_owned()),
        endpoints: ["10.1.0.5:8080", "10.1.0.6:8080"].map(str::to_owned).into(),
        masquerade: true,
        masqueraded: Vec::new(),
        local: true,
        policies: Vec::new(),
        redirects: Vec::new(),
        host_port: None,
        virtual_server: None,
        steps: vec![step("one"), step("two"), step("three")],
    }
}

/// The page with everything that it can show.
fn full_page() -> String {
    let asking = PageQuery { connections: true, every: Some(5), ..PageQuery::default() };
    let counted: Answered<Arc<Summary>> = Ok(Arc::new(hostile_summary()));
    let explanation: Answered<Explanation> = Ok(explanation());
    draw::document(&asking, &Ok(hostile_view()), Some(&explanation), Some(&counted)).into_string()
}

/// The list has what explain found, step by step. The sender and the verdict are no steps.
#[test]
fn a_packets_path_has_its_ends_beside_its_steps() {
    let page = full_page();
    let (_, path) = page.split_once("<div class=\"path\">").expect("a path");
    let (path, _) = path.split_once("</div>").expect("its end");
    let (before, rest) = path.split_once("<ol>").expect("steps");
    let (steps, behind) = rest.split_once("</ol>").expect("their end");
    assert_eq!(steps.matches("<li>").count(), 3, "{path}");
    assert!(before.contains("a pod of this node"), "{path}");
    assert!(behind.contains("forwarded") && behind.contains("default/web:http"), "{path}");
}

/// A class without a style is a style that was renamed.
#[test]
fn every_class_of_the_page_has_a_style() {
    let style = [STYLE, include_str!("style.css")].concat();
    let page = full_page();
    assert!(page.matches("class=").count() > 10, "{page}");
    assert_eq!(unstyled(&page, &style), BTreeSet::new(), "in {page}");
}

#[test]
fn on_loopback_a_request_for_another_host_is_refused() {
    let cases = [
        ("127.0.0.1", Some("127.0.0.1:10249"), true),
        ("127.0.0.1", Some("localhost:8080"), true),
        ("127.0.0.1", Some("LOCALHOST"), true),
        ("::1", Some("[::1]:10249"), true),
        ("::ffff:127.0.0.1", Some("evil.example"), false),
        ("127.0.0.1", Some("evil.example:10249"), false),
        ("127.0.0.1", Some("127.0.0.1.evil.example"), false),
        ("127.0.0.1", Some("user@evil.example"), false),
        ("127.0.0.1", Some(""), false),
        ("127.0.0.1", None, false),
        ("192.168.0.2", Some("node-1.example:10249"), true),
    ];
    for (local, host, ours) in cases {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(HOST, host.parse().unwrap());
        }
        assert_eq!(is_meant_for(local.parse().unwrap(), &headers), ours, "{local} {host:?}");
    }
}

#[test]
fn a_link_contains_its_query() {
    let asking = PageQuery::parse(
        "q=a%26b&skip=50&from=10.0.0.1%40cni0&to=&connections=1&every=99999&other=1",
    );
    assert_eq!(asking.view.search, "a&b");
    assert_eq!((asking.view.skip, asking.every), (50, Some(3600)));
    assert!(asking.connections);
    assert_eq!(
        asking.link("services"),
        "/?q=a%26b&skip=50&from=10.0.0.1%40cni0&connections=yes&every=3600#services"
    );
    assert_eq!(PageQuery::parse("skip=-1&every=often"), PageQuery::default());
}
