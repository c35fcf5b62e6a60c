//! containerd passes pods' annotations to the plugin, which redirects those that a mesh has
//! injected.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result};
use denizen_tests::containerd::SandboxConfig;
use denizen_tests::fixture::service_ips;
use denizen_tests::probe::Outcome;
use serde_json::json;

use super::Node;

fn annotated(name: &str, annotations: &[(&str, &str)]) -> SandboxConfig {
    let annotations = annotations.iter().map(|(name, text)| ((*name).into(), (*text).into()));
    SandboxConfig { annotations: BTreeMap::from_iter(annotations), ..SandboxConfig::new(name) }
}

const INJECTED: (&str, &str) = ("linkerd.io/proxy-version", "edge-26.8.1");

#[test]
fn pods_are_redirected_as_their_annotations_say() -> Result<()> {
    let node = Node::new("ctr-redirect")?;
    let _agent = node.cluster.start_agent()?;
    node.install_as(json!({ "redirect": { "profile": "linkerd" } }))?;
    let cri = node.containerd.cri()?;
    let record = |sandbox: &str| node.records()?.remove(sandbox).context("it is recorded");

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

    let wrong = ("config.linkerd.io/skip-outbound-ports", "80, http");
    let refusal = cri.run_sandbox_as(annotated("wrong", &[INJECTED, wrong])).err();
    let refusal = format!("{:#}", refusal.context("it is not made")?);
    assert!(refusal.contains("config.linkerd.io/skip-outbound-ports"), "{refusal}");
    Ok(())
}
