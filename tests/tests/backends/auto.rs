//! `--backend auto`: nftables where the kernel lets it have what it needs, else iptables, which
//! serves as well; and it says why.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::ruleset::{beside_firewall, tables};
use denizen_tests::kernel::table_owner::TableOwner;
use denizen_tests::node::fixture::{Fixture, Host, every_protocol, every_way};
use denizen_tests::packets::probe::Protocol;

/// What has not happened by then never will.
const TIMEOUT: Duration = Duration::from_secs(60);

fn context(label: &str) -> Result<Fixture> {
    let fixture = Fixture::new(label)?;
    let members = [Host::Bridged, Host::Routed, Host::Remote];
    let web = fixture.service("web", 10, &every_protocol(), &members)?;
    fixture.cluster.manifests.put("web", &web)?;
    let far = fixture.service("far", 11, &every_protocol(), &[Host::Remote])?;
    fixture.cluster.manifests.put("far", &far)?;
    Ok(fixture)
}

/// An agent that chooses for itself.
fn start(fixture: &Fixture, flags: &[&str]) -> Result<Agent> {
    fixture.cluster.start_agent_with(["--backend=auto"].iter().chain(flags).copied())
}

/// It says that it chose `backend`, and `why`: in its log, to a program and to a person. And it
/// serves.
fn chose(fixture: &Fixture, agent: &Agent, backend: &str, why: &str) -> Result<()> {
    let status = agent.status()?;
    assert_eq!(status["backend"], backend, "{status}");
    let output = status["backendWhy"].as_str().unwrap_or_default();
    ensure!(output.contains(why), "{output:?}, not {why:?}");
    let log = agent.log();
    let line = log.lines().rfind(|line| line.contains("backend chosen"));
    let line = line.with_context(|| log.clone())?;
    ensure!(line.contains(&format!("backend={backend}")) && line.contains(why), "{line}");
    assert_eq!(status["errors"], serde_json::json!([]));
    for who in [Host::Bridged, Host::Routed, Host::Outside, Host::ThisNode] {
        for (to, protocol) in every_way(10) {
            let outcome = fixture.probe(who, to, protocol)?;
            assert!(outcome.endpoint().is_some(), "{who:?} to {to}/{protocol}: {outcome:?}");
        }
    }
    Ok(())
}

#[test]
fn nftables_is_chosen_where_the_kernel_lets_it() -> Result<()> {
    let fixture = context("auto-nft")?;
    let agent = start(&fixture, &[])?;
    chose(&fixture, &agent, "nftables", "this kernel can do all that it needs")?;
    agent.terminate()?;
    // Its own tables are there now.
    let agent = start(&fixture, &[])?;
    chose(&fixture, &agent, "nftables", "this kernel can do all that it needs")
}

#[test]
fn iptables_serves_where_nftables_is_refused() -> Result<()> {
    for family in ["ip", "ip6"] {
        let fixture = context(&format!("auto-{family}"))?;
        let node = &fixture.cluster.world.node;
        let owned = TableOwner::table(node, family)?;
        let agent = start(&fixture, &[])?;
        let why = format!(
            "{family} table: it is owned by another process (netlink portid {})",
            owned.process()
        );
        chose(&fixture, &agent, "iptables", &why)?;
        agent.terminate()?;
        drop(owned);
        let agent = start(&fixture, &[])?;
        chose(&fixture, &agent, "nftables", "this kernel can do all that it needs")?;
    }
    Ok(())
}

/// Only where the ports of bridges matter is the bridge's table needed, and iptables has another
/// way to know them.
#[test]
fn the_bridges_table_is_asked_for_where_ports_matter() -> Result<()> {
    let fixture = context("auto-bridge")?;
    let owned = TableOwner::table(&fixture.cluster.world.node, "bridge")?;
    let agent = start(&fixture, &[])?;
    chose(&fixture, &agent, "nftables", "this kernel can do all that it needs")?;
    agent.terminate()?;
    let program = binary::ours("denizen-agent")?.display().to_string();
    let node = &fixture.cluster.world.node;
    let theirs = "table bridge denizen";
    let there = beside_firewall(&[theirs, "table ip denizen", "table ip6 denizen"]);
    assert_eq!(tables(node)?, there);
    assert_eq!(node.output(&program, &["cleanup"])?, "removed 5 nftables tables\n");
    assert_eq!(tables(node)?, [theirs], "it is not denizen's");
    let agent = start(&fixture, &["--detect-local=bridge-port"])?;
    chose(&fixture, &agent, "iptables", "bridge table: it is owned by another process")?;
    let (to, protocol) = every_way(11).next().context("no way")?;
    for (who, is_local) in [(Host::Bridged, true), (Host::Outside, false)] {
        let outcome = fixture.probe(who, to, protocol)?;
        assert_eq!(fixture.was_masqueraded(who, &outcome)?, !is_local, "{who:?}: {outcome:?}");
    }
    agent.terminate()?;
    drop(owned);
    let agent = start(&fixture, &["--detect-local=bridge-port"])?;
    chose(&fixture, &agent, "nftables", "this kernel can do all that it needs")
}

/// Services go on without the pod firewall where nobody asked for it, and status says why it is
/// off.
#[test]
fn policies_are_left_alone_where_nf_tables_is_refused() -> Result<()> {
    for (family, backend) in [("ip", "nftables"), ("bridge", "iptables")] {
        let fixture = context(&format!("auto-np-{family}"))?;
        let node = &fixture.cluster.world.node;
        let owned = TableOwner::named(node, &format!("{family} denizen-firewall"))?;
        let agent = fixture.cluster.start_agent_with([format!("--backend={backend}")])?;
        let status = agent.status()?;
        let why = status["networkPolicyWhy"].as_str().unwrap_or_default();
        let expected = format!("{family} table: it is owned by another process");
        ensure!(why.contains(&expected), "{status}");
        assert_eq!(status["networkPolicy"], serde_json::Value::Null);
        assert_eq!(status["errors"], serde_json::json!([]));
        for (to, protocol) in every_way(10) {
            ensure!(fixture.probe(Host::Bridged, to, protocol)?.endpoint().is_some());
        }
        agent.terminate()?;
        drop(owned);
        let agent = start(&fixture, &[])?;
        assert_eq!(agent.status()?["networkPolicy"]["pending"], 0);
    }
    Ok(())
}

/// No backend can tell a pod from its neighbour on the bridge then, so none is chosen.
#[test]
fn exact_ports_without_the_bridges_table_are_an_error() -> Result<()> {
    let fixture = context("auto-exact")?;
    let _owned = TableOwner::table(&fixture.cluster.world.node, "bridge")?;
    let refused = start(&fixture, &["--detect-local=pod-state=port-exact"]);
    let output = format!("{:#}", refused.err().context("it runs")?);
    for words in [
        "pod-state=port-exact cannot be had on this node",
        "bridge table: it is owned by another process",
    ] {
        ensure!(output.contains(words), "{output}");
    }
    Ok(())
}

/// The bridge's table is all that iptables needs of nf_tables to know ports exactly.
#[test]
fn exact_ports_are_known_with_iptables_where_the_bridges_table_can_be_had() -> Result<()> {
    let fixture = context("auto-ports")?;
    let _owned = TableOwner::table(&fixture.cluster.world.node, "ip")?;
    let agent = start(&fixture, &["--detect-local=pod-state=port-exact"])?;
    chose(&fixture, &agent, "iptables", "ip table: it is owned by another process")?;
    for (to, protocol) in every_way(11) {
        assert!(keeps_its_address(&fixture, Host::Bridged, to, protocol)?);
        assert!(!keeps_its_address(&fixture, Host::Outside, to, protocol)?);
    }
    Ok(())
}

/// Where iptables was asked for, it serves without the bridge's table, says what is wrong, and
/// tries again.
#[test]
fn iptables_serves_until_the_bridges_table_can_be_had() -> Result<()> {
    let fixture = context("auto-later")?;
    let node = &fixture.cluster.world.node;
    let owned = TableOwner::table(node, "bridge")?;
    let mut settings = fixture.cluster.settings();
    settings.flags =
        ["--backend=iptables", "--detect-local=pod-state=port-exact"].map(str::to_owned).into();
    let mut agent = Agent::spawn(node, settings)?;
    let (to, protocol) = every_way(11).next().context("no way")?;
    eventually("it serves", TIMEOUT, || {
        Ok(fixture.probe(Host::Outside, to, protocol)?.endpoint().is_some())
    })?;
    assert!(!keeps_its_address(&fixture, Host::Bridged, to, protocol)?);
    assert!(keeps_its_address(&fixture, Host::Routed, to, protocol)?);
    let status = agent.status()?;
    let errors = status["errors"].to_string();
    ensure!(errors.contains("nf_tables, bridge table"), "{errors}");
    assert_eq!(status["synced"], false, "{status}");
    drop(owned);
    agent.wait_programmed(TIMEOUT)?;
    assert!(keeps_its_address(&fixture, Host::Bridged, to, protocol)?);
    assert_eq!(agent.status()?["errors"], serde_json::json!([]));
    Ok(())
}

fn keeps_its_address(
    fixture: &Fixture,
    who: Host,
    to: SocketAddr,
    protocol: Protocol,
) -> Result<bool> {
    let outcome = fixture.probe(who, to, protocol)?;
    Ok(!fixture.was_masqueraded(who, &outcome)?)
}
