//! Events on the Node and on Services, as kube-proxy writes them.

use std::net::TcpListener;

use anyhow::{Context, Result};
use denizen_tests::api::stage::{BOUND, HTTP, Stage, until_error, until_no_error};
use denizen_tests::api::{Api, ApiServer};
use denizen_tests::cast::{Who, service_ips};
use denizen_tests::cluster::NODE;
use denizen_tests::eventually::eventually;
use denizen_tests::manifest;
use serde_json::{Value, json};

/// What `/metrics` is served at.
const METRICS: &str = "127.0.0.1:10249";
/// The health-check node port of the service in these tests.
const PORT: u16 = 32_123;

/// The events for this reason.
fn events(stage: &Stage<ApiServer>, reason: &str) -> Vec<Value> {
    let all = stage.api.objects("events").into_iter();
    all.filter(|event| event["reason"] == reason).collect()
}

fn until_event(stage: &Stage<ApiServer>, reason: &str) -> Result<Value> {
    eventually(reason, BOUND, || Ok(!events(stage, reason).is_empty()))?;
    events(stage, reason).pop().context("it was there")
}

/// Takes an address in the node, until the value is dropped.
fn taken(stage: &Stage<ApiServer>, address: &str) -> Result<TcpListener> {
    Ok(stage.cast.cluster.world.node.run(|| TcpListener::bind(address))??)
}

fn checked_service() -> Value {
    let mut service = manifest::service("checked", &service_ips(11), &HTTP);
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["externalTrafficPolicy"] = "Local".into();
    service["spec"]["healthCheckNodePort"] = PORT.into();
    service
}

#[test]
fn what_cannot_be_served_is_an_event_once() -> Result<()> {
    let stage = Stage::own("kube-events")?;
    stage.put_node()?;
    stage.put_web("web", 10, &[Who::Routed])?;
    let metrics = taken(&stage, METRICS)?;
    let port = taken(&stage, &format!("0.0.0.0:{PORT}"))?;
    let agent = stage.start_agent()?;
    let node = json!({ "kind": "Node", "name": NODE, "uid": NODE });
    let started = until_event(&stage, "Starting")?;
    assert_eq!(started["regarding"], node);
    assert_eq!(
        (&started["type"], &started["metadata"]["namespace"]),
        (&json!("Normal"), &json!("default"))
    );
    let failed = until_event(&stage, "FailedToStartMetricServer")?;
    assert_eq!((&failed["regarding"], &failed["type"]), (&node, &json!("Warning")));
    let note = failed["note"].as_str().context("a note")?;
    assert!(note.contains(METRICS), "{failed}");
    stage.api.put(&checked_service())?;
    let failed = until_event(&stage, "FailedToStartServiceHealthcheck")?;
    assert_eq!(
        (&failed["regarding"]["kind"], &failed["regarding"]["name"]),
        (&json!("Service"), &json!("checked"))
    );
    // The same again is no news.
    stage.api.delete(&checked_service())?;
    until_error(&agent, METRICS)?;
    drop(metrics);
    until_no_error(&agent)?;
    stage.api.put(&checked_service())?;
    until_error(&agent, &PORT.to_string())?;
    drop(port);
    until_no_error(&agent)?;
    assert_eq!(events(&stage, "FailedToStartServiceHealthcheck").len(), 1);
    assert_eq!(events(&stage, "Starting").len(), 1);
    assert_eq!(events(&stage, "FailedToStartProxierHealthcheck").len(), 0);
    Ok(())
}

/// Who may not write events says so in the log, and serves all the same.
#[test]
fn an_event_that_cannot_be_written_stops_nothing() -> Result<()> {
    let stage = Stage::own("kube-noevent")?;
    stage.api.behave(|manners| manners.forbidden = vec!["events"]);
    stage.put_node()?;
    stage.put_web("web", 10, &[Who::Routed])?;
    let agent = stage.start_agent()?;
    stage.until_answered(10, Who::Routed)?;
    eventually("it is said", BOUND, || Ok(agent.log().contains("cannot write an event")))?;
    until_no_error(&agent)?;
    assert!(stage.api.objects("events").is_empty());
    Ok(())
}
