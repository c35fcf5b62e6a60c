//! The iptables backend while it runs: what others do to its rules and sets, restarts, and the way
//! from one backend to the other. No connection is lost by any of it.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::iptables::{self, Variant};
use denizen_tests::kernel::ruleset::{self, FIREWALL};
use denizen_tests::node::fixture::{Fixture, Host, PORT, every_way, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::load::Load;
use denizen_tests::packets::long_connection::{self, LongConnection};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::{for_each_variant, test_length};
use serde_json::json;

/// The backend looks every ten seconds; what has not happened by then never will.
const TIMEOUT: Duration = Duration::from_secs(60);

struct LiveContext {
    fixture: Fixture,
}

impl LiveContext {
    fn new(label: &str) -> Result<Self> {
        let fixture = long_connection::fixture(label)?;
        Ok(Self { fixture })
    }

    fn start(&self, flags: Vec<String>) -> Result<Agent> {
        self.fixture.cluster.start_agent_with(flags)
    }

    fn lasting(&self) -> Result<[LongConnection; 2]> {
        let open = |who| {
            LongConnection::open(self.fixture.place(who).0, SocketAddr::new(service_ips(11)[0], 7))
        };
        Ok([open(Host::Bridged)?, open(Host::Outside)?])
    }

    fn load(&self) -> Result<Load> {
        self.fixture.cluster.world.forget_quickly()?;
        let mut load = Load::default();
        for who in [Host::Bridged, Host::Routed, Host::Outside] {
            let targets =
                every_way(10).filter(|(_, protocol)| *protocol != Protocol::Sctp).collect();
            load.client(self.fixture.place(who).0, targets, |outcome| {
                outcome.endpoint().is_some()
            })?;
        }
        Ok(load)
    }

    fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    fn dump(&self, variant: Variant) -> Result<String> {
        variant.dump(self.node())
    }
}

/// Everything that others do to the chains before the next look is one drift; twice a minute is
/// forgiven.
fn changes_are_repaired(label: &str, variant: Variant) -> Result<()> {
    let context = LiveContext::new(label)?;
    let node = context.node();
    variant.run(node, "-t nat -N THEIRS")?;
    variant.run(node, "-t nat -A PREROUTING -j THEIRS")?;
    let agent = context.start(variant.flags())?;
    let (expected, sets) = (context.dump(variant)?, iptables::sets(node)?);
    ensure!(sets.lines().count() == 4, "two pods of two families: {sets}");
    let mut streams = context.lasting()?;
    let repaired = |count: u64| {
        eventually(&format!("repair {count}"), TIMEOUT, || {
            let status = agent.status()?;
            Ok(context.dump(variant)? == expected
                && iptables::sets(node)? == sets
                && status["driftRepaired"].as_u64() >= Some(count))
        })
    };
    for harm in [
        "-t nat -F KUBE-SERVICES",
        "-t nat -I KUBE-MARK-MASQ -j RETURN",
        "-t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA",
        "-t nat -A PREROUTING -j KUBE-SERVICES",
        "-t filter -F KUBE-FORWARD",
    ] {
        variant.run(node, harm)?;
    }
    repaired(1)?;
    streams.iter_mut().try_for_each(LongConnection::still_alive)?;
    let first = sets.lines().next().unwrap_or_default();
    let element: Vec<&str> = first.split(' ').collect();
    node.output("ipset", &["del", element[1], element[2]])?;
    node.output("ipset", &["add", "DENIZEN-PODS-4", "192.0.2.77,eth0"])?;
    repaired(2)?;
    let reset = "*nat\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\n:THEIRS -\n-A PREROUTING -j THEIRS\nCOMMIT\n";
    variant.replace(node, "iptables", reset)?;
    repaired(3)?;
    streams.iter_mut().try_for_each(LongConnection::still_alive)?;
    ensure!(expected.contains("-A PREROUTING -j THEIRS"), "others' rules stay");
    Ok(())
}

for_each_variant!(what_others_change_is_repaired = changes_are_repaired, "ipt-drift");

/// Rules of every shape: what `iptables-save` says of one otherwise than it was written would be
/// taken for somebody's doing at every look.
fn nothing_is_read_otherwise_than_written(label: &str, variant: Variant) -> Result<()> {
    let context = LiveContext::new(label)?;
    every_shape(&context.fixture)?;
    let file = context.fixture.cluster.run_dir().join("egress.yaml");
    fs::write(&file, "nonMasqueradeCIDRs: ['0.0.0.0/0', '::/0', 10.0.0.0/8]")?;
    for mode in
        ["pod-state=port-exact", "bridge-port", "bridge=cni0,cni1", "interface-prefix=veth,cni"]
    {
        let mut flags = variant.flags();
        flags.push(format!("--detect-local={mode}"));
        flags.push(format!("--egress-masquerade-config={}", file.display()));
        flags.push("--open-forward".to_owned());
        context.start(flags.clone())?.terminate()?;
        let again = context.start(flags)?;
        let log = again.log();
        ensure!(!log.contains("rules are brought up to date"), "{mode}: {log}");
        ensure!(again.status()?["errors"] == json!([]), "{mode}: {log}");
        again.terminate()?;
    }
    Ok(())
}

fn every_shape(fixture: &Fixture) -> Result<()> {
    for (number, policy) in [(20, "Cluster"), (21, "Local")] {
        let name = policy.to_lowercase();
        let port = [Port::tcp("http", 80, PORT).at_node(30_000 + u16::from(number))];
        let mut objects = fixture.service(&name, number, &port, &long_connection::MEMBERS)?;
        let spec = &mut objects[0]["spec"];
        spec["sessionAffinity"] = json!("ClientIP");
        spec["externalTrafficPolicy"] = json!(policy);
        spec["externalIPs"] = json!([format!("198.51.100.{number}")]);
        spec["loadBalancerSourceRanges"] =
            json!(["0.0.0.0/0", "::/0", "192.0.2.0/24", "2001:db8::/32"]);
        let ingress = json!([{ "ip": format!("198.51.101.{number}") }, { "ip": format!("2001:db8:1b::{number}") }]);
        objects[0]["status"] = json!({ "loadBalancer": { "ingress": ingress } });
        fixture.cluster.manifests.put(&name, &objects)?;
    }
    let nobody = fixture.service("nobody", 22, &[Port::tcp("http", 80, PORT)], &[])?;
    fixture.cluster.manifests.put("nobody", &nobody)
}

for_each_variant!(nothing_is_read_otherwise_than_written, "ipt-text");

/// Packets that each rule has counted. A chain that is written anew counts from nothing.
fn counters(text: &str) -> Vec<(String, u64)> {
    let counted = |line: &str| {
        let (counter, rule) = line.split_once("[")?.1.split_once("] ")?;
        let packets = counter.split(':').next()?.parse().ok()?;
        rule.contains("KUBE-").then(|| (rule.to_owned(), packets))
    };
    text.lines().filter_map(counted).collect()
}

fn restarts_change_nothing(label: &str, variant: Variant, mode: &str) -> Result<()> {
    let context = LiveContext::new(label)?;
    let mut flags = variant.flags();
    flags.push(format!("--detect-local={mode}"));
    let agent = context.start(flags.clone())?;
    let expected = context.dump(variant)?;
    let mut streams = context.lasting()?;
    let load = context.load()?;
    eventually("packets", TIMEOUT, || {
        let text = variant.counted(context.node())?;
        Ok(counters(&text)
            .iter()
            .any(|(rule, packets)| rule.contains("KUBE-SEP-") && *packets > 100))
    })?;
    agent.terminate()?;
    let before = counters(&variant.counted(context.node())?);
    for _ in 0..test_length::times(20, 4) {
        let mut settings = context.fixture.cluster.settings();
        settings.flags = flags.clone();
        let agent = Agent::spawn(context.node(), settings)?;
        thread::sleep(Duration::from_millis(u64::from(std::process::id()) % 40));
        agent.kill()?;
        streams.iter_mut().try_for_each(LongConnection::still_alive)?;
    }
    let agent = context.start(flags)?;
    ensure!(agent.status()?["driftRepaired"] == 0, "{}", agent.status()?);
    let after = counters(&variant.counted(context.node())?);
    let tally = load.stop()?;
    ensure!(tally.failed == 0, "{tally:?}");
    assert_eq!(context.dump(variant)?, expected);
    for ((rule, then), (same, now)) in before.iter().zip(&after) {
        ensure!(rule == same && then <= now, "written anew: {rule}: {then}, then {now}");
    }
    streams.iter_mut().try_for_each(LongConnection::still_alive)
}

for_each_variant!(restarts_change_nothing, "ipt-again", "pod-state");

for_each_variant!(
    restarts_change_nothing_where_ports_matter = restarts_change_nothing,
    "ipt-port",
    "pod-state=port-exact"
);

/// From nftables to iptables and back, time after time: the old rules serve until the new ones are
/// all there, then they go, and a packet that is on its way through them at that instant is served
/// all the same.
fn backends_change(label: &str, variant: Variant) -> Result<()> {
    let context = LiveContext::new(label)?;
    let nftables = || vec!["--backend=nftables".to_owned()];
    let mut agent = context.start(nftables())?;
    let mut streams = context.lasting()?;
    let load = context.load()?;
    let is_gone = || {
        let tables = ruleset::tables(context.node())?;
        let left = |name: &str| tables.iter().any(|table| table.ends_with(name));
        Ok(!left(" denizen") && FIREWALL.iter().all(|table| left(table)))
    };
    for _ in 0..test_length::times(20, 2) {
        agent.terminate()?;
        agent = context.start(variant.flags())?;
        eventually("the services' tables are gone, not the firewall's", TIMEOUT, is_gone)?;
        ensure!(context.dump(variant)?.contains("KUBE-SVC-"), "rules");
        agent.terminate()?;
        agent = context.start(nftables())?;
        eventually("chains and sets are gone", TIMEOUT, || {
            let chains = context.dump(variant)?.contains("KUBE-");
            Ok(!chains && context.node().output("ipset", &["list", "-n"])?.is_empty())
        })?;
    }
    let tally = load.stop()?;
    ensure!(tally.failed == 0, "{tally:?}");
    streams.iter_mut().try_for_each(LongConnection::still_alive)
}

for_each_variant!(backends_change_and_nothing_is_left = backends_change, "ipt-swap");
