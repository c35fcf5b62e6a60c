//! Connections that were there before a policy, and what a connection needs besides its packets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};
use denizen_tests::policy::{LabelSelector, PolicyPeer, PolicyPort, PolicyRule};

use super::test_cluster::{TIMEOUT, TestCluster, x};

/// A port that nobody else listens at.
const PORT: u16 = 90;

/// What a change forbids ends within a second.
pub const ENDING: Duration = Duration::from_millis(1500);

/// Both ends of a connection between two pods.
pub struct Connection {
    pub client: TcpStream,
    pub server: TcpStream,
}

impl Connection {
    fn open(cluster: &TestCluster, from: &str, to: &str, family: usize) -> Result<Self> {
        let at = SocketAddr::new(cluster.addresses(to)[family], PORT);
        let listener = cluster.netns(to).run(|| TcpListener::bind(at))??;
        let client = cluster.netns(from).run(|| TcpStream::connect(at))??;
        let (server, _) = listener.accept()?;
        Ok(Self { client, server })
    }

    /// Whether a byte gets through in each direction.
    pub fn goes_on(&self, timeout: Duration) -> bool {
        let passes = |mut from: &TcpStream, mut to: &TcpStream| {
            to.set_read_timeout(Some(timeout)).is_ok()
                && from.write_all(b"?").is_ok()
                && to.read_exact(&mut [0]).is_ok()
        };
        passes(&self.client, &self.server) && passes(&self.server, &self.client)
    }
}

/// One in each family from each of these pods.
pub fn connections(cluster: &TestCluster, from: &[&str], to: &str) -> Result<Vec<Connection>> {
    let each = from.iter().flat_map(|from| [0, 1].map(|family| (from, family)));
    each.map(|(from, family)| Connection::open(cluster, from, to, family)).collect()
}

/// Nothing is under way while it ends.
#[test]
fn what_a_new_policy_forbids_ends() -> Result<()> {
    let mut cluster = TestCluster::new("np-ends")?;
    let open = connections(&cluster, &["y/a", "x/b", "x/c"], "x/a")?;
    ensure!(open.iter().all(|connection| connection.goes_on(TIMEOUT)));
    cluster.put([x("deny").ingress([])])?;
    std::thread::sleep(ENDING);
    ensure!(!open.iter().any(|connection| connection.goes_on(Duration::from_millis(300))));
    Ok(())
}

/// It may still send, so it still hears the answers.
#[test]
fn replies_to_a_pod_that_is_isolated_later_arrive() -> Result<()> {
    let mut cluster = TestCluster::new("np-replies")?;
    let open = connections(&cluster, &["x/a", "x/b"], "y/a")?;
    cluster.put([x("deny").ingress([])])?;
    std::thread::sleep(ENDING);
    ensure!(open.iter().all(|connection| connection.goes_on(TIMEOUT)));
    cluster.expect(cluster.netns("y/a"), "x/a", false)?;
    cluster.expect(cluster.netns("x/a"), "y/a", true)
}

#[test]
fn neighbours_are_found_by_isolated_pods() -> Result<()> {
    let mut cluster = TestCluster::new("np-neighbours")?;
    let own = || [PolicyPeer::pods(LabelSelector::default())];
    cluster.put([x("own").ingress([PolicyRule::from(own())]).egress([PolicyRule::to(own())])])?;
    for (from, to) in [("x/a", "x/c"), ("x/a", "x/b"), ("x/b", "x/a")] {
        for netns in [cluster.netns(from), cluster.netns(to), cluster.node(0)] {
            for version in ["-4", "-6"] {
                netns.output("ip", &[version, "neighbour", "flush", "all"])?;
            }
        }
        cluster.expect(cluster.netns(from), to, true)?;
    }
    cluster.expect(cluster.netns("y/a"), "x/a", false)
}

#[test]
fn icmp_errors_about_permitted_packets_arrive() -> Result<()> {
    let mut cluster = TestCluster::new("np-errors")?;
    let out = PolicyRule::to([PolicyPeer::namespaces(LabelSelector::label("ns", "y"))]);
    cluster.put([x("out").ingress([]).egress([out.at([PolicyPort::every(Protocol::Udp)])])])?;
    for to in cluster.addresses("y/a") {
        let outcome = Probe::udp(SocketAddr::new(to, PORT)).send_in(cluster.netns("x/a"));
        ensure!(outcome == Outcome::Refused, "{to}: {outcome:?}");
    }
    Ok(())
}
