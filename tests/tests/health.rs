//! `/healthz` and `/livez`, asked by curl.

#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and files; denizen does not"
)]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use denizen_tests::agent::{Agent, Objects, STARTING, Settings};
use denizen_tests::cluster::{Cluster, NODE};
use denizen_tests::http::{Reply, fetch, url};
use denizen_tests::manifest;
use denizen_tests::world::ip;
use serde_json::{Value, json};

const PORT: u16 = 10256;

/// What has not taken effect by then never will.
const BOUND: Duration = Duration::from_secs(20);

fn ask(cluster: &Cluster, path: &str) -> Result<Reply> {
    fetch(&cluster.world.node, &url(ip("127.0.0.1"), PORT, path), &[])
}

/// Asks until the answer has this status.
fn until(cluster: &Cluster, path: &str, status: u16) -> Result<Value> {
    let started = Instant::now();
    loop {
        let reply = ask(cluster, path);
        if let Ok(reply) = &reply
            && reply.status == status
        {
            return reply.json();
        }
        ensure!(
            started.elapsed() < BOUND,
            "{path}: still {reply:?} after {BOUND:?}"
        );
    }
}

fn this_node() -> Value {
    manifest::node(NODE, &["192.168.0.2", "2001:db8::1"].map(ip), "")
}

#[test]
fn both_families_are_told_as_by_kube_proxy() -> Result<()> {
    let cluster = Cluster::new("hz-as", &Value::Null)?;
    let _agent = cluster.start_agent()?;
    until(&cluster, "/healthz", 200)?;
    let places = [
        (&cluster.world.client, "192.168.0.2"),
        (&cluster.world.client, "2001:db8::1"),
        (&cluster.world.node, "127.0.0.1"),
        (&cluster.world.node, "::1"),
    ];
    for (from, address) in places.map(|(from, address)| (from, ip(address))) {
        for path in ["/healthz", "/livez"] {
            let reply = fetch(from, &url(address, PORT, path), &[])?;
            assert_eq!(reply.status, 200, "{reply:?}");
            assert_eq!(reply.header("content-type"), Some("application/json"));
            assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
            let body = reply.json()?;
            assert_eq!(body["healthy"], true, "{body}");
            assert_eq!(body["lastUpdated"], body["currentTime"], "{body}");
            assert_eq!(body["status"]["IPv4"]["healthy"], true, "{body}");
            assert_eq!(body["status"]["IPv6"]["healthy"], true, "{body}");
            let eligible = if path == "/healthz" {
                json!(true)
            } else {
                Value::Null
            };
            assert_eq!(body["nodeEligible"], eligible, "{body}");
        }
        assert_eq!(fetch(from, &url(address, PORT, "/"), &[])?.status, 404);
    }
    Ok(())
}

/// Not ready is no reason to be started anew.
#[test]
fn an_agent_that_still_waits_is_live_and_not_ready() -> Result<()> {
    let cluster = Cluster::new("hz-wait", &Value::Null)?;
    let folder = cluster.world.folder().join("to-come");
    let settings = Settings {
        objects: Objects::Manifests(folder.clone()),
        ..cluster.settings()
    };
    let mut agent = Agent::spawn(&cluster.world.node, settings)?;
    let body = until(&cluster, "/healthz", 503)?;
    assert_eq!(
        (&body["healthy"], &body["nodeEligible"]),
        (&json!(false), &json!(true)),
        "{body}"
    );
    assert_eq!(until(&cluster, "/livez", 200)?["healthy"], true);
    std::fs::rename(cluster.manifests.folder(), &folder)?;
    agent.wait_programmed(STARTING + BOUND)?;
    until(&cluster, "/healthz", 200)?;
    Ok(())
}

#[test]
fn a_node_that_leaves_gets_no_traffic_and_its_agent_lives() -> Result<()> {
    let cluster = Cluster::new("hz-node", &Value::Null)?;
    let _agent = cluster.start_agent()?;
    let mut tainted = this_node();
    tainted["spec"]["taints"] = json!([{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }]);
    let mut deleted = this_node();
    deleted["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z".into();
    let another = manifest::node("another", &[ip("192.168.0.9")], "");
    for object in [tainted, deleted, another] {
        until(&cluster, "/healthz", 200)?;
        cluster.manifests.put("node", &[object])?;
        let body = until(&cluster, "/healthz", 503)?;
        assert_eq!(
            (&body["healthy"], &body["nodeEligible"]),
            (&json!(true), &json!(false)),
            "{body}"
        );
        until(&cluster, "/livez", 200)?;
        cluster.manifests.put("node", &[this_node()])?;
    }
    until(&cluster, "/healthz", 200)?;
    Ok(())
}

#[test]
fn health_is_served_where_it_is_asked_for() -> Result<()> {
    let cluster = Cluster::new("hz-flag", &Value::Null)?;
    let cases: [(&str, &[&str]); 3] = [
        ("[2001:db8::1]:8000", &["2001:db8::1"]),
        ("192.168.1.2:8000", &["192.168.1.2"]),
        ("", &[]),
    ];
    for (flag, served) in cases {
        let settings = Settings {
            flags: vec![format!("--healthz-bind-address={flag}")],
            ..cluster.settings()
        };
        let agent = Agent::start(&cluster.world.node, settings)?;
        let live = |address: &str, port| fetch(&cluster.world.client, &url(ip(address), port, "/livez"), &[]);
        for address in served {
            let started = Instant::now();
            while live(address, 8000).is_err() {
                ensure!(started.elapsed() < BOUND, "{flag}: {:?}", live(address, 8000));
            }
        }
        for address in ["192.168.0.2", "192.168.1.2", "2001:db8::1"] {
            let answers = [8000, PORT].map(|port| live(address, port));
            assert_eq!(
                answers[0].is_ok(),
                served.contains(&address),
                "{flag}: {address}: {answers:?}"
            );
            assert!(answers[1].is_err(), "{flag}: {address}: {answers:?}");
        }
        agent.terminate()?;
    }
    Ok(())
}
