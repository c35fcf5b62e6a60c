//! A node with two pods, whose uplink leads straight to a pod of another node; and two pods with
//! nothing between them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::cluster::{Cluster, OTHER_NODE};
use denizen_tests::fixture::Fixture;
use denizen_tests::manifest;
use denizen_tests::netns::Netns;
use denizen_tests::pod::{BRIDGE, Pod, Wiring};
use denizen_tests::policy::{NetworkPolicy, Peer, Rule, Selector, World};
use denizen_tests::probe::{Outcome, Probe, SILENCE};
use denizen_tests::world::ip;
use serde_json::Value;

use super::cost::{self, Cost, UPLINK};
use super::table::Path;
use super::work::{PORTS, Work, serve};
use super::{Route, Rules};

/// An emulated processor has to load the kernel's modules first.
const PATIENCE: Duration = Duration::from_secs(90);

/// The other node's pod, as the node and as a pod without a node reach it.
const PEER: &str = "192.168.2.10";
const PEER_OF_ENDS: &str = "10.99.0.2";

/// The service that the other node's pod serves.
const SERVICE: &str = "172.30.0.10";

/// Whom a pod talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Pod,
    Service,
}

/// What everything is measured on.
pub(super) struct Node {
    fixture: Fixture,
    /// The pod without a node.
    end: Netns,
    _peer: Netns,
}

impl Node {
    pub(super) fn new() -> Result<Self> {
        let fixture = Fixture::on(Cluster::new("fast", &Value::Null)?)?;
        let node = &fixture.cluster.world.node;
        let (peer, end) = (Netns::new("fast-peer")?, Netns::new("fast-end")?);
        let name = peer.name();
        node.ip(&format!(
            "link add {UPLINK} type veth peer name eth0 netns {name}\n\
             addr add 192.168.2.2/24 dev {UPLINK}\nlink set {UPLINK} up"
        ))?;
        end.ip(&format!(
            "link add eth0 type veth peer name eth1 netns {name}\n\
             addr add 10.99.0.1/24 dev eth0\nlink set eth0 up"
        ))?;
        peer.ip(&format!(
            "addr add {PEER}/24 dev eth0\nlink set eth0 up\nroute add default via 192.168.2.2\n\
             addr add {PEER_OF_ENDS}/24 dev eth1\nlink set eth1 up"
        ))?;
        // What short connections leave behind would fill the table.
        node.sysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", "1")?;
        serve(&peer)?;
        let manifests = &fixture.cluster.manifests;
        let service = [
            manifest::service("far", &[ip(SERVICE)], &PORTS),
            manifest::slice("far", &PORTS, &[(ip(PEER), OTHER_NODE)]),
        ];
        manifests.put("far", &service)?;
        Ok(Self { fixture, end, _peer: peer })
    }

    fn netns(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    fn pod(&self, wiring: Wiring) -> &Pod {
        match wiring {
            Wiring::Bridged => &self.fixture.bridged,
            Wiring::Routed => &self.fixture.routed,
        }
    }

    /// Has the agent program the kernel. It does not live on, so that its own work is not measured.
    pub(super) fn program(&self, rules: Rules) -> Result<()> {
        let cluster = &self.fixture.cluster;
        let policy = match rules {
            Rules::Services => "--network-policy=off",
            Rules::Policies => "--network-policy=on",
        };
        if rules == Rules::Policies {
            cluster.manifests.put("policies", &isolation())?;
        }
        let settings = cluster.settings_with(["--backend=nftables", policy]);
        let mut agent = Agent::spawn(self.netns(), settings)?;
        agent.wait_programmed(PATIENCE)?;
        let isolated = if rules == Rules::Policies { 2 } else { 0 };
        agent.until("pods are isolated", PATIENCE, |status| {
            status["networkPolicy"]["isolated"].as_u64().unwrap_or_default() == isolated
        })?;
        ensure!(agent.status()?["errors"] == serde_json::json!([]), "{}", agent.status()?);
        agent.quiet();
        agent.kill()?;
        for wiring in [Wiring::Routed, Wiring::Bridged] {
            self.ensure_as_programmed(rules, wiring)?;
        }
        Ok(())
    }

    /// Policies permit the way to the other node's pod alone.
    fn ensure_as_programmed(&self, rules: Rules, wiring: Wiring) -> Result<()> {
        let outside = self.fixture.cluster.world.addresses().client[0];
        let probe = Probe::tcp(SocketAddr::new(outside, 80)).patience(SILENCE);
        let outcome = probe.ask_in(&self.pod(wiring).netns);
        let expected = match rules {
            Rules::Services => Outcome::Refused,
            Rules::Policies => Outcome::Dropped,
        };
        ensure!(outcome == expected, "{wiring:?}, {rules:?}: {outcome:?}");
        Ok(())
    }

    /// What the work costs with and without the flowtable. It is an error if the packets did not go
    /// that way.
    pub(super) fn measured(&self, route: Route, work: Work, path: Path) -> Result<Cost> {
        let (node, pod) = (self.netns(), self.pod(route.wiring));
        let pods: Vec<IpAddr> = [&self.fixture.bridged, &self.fixture.routed]
            .iter()
            .flat_map(|it| it.addresses.iter().copied().filter(IpAddr::is_ipv4))
            .collect();
        let devices = [BRIDGE, self.fixture.routed.host_interface()];
        path.set(node, &pods, &devices, &[self.fixture.bridged.host_interface()])?;
        let to = match route.target {
            Target::Pod => ip(PEER),
            Target::Service => ip(SERVICE),
        };
        let cost = work.run(&pod.netns, to, |job| {
            let cost = cost::measured(node, job)?;
            if work.is_one_flow() {
                self.ensure_way(route.wiring, work, path, cost)?;
            }
            Ok(cost)
        });
        cost.with_context(|| format!("{route:?}, {work}, {path}"))
    }

    /// While the flow is there. Whether packets through a bridge take the fast path depends on the
    /// kernel and on bridge netfilter: the table says how many did not.
    fn ensure_way(&self, wiring: Wiring, work: Work, path: Path, cost: Cost) -> Result<()> {
        let port = format!("dport={}", work.port());
        let entries = self.netns().output("conntrack", &["-L", "-f", "ipv4"])?;
        let is_ours = |line: &&str| line.contains(&port) && line.contains("[OFFLOAD]");
        let ours: Vec<&str> = entries.lines().filter(is_ours).collect();
        let is_well = match (path, wiring) {
            (Path::Slow, _) => ours.is_empty() && cost.forwarded > 0.99,
            (_, Wiring::Routed) => ours.len() == 1 && cost.forwarded < 0.01,
            (_, Wiring::Bridged) => ours.len() == 1 || cost.forwarded > 0.99,
        };
        ensure!(is_well, "on the fast path: {ours:?}, and {cost:?}");
        Ok(())
    }

    /// What the work costs two pods without a node between them.
    pub(super) fn between_ends(&self, work: Work) -> Result<Cost> {
        let measured =
            work.run(&self.end, ip(PEER_OF_ENDS), |job| cost::measured(self.netns(), job));
        measured.with_context(|| format!("{work} between two ends"))
    }
}

/// All pods of this node are isolated in both directions, and may talk to the other node's.
fn isolation() -> Vec<Value> {
    let far = || [Peer::block("192.168.2.0/24", [])];
    let policy = NetworkPolicy::new("default", "far-alone", Selector::default());
    let policy = policy.ingress([Rule::from(far())]).egress([Rule::to(far())]);
    World { policies: vec![policy], ..World::default() }.manifests()
}
