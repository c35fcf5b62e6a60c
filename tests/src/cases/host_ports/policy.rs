//! NetworkPolicy sees the pod's port and the client's own address.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::context::{Context, HostPortPod, TIMEOUT, port};
use crate::cases::refused_flows;
use crate::eventually::eventually;
use crate::node::cluster::NODE;
use crate::node::fixture::{Host, PORT};
use crate::node::pod::Wiring;
use crate::node::world::host_length;
use crate::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use crate::policy::{
    LabelSelector, NetworkPolicy, ObjectMeta, PodObject, PodSpec, PodStatus, PolicyPeer,
    PolicyRule, PolicyWorld,
};

/// With `--network-policy=on`. `drops` shows whom the policy keeps out, and names the policy.
pub fn a_policy_judges_the_client(context: &Context) -> Result<()> {
    let addresses = [context.addresses()[0], context.addresses()[2]];
    // The pod's labels become known only after its ADD, so the ADD does not wait.
    let name = "asking";
    let serving = context.add_pod_without_wait(name, Wiring::Bridged, &json!([port(8080)]))?;
    let clients = addresses.map(|like| context.fixture.address(Host::Outside, like));
    let mut peers = Vec::new();
    for client in clients {
        let client = client?;
        let length = host_length(client);
        peers.push(PolicyPeer::block(format!("{client}/{length}"), []));
    }
    let rules = peers.into_iter().map(|peer| PolicyRule::from([peer]));
    let policy = NetworkPolicy::new("default", "some", LabelSelector::default()).ingress(rules);
    let metadata = ObjectMeta {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{}", serving.pod.netns.name()),
        ..ObjectMeta::default()
    };
    let spec = PodSpec { node_name: NODE.to_owned(), ..PodSpec::default() };
    let pods = vec![PodObject { metadata, spec, status: PodStatus::default() }];
    let world = PolicyWorld { policies: vec![policy], pods, ..PolicyWorld::default() };
    let manifests = &context.fixture.cluster.manifests;
    manifests.put("policies", &world.manifests())?;
    for to in addresses.map(|ip| SocketAddr::new(ip, 8080)) {
        let ask = |who| {
            let from = context.fixture.address(who, to.ip())?;
            let probe = Probe::tcp(to).from(from).timeout(SILENCE);
            anyhow::Ok(probe.send_in(context.fixture.place(who).0))
        };
        eventually("the client is let in", TIMEOUT, || {
            Ok(ask(Host::Outside)?.endpoint().is_some())
        })?;
        eventually("the others are kept out", TIMEOUT, || {
            Ok(ask(Host::Remote)? == Outcome::Dropped)
        })?;
        context.is_answered(Host::Outside, to, Protocol::Tcp, &serving)?;
        let explained = context.explain(Host::Remote, to, Protocol::Tcp)?;
        ensure!(explained.verdict == "drop", "{explained:?}");
    }
    are_in_drops(context, &serving)?;
    context.end([serving])?;
    manifests.remove("policies")
}

/// `drops` shows the flows from the other node's pod, in both families.
fn are_in_drops(context: &Context, serving: &HostPortPod) -> Result<()> {
    let shown = refused_flows::flows(&context.fixture, &context.agent)?;
    for pod in &serving.pod.addresses {
        let (from, to) =
            (context.fixture.address(Host::Remote, *pod)?, SocketAddr::new(*pod, PORT));
        let flows = shown["flows"].as_array().context("flows")?;
        let is_it = |flow: &&Value| {
            flow["source"]["address"] == SocketAddr::new(from, 0).to_string()
                && flow["destination"]["address"] == to.to_string()
        };
        let flow = flows.iter().find(is_it).with_context(|| format!("{from} {to}: {shown:#}"))?;
        let policy = flow["policy"].as_str().unwrap_or_default();
        ensure!(flow["verdict"] == "dropped" && policy == "NetworkPolicy default/some", "{flow:#}");
    }
    Ok(())
}
