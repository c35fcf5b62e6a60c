//! A pod that no policy selects takes an address that nobody has, and that no label covers, so that
//! ClusterNetworkPolicies by labels say nothing of it.

use std::io::Error;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener};
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::node::cni::POD_INTERFACE;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::BRIDGE;
use denizen_tests::node::world::ip;
use denizen_tests::packets::frame::{Mac, ether_type, frame as framed, mac_of, udp};
use denizen_tests::policy::ClusterNetworkPolicy;
use nix::net::if_::if_nametoindex;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use super::{End, EscapeAttempts, PORT, at, none_leads, open};
use crate::regressions::test_cluster::TestCluster;
use crate::tiers::{everybody, from, to};

/// Outside of every pod's range.
const OUTSIDE: [&str; 2] = ["203.0.113.9", "2001:db8:9::9"];
/// Beside the addresses of bridged pods, and on their link.
const NEARBY: [&str; 4] = ["10.10.1.201", "fd00:10:1::201", "169.254.7.7", "fe80::bad"];

/// What has not connected by then never will.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// One of namespace x, as subject or peer.
fn x(pod: &str) -> Value {
    json!({ "pods": {
        "namespaceSelector": { "matchLabels": { "ns": "x" } },
        "podSelector": { "matchLabels": { "pod": pod } },
    } })
}

fn admin(subject: &str) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy::new("Admin", 0, "p", x(subject))
}

fn put(cluster: &mut TestCluster, tiers: impl Into<Vec<ClusterNetworkPolicy>>) -> Result<()> {
    cluster.world.tiers = tiers.into();
    super::put(cluster, [])
}

/// To one pod, by a neighbour or router with this Ethernet address.
fn attempts(own: Mac, via: Mac, target: End, sources: &[&str]) -> EscapeAttempts {
    let mut attempts = EscapeAttempts::default();
    for source in sources.iter().map(|source| ip(source)) {
        attempts.add(format!("UDP from {source}"), |marker| {
            let target = if source.is_ipv4() { target.v4 } else { target.v6 };
            let packet = udp(at(source), at(target), marker);
            framed(own, via, &[], ether_type(source), &packet)
        });
    }
    attempts
}

/// x/a admits no pod. Its neighbour, a routed pod of its node and a pod of the other node try all
/// the same. No policy selects a pod of the other node.
#[test]
fn no_pod_evades_a_deny_by_labels_under_an_address_without_labels() -> Result<()> {
    let mut cluster = TestCluster::new("escape-unlabelled")?;
    let [a, b, c, far] = ["x/a", "x/b", "x/c", "y/a"].map(|pod| End::of(&cluster, pod));
    let (a, b, c, far) = (a?, b?, c?, far?);
    let gateway = End::gateway(&cluster, "x/b")?;
    let far_bridge = mac_of(cluster.node(1), BRIDGE)?;
    for host in 0..2 {
        cluster.node(host).sysctl("net.ipv4.conf.all.rp_filter", "0")?;
    }
    let at_a = open(cluster.netns("x/a"))?;
    let switched = attempts(c.mac, a.mac, a, &[&NEARBY[..], &OUTSIDE].concat());
    let senders = [
        ("a neighbour", switched, open(cluster.netns("x/c"))?),
        ("a routed pod", attempts(b.mac, gateway.mac, a, &OUTSIDE), open(cluster.netns("x/b"))?),
        (
            "a pod of another node",
            attempts(far.mac, far_bridge, a, &OUTSIDE),
            open(cluster.netns("y/a"))?,
        ),
    ];
    // Nobody is denied anything.
    let accepts = || admin("a").ingress([from("Accept", everybody())]);
    for tiers in [vec![], vec![accepts()]] {
        put(&mut cluster, tiers)?;
        for (who, attempts, socket) in &senders {
            let lead = attempts.lead_patiently(socket, &at_a)?;
            ensure!(lead == attempts.names(), "of {who}, only {lead:#?}");
        }
    }
    // To be skipped is to be denied, by what comes later.
    for action in ["Deny", "Pass"] {
        put(&mut cluster, [admin("a").ingress([from(action, everybody())])])?;
        for (who, attempts, socket) in &senders {
            none_leads(attempts, socket, &at_a, &format!("{action}: {who}"))?;
        }
    }
    Ok(())
}

/// x/c may not send to x/a, its neighbour, which no policy selects, and which helps it.
#[test]
fn no_pod_sends_to_a_denied_neighbour_under_an_address_without_labels() -> Result<()> {
    let mut cluster = TestCluster::new("escape-accomplice")?;
    let a = End::of(&cluster, "x/a")?;
    let addresses = [&NEARBY[..], &OUTSIDE].concat();
    let mac = a.mac.map(|byte| format!("{byte:02x}")).join(":");
    for address in &addresses {
        let length = if ip(address).is_ipv4() { 32 } else { 128 };
        let nodad = if ip(address).is_ipv4() { "" } else { "nodad" };
        cluster
            .netns("x/a")
            .ip(&format!("addr add {address}/{length} dev {POD_INTERFACE} {nodad}"))?;
        cluster.netns("x/c").ip(&format!(
            "route replace {address}/{length} dev {POD_INTERFACE}\n\
             neigh replace {address} lladdr {mac} dev {POD_INTERFACE} nud permanent"
        ))?;
    }
    let open_ways = connected(&cluster, &addresses)?;
    ensure!(open_ways.len() == addresses.len(), "without policies only {open_ways:?}");
    cluster.world.tiers = vec![admin("c").egress([to("Deny", x("a"))])];
    cluster.put([])?;
    let left = connected(&cluster, &addresses)?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// At which of these addresses x/c connects to x/a.
fn connected(cluster: &TestCluster, addresses: &[&str]) -> Result<Vec<SocketAddr>> {
    let mut connected = Vec::new();
    for address in addresses {
        let target = SocketAddr::new(ip(address), PORT);
        let listener = cluster.netns("x/a").run(|| TcpListener::bind(on_link(target)?))??;
        if connect(cluster.netns("x/c"), target)? {
            connected.push(target);
        }
        drop(listener);
    }
    Ok(connected)
}

/// With the scope of the pod's interface, if the address needs one.
fn on_link(address: SocketAddr) -> Result<SocketAddr, Error> {
    let SocketAddr::V6(v6) = address else { return Ok(address) };
    let is_link_local = |address: &Ipv6Addr| address.segments()[0] == 0xfe80;
    let scope = if is_link_local(v6.ip()) { if_nametoindex(POD_INTERFACE)? } else { 0 };
    Ok(SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into())
}

fn connect(from: &Netns, target: SocketAddr) -> Result<bool> {
    let connected = from.run(|| {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
        socket.connect_timeout(&on_link(target)?.into(), TIMEOUT)
    })?;
    Ok(connected.is_ok())
}
