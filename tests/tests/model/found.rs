//! What the model test has found, each by its name. (What needs real packets is in the kernel
//! tests: `node_port.rs`.)

use anyhow::Result;
use denizen_tests::node::manifest::{Port, service, slice};
use denizen_tests::node::world::ip;

use super::place::{AWAY, HERE};
use super::world::World;
use denizen_tests::oracle::reader::Arrival;

const HTTP: [Port; 1] = [Port::tcp("http", 80, 8080)];

/// A service whose endpoints these are, on the nodes of these names; and a packet to it.
fn world(endpoints: &[(&str, &str)], from: &str, interface: &str, flags: &[&str]) -> World {
    let endpoints: Vec<_> = endpoints.iter().map(|(address, node)| (ip(address), *node)).collect();
    World {
        services: vec![service("web", &[ip("172.30.0.10")], &HTTP)],
        slices: vec![slice("web", &HTTP, &endpoints)],
        node: None,
        ranges: Vec::new(),
        pods: Vec::new(),
        addresses: vec![(ip("192.168.0.2"), "eth0"), (ip("10.10.0.1"), "cni0")],
        flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        packets: vec![Arrival {
            source: ip(from),
            interface: Some(interface.to_owned()),
            port: None,
            destination: (ip("172.30.0.10"), 80).into(),
            protocol: 6,
        }],
    }
}

/// `explain` said that a sender who is handed to itself is masqueraded, also where nobody knew that
/// it is on this node, and the rules did not do it.
#[test]
fn who_is_not_known_to_be_here_is_no_hairpin() -> Result<()> {
    let bridge = ["--detect-local=bridge=cni0"];
    for node in [HERE, AWAY] {
        let world =
            world(&[("10.10.0.9", node), ("192.168.77.10", AWAY)], "10.10.0.9", "cni0", &bridge);
        super::agree(&world)?;
    }
    Ok(())
}

/// `explain` said that an endpoint in the node's own network sees the node as its client; what is
/// delivered here never passes the hook where sources are replaced.
#[test]
fn an_endpoint_of_the_nodes_own_sees_its_client() -> Result<()> {
    for endpoints in
        [&[("192.168.0.2", HERE)][..], &[("192.168.0.2", HERE), ("192.168.77.10", AWAY)]]
    {
        super::agree(&world(endpoints, "203.0.113.2", "eth0", &[]))?;
    }
    Ok(())
}
