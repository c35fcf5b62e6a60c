//! Connections that a policy forbids while both ends keep sending.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::eventually::observed;
use denizen_tests::kernel::conntrack::tracked;
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::{LabelSelector, PolicyPeer, PolicyRule, PolicyWorld};

use super::connections::{Connection, ENDING, connections};
use super::conversation::{CarriedBy, Conversation, PORT};
use super::test_cluster::{TIMEOUT, TestCluster, x};
use denizen_tests::node::pod::BRIDGE;

/// The port at which `x/a` serves a service, and the service's addresses.
const SERVICE: u16 = 8999;
const SERVICE_IPS: [&str; 2] = ["172.30.9.1", "fd00:30::9:1"];

/// Long enough for every end to send some times.
const A_WHILE: Duration = Duration::from_millis(300);
const ROUND: Duration = Duration::from_millis(10);

/// Whether a conversation is to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    GoesOn,
    Ends,
    /// The server hears nothing. A node always reaches its own pods.
    Unheard,
}

/// All of them, until it is dropped.
struct Talk {
    conversations: Arc<[Conversation]>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Talk {
    fn start(groups: [Vec<Conversation>; 2]) -> Self {
        let conversations: Arc<[Conversation]> = groups.into_iter().flatten().collect();
        let stop = Arc::<AtomicBool>::default();
        let thread = thread::spawn({
            let (conversations, stop) = (conversations.clone(), stop.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    conversations.iter().for_each(Conversation::talk);
                    thread::sleep(ROUND);
                }
            }
        });
        Self { conversations, stop, thread: Some(thread) }
    }

    /// What is unlike `fates`: whether each end hears the other for a while.
    fn unlike(&self, fates: &[Fate]) -> Vec<String> {
        let before: Vec<_> = self.conversations.iter().map(Conversation::heard).collect();
        thread::sleep(A_WHILE);
        let mut wrong = Vec::new();
        for ((it, before), fate) in self.conversations.iter().zip(before).zip(fates) {
            let now = it.heard();
            let [client, server] = [now[0] > before[0], now[1] > before[1]];
            let is_so = match fate {
                Fate::GoesOn => client && server,
                Fate::Ends => !client && !server,
                Fate::Unheard => !server,
            };
            if !is_so {
                wrong.push(format!("{}: is to be {fate:?}, {before:?} then {now:?}", it.name));
            }
        }
        wrong
    }

    /// Waits until they are so.
    fn until(&self, fates: &[Fate]) -> Result<()> {
        observed("as they are to be", TIMEOUT, || Ok(self.unlike(fates)), Vec::is_empty).map(drop)
    }

    /// They are so now.
    fn are(&self, fates: &[Fate]) -> Result<()> {
        let wrong = self.unlike(fates);
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Each of some kinds, in both families.
fn both(kinds: &[CarriedBy]) -> impl Iterator<Item = (CarriedBy, usize)> {
    kinds.iter().flat_map(|kind| [0, 1].map(|family| (*kind, family)))
}

/// Conversations of every kind between pods, each with a number of its own.
fn conversations(cluster: &TestCluster, pairs: &[(&str, &str)]) -> Result<Vec<Conversation>> {
    let mut all = Vec::new();
    for (from, to) in pairs {
        for (kind, family) in both(&CarriedBy::ALL) {
            let client = (cluster.netns(from), cluster.addresses(from)[family]);
            let server = SocketAddr::new(cluster.addresses(to)[family], PORT + all.len() as u16);
            all.push(Conversation::open(kind, client, (cluster.netns(to), server), server)?);
        }
    }
    Ok(all)
}

/// The same from a pod to its own node.
fn with_node(cluster: &TestCluster, from: &str) -> Result<Vec<Conversation>> {
    let with = |(kind, family): (CarriedBy, usize)| {
        let client = (cluster.netns(from), cluster.addresses(from)[family]);
        let node = cluster.play.nodes.hosts[0].node.addresses[family];
        let server = SocketAddr::new(node, PORT);
        Conversation::open(kind, client, (cluster.node(0), server), server)
    };
    both(&CarriedBy::ALL).map(with).collect()
}

/// Those with ports from a pod through a service to `x/a`.
fn through_service(cluster: &mut TestCluster, from: &str) -> Result<Vec<Conversation>> {
    let ports =
        [Port::tcp("tcp", PORT, SERVICE), Port::tcp("udp", PORT, SERVICE).over(Protocol::Udp)];
    let service = manifest::service("spoken-to", &SERVICE_IPS.map(ip), &ports);
    let node = &cluster.play.nodes.hosts[0].node.name;
    let slices = cluster
        .addresses("x/a")
        .map(|address| manifest::slice("spoken-to", &ports, &[(address, node)]));
    cluster.play.more = [vec![service], slices.into()].concat();
    cluster.put([])?;
    let with = |(kind, family): (CarriedBy, usize)| {
        let client = (cluster.netns(from), cluster.addresses(from)[family]);
        let server = SocketAddr::new(cluster.addresses("x/a")[family], SERVICE);
        let to = SocketAddr::new(ip(SERVICE_IPS[family]), PORT);
        Conversation::open(kind, client, (cluster.netns("x/a"), server), to)
    };
    both(&[CarriedBy::Tcp, CarriedBy::Udp]).map(with).collect()
}

/// A fate for each of some groups of conversations.
fn fates<const N: usize>(groups: [(usize, Fate); N]) -> Vec<Fate> {
    groups.into_iter().flat_map(|(count, fate)| vec![fate; count]).collect()
}

/// Conntrack would take the server's next packet for the first one of a connection, if it did not
/// know the one that is forbidden.
#[test]
fn what_is_forbidden_ends_though_both_sides_send() -> Result<()> {
    use Fate::{Ends, GoesOn};
    let mut cluster = TestCluster::new("np-forbidden")?;
    let through_service = through_service(&mut cluster, "x/b")?;
    // From `y`, from `x`, and answers to pods that are isolated.
    let pairs = [("y/a", "x/a"), ("x/b", "x/a"), ("x/c", "x/a"), ("x/a", "y/a"), ("x/b", "y/a")];
    let talk = Talk::start([conversations(&cluster, &pairs)?, through_service]);
    talk.until(&fates([(44, GoesOn)]))?;
    cluster.put([x("deny").ingress([])])?;
    thread::sleep(ENDING);
    let from_outside = fates([(24, Ends), (16, GoesOn), (4, Ends)]);
    talk.are(&from_outside)?;

    cluster.end_agent(true)?;
    talk.are(&from_outside)?;
    cluster.start_agent()?;
    talk.are(&from_outside)?;
    // An agent that does not remember what was forbidden finds it.
    let from_y = PolicyPeer::namespaces(LabelSelector::label("ns", "y"));
    cluster.put([x("from-y").ingress([PolicyRule::from([from_y])])])?;
    talk.until(&fates([(8, GoesOn), (16, Ends), (16, GoesOn), (4, Ends)]))?;
    cluster.expect(cluster.netns("y/a"), "x/a", true)?;
    cluster.expect(cluster.netns("x/c"), "x/a", false)?;
    cluster.put([])?;
    talk.until(&fates([(44, GoesOn)]))
}

/// What a pod may not send any more, to other nodes and to its own.
#[test]
fn what_is_forbidden_for_egress_ends_though_both_sides_send() -> Result<()> {
    use Fate::{Ends, GoesOn, Unheard};
    let mut cluster = TestCluster::new("np-forbidden-out")?;
    let pairs = [("x/a", "y/a"), ("x/b", "y/a"), ("x/a", "x/c"), ("y/a", "x/a")];
    let talk = Talk::start([conversations(&cluster, &pairs)?, with_node(&cluster, "x/a")?]);
    talk.until(&fates([(40, GoesOn)]))?;
    cluster.put([x("deny").egress([])])?;
    thread::sleep(ENDING);
    talk.are(&fates([(24, Ends), (8, GoesOn), (8, Unheard)]))?;
    cluster.put([])?;
    talk.until(&fates([(40, GoesOn)]))
}

/// Between pods on a bridge that shows its frames only since there is a policy. Whatever conntrack
/// sees of a connection first, it is from the middle.
#[test]
fn what_is_forbidden_ends_though_its_beginning_was_not_seen() -> Result<()> {
    use Fate::{Ends, GoesOn};
    let mut cluster = TestCluster::new("np-unseen")?;
    for tables in ["iptables", "ip6tables"] {
        cluster.node(0).sysctl(&format!("net.bridge.bridge-nf-call-{tables}"), "0")?;
    }
    cluster.end_agent(true)?;
    cluster
        .node(0)
        .ip(&format!("link set {BRIDGE} type bridge nf_call_iptables 0 nf_call_ip6tables 0"))?;
    let objects = Objects::Manifests(cluster.play.nodes.manifests.folder().to_owned());
    cluster.play.nodes.hosts[0].start_agent(objects, &["--services=off"])?;
    let pairs = [("x/c", "x/a"), ("x/a", "x/c")];
    let mut open = Vec::new();
    for (from, to) in pairs {
        for family in [0, 1] {
            let client = (cluster.netns(from), cluster.addresses(from)[family]);
            let server = SocketAddr::new(cluster.addresses(to)[family], PORT + open.len() as u16);
            open.push(Conversation::open(
                CarriedBy::Tcp,
                client,
                (cluster.netns(to), server),
                server,
            )?);
        }
    }
    let talk = Talk::start([open, Vec::new()]);
    talk.until(&fates([(4, GoesOn)]))?;
    let tracked = tracked(cluster.node(0), Protocol::Tcp)?;
    ensure!(tracked.is_empty(), "no frame was shown: {tracked:?}");
    let from_a = PolicyPeer::pods(LabelSelector::label("pod", "a"));
    let policies = vec![x("from-a").ingress([PolicyRule::from([from_a])])];
    let objects = PolicyWorld { policies, ..PolicyWorld::default() }.manifests();
    cluster.play.nodes.manifests.put("policies", &objects)?;
    cluster
        .play
        .nodes
        .settled(|node, status| status["networkPolicy"]["policies"] == [1, 0][node])?;
    thread::sleep(ENDING);
    talk.are(&fates([(2, Ends), (2, GoesOn)]))
}

/// Conntrack forgets a connection that both ends have closed before they give up. It would take
/// what an end then sends again for a new connection, and let it pass.
#[test]
fn what_both_ends_close_while_it_is_forbidden_is_over_for_both() -> Result<()> {
    let mut cluster = TestCluster::new("np-closed")?;
    cluster.node(0).sysctl("net.netfilter.nf_conntrack_tcp_timeout_last_ack", "1")?;
    let open = connections(&cluster, &["y/a", "x/b", "x/c"], "x/a")?;
    cluster.put([x("deny").ingress([])])?;
    thread::sleep(ENDING);
    for Connection { client, server } in &open {
        for mut end in [client, server] {
            end.write_all(b"late")?;
            end.shutdown(Shutdown::Write)?;
            end.set_read_timeout(Some(TIMEOUT))?;
        }
    }
    for Connection { client, server } in &open {
        for mut end in [client, server] {
            let heard = end.read(&mut [0; 16]).map_err(|error| error.kind());
            ensure!(heard == Err(ErrorKind::ConnectionReset), "{:?}: {heard:?}", end.peer_addr());
        }
    }
    Ok(())
}
