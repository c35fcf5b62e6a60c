//! Virtual servers and endpoints that nobody wants any more, and the order in which real servers
//! are made.

use std::collections::BTreeSet;

use super::super::servers::Servers;
use super::super::state::ServerState;
use super::fake::Fake;
use super::steps::{address, key, server, started, synced};
use crate::EndedConnections;

const AT: &str = "10.96.0.10:80";

fn with_connections(fake: &Fake, at: &str, active: u32) {
    fake.0.borrow_mut().active.insert(at.parse().expect("an address"), active);
}

fn ended(pod_ended: u64, timed_out: u64) -> EndedConnections {
    EndedConnections { pod_ended, timed_out }
}

fn looked(servers: &mut Servers<Fake>) -> usize {
    servers.request_resync();
    synced(servers)
}

/// Also where nf_tables balances the service from now on: that is the same to IPVS.
#[test]
fn connections_outlive_their_service() {
    let fake = Fake::default();
    let web = server(AT, "rr", &[("10.1.0.2:80", 1), ("10.1.0.3:80", 1)]);
    let mut servers = started(&fake, std::slice::from_ref(&web));
    synced(&mut servers);
    fake.log();
    with_connections(&fake, "10.1.0.3:80", 1);
    servers.want(key(AT), None);
    synced(&mut servers);
    let idle = ["change 10.96.0.10:80/6 10.1.0.2:80 0", "change 10.96.0.10:80/6 10.1.0.3:80 0"];
    assert_eq!(fake.log(), idle);
    servers.take_addresses();
    assert!(!servers.has_more(&BTreeSet::new()), "there is nothing to do until the next look");
    assert_eq!(looked(&mut servers), 0);
    // It comes back.
    servers.want(key(AT), Some(web));
    assert_eq!(synced(&mut servers), 2);
    assert!(servers.is_ready(&key(AT)));
    // It goes again, and its connection ends.
    servers.want(key(AT), None);
    synced(&mut servers);
    fake.log();
    with_connections(&fake, "10.1.0.3:80", 0);
    looked(&mut servers);
    assert_eq!(fake.log(), ["remove 10.96.0.10:80/6"]);
    looked(&mut servers);
    assert_eq!(fake.log(), ["not local 10.96.0.10"]);
}

/// The client of a pod that is gone never ends its connection.
#[test]
fn connections_that_do_not_end_are_not_waited_for_for_ever() {
    let fake = Fake::default();
    let mut servers = started(&fake, &[server(AT, "rr", &[("10.1.0.2:80", 1)])]);
    synced(&mut servers);
    with_connections(&fake, "10.1.0.2:80", 1);
    servers.want(key(AT), None);
    synced(&mut servers);
    fake.log();
    let looks = (1..100).find(|_| looked(&mut servers) > 0);
    assert_eq!(looks, Some(15));
    assert_eq!(fake.log(), ["remove 10.96.0.10:80/6"]);
    assert_eq!(servers.ended_connections(), ended(0, 1));
}

/// IPVS counts no flow of UDP as ended while its client goes on.
#[test]
fn flows_of_udp_are_not_waited_for() {
    let fake = Fake::default();
    let mut dns = server(AT, "rr", &[("10.1.0.2:80", 1)]);
    dns.server.key.protocol = 17;
    let udp = dns.server.key;
    let mut servers = started(&fake, &[dns]);
    synced(&mut servers);
    with_connections(&fake, "10.1.0.2:80", 1);
    fake.log();
    servers.want(udp, None);
    synced(&mut servers);
    assert_eq!(fake.log(), ["remove 10.96.0.10:80/17"]);
}

const STAYS: &str = "10.1.0.2:80";
const LEAVES: &str = "10.1.0.3:80";

/// `web` with two endpoints, of which the second one has connections and then leaves the slices.
/// `recorded` are the pods of this node.
fn left(fake: &Fake, recorded: &[&str]) -> Servers<Fake> {
    let mut servers = started(fake, &[server(AT, "rr", &[(STAYS, 1), (LEAVES, 1)])]);
    servers.set_pods(recorded.iter().map(|ip| address(ip)).collect());
    synced(&mut servers);
    with_connections(fake, LEAVES, 1);
    fake.log();
    servers.want(key(AT), Some(server(AT, "rr", &[(STAYS, 1)])));
    synced(&mut servers);
    assert_eq!(fake.log(), ["change 10.96.0.10:80/6 10.1.0.3:80 0"]);
    servers.take_addresses();
    assert!(!servers.has_more(&[key(AT)].into()), "there is nothing to do until the next look");
    servers
}

/// A label changed, for example: the pod goes on.
#[test]
fn connections_outlive_their_endpoints_membership() {
    let fake = Fake::default();
    let mut servers = left(&fake, &[]);
    assert_eq!(looked(&mut servers), 0);
    // It comes back, and leaves again.
    servers.want(key(AT), Some(server(AT, "rr", &[(STAYS, 1), (LEAVES, 1)])));
    synced(&mut servers);
    servers.want(key(AT), Some(server(AT, "rr", &[(STAYS, 1)])));
    synced(&mut servers);
    fake.log();
    with_connections(&fake, LEAVES, 0);
    looked(&mut servers);
    assert_eq!(fake.log(), ["remove 10.96.0.10:80/6 10.1.0.3:80"]);
}

/// Nobody says that a pod of another node has ended; of one of this node, the plugin does.
#[test]
fn an_endpoint_is_waited_for_until_its_pod_ends_or_for_a_while() {
    let remote = Fake::default();
    let mut servers = left(&remote, &["10.1.0.9"]);
    let looks = (1..100).find(|_| looked(&mut servers) > 0);
    assert_eq!(looks, Some(15));
    assert_eq!(remote.log(), ["remove 10.96.0.10:80/6 10.1.0.3:80"]);
    assert_eq!(servers.ended_connections(), ended(0, 1));

    let local = Fake::default();
    let mut servers = left(&local, &["10.1.0.3"]);
    assert_eq!((1..100).find(|_| looked(&mut servers) > 0), None);
    assert_eq!(servers.ended_connections(), ended(0, 0));
    servers.set_pods(BTreeSet::new());
    synced(&mut servers);
    assert_eq!(servers.ended_connections(), ended(1, 0));
    assert_eq!(local.log(), ["remove 10.96.0.10:80/6 10.1.0.3:80"]);
}

/// So that clients of a pod that is gone need not wait, also where the slices did not have it any
/// more, and where the service is gone.
#[test]
fn connections_end_with_their_pod() {
    let fake = Fake::default();
    let mut servers = started(&fake, &[server(AT, "rr", &[(STAYS, 1), (LEAVES, 1)])]);
    servers.set_pods([address("10.1.0.3")].into());
    synced(&mut servers);
    with_connections(&fake, LEAVES, 1);
    with_connections(&fake, STAYS, 1);
    fake.log();
    servers.set_pods(BTreeSet::new());
    servers.want(key(AT), Some(server(AT, "rr", &[(STAYS, 1)])));
    synced(&mut servers);
    assert_eq!(fake.log(), ["remove 10.96.0.10:80/6 10.1.0.3:80"], "the slices had it");

    servers.set_pods([address("10.1.0.2")].into());
    servers.want(key(AT), None);
    synced(&mut servers);
    assert_eq!(fake.log(), ["change 10.96.0.10:80/6 10.1.0.2:80 0"], "the service is gone");
    servers.set_pods(BTreeSet::new());
    synced(&mut servers);
    assert_eq!(fake.log(), ["remove 10.96.0.10:80/6"]);
    assert_eq!(servers.ended_connections(), ended(2, 0));
}

/// With `dh` the others' clients would be refused, and a flow of UDP does not end.
#[test]
fn endpoints_of_dh_and_udp_go_at_once() {
    for (scheduler, protocol) in [("dh", 6), ("rr", 17)] {
        let fake = Fake::default();
        let with = |reals: &[(&str, u32)]| {
            let mut state = server(AT, scheduler, reals);
            state.server.key.protocol = protocol;
            state
        };
        let before = with(&[(STAYS, 1), (LEAVES, 1)]);
        let of = before.server.key;
        let mut servers = started(&fake, &[before]);
        synced(&mut servers);
        with_connections(&fake, LEAVES, 1);
        fake.log();
        servers.want(of, Some(with(&[(STAYS, 1)])));
        synced(&mut servers);
        assert_eq!(fake.log(), [format!("remove {of} {LEAVES}")]);
    }
}

/// The endpoints of a new virtual server, in the order in which this node makes them.
fn made(node: &str, scheduler: &str) -> Vec<String> {
    let fake = Fake::default();
    let endpoints: Vec<String> = (2..10).map(|host| format!("10.1.0.{host}:80")).collect();
    let reals: Vec<(&str, u32)> = endpoints.iter().map(|at| (at.as_str(), 1)).collect();
    let web: ServerState = server(AT, scheduler, &reals);
    let mut servers = started(&fake, &[web]);
    servers.set_sources(vec![address(node)]);
    synced(&mut servers);
    fake.log().into_iter().filter(|line| line.contains("10.1.0.")).collect()
}

/// Else all nodes would send their first clients to one endpoint. Those that hash agree.
#[test]
fn each_node_begins_with_another_endpoint_unless_clients_are_hashed() {
    let nodes = ["192.168.0.2", "192.168.0.3", "192.168.0.4", "192.168.0.5"];
    let orders = |scheduler| -> BTreeSet<Vec<String>> {
        nodes.iter().map(|node| made(node, scheduler)).collect()
    };
    assert_eq!(orders("rr").len(), nodes.len());
    assert_eq!(made(nodes[0], "rr"), made(nodes[0], "rr"), "the same at every start");
    for scheduler in ["mh", "sh", "dh"] {
        assert_eq!(orders(scheduler).len(), 1);
    }
}

/// Whatever one others remove, as many calls as there are virtual servers find it.
#[test]
fn every_virtual_server_is_asked_for_in_turn() {
    let fake = Fake::default();
    let all = ["10.96.0.10:80", "10.96.0.11:80", "10.96.0.12:80"];
    let wanted = all.map(|at| server(at, "rr", &[("10.1.0.2:80", 1)]));
    let mut servers = started(&fake, &wanted);
    assert!(!servers.misses_next().expect("the kernel tells"), "nothing is there yet");
    synced(&mut servers);
    for gone in all {
        fake.0.borrow_mut().servers.remove(&key(gone));
        let found = (0..all.len()).filter(|_| servers.misses_next().expect("the kernel tells"));
        assert_eq!(found.count(), 1, "{gone}");
        looked(&mut servers);
    }
}
