//! Which iptables a node uses: kubelet's chains tell, else the rules that are there, and the
//! operator's word above all.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::fixture::{Host, service_ips};
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::load::Load;
use denizen_tests::packets::long_connection::{self, LongConnection};
use denizen_tests::packets::probe::Protocol;
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The program that makes a chain where only one family has it.
fn ip6tables(node: &Netns, variant: Variant, arguments: &[&str]) -> Result<()> {
    let program = match variant {
        Variant::Legacy => "ip6tables-legacy",
        Variant::Nft => "ip6tables-nft",
    };
    node.output(program, arguments).map(drop)
}

/// The agent's log says that it uses `variant`, and its chains are there and nowhere else.
fn uses(node: &Netns, agent: &Agent, variant: Variant, forced: bool) -> Result<()> {
    let line = format!("iptables variant={variant:?} forced={forced}");
    ensure!(agent.log().contains(&line), "not {line}: {}", agent.log());
    for each in Variant::BOTH {
        let has = each.dump(node)?.contains("-A KUBE-POSTROUTING");
        ensure!(has == (each == variant), "{each:?}: {has}, where {variant:?} is used");
    }
    Ok(())
}

/// On a node that is as `prepare` makes it.
fn finds(
    label: &str,
    prepare: impl Fn(&Netns) -> Result<()>,
    flags: &[&str],
    variant: Variant,
) -> Result<()> {
    let cluster = Cluster::new(label, &Value::Null)?;
    let node = &cluster.world.node;
    prepare(node)?;
    let agent = cluster.start_agent_with(["--backend=iptables"].iter().chain(flags).copied())?;
    uses(node, &agent, variant, !flags.is_empty())
}

/// Rules of somebody's, `count` of them.
fn rules(node: &Netns, variant: Variant, count: usize) -> Result<()> {
    (0..count).try_for_each(|_| variant.run(node, "-t filter -A INPUT -j ACCEPT"))
}

/// kubelet's chain alone in one variant, and more rules in the other, which then mean nothing.
fn kubelets_chain_tells(label: &str, name: &str) -> Result<()> {
    for (here, there) in [(Variant::Nft, Variant::Legacy), (Variant::Legacy, Variant::Nft)] {
        let chain = format!("-t mangle -N {name}");
        let prepare = |node: &Netns| {
            here.run(node, &chain)?;
            rules(node, there, 3)
        };
        finds(&format!("{label}-{here:?}"), prepare, &[], here)?;
        let prepare = |node: &Netns| {
            ip6tables(node, here, &["-t", "mangle", "-N", name])?;
            rules(node, there, 3)
        };
        finds(&format!("{label}6-{here:?}"), prepare, &[], here)?;
    }
    Ok(())
}

#[test]
fn kubelets_hint_tells() -> Result<()> {
    kubelets_chain_tells("var-hint", "KUBE-IPTABLES-HINT")
}

#[test]
fn kubelets_canary_tells() -> Result<()> {
    kubelets_chain_tells("var-canary", "KUBE-KUBELET-CANARY")
}

/// A node that was switched over has the old hint until it is booted anew.
#[test]
fn of_two_hints_nfts_counts() -> Result<()> {
    let both = |node: &Netns| {
        let mut each = Variant::BOTH.into_iter();
        each.try_for_each(|variant| variant.run(node, "-t mangle -N KUBE-IPTABLES-HINT"))
    };
    finds("var-both", both, &[], Variant::Nft)
}

#[test]
fn without_a_hint_more_rules_tell() -> Result<()> {
    let more = |most: Variant| {
        move |node: &Netns| {
            for variant in Variant::BOTH {
                rules(node, variant, if variant == most { 3 } else { 2 })?;
            }
            Ok(())
        }
    };
    finds("var-more-l", more(Variant::Legacy), &[], Variant::Legacy)?;
    finds("var-more-n", more(Variant::Nft), &[], Variant::Nft)
}

/// And looking makes no table of ip_tables', through which every packet would have to go.
#[test]
fn where_nothing_tells_it_is_nft() -> Result<()> {
    let cluster = Cluster::new("var-none", &Value::Null)?;
    let node = &cluster.world.node;
    let agent = cluster.start_agent_with(["--backend=iptables"])?;
    let legacy = |node: &Netns| {
        node.output("sh", &["-c", "cat /proc/net/ip_tables_names /proc/net/ip6_tables_names"])
    };
    ensure!(agent.log().contains("iptables variant=Nft forced=false"), "{}", agent.log());
    ensure!(legacy(node)?.is_empty(), "made: {}", legacy(node)?);
    agent.terminate()?;
    // Nor does the nftables backend, which takes the chains away.
    let agent = cluster.start_agent_with(["--backend=nftables"])?;
    eventually("chains are gone", TIMEOUT, || Ok(!Variant::Nft.dump(node)?.contains("KUBE-")))?;
    agent.terminate()?;
    ensure!(legacy(node)?.is_empty(), "made: {}", legacy(node)?);
    Ok(())
}

#[test]
fn the_flag_wins() -> Result<()> {
    let nft = |node: &Netns| Variant::Nft.run(node, "-t mangle -N KUBE-IPTABLES-HINT");
    finds("var-flag-l", nft, &["--iptables-variant=legacy"], Variant::Legacy)?;
    let legacy = |node: &Netns| Variant::Legacy.run(node, "-t mangle -N KUBE-IPTABLES-HINT");
    finds("var-flag-n", legacy, &["--iptables-variant=nft"], Variant::Nft)
}

/// The rules of the one serve until those of the other are there, and then go: left behind, they
/// would send packets to endpoints of long ago.
#[test]
fn another_variant_at_a_restart_leaves_nothing_behind() -> Result<()> {
    let fixture = long_connection::fixture("var-swap")?;
    let node = &fixture.cluster.world.node;
    let start = |variant: Variant| fixture.cluster.start_agent_with(variant.flags());
    let mut agent = start(Variant::Legacy)?;
    let to = SocketAddr::new(service_ips(11)[0], 7);
    let mut stream = LongConnection::open(fixture.place(Host::Bridged).0, to)?;
    fixture.cluster.world.forget_quickly()?;
    let mut load = Load::default();
    for who in [Host::Bridged, Host::Routed, Host::Outside] {
        let web = (SocketAddr::new(service_ips(10)[0], 80), Protocol::Tcp);
        load.client(fixture.place(who).0, vec![web], |outcome| outcome.endpoint().is_some())?;
    }
    for (next, last) in [(Variant::Nft, Variant::Legacy), (Variant::Legacy, Variant::Nft)] {
        agent.terminate()?;
        agent = start(next)?;
        eventually("the other's chains are gone", TIMEOUT, || {
            Ok(!last.dump(node)?.contains("KUBE-"))
        })?;
        uses(node, &agent, next, true)?;
    }
    let tally = load.stop()?;
    ensure!(tally.failed == 0, "{tally:?}");
    stream.still_alive()
}
