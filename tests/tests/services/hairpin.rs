//! A pod that reaches itself through a service. It must see the node as the client, or else it
//! would answer itself directly, past the translation.

use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::{Fixture, Host, every_protocol, every_way};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{BRIDGE, Pod, Wiring};
use denizen_tests::packets::probe::Protocol::{Tcp, Udp};
use serde_json::{Value, json};

use crate::context::{AgentContext, BALANCER, HTTP, at, by, local};

/// What has not happened by then never will.
const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn a_pod_reaches_itself_through_its_service() -> Result<()> {
    let fixture = Fixture::new("hairpin")?;
    let ports = every_protocol();
    for (who, number) in [(Host::Bridged, 31), (Host::Routed, 32)] {
        let name = format!("self-{number}");
        fixture.cluster.manifests.put(&name, &fixture.service(&name, number, &ports, &[who])?)?;
    }
    let _agent = fixture.cluster.start_agent()?;
    for (who, other, number) in
        [(Host::Bridged, Host::Routed, 31), (Host::Routed, Host::Bridged, 32)]
    {
        for (to, protocol) in every_way(number) {
            let itself = fixture.probe(who, to, protocol)?;
            assert!(
                fixture.was_masqueraded(who, &itself)?,
                "{who:?} to itself over {to}/{protocol}: {itself:?}"
            );
            // Only the pair of itself and itself: another pod keeps its address.
            let another = fixture.probe(other, to, protocol)?;
            assert!(
                !fixture.was_masqueraded(other, &another)?,
                "{other:?} to {to}/{protocol}: {another:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_pod_reaches_itself_under_policy_local_too() -> Result<()> {
    let context =
        AgentContext::new("hairpin-local", &[], |fixture| local(fixture, &HTTP, &[Host::Bridged]))?;
    for to in [at(10, 80), at(BALANCER, 80)].concat() {
        assert_eq!(context.fate(Host::Bridged, to, Tcp)?, by([Host::Bridged]), "{to}");
        let outcome = context.fixture.probe(Host::Bridged, to, Tcp)?;
        assert!(context.fixture.was_masqueraded(Host::Bridged, &outcome)?, "{to}: {outcome:?}");
    }
    Ok(())
}

/// A node with a service of the bridged pod alone, number 33. Its bridge port has no hairpin mode.
fn without_hairpin_mode(label: &str) -> Result<Fixture> {
    let fixture = Fixture::new(label)?;
    let service = fixture.service("self", 33, &every_protocol(), &[Host::Bridged])?;
    fixture.cluster.manifests.put("self", &service)?;
    turn_off(&fixture)?;
    Ok(fixture)
}

fn turn_off(fixture: &Fixture) -> Result<()> {
    let port = fixture.bridged.host_interface();
    fixture.cluster.world.node.ip(&format!("link set {port} type bridge_slave hairpin off"))
}

fn has_hairpin_mode(fixture: &Fixture, pod: &Pod) -> Result<bool> {
    let shown = ["-details", "-json", "link", "show", "dev", pod.host_interface()];
    let links: Value = serde_json::from_str(&fixture.cluster.world.node.output("ip", &shown)?)?;
    let mode = &links[0]["linkinfo"]["info_slave_data"]["hairpin"];
    mode.as_bool().with_context(|| format!("{links}"))
}

fn reaches_itself(fixture: &Fixture) -> Result<()> {
    for (to, protocol) in every_way(33) {
        let itself = fixture.probe(Host::Bridged, to, protocol)?;
        assert!(fixture.was_masqueraded(Host::Bridged, &itself)?, "{to}/{protocol}: {itself:?}");
    }
    Ok(())
}

/// As the CNI plugin `bridge` makes it by default. From the first packet on, and whatever turns it
/// off.
#[test]
fn a_pod_reaches_itself_whatever_made_its_bridge_port() -> Result<()> {
    let mut fixture = without_hairpin_mode("hairpin-port")?;
    let by_iptables = fixture.cluster.start_agent_with(["--backend=iptables"])?;
    reaches_itself(&fixture)?;
    by_iptables.terminate()?;
    turn_off(&fixture)?;
    let agent = fixture.cluster.start_agent()?;
    reaches_itself(&fixture)?;
    turn_off(&fixture)?;
    eventually("it is on again", TIMEOUT, || has_hairpin_mode(&fixture, &fixture.bridged))?;
    reaches_itself(&fixture)?;

    fixture.cluster.wait_as(&json!({ "timeout": "30s", "onTimeout": "fail" }));
    let chain = fixture.cluster.chain(Wiring::Bridged).clone().without_hairpin_mode();
    let node = &fixture.cluster.world.node;
    let new = Pod::attach(node, Netns::new("hairpin-new")?, "new", &chain)?;
    assert!(has_hairpin_mode(&fixture, &new)?, "before the ADD returned");
    let chain = chain.without_denizen();
    let old = Pod::attach(node, Netns::new("hairpin-old")?, "old", &chain)?;
    assert!(!has_hairpin_mode(&fixture, &old)?, "nothing records it");
    fixture.cluster.remember(&old)?;
    eventually("the adopted pod's is on", TIMEOUT, || has_hairpin_mode(&fixture, &old))?;
    assert_eq!(warnings(&agent)?, [""; 0]);
    Ok(())
}

fn warnings(agent: &Agent) -> Result<Vec<String>> {
    let status = agent.status()?;
    let warnings = status["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Ok(warnings.filter(|text| text.contains("hairpin")).map(str::to_owned).collect())
}

/// `--hairpin-mode=none`: nothing is changed, and what does not work is said.
#[test]
fn ports_that_are_left_alone_are_named() -> Result<()> {
    let fixture = without_hairpin_mode("hairpin-none")?;
    let both = fixture.service("both", 34, &every_protocol(), &[Host::Bridged, Host::Routed])?;
    fixture.cluster.manifests.put("both", &both)?;
    let agent = fixture.cluster.start_agent_with(["--hairpin-mode=none"])?;
    assert!(!has_hairpin_mode(&fixture, &fixture.bridged)?);
    let warnings = warnings(&agent)?;
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    for word in ["cannot reach itself through a service", "--hairpin-mode is none", "bridged"] {
        assert!(warning.contains(word), "{warning}");
    }
    for (to, protocol) in every_way(33).step_by(4) {
        assert_eq!(fixture.probe(Host::Bridged, to, protocol)?.endpoint(), None, "{to}/{protocol}");
        let output = fixture.explain(&agent, Host::Bridged, to, protocol)?;
        let last = output.steps.last().context("a step")?;
        assert!(
            output.verdict == "drop" && last.why.contains(fixture.bridged.host_interface()),
            "{output:?}"
        );
        assert!(last.why.contains("--hairpin-mode is none"), "{output:?}");
        // Others reach it, and are told nothing of it.
        assert!(fixture.probe(Host::Routed, to, protocol)?.endpoint().is_some(), "{to}/{protocol}");
        assert_eq!(fixture.explain(&agent, Host::Routed, to, protocol)?.verdict, "forward");
    }
    for (to, protocol) in every_way(34) {
        let output = fixture.explain(&agent, Host::Bridged, to, protocol)?;
        let last = output.steps.last().context("a step")?;
        let word = "if the chosen endpoint is the sender itself, the bridge drops it";
        assert!(output.verdict == "forward" && last.what == word, "{output:?}");
    }
    Ok(())
}

/// Such a bridge hands the node a copy of what a pod sends to itself.
#[test]
fn a_pod_on_a_promiscuous_bridge_reaches_itself_once() -> Result<()> {
    let fixture = without_hairpin_mode("hairpin-promisc")?;
    fixture.cluster.world.node.ip(&format!("link set {BRIDGE} promisc on"))?;
    let _agent = fixture.cluster.start_agent()?;
    let datagrams = || -> Result<u64> {
        let counters = fixture.bridged.netns.output("nstat", &["-asz", "UdpInDatagrams"])?;
        let counter = counters.lines().find(|line| line.starts_with("UdpInDatagrams"));
        let counter = counter.and_then(|line| line.split_whitespace().nth(1));
        Ok(counter.with_context(|| counters.clone())?.parse()?)
    };
    let before = datagrams()?;
    let to = every_way(33).find(|(to, protocol)| to.is_ipv4() && *protocol == Udp);
    let (to, protocol) = to.context("a way")?;
    let itself = fixture.probe(Host::Bridged, to, protocol)?;
    assert!(fixture.was_masqueraded(Host::Bridged, &itself)?, "{itself:?}");
    assert_eq!(datagrams()? - before, 2, "the question and the answer");
    reaches_itself(&fixture)
}
