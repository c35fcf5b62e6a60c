//! Five pods on two nodes, and single packets between them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::probe::{Outcome, Probe, SILENCE};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyWorld};

use crate::play::{Play, ServedBy};

/// What has not come about by then never will.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// On the first node two bridged pods, `x/a` and `x/c`, and a routed one, `x/b`; on the second one
/// a bridged one, `y/a`, and a routed one, `y/b`.
const PODS: [(&str, &str); 5] = [("x", "a"), ("y", "a"), ("x", "b"), ("y", "b"), ("x", "c")];

pub struct TestCluster {
    pub play: Play,
    pub world: PolicyWorld,
}

impl TestCluster {
    pub fn new(label: &str) -> Result<Self> {
        let (play, world) = Play::few(label, ServedBy::Agents, &PODS)?;
        Ok(Self { play, world })
    }

    /// These policies hold from now on.
    pub fn put(&mut self, policies: impl IntoIterator<Item = NetworkPolicy>) -> Result<()> {
        self.world.policies = policies.into_iter().collect();
        self.play.put(&self.world)
    }

    pub fn netns(&self, pod: &str) -> &Netns {
        &self.play.pod(pod).0.netns
    }

    pub fn node(&self, number: usize) -> &Netns {
        &self.play.nodes.hosts[number].netns
    }

    /// IPv4 first.
    pub fn addresses(&self, pod: &str) -> [IpAddr; 2] {
        let addresses = &self.play.pod(pod).0.addresses;
        [addresses[0], addresses[1]]
    }

    /// Says whether connections to port 80 of a pod are to arrive, in both families.
    pub fn expect(&self, from: &Netns, to: &str, arrive: bool) -> Result<()> {
        let mut addresses = self.addresses(to).into_iter();
        addresses.try_for_each(|to| expect_at(from, SocketAddr::new(to, 80), arrive))
    }

    pub fn end_agent(&mut self, kills: bool) -> Result<()> {
        let agent = self.play.nodes.hosts[0].agent.take().context("it was started")?;
        if kills {
            agent.kill()?
        } else {
            agent.terminate()?
        };
        Ok(())
    }

    pub fn start_agent(&mut self) -> Result<()> {
        let objects = Objects::Manifests(self.play.nodes.manifests.folder().to_owned());
        self.play.nodes.hosts[0].start_agent(objects, &[])
    }
}

/// Says whether a connection is to arrive.
pub fn expect_at(from: &Netns, to: SocketAddr, arrives: bool) -> Result<()> {
    let probe = if arrives { Probe::tcp(to) } else { Probe::tcp(to).timeout(SILENCE) };
    let outcome = probe.send_in(from);
    let as_expected = match &outcome {
        Outcome::Answered { .. } => arrives,
        Outcome::Dropped => !arrives,
        Outcome::Refused | Outcome::Unreachable | Outcome::Broken(_) => false,
    };
    ensure!(as_expected, "{} -> {to} is to arrive: {arrives}; {outcome:?}", from.name());
    Ok(())
}

/// For all pods of namespace x.
pub fn x(name: &str) -> NetworkPolicy {
    NetworkPolicy::new("x", name, LabelSelector::default())
}
