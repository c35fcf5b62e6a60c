//! The agent against an API server: what it asks, what it makes of the answers. With a real
//! kube-apiserver too, where `KUBEBUILDER_ASSETS` names a folder with one.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::NODE;
use denizen_tests::node::fixture::{Host, service_ips};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::netns::checked;
use denizen_tests::packets::probe::{Outcome, Protocol};
use denizen_tests::peers::api::context::{
    ApiContext, HTTP, TIMEOUT, until_error, until_no_error, with_every_api,
};
use denizen_tests::peers::api::{Api, ApiServer};
use serde_json::{Value, json};

use crate::any_server::{LISTED, requests_for};
use crate::following::Following;

fn services(agent: &Agent) -> Result<u64> {
    agent.status()?["services"].as_u64().context("a number of services")
}

#[test]
fn services_are_served_as_they_change() -> Result<()> {
    with_every_api("kube-serve", |context| {
        context.put_node()?;
        context.put_web("web", 10, &[Host::Routed])?;
        let agent = context.start_agent()?;
        context.until_answered(10, Host::Routed)?;
        context.put_web("web", 10, &[Host::Remote])?;
        context.until_answered(10, Host::Remote)?;
        context.put_web("later", 11, &[Host::Bridged])?;
        context.until_answered(11, Host::Bridged)?;
        context.delete_web("web", true)?;
        context.until_unknown(10)?;
        context.until_answered(11, Host::Bridged)?;
        until_no_error(&agent)
    })
}

/// The kinds that every API server has, and in protobuf.
const BUILT_IN: [&str; 7] = [
    "Services",
    "EndpointSlices",
    "Nodes",
    "ServiceCIDRs",
    "Namespaces",
    "Pods",
    "NetworkPolicies",
];

/// One list of each kind, and no answer in another encoding than was asked for.
#[test]
fn status_says_of_each_kind_what_it_costs_the_server() -> Result<()> {
    with_every_api("kube-cost", |context| {
        let (encoding, other) = match context.api.has_protobuf() {
            true => ("protobuf", "json"),
            false => ("json", "protobuf"),
        };
        context.put_node()?;
        context.put_web("web", 10, &[Host::Routed])?;
        let agent = context.start_agent()?;
        context.put_web("web", 10, &[Host::Remote])?;
        context.until_answered(10, Host::Remote)?;
        let kinds = || -> Result<Vec<Value>> {
            let mut kinds = agent.status()?["api"].as_array().cloned().context("an array")?;
            let is_built_in = |name: &str| BUILT_IN.contains(&name);
            kinds.retain(|kind| kind["kind"].as_str().is_some_and(is_built_in));
            Ok(kinds)
        };
        // The list and the watch.
        let is_watched = |kind: &Value| kind["answers"][encoding].as_u64() >= Some(2);
        eventually("each kind is watched", TIMEOUT, || Ok(kinds()?.iter().all(is_watched)))?;
        let kinds = kinds()?;
        let names: Vec<_> = kinds.iter().filter_map(|kind| kind["kind"].as_str()).collect();
        assert_eq!(names, BUILT_IN);
        for kind in &kinds {
            assert_eq!(kind["lists"], json!({ "start": 1 }), "{kind}");
            assert_eq!(kind["answers"][other], Value::Null, "{kind}");
            ensure!(kind["bytes"].as_u64() > Some(0), "{kind}");
        }
        ensure!(kinds[1]["events"].as_u64() > Some(0), "a slice changed: {kinds:?}");
        until_no_error(&agent)
    })
}

/// The bytes that the Services have cost.
fn services_bytes(agent: &Agent) -> Result<u64> {
    let status = agent.status()?;
    let kinds = status["api"].as_array().map_or(&[][..], Vec::as_slice);
    let services = kinds.iter().find(|kind| kind["kind"] == "Services");
    services.and_then(|kind| kind["bytes"].as_u64()).context("bytes of Services")
}

/// The server may compress long lists. One that is damaged takes nothing away.
#[test]
fn long_lists_of_services_come_compressed() -> Result<()> {
    const SERVICES: u8 = 200;
    const NOTE: usize = 1 << 10;
    let mut context = ApiContext::own("kube-gzip")?;
    context.put_node()?;
    let service = |number: u8| {
        let mut service =
            manifest::service(&format!("s{number}"), &service_ips(number)[..1], &HTTP);
        service["metadata"]["annotations"] = json!({ "note": "note".repeat(NOTE / 4) });
        service
    };
    context.api.put_all(&(0..SERVICES).map(service).collect::<Vec<_>>())?;
    for only_json in [true, false] {
        context.api.behave(|behaviour| behaviour.only_json = only_json);
        let agent = context.start_agent()?;
        assert_eq!(services(&agent)?, u64::from(SERVICES));
        let bytes = services_bytes(&agent)?;
        ensure!(bytes < u64::from(SERVICES) * NOTE as u64 / 4, "{bytes} bytes");
        context.api.stop();
        context.api.delete(&service(0))?;
        context.api.behave(|behaviour| (behaviour.damages_lists, behaviour.forgets) = (true, true));
        context.go_on()?;
        until_error(
            &agent,
            "Services: the API server's answer cannot be read: what is compressed",
        )?;
        assert_eq!(services(&agent)?, u64::from(SERVICES));
        context
            .api
            .behave(|behaviour| (behaviour.damages_lists, behaviour.forgets) = (false, false));
        until_no_error(&agent)?;
        assert_eq!(services(&agent)?, u64::from(SERVICES) - 1);
        context.api.put(&service(0))?;
    }
    Ok(())
}

/// Pods are the longest lists. A proxy that compressed a watch would hold its events back.
#[test]
fn every_list_may_be_compressed_and_no_watch() -> Result<()> {
    let context = ApiContext::own("kube-gzip-lists")?;
    let mut following = Following::start(&context)?;
    following.until_listed()?;
    for path in LISTED {
        let asked = || -> Result<bool> { Ok(!requests_for(&context, path)?.1.is_empty()) };
        eventually("it is watched", TIMEOUT, asked)?;
        let (lists, watches) = requests_for(&context, path)?;
        ensure!(!lists.is_empty() && lists.iter().all(|list| list.gzip), "{lists:?}");
        ensure!(!watches.iter().any(|watch| watch.gzip), "{watches:?}");
    }
    Ok(())
}

#[test]
fn what_is_not_ours_is_not_served_and_explain_names_its_proxy() -> Result<()> {
    with_every_api("kube-filter", |context| {
        context.put_node()?;
        context.put_web("web", 10, &[Host::Routed])?;
        let agent = context.start_agent()?;
        let before = services(&agent)?;
        let mut headless = manifest::service("headless", &service_ips(11)[..1], &HTTP);
        headless["spec"]["clusterIP"] = "None".into();
        headless["spec"]["clusterIPs"] = json!(["None"]);
        let mut foreign = manifest::service("foreign", &service_ips(12)[..1], &HTTP);
        foreign["metadata"]["labels"] =
            json!({ "service.kubernetes.io/service-proxy-name": "another" });
        context.api.put_all(&[headless, foreign.clone()])?;
        context.put_web("last", 13, &[Host::Routed])?;
        context.until_answered(13, Host::Routed)?;
        assert_eq!(services(&agent)?, before + 1, "the last one alone");
        let to = SocketAddr::new(service_ips(12)[0], 80);
        let printed = context.fixture.explain(&agent, Host::Outside, to, Protocol::Tcp)?;
        assert!(printed.steps.iter().any(|step| step.what.contains("another proxy: \"another\"")));
        context.api.delete(&foreign)?;
        eventually("it is gone", TIMEOUT, || {
            let printed = context.fixture.explain(&agent, Host::Outside, to, Protocol::Tcp)?;
            Ok(printed.verdict != "foreign")
        })?;
        until_no_error(&agent)
    })
}

#[test]
fn a_service_may_become_anothers_and_come_back() -> Result<()> {
    with_every_api("kube-give", |context| {
        context.put_node()?;
        context.put_web("web", 10, &[Host::Routed])?;
        let _agent = context.start_agent()?;
        context.until_answered(10, Host::Routed)?;
        let mut given = manifest::service("web", &service_ips(10), &HTTP);
        let label = "service.kubernetes.io/service-proxy-name";
        given["metadata"]["labels"] = json!({ label: "another" });
        context.api.put(&given)?;
        context.until_unknown(10)?;
        context.put_web("web", 10, &[Host::Routed])?;
        context.until_answered(10, Host::Routed)
    })
}

#[test]
fn services_are_served_before_the_node_exists() -> Result<()> {
    with_every_api("kube-nonode", |context| {
        context.put_web("web", 10, &[Host::Routed])?;
        let agent = context.start_agent()?;
        context.until_answered(10, Host::Routed)?;
        until_error(&agent, &format!("Node {NODE} does not exist (yet)"))?;
        context.put_node()?;
        until_no_error(&agent)
    })
}

#[test]
fn a_restart_finds_what_changed_meanwhile() -> Result<()> {
    with_every_api("kube-again", |context| {
        context.put_node()?;
        context.put_web("old", 10, &[Host::Routed])?;
        context.put_web("web", 11, &[Host::Routed])?;
        let mut agent = context.start_agent()?;
        context.until_answered(10, Host::Routed)?;
        agent.quiet();
        agent.terminate()?;
        context.until_answered(11, Host::Routed)?;
        context.delete_web("old", true)?;
        context.put_web("web", 11, &[Host::Remote])?;
        let _agent = context.start_agent()?;
        context.until_unknown(10)?;
        context.until_answered(11, Host::Remote)
    })
}

#[test]
fn a_large_object_and_very_many_ports() -> Result<()> {
    let context = ApiContext::own("kube-large")?;
    context.put_node()?;
    context.put_web("web", 10, &[Host::Routed])?;
    let agent = context.start_agent()?;
    let mut large = manifest::service("large", &service_ips(11), &HTTP);
    large["metadata"]["annotations"] = json!({ "big": "x".repeat(2 << 20) });
    context.api.put(&large)?;
    let address = service_ips(12);
    let mut many = manifest::service("many", &address, &HTTP);
    let port = |port: u16| json!({ "name": format!("p{port}"), "protocol": "TCP", "port": port });
    many["spec"]["ports"] = (1..=u16::MAX).map(port).collect();
    let slices =
        context.fixture.service("many", 12, &[Port::tcp("p80", 80, 8080)], &[Host::Routed])?;
    context.api.put_all(&slices[1..])?;
    context.api.put(&many)?;
    context.until_answered(12, Host::Routed)?;
    context.until(11, "no endpoints", |outcome| *outcome == Outcome::Refused)?;
    context.until_answered(10, Host::Routed)?;
    until_no_error(&agent)
}

#[test]
fn a_bad_object_is_named_and_the_rest_goes_on() -> Result<()> {
    let context = ApiContext::own("kube-bad")?;
    // In protobuf there is no such thing as a port that is a text.
    context.api.behave(|behaviour| behaviour.only_json = true);
    context.put_node()?;
    context.put_web("web", 10, &[Host::Routed])?;
    let mut bad = manifest::service("bad", &service_ips(11), &HTTP);
    bad["spec"]["ports"][0]["port"] = "eighty".into();
    context.api.put(&bad)?;
    let agent = context.start_agent()?;
    until_error(&agent, "Service default/bad: spec.ports[0].port")?;
    context.until_answered(10, Host::Routed)?;
    // It was good once, and what was known of it stays; so does everything else.
    context.put_web("bad", 11, &[Host::Remote])?;
    context.until_answered(11, Host::Remote)?;
    until_no_error(&agent)?;
    context.api.put(&bad)?;
    until_error(&agent, "Service default/bad: spec.ports[0].port")?;
    context.until_answered(11, Host::Remote)?;
    context.put_web("web", 10, &[Host::Remote])?;
    context.until_answered(10, Host::Remote)?;
    // Part of an object.
    let mut half = manifest::service("bad", &service_ips(11), &HTTP);
    half["spec"]["externalIPs"] = json!(["203.0.113.7", "nine"]);
    context.api.put(&half)?;
    until_error(&agent, "Service default/bad: spec.externalIPs[1] \\\"nine\\\"")?;
    context.delete_web("bad", true)?;
    context.until_unknown(11)?;
    until_no_error(&agent)
}

/// `kubectl` in the network namespace of the node, with the agent's own kubeconfig.
fn kubectl(context: &ApiContext<ApiServer>, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", context.fixture.cluster.world.node.name(), "kubectl"]);
    command.arg("--kubeconfig").arg(context.api.kubeconfig());
    // Its cache of what a server has is by the server's address, which all tests share.
    command.arg("--cache-dir").arg(context.api.folder().join("cache"));
    let output = checked(command.args(arguments))?;
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn kubectl_and_the_agent_see_one_api() -> Result<()> {
    let context = ApiContext::own("kubectl")?;
    context.put_node()?;
    let agent = context.start_agent()?;
    let objects = context.fixture.service("web", 10, &HTTP, &[Host::Routed])?;
    let files: Vec<String> = (0..objects.len())
        .map(|n| context.api.folder().join(format!("{n}.json")).display().to_string())
        .collect();
    for (file, object) in files.iter().zip(&objects) {
        std::fs::write(file, object.to_string())?;
        kubectl(&context, &["apply", "--validate=false", "--filename", file])?;
    }
    context.until_answered(10, Host::Routed)?;
    let shown: Value =
        serde_json::from_str(&kubectl(&context, &["get", "service", "web", "--output", "json"])?)?;
    assert_eq!(shown["spec"]["clusterIP"], "172.30.0.10");
    ensure!(kubectl(&context, &["get", "endpointslices"])?.contains("web-ipv4"));
    let patch = r#"{"spec":{"ports":[{"name":"http","protocol":"TCP","port":81}]}}"#;
    kubectl(&context, &["patch", "service", "web", "--type", "merge", "--patch", patch])?;
    context.until(10, "no port 80 any more", |outcome| *outcome == Outcome::Refused)?;
    kubectl(&context, &["delete", "service", "web", "--wait=false"])?;
    context.until_unknown(10)?;
    eventually("no services", TIMEOUT, || Ok(services(&agent)? == 0))?;
    until_no_error(&agent)
}

/// What is followed.
const KINDS: [&str; 4] = ["services", "endpointslices", "nodes", "servicecidrs"];

/// How long the API is away: long enough for pauses of up to 3.2 s.
const OUTAGE: Duration = Duration::from_secs(4);

/// From the first answer after it until every kind is answered: plenty for a busy machine.
const WOKEN: Duration = Duration::from_secs(5);

/// Each kind waits by itself, and one of them for ten minutes: the server did not serve it.
#[test]
fn the_first_answer_after_an_outage_wakes_every_kind() -> Result<()> {
    let mut context = ApiContext::own("kube-wake")?;
    context.put_node()?;
    context.put_web("web", 10, &[Host::Routed])?;
    context.api.behave(|behaviour| behaviour.unserved = vec!["servicecidrs"]);
    let agent = context.start_agent()?;
    context.until_answered(10, Host::Routed)?;
    context.api.stop();
    std::thread::sleep(OUTAGE);
    // It comes back as a newer version, which serves them all.
    context.api.behave(|behaviour| behaviour.unserved = Vec::new());
    let before = context.api.requests().len();
    context.go_on()?;
    let answered = || {
        let requests = context.api.requests().split_off(before);
        KINDS.map(|kind| {
            requests.iter().any(|request| request.status == 200 && request.path.ends_with(kind))
        })
    };
    eventually("some kind is answered", TIMEOUT, || Ok(answered().contains(&true)))?;
    let first = Instant::now();
    eventually("every kind is answered", TIMEOUT, || {
        let waited = first.elapsed();
        ensure!(waited < WOKEN, "{KINDS:?}: {:?} after {waited:?}", answered());
        Ok(!answered().contains(&false))
    })?;
    until_no_error(&agent)
}
