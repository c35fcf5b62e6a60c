//! containerd passes pods' annotations to the plugin, which redirects those that a mesh has
//! injected.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::service_ips;
use denizen_tests::packets::probe::Outcome;
use denizen_tests::peers::containerd::SandboxConfig;
use serde_json::{Value, json};

use super::{ContainerdNode, TIMEOUT};

fn annotated(name: &str, annotations: &[(&str, &str)]) -> SandboxConfig {
    let annotations = annotations.iter().map(|(name, text)| ((*name).into(), (*text).into()));
    SandboxConfig { annotations: BTreeMap::from_iter(annotations), ..SandboxConfig::new(name) }
}

const INJECTED: (&str, &str) = ("linkerd.io/proxy-version", "edge-26.8.1");

#[test]
fn pods_are_redirected_as_their_annotations_say() -> Result<()> {
    let node = ContainerdNode::new("ctr-redirect")?;
    let agent = node.cluster.start_agent()?;
    node.install()?;
    let cri = node.containerd.cri()?;
    let record = |sandbox: &str| node.records()?.remove(sandbox).context("it is recorded");
    let before = cri.run_sandbox_as(annotated("before", &[INJECTED]))?;
    assert!(record(&before)?.redirect.is_none());
    node.install_as(json!({ "redirect": { "profile": "linkerd" } }))?;
    eventually("containerd goes by the new entry", TIMEOUT, || {
        let probe = cri.run_sandbox_as(annotated("is-it-there", &[INJECTED]))?;
        let is_there = record(&probe)?.redirect.is_some();
        cri.stop_sandbox(&probe)?;
        cri.remove_sandbox(&probe)?;
        Ok(is_there)
    })?;

    let plain = record(&cri.run_sandbox_as(annotated("plain", &[("example.com/team", "a")]))?)?;
    assert!(plain.redirect.is_none(), "{plain:?}");
    let own = |seen: &Outcome| seen.seen().is_some_and(|seen| plain.ips.contains(&seen));
    assert!(node.first_packets(&plain)?.iter().all(own));

    let meshed = record(&cri.run_sandbox_as(annotated("meshed", &[INJECTED]))?)?;
    assert!(meshed.redirect.is_some(), "{meshed:?}");
    let skip = ("config.linkerd.io/skip-outbound-ports", "80");
    let skipping = record(&cri.run_sandbox_as(annotated("skipping", &[INJECTED, skip]))?)?;
    for ip in service_ips(10) {
        let connect = || TcpStream::connect(SocketAddr::new(ip, 80)).map(drop);
        let of = |netns: &Option<String>| {
            node.containerd.run_in_pod(netns.as_deref().context("it has a namespace")?, connect)
        };
        // Nobody listens at the proxy's port.
        let refused = of(&meshed.netns)?.map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::ConnectionRefused), "{ip}");
        of(&skipping.netns)?.with_context(|| format!("{ip} is skipped"))?;
    }

    let unredirected =
        |agent: &Agent| -> Result<Value> { Ok(agent.status()?["unredirectedPods"].clone()) };
    eventually("the one from before", TIMEOUT, || Ok(unredirected(&agent)? == 1))?;
    agent.terminate()?;
    let agent = node.cluster.start_agent()?;
    eventually("after a restart, too", TIMEOUT, || Ok(unredirected(&agent)? == 1))?;
    cri.stop_sandbox(&before)?;
    cri.remove_sandbox(&before)?;
    cri.run_sandbox_as(annotated("before", &[INJECTED]))?;
    eventually("it is redirected now", TIMEOUT, || Ok(unredirected(&agent)? == 0))?;

    let wrong = ("config.linkerd.io/skip-outbound-ports", "80, http");
    let refusal = cri.run_sandbox_as(annotated("wrong", &[INJECTED, wrong])).err();
    let refusal = format!("{:#}", refusal.context("it is not made")?);
    assert!(refusal.contains("config.linkerd.io/skip-outbound-ports"), "{refusal}");
    Ok(())
}
