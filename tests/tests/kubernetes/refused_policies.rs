//! An agent whose role is older than the pod firewall: the API refuses NetworkPolicies to it.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use denizen_tests::agent::{Agent, Settings};
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::{Host, service_ips};
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{fetch, url};
use denizen_tests::packets::probe::{Outcome, Probe};
use denizen_tests::peers::api::context::{ApiContext, TIMEOUT, until_error, until_no_error};
use denizen_tests::peers::api::{Api, ApiServer};
use serde_json::{Value, json};

/// Nobody may reach the pods of namespace default, and they may reach nobody.
fn deny_all() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny", "namespace": "default" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"] },
    })
}

fn context(label: &str) -> Result<ApiContext<ApiServer>> {
    let mut context = ApiContext::own(label)?;
    context.fixture.cluster.wait_as(&json!({ "timeout": "2s", "onTimeout": "isolate" }));
    context.api.behave(|behaviour| behaviour.forbidden = vec!["networkpolicies"]);
    context.put_node()?;
    context.put_web("web", 10, &[Host::Remote])?;
    context.api.put(&deny_all())?;
    Ok(context)
}

/// What a pod gets from the service.
fn served(pod: &Pod) -> [Outcome; 2] {
    service_ips(10).map(|service| Probe::tcp(SocketAddr::new(service, 80)).send_in(&pod.netns))
}

#[test]
fn services_go_on_and_status_says_what_is_refused() -> Result<()> {
    let context = context("kube-403-auto")?;
    let cluster = &context.fixture.cluster;
    let agent = context.start_agent()?;
    context.until_answered(10, Host::Remote)?;
    let refused =
        |status: &Value| status["networkPolicy"]["refused"] == json!(["network policies"]);
    agent.until("it is refused", TIMEOUT, refused)?;
    until_error(&agent, "list and watch of NetworkPolicies")?;
    let text = cluster.world.node.output(
        &binary::ours("denizen-agent")?.display().to_string(),
        &["status", "--run-dir", &cluster.run_dir().display().to_string()],
    )?;
    ensure!(text.contains("not enforced: the API refuses network policies to the agent"), "{text}");
    for wiring in [Wiring::Bridged, Wiring::Routed] {
        let pod = cluster.add_pod(&format!("late-{wiring:?}").to_lowercase(), wiring)?;
        for outcome in served(&pod) {
            ensure!(outcome.endpoint().is_some(), "{wiring:?}: {outcome:?}");
        }
    }
    assert_eq!(agent.status()?["networkPolicy"]["pending"], 0);
    let health = fetch(&cluster.world.node, &url(ip("127.0.0.1"), 10256, "/healthz"), &[])?;
    assert_eq!(health.status, 200, "{health:?}");

    let pod = cluster.add_pod("last", Wiring::Bridged)?;
    context.api.behave(|behaviour| behaviour.forbidden = Vec::new());
    eventually("policies hold as soon as they may be read", TIMEOUT, || {
        Ok(served(&pod).iter().all(|outcome| *outcome == Outcome::Dropped))
    })?;
    assert_eq!(agent.status()?["networkPolicy"]["refused"], json!([]));
    until_no_error(&agent)
}

/// What an earlier run enforced stays in the kernel. A pod that the plugin made wait meanwhile,
/// since no agent ran, waits no longer.
#[test]
fn what_is_enforced_stays_when_a_restarted_agent_may_read_no_policies() -> Result<()> {
    let context = context("kube-403-again")?;
    context.api.behave(|behaviour| behaviour.forbidden = Vec::new());
    let agent = context.start_agent()?;
    let pod = context.fixture.cluster.add_pod("before", Wiring::Routed)?;
    let is_isolated = || served(&pod).iter().all(|outcome| *outcome == Outcome::Dropped);
    ensure!(is_isolated());
    agent.terminate()?;
    let orphan = context.fixture.cluster.add_pod("orphan", Wiring::Bridged)?;
    ensure!(served(&orphan).iter().all(|outcome| *outcome == Outcome::Dropped));
    context.api.behave(|behaviour| behaviour.forbidden = vec!["networkpolicies"]);
    let agent = context.start_agent()?;
    let refused = |status: &Value| status["networkPolicy"]["refused"] != json!([]);
    agent.until("it is refused", TIMEOUT, refused)?;
    ensure!(is_isolated());
    eventually("the orphan is served", TIMEOUT, || {
        Ok(served(&orphan).iter().all(|outcome| outcome.endpoint().is_some()))
    })
}

/// Who asked for the firewall gets no pod that nobody has judged.
#[test]
fn new_pods_wait_where_the_firewall_was_asked_for() -> Result<()> {
    let context = context("kube-403-on")?;
    let cluster = &context.fixture.cluster;
    let flags = vec!["--network-policy=on".to_owned()];
    let settings = Settings { flags, ..context.settings() };
    let agent = Agent::spawn(&cluster.world.node, settings)?;
    context.until_answered(10, Host::Remote)?;
    let pod = cluster.add_pod("late", Wiring::Bridged)?;
    for outcome in served(&pod) {
        assert_eq!(outcome, Outcome::Dropped);
    }
    let policy = agent.status()?["networkPolicy"].take();
    assert_eq!(policy["waitingFor"], json!(["network policies"]), "{policy}");
    assert_eq!((&policy["refused"], &policy["pending"]), (&json!([]), &json!(1)), "{policy}");
    Ok(())
}
