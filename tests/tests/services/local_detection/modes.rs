//! The ways to detect local traffic: what each takes for a pod of this node, right or wrong, over
//! every protocol, and that `explain` says the same.

use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::ruleset::{beside_firewall, tables};
use denizen_tests::node::fixture::{
    EVERYONE, Fixture, Host, every_protocol, every_way, service_ips,
};
use denizen_tests::node::manifest;
use denizen_tests::packets::probe::Protocol;
use serde_json::json;

use crate::context::AgentContext;

/// Each value of `--detect-local`, none for the default, and whose packets it takes for a local
/// pod's.
const MODES: [(Option<&str>, &[Host]); 6] = [
    (None, &[Host::Bridged, Host::Routed]),
    (Some("bridge=cni0"), &[Host::Bridged]),
    // A bridged pod's packets come in through the bridge, whatever its veth is called.
    (Some("interface-prefix=veth"), &[Host::Routed]),
    (Some("interface-prefix=veth,cni"), &[Host::Bridged, Host::Routed]),
    (Some("node-cidr=172.20.0.0/14,fd00:172:20::/48"), &[Host::Routed]),
    (
        Some("node-cidr=10.10.0.0/16,172.20.0.0/14,fd00:10:10::/48,fd00:172:20::/48"),
        &[Host::Bridged, Host::Routed],
    ),
];

/// Long enough for a change of a manifest to be seen on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A service that the remote pod alone serves, so that no connection is a hairpin.
fn with_web(label: &str) -> Result<Fixture> {
    let fixture = Fixture::new(label)?;
    let web = fixture.service("web", 10, &every_protocol(), &[Host::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    Ok(fixture)
}

fn with_mode(label: &str, mode: &str) -> Result<(Fixture, Agent)> {
    let fixture = with_web(label)?;
    let agent = fixture.cluster.start_agent_with([format!("--detect-local={mode}")])?;
    Ok((fixture, agent))
}

/// [`super::matrix`] has what else differs between modes; this has every protocol.
#[test]
fn who_is_local_keeps_its_address_over_every_protocol() -> Result<()> {
    let fixture = with_web("detect-modes")?;
    for (mode, local) in MODES {
        let agent =
            fixture.cluster.start_agent_with(mode.map(|mode| format!("--detect-local={mode}")))?;
        for (to, protocol) in every_way(10) {
            for who in EVERYONE {
                let what = format!("{mode:?}: {who:?} to {to}/{protocol}");
                let is_local = local.contains(&who);
                let outcome = fixture.probe(who, to, protocol)?;
                let is_masqueraded = fixture.was_masqueraded(who, &outcome)?;
                // What the node sends has its address anyway.
                assert!(who == Host::ThisNode || is_masqueraded != is_local, "{what}: {outcome:?}");
                let explained = fixture.explain(&agent, who, to, protocol)?;
                let output = (explained.local, explained.masquerade);
                assert_eq!(output, (is_local, !is_local), "{what}: {explained:?}");
            }
        }
        agent.terminate()?;
    }
    Ok(())
}

#[test]
fn node_cidr_follows_the_node_object() -> Result<()> {
    let (fixture, agent) = with_mode("detect-live", "node-cidr")?;
    let to = (service_ips(10)[0], 80).into();
    let masqueraded = |who| {
        let outcome = fixture.probe(who, to, Protocol::Tcp)?;
        fixture.was_masqueraded(who, &outcome)
    };
    assert!(masqueraded(Host::Bridged)? && masqueraded(Host::Routed)?, "no ranges yet");
    let mut node = manifest::node(&fixture.cluster.settings().node_name, &[], "");
    node["spec"] = json!({ "podCIDRs": ["10.10.0.0/16", "fd00:10:10::/48"] });
    fixture.cluster.manifests.put("node", &[node])?;
    eventually("programmed", TIMEOUT, || Ok(!masqueraded(Host::Bridged)?))
        .with_context(|| agent.log())?;
    assert!(masqueraded(Host::Routed)?, "its address is in no range");
    Ok(())
}

#[test]
fn cleanup_removes_what_is_denizens_and_nothing_else() -> Result<()> {
    let (fixture, agent) = with_mode("detect-cleanup", "pod-state")?;
    let node = &fixture.cluster.world.node;
    node.nft("table ip somebody_elses {\n}\n")?;
    agent.terminate()?;
    let theirs = "table ip somebody_elses";
    let all = beside_firewall(&[theirs, "table ip denizen", "table ip6 denizen"]);
    assert_eq!(tables(node)?, all, "a stop leaves the rules");
    let program = binary::ours("denizen-agent")?;
    let output = node.output(&program.display().to_string(), &["cleanup"])?;
    assert_eq!(output, "removed 5 nftables tables\n");
    assert_eq!(tables(node)?, [theirs]);
    let again = node.output(&program.display().to_string(), &["cleanup"])?;
    assert_eq!(again, "removed 0 nftables tables\n");
    Ok(())
}

#[test]
fn no_detector_and_a_cluster_cidr_are_errors() -> Result<()> {
    for flag in ["--detect-local=", "--detect-local=cluster-cidr", "--cluster-cidr=10.0.0.0/8"] {
        let refused = AgentContext::new("det-none", &[flag], |_| Ok(Vec::new())).err();
        let refused = format!("{:#}", refused.context(flag)?);
        assert!(refused.contains("pod-state"), "{flag}: {refused}");
    }
    Ok(())
}
