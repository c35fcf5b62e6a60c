//! Flows that go on while their service changes: what is stale is gone once the change is reported
//! as programmed, and what is healthy never notices.

mod late;
mod restart;
mod syn;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, programmed};
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::conntrack::{KeptFlow, Tracked, insert};
use denizen_tests::node::cluster::{NODE, serve};
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::Wiring;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Outcome, Protocol};

/// What a change that has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Between two changes of a service that never rests: less than answers are given to arrive.
const PACE: Duration = Duration::from_millis(50);

const NODE_PORT: u16 = 30053;
const PORTS: [Port; 2] = [
    Port::tcp("udp", 53, PORT).over(Protocol::Udp).at_node(NODE_PORT),
    Port::tcp("sctp", 53, PORT).over(Protocol::Sctp).at_node(NODE_PORT),
];

/// A service over UDP and SCTP, and who uses it.
struct ConntrackContext {
    fixture: Fixture,
    /// The agent's.
    flags: Vec<String>,
}

impl ConntrackContext {
    fn new(label: &str) -> Result<Self> {
        let fixture = Fixture::new(label)?;
        // An association that is never finished is forgotten after three seconds.
        let key = "net.netfilter.nf_conntrack_sctp_timeout_cookie_wait";
        fixture.cluster.world.node.sysctl(key, "600")?;
        Ok(Self { fixture, flags: Vec::new() })
    }

    fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    /// An agent that has programmed everything, and looked for what became stale before it started.
    fn start_agent(&self) -> Result<Agent> {
        let mut settings = self.fixture.cluster.settings();
        settings.flags.extend_from_slice(&self.flags);
        let agent = Agent::start(self.node(), settings)?;
        eventually("done with looking", TIMEOUT, || Ok(agent.status()?["flushing"] == false))?;
        Ok(agent)
    }

    fn endpoints_are(&self, members: &[Host]) -> Result<()> {
        let service = self.fixture.service("dns", 10, &PORTS, members)?;
        self.fixture.cluster.manifests.put("dns", &service)
    }

    /// One flow for every frontend, protocol and family: from a pod to the cluster IP, from outside
    /// to it and to the node port.
    fn flows(&self) -> Result<Vec<KeptFlow>> {
        let mut flows = Vec::new();
        for protocol in [Protocol::Udp, Protocol::Sctp] {
            for cluster_ip in service_ips(10) {
                let node = self.fixture.address(Host::ThisNode, cluster_ip)?;
                for (who, to) in [
                    (Host::Bridged, SocketAddr::new(cluster_ip, 53)),
                    (Host::Outside, SocketAddr::new(cluster_ip, 53)),
                    (Host::Outside, SocketAddr::new(node, NODE_PORT)),
                ] {
                    let source = self.fixture.address(who, cluster_ip)?;
                    flows.push(KeptFlow::open(self.fixture.place(who).0, protocol, source, to)?);
                }
            }
        }
        Ok(flows)
    }

    fn is(&self, outcome: &Outcome, who: Host) -> bool {
        outcome.endpoint().is_some_and(|endpoint| {
            self.fixture.address(who, endpoint.ip()).is_ok_and(|ip| ip == endpoint.ip())
        })
    }

    fn all_are_answered_by(&self, flows: &[KeptFlow], who: Host) -> Result<()> {
        for flow in flows {
            let outcome = flow.send();
            ensure!(self.is(&outcome, who), "{flow:?}: not {who:?}, but {outcome:?}");
        }
        Ok(())
    }

    fn tracked(&self, flows: &[KeptFlow]) -> Result<Vec<Tracked>> {
        let entry = |flow: &KeptFlow| {
            flow.tracked(self.node())?.with_context(|| format!("{flow:?} is not tracked"))
        };
        flows.iter().map(entry).collect()
    }
}

#[test]
fn no_packet_goes_to_an_endpoint_that_was_replaced() -> Result<()> {
    let context = ConntrackContext::new("ct-replace")?;
    context.endpoints_are(&[Host::Routed])?;
    let agent = context.start_agent()?;
    let flows = context.flows()?;
    context.all_are_answered_by(&flows, Host::Routed)?;
    for who in [Host::Remote, Host::Routed] {
        let asked = || flows.iter().for_each(|flow| drop(flow.send()));
        let status = programmed(&agent, || context.endpoints_are(&[who]), asked)?;
        for _ in 0..5 {
            context.all_are_answered_by(&flows, who)?;
        }
        assert!(
            status["flushed"].as_u64() >= Some(flows.len() as u64),
            "every flow had to be flushed: {status}"
        );
    }
    Ok(())
}

/// Whatever changes again is given time for answers again, which must not keep what is gone for
/// ever.
#[test]
fn a_service_that_never_rests_loses_no_client() -> Result<()> {
    let context = ConntrackContext::new("ct-restless")?;
    context.endpoints_are(&[Host::Routed])?;
    let agent = context.start_agent()?;
    let flows = context.flows()?;
    context.all_are_answered_by(&flows, Host::Routed)?;
    let before = agent.status()?["lastSync"].clone();
    let mut members = [&[Host::Remote][..], &[Host::Remote, Host::Bridged]].into_iter().cycle();
    let asked = flows.iter().map(KeptFlow::send);
    eventually("freed, though the service goes on changing", TIMEOUT, || {
        let started = Instant::now();
        context.endpoints_are(members.next().context("there is always another")?)?;
        let is_stuck = asked.clone().any(|outcome| context.is(&outcome, Host::Routed));
        std::thread::sleep(PACE.saturating_sub(started.elapsed()));
        Ok(!is_stuck && agent.status()?["lastSync"] != before)
    })
}

#[test]
fn to_zero_and_back() -> Result<()> {
    let context = ConntrackContext::new("ct-zero")?;
    context.endpoints_are(&[Host::Remote])?;
    let agent = context.start_agent()?;
    let flows = context.flows()?;
    context.all_are_answered_by(&flows, Host::Remote)?;
    programmed(&agent, || context.endpoints_are(&[]), || ())?;
    for flow in &flows {
        assert_eq!(flow.send(), Outcome::Refused, "{flow:?}, to nobody");
    }
    programmed(&agent, || context.endpoints_are(&[Host::Remote]), || ())?;
    context.all_are_answered_by(&flows, Host::Remote)
}

/// What is sent to a cluster IP before there is a service goes its way untranslated, and as long as
/// the client sends, nobody asks the rules again.
#[test]
fn the_first_endpoint_frees_clients_from_the_black_hole() -> Result<()> {
    let context = ConntrackContext::new("ct-hole")?;
    let agent = context.start_agent()?;
    let flows = context.flows()?;
    for flow in &flows {
        // A node port that is none yet is a port at which nobody listens.
        let outcome = flow.send();
        assert!(outcome.endpoint().is_none(), "{flow:?} was answered: {outcome:?}");
        if matches!(outcome, Outcome::Unreachable) {
            let entry = flow.tracked(context.node())?.context("the black hole is tracked")?;
            assert_eq!(entry.reply_source, entry.destination, "nobody translated it");
        }
    }
    programmed(&agent, || context.endpoints_are(&[Host::Routed]), || ())?;
    context.all_are_answered_by(&flows, Host::Routed)
}

#[test]
fn a_service_that_is_deleted() -> Result<()> {
    let context = ConntrackContext::new("ct-delete")?;
    context.endpoints_are(&[Host::Remote])?;
    let agent = context.start_agent()?;
    let flows = context.flows()?;
    context.all_are_answered_by(&flows, Host::Remote)?;
    programmed(&agent, || context.fixture.cluster.manifests.remove("dns"), || ())?;
    for flow in &flows {
        assert_eq!(flow.tracked(context.node())?, None, "{flow:?}");
        let outcome = flow.send();
        assert!(outcome.endpoint().is_none(), "{flow:?} is still answered: {outcome:?}");
    }
    Ok(())
}

/// The runtime says so before the API does: the endpoint is still listed.
#[test]
fn a_local_pod_that_is_deleted() -> Result<()> {
    let context = ConntrackContext::new("ct-pod")?;
    let cluster = &context.fixture.cluster;
    let pod = cluster.add_pod("victim", Wiring::Routed)?;
    let protocols = [(Protocol::Udp, PORT), (Protocol::Sctp, PORT)];
    let _server = serve(&pod.netns, &pod.addresses, &protocols)?;
    let mut objects = vec![manifest::service("dns", &service_ips(10), &PORTS)];
    for address in &pod.addresses {
        let endpoint = [(*address, NODE)];
        objects.push(manifest::slice("dns", &PORTS, &endpoint));
    }
    cluster.manifests.put("dns", &objects)?;
    let _agent = context.start_agent()?;
    let flows = context.flows()?;
    for flow in &flows {
        assert!(flow.send().endpoint().is_some(), "{flow:?}");
    }
    let others = KeptFlow::open(
        context.fixture.place(Host::Bridged).0,
        Protocol::Udp,
        context.fixture.address(Host::Bridged, ip("10.0.0.1"))?,
        SocketAddr::new(context.fixture.address(Host::Remote, ip("10.0.0.1"))?, PORT),
    )?;
    assert!(others.send().endpoint().is_some());
    let untouched = others.tracked(context.node())?;
    assert!(untouched.is_some());
    pod.detach(context.node())?;
    eventually("flushed", TIMEOUT, || {
        Ok(flows
            .iter()
            .map(|flow| flow.tracked(context.node()))
            .collect::<Result<Vec<_>>>()?
            .iter()
            .all(Option::is_none))
    })?;
    assert_eq!(others.tracked(context.node())?, untouched, "a flow of others");
    Ok(())
}

/// An entry that appears when the first look is over, as that of a packet does which was on its way
/// through the old rules.
#[test]
fn the_second_look_catches_what_raced() -> Result<()> {
    let context = ConntrackContext::new("ct-second")?;
    context.endpoints_are(&[Host::Routed])?;
    let agent = context.start_agent()?;
    let to = SocketAddr::new(service_ips(10)[0], 53);
    let client = context.fixture.address(Host::Outside, to.ip())?;
    for (attempt, who) in [Host::Remote, Host::Routed].into_iter().cycle().take(40).enumerate() {
        let other = if who == Host::Remote { Host::Routed } else { Host::Remote };
        let dead = SocketAddr::new(context.fixture.address(other, to.ip())?, PORT);
        let begun = Instant::now();
        programmed(&agent, || context.endpoints_are(&[who]), || ())?;
        let source = SocketAddr::new(client, 40_000 + u16::try_from(attempt)?);
        insert(context.node(), source, to, dead)?;
        // On a busy machine the second look may have been before.
        if begun.elapsed() > Duration::from_millis(900) {
            continue;
        }
        return eventually("caught", TIMEOUT, || {
            let all = denizen_tests::kernel::conntrack::tracked(context.node(), Protocol::Udp)?;
            Ok(all.iter().all(|entry| entry.source != source))
        });
    }
    anyhow::bail!("never quick enough to come before the second look")
}

/// Somebody flushes the table: what comes before it is there again passes it by.
#[test]
fn flows_that_passed_missing_rules_by_are_flushed() -> Result<()> {
    let context = ConntrackContext::new("ct-drift")?;
    context.endpoints_are(&[Host::Remote])?;
    let agent = context.start_agent()?;
    let to = SocketAddr::new(service_ips(10)[0], 53);
    let client = SocketAddr::new(context.fixture.address(Host::Outside, to.ip())?, 40_000);
    insert(context.node(), client, to, to)?;
    programmed(&agent, || context.node().nft("delete table ip denizen"), || ())?;
    let all = denizen_tests::kernel::conntrack::tracked(context.node(), Protocol::Udp)?;
    assert!(all.iter().all(|entry| entry.source != client), "{all:?}");
    Ok(())
}

/// Many endpoints come and go; a flow to one that stays is the same entry all the time.
#[test]
fn changes_around_it_never_touch_a_healthy_flow() -> Result<()> {
    let context = ConntrackContext::new("ct-healthy")?;
    context.endpoints_are(&[Host::Remote])?;
    let agent = context.start_agent()?;
    let flows = context.flows()?;
    context.all_are_answered_by(&flows, Host::Remote)?;
    let before = context.tracked(&flows)?;
    for members in [
        &[Host::Remote, Host::Routed][..],
        &[Host::Remote, Host::Routed, Host::Bridged],
        &[Host::Remote, Host::Bridged],
        &[Host::Remote],
    ] {
        programmed(&agent, || context.endpoints_are(members), || ())?;
        context.all_are_answered_by(&flows, Host::Remote)?;
        assert_eq!(context.tracked(&flows)?, before, "{members:?}");
    }
    Ok(())
}

/// The node's own addresses are more than those of its links.
#[test]
fn flows_to_node_ports_at_addresses_on_no_link_are_flushed() -> Result<()> {
    let everywhere = "--nodeport-addresses=all,localhost";
    for (label, backend) in [("ct-rn", "nftables"), ("ct-rt", "iptables"), ("ct-rv", "ipvs")] {
        let mut context = ConntrackContext::new(label)?;
        context.flags = vec![format!("--backend={backend}"), everywhere.to_owned()];
        for routed in service_ips(99) {
            context.node().ip(&format!("route add local {routed} dev eth0 proto 66"))?;
        }
        context.endpoints_are(&[Host::Routed])?;
        let agent = context.start_agent()?;
        let mut flows = Vec::new();
        for protocol in [Protocol::Udp, Protocol::Sctp] {
            for routed in service_ips(99) {
                let source = context.fixture.address(Host::Outside, routed)?;
                let to = SocketAddr::new(routed, NODE_PORT);
                let outside = context.fixture.place(Host::Outside).0;
                flows.push(KeptFlow::open(outside, protocol, source, to)?);
            }
        }
        let to = SocketAddr::new(ip("127.0.0.2"), NODE_PORT);
        flows.push(KeptFlow::open(context.node(), Protocol::Udp, ip("127.0.0.1"), to)?);
        context.all_are_answered_by(&flows, Host::Routed)?;
        programmed(&agent, || context.endpoints_are(&[Host::Bridged]), || ())?;
        context.all_are_answered_by(&flows, Host::Bridged)?;
    }
    Ok(())
}
