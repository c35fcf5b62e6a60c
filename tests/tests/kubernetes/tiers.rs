//! ClusterNetworkPolicies, which a server serves or does not.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_model::Event;
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::{Host, service_ips};
use denizen_tests::node::pod::Pod;
use denizen_tests::packets::probe::{Outcome, Probe};
use denizen_tests::peers::api::context::{ApiContext, TIMEOUT};
use denizen_tests::peers::api::{Api, ApiServer};
use serde_json::{Value, json};

use crate::following::Following;

/// How often an agent asks whether they are served, and some time.
const REDISCOVERY: Duration = Duration::from_secs(80);

fn deny_all() -> Value {
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": "deny" },
        "spec": {
            "tier": "Admin", "priority": 0, "subject": { "namespaces": {} },
            "egress": [
                { "action": "Deny", "to": [{ "networks": ["0.0.0.0/0", "::/0"] }] },
            ],
        },
    })
}

fn served(pod: &Pod) -> [Outcome; 2] {
    service_ips(10).map(|service| Probe::tcp(SocketAddr::new(service, 80)).send_in(&pod.netns))
}

fn until(pod: &Pod, is_dropped: bool, within: Duration) -> Result<()> {
    let what = if is_dropped { "they are enforced" } else { "they are not" };
    eventually(what, within, || {
        let outcomes = served(pod);
        Ok(outcomes.iter().all(|outcome| match is_dropped {
            true => *outcome == Outcome::Dropped,
            false => outcome.endpoint().is_some(),
        }))
    })
}

/// The definition comes while the agent runs. What is enforced stays while the server forgets for a
/// moment that it serves them.
#[test]
fn cluster_network_policies_come_and_go() -> Result<()> {
    let context: ApiContext<ApiServer> = ApiContext::own("kube-cnp")?;
    context.api.behave(|behaviour| behaviour.watches_last = Duration::from_secs(11));
    context.put_node()?;
    context.put_web("web", 10, &[Host::Remote])?;
    let agent = context.start_agent()?;
    context.until_answered(10, Host::Remote)?;
    // A pod whose labels nobody knows would be pending.
    context.api.put_all(&context.fixture.pod_objects("a", "b"))?;
    let pods = [&context.fixture.bridged, &context.fixture.routed];
    pods.iter().try_for_each(|pod| until(pod, false, TIMEOUT))?;
    let requests = context.api.requests();
    ensure!(
        !requests.iter().any(|request| request.path.contains("clusternetworkpolicies?")),
        "{requests:?}"
    );

    context.api.put(&deny_all())?;
    context.api.behave(|behaviour| behaviour.tiers = true);
    pods.iter().try_for_each(|pod| until(pod, true, REDISCOVERY))?;
    agent.until("status counts it", TIMEOUT, |status| {
        status["networkPolicy"]["clusterPolicies"] == 1
    })?;
    context.api.delete(&deny_all())?;
    pods.iter().try_for_each(|pod| until(pod, false, TIMEOUT))?;

    context.api.put(&deny_all())?;
    pods.iter().try_for_each(|pod| until(pod, true, TIMEOUT))?;
    context.api.behave(|behaviour| behaviour.unserved = vec!["clusternetworkpolicies"]);
    std::thread::sleep(Duration::from_secs(15));
    pods.iter().try_for_each(|pod| until(pod, true, TIMEOUT))?;

    context.api.behave(|behaviour| behaviour.tiers = false);
    pods.iter().try_for_each(|pod| until(pod, false, REDISCOVERY))
}

/// A policy that was stored before a pod may come through its watch long after it. As long as the
/// watch has brought all of them, their versions alone are asked for.
#[test]
fn cluster_network_policies_that_the_watch_has_not_brought_are_read() -> Result<()> {
    let context = ApiContext::own("kube-cnp-read")?;
    context.api.behave(|behaviour| behaviour.tiers = true);
    context.api.put(&deny_all())?;
    let mut following = Following::start(&context)?;
    following.until_listed()?;
    let path = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies";
    let reads = || {
        let requests = context.api.requests();
        requests.iter().filter(|request| request.path == path && request.is_page()).count()
    };
    let before = reads();
    following.until_read(1)?;
    ensure!(reads() == before + 1, "the versions");
    context.api.behave(|behaviour| behaviour.late.push("clusternetworkpolicies"));
    let mut more = deny_all();
    more["metadata"]["name"] = "more".into();
    context.api.put(&more)?;
    following.until_read(2)?;
    following.until("the new policy", |sent| {
        let is_it = |event: &Event| {
            matches!(event, Event::ClusterNetworkPolicy(name, Some(_)) if &**name == "more")
        };
        sent.iter().filter(|event| is_it(event)).count() == 1
    })?;
    ensure!(reads() == before + 3, "the versions, and the policies");
    context.api.behave(|behaviour| behaviour.silent.push("clusternetworkpolicies"));
    following.until_read(3)
}

/// Nothing but whether there are any is asked for.
#[test]
fn without_their_definition_an_add_asks_for_none() -> Result<()> {
    let context = ApiContext::own("kube-cnp-none")?;
    let mut following = Following::start(&context)?;
    following.until_listed()?;
    following.until_read(1)?;
    let requests = context.api.requests();
    let about_tiers: Vec<_> = requests
        .iter()
        .map(|request| &*request.path)
        .filter(|path| path.contains("policy."))
        .collect();
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/\
                      clusternetworkpolicies.policy.networking.k8s.io";
    ensure!(about_tiers == ["/apis/policy.networking.k8s.io", definition], "{about_tiers:?}");
    Ok(())
}
