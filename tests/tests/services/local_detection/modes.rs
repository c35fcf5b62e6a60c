//! The other ways to tell local traffic apart: what each takes for a pod of this node, right or
//! wrong, and that `explain` says the same.

use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::ruleset::{beside_firewall, tables};
use denizen_tests::node::fixture::{Fixture, Who, every_protocol, every_way, service_ips};
use denizen_tests::node::manifest;
use serde_json::json;

use crate::context::{AgentContext, HTTP, at};

/// Who may come with an address of their own that the node could replace.
const SENDERS: [Who; 4] = [Who::Bridged, Who::Routed, Who::Remote, Who::Outside];

/// Long enough for a change of a manifest to be seen on a busy machine.
const SOON: Duration = Duration::from_secs(20);

fn with_mode(label: &str, mode: &str) -> Result<(Fixture, Agent)> {
    let fixture = Fixture::new(label)?;
    let web = fixture.service("web", 10, &every_protocol(), &[Who::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    let agent = fixture.cluster.start_agent_with([format!("--detect-local={mode}")])?;
    Ok((fixture, agent))
}

/// `local` alone keep their address, over every protocol and in both families.
fn takes_for_local(label: &str, mode: &str, local: &[Who]) -> Result<()> {
    let (fixture, agent) = with_mode(label, mode)?;
    for (to, protocol) in every_way(10) {
        for who in SENDERS {
            let is_local = local.contains(&who);
            let outcome = fixture.ask(who, to, protocol)?;
            assert_eq!(
                fixture.was_masqueraded(who, &outcome)?,
                !is_local,
                "{mode}: {who:?} to {to}/{protocol}: {outcome:?}"
            );
            let explained = fixture.explain(&agent, who, to, protocol)?;
            assert_eq!(
                (explained.local, explained.masquerade),
                (is_local, !is_local),
                "{mode}: {who:?}: {explained:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn bridge_takes_what_comes_through_the_bridge() -> Result<()> {
    takes_for_local("detect-bridge", "bridge=cni0", &[Who::Bridged])
}

/// A bridged pod's packets come in through the bridge, whatever its veth is called.
#[test]
fn interface_prefix_takes_routed_pods_by_their_veth() -> Result<()> {
    takes_for_local("detect-prefix", "interface-prefix=veth", &[Who::Routed])
}

#[test]
fn interface_prefix_takes_a_list() -> Result<()> {
    takes_for_local("detect-prefixes", "interface-prefix=veth,cni", &[Who::Bridged, Who::Routed])
}

#[test]
fn node_cidr_takes_the_ranges_it_is_given() -> Result<()> {
    takes_for_local("detect-cidr", "node-cidr=172.20.0.0/14,fd00:172:20::/48", &[Who::Routed])
}

#[test]
fn node_cidr_follows_the_node_object() -> Result<()> {
    let (fixture, agent) = with_mode("detect-live", "node-cidr")?;
    let to = (service_ips(10)[0], 80).into();
    let masqueraded = |who| {
        let outcome = fixture.ask(who, to, denizen_tests::packets::probe::Protocol::Tcp)?;
        fixture.was_masqueraded(who, &outcome)
    };
    assert!(masqueraded(Who::Bridged)? && masqueraded(Who::Routed)?, "no ranges yet");
    let mut node = manifest::node(&fixture.cluster.settings().node_name, &[], "");
    node["spec"] = json!({ "podCIDRs": ["10.10.0.0/16", "fd00:10:10::/48"] });
    fixture.cluster.manifests.put("node", &[node])?;
    eventually("programmed", SOON, || Ok(!masqueraded(Who::Bridged)?))
        .with_context(|| agent.log())?;
    assert!(masqueraded(Who::Routed)?, "its address is in no range");
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
    let program = denizen_tests::binary::ours("denizen-agent")?;
    let said = node.output(&program.display().to_string(), &["cleanup"])?;
    assert_eq!(said, "removed 5 nftables tables\n");
    assert_eq!(tables(node)?, [theirs]);
    let again = node.output(&program.display().to_string(), &["cleanup"])?;
    assert_eq!(again, "removed 0 nftables tables\n");
    Ok(())
}

#[test]
fn of_two_ranges_of_one_family_both_count() -> Result<()> {
    let flag =
        "--detect-local=node-cidr=10.10.0.0/16,172.20.0.0/14,fd00:10:10::/48,fd00:172:20::/48";
    let context = AgentContext::new("det-two", &[flag], |fixture| {
        fixture.service("web", 10, &HTTP, &[Who::Remote])
    })?;
    for to in at(10, 80) {
        for (who, masqueraded) in
            [(Who::Bridged, false), (Who::Routed, false), (Who::Outside, true)]
        {
            let outcome =
                context.fixture.ask(who, to, denizen_tests::packets::probe::Protocol::Tcp)?;
            assert_eq!(
                context.fixture.was_masqueraded(who, &outcome)?,
                masqueraded,
                "{who:?} to {to}"
            );
        }
    }
    Ok(())
}

#[test]
fn no_detector_is_an_error_and_the_usual_one_needs_no_flag() -> Result<()> {
    for flag in ["--detect-local=", "--detect-local=cluster-cidr", "--cluster-cidr=10.0.0.0/8"] {
        let refused = AgentContext::new("det-none", &[flag], |_| Ok(Vec::new())).err();
        let refused = format!("{:#}", refused.context(flag)?);
        assert!(refused.contains("pod-state"), "{flag}: {refused}");
    }
    let context = AgentContext::new("det-usual", &[], |fixture| {
        fixture.service("web", 10, &HTTP, &[Who::Remote])
    })?;
    for to in at(10, 80) {
        let outcome =
            context.fixture.ask(Who::Outside, to, denizen_tests::packets::probe::Protocol::Tcp)?;
        assert!(context.fixture.was_masqueraded(Who::Outside, &outcome)?, "{to}");
    }
    Ok(())
}
