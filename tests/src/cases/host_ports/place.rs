//! At which of the node's addresses a host port answers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::context::{Context, of_node, port_at};
use crate::eventually::eventually;
use crate::node::cluster::serve;
use crate::node::fixture::Host;
use crate::node::pod::Wiring;
use crate::node::world::{host_length, ip};
use crate::packets::probe::Protocol;

/// A host port with a hostIP is served at the node's second addresses, and refused at the first
/// ones.
pub fn a_host_ip_is_served_there_alone(context: &Context) -> Result<()> {
    let ports =
        json!([port_at(8080, "tcp", "192.168.1.2"), port_at(8080, "tcp", "2001:db8:1::2"),]);
    let serving = context.add_pod("pod", Wiring::Bridged, &ports)?;
    let [v4, v4_other, v6, v6_other] =
        [0, 1, 2, 3].map(|at| SocketAddr::new(context.addresses()[at], 8080));
    for who in [Host::Outside, Host::Routed, Host::ThisNode] {
        context.is_answered(who, v4_other, Protocol::Tcp, &serving)?;
        context.is_answered(who, v6_other, Protocol::Tcp, &serving)?;
        context.is_left_alone(who, v4, Protocol::Tcp)?;
        context.is_left_alone(who, v6, Protocol::Tcp)?;
    }
    context.end([serving])
}

/// Ports with a hostIP that is not an address of the node yet, and one without a hostIP.
pub fn an_address_that_comes_later_is_served_soon(context: &Context) -> Result<()> {
    let cases = [("192.168.9.9", "192.168.9.9:8081"), ("2001:db8:9::9", "[2001:db8:9::9]:8081")];
    let mut ports = vec![port_at(8082, "tcp", "")];
    ports.extend(cases.map(|(later, _)| port_at(8081, "tcp", later)));
    let serving = context.add_pod("pod", Wiring::Routed, &json!(ports))?;
    let output = context.conflicts()?;
    let is_reported = |of: &str| output.iter().any(|conflict| conflict.contains(of));
    let named = cases.iter().all(|(_, at)| is_reported(&format!("{at}/tcp of default/pod")));
    ensure!(output.len() == cases.len() && named, "{output:?}");
    for (later, _) in cases {
        let later = ip(later);
        let length = host_length(later);
        context.node().ip(&format!("addr add {later}/{length} dev eth0 nodad"))?;
        let own = context.fixture.address(Host::ThisNode, later)?;
        for number in [8081, 8082] {
            let to = SocketAddr::new(later, number);
            let pod = serving.address_like(later)?;
            eventually("served", Duration::from_secs(2), || {
                let outcome = of_node(Protocol::Tcp, own, to).send_in(context.node());
                Ok(outcome.endpoint().map(|endpoint| endpoint.ip()) == Some(pod))
            })?;
        }
    }
    let output = context.conflicts()?;
    ensure!(output.is_empty(), "{output:?}");
    for (later, _) in cases {
        let length = host_length(ip(later));
        context.node().ip(&format!("addr del {later}/{length} dev eth0"))?;
    }
    context.end([serving])
}

/// What a pod sends to another host's address is not redirected, even if that is a hostIP.
pub fn a_host_ip_of_others_leaves_them_alone(context: &Context) -> Result<()> {
    let world = &context.fixture.cluster.world;
    let others = [ip("1.1.1.1"), ip("2606:4700::1111")];
    for other in others {
        world.add_client(other)?;
    }
    let dns = [(Protocol::Udp, 53), (Protocol::Tcp, 53)];
    let _dns = serve(&world.client, &others, &dns)?;
    let stated = ["1.1.1.1", "2606:4700::1111", ""];
    let ports: Vec<_> = stated
        .into_iter()
        .flat_map(|at| ["udp", "tcp"].map(|protocol| port_at(53, protocol, at)))
        .collect();
    let serving = context.add_pod("pod", Wiring::Bridged, &json!(ports))?;
    for who in [Host::Bridged, Host::Routed, Host::ThisNode] {
        for to in others.map(|other| SocketAddr::new(other, 53)) {
            for (protocol, _) in dns {
                let outcome = context.fixture.probe(who, to, protocol)?;
                ensure!(outcome.endpoint() == Some(to), "{who:?} {to}/{protocol}: {outcome:?}");
            }
        }
    }
    context.end([serving])
}

/// `0.0.0.0` stands for every IPv4 address, `::` for every IPv6 address, and no hostIP for both.
pub fn the_unspecified_addresses_stand_for_their_family(context: &Context) -> Result<()> {
    let ports = json!([
        port_at(8081, "tcp", "0.0.0.0"),
        port_at(8082, "tcp", "::"),
        port_at(8083, "tcp", ""),
    ]);
    let serving = context.add_pod("pod", Wiring::Bridged, &ports)?;
    let to = |at: usize, port| SocketAddr::new(context.addresses()[at], port);
    for who in [Host::Outside, Host::ThisNode] {
        for (at, port) in [(0, 8081), (1, 8081), (2, 8082), (3, 8082), (0, 8083), (2, 8083)] {
            context.is_answered(who, to(at, port), Protocol::Tcp, &serving)?;
        }
        context.is_left_alone(who, to(2, 8081), Protocol::Tcp)?;
        context.is_left_alone(who, to(0, 8082), Protocol::Tcp)?;
    }
    context.end([serving])
}

/// Kubernetes' own two cases: one port with another hostIP or another protocol.
pub fn each_protocol_and_host_ip_has_its_own_pod(context: &Context) -> Result<()> {
    let at = |at: usize| SocketAddr::new(context.addresses()[at], 8080);
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    let families = [(at(0), at(1), "10.10.0.1"), (at(2), at(3), "fd00:10:10::1")];
    let mut pods = Vec::new();
    for (name, protocol, asked) in [
        ("a", "tcp", families.map(|(first, _, _)| first)),
        ("b", "tcp", families.map(|(_, second, _)| second)),
        ("c", "udp", families.map(|(first, _, _)| first)),
    ] {
        let ports = asked.map(|to| port_at(8080, protocol, &to.ip().to_string()));
        pods.push(context.add_pod(name, Wiring::Bridged, &json!(ports))?);
    }
    // And a pod without a hostIP, which gets what the others leave.
    let ports = json!([port_at(8080, "tcp", ""), port_at(8080, "udp", "")]);
    pods.push(context.add_pod("d", Wiring::Routed, &ports)?);
    for (first, second, bridge) in families {
        let bridge = SocketAddr::new(ip(bridge), 8080);
        for (to, protocol, pod) in
            [(first, tcp, 0), (second, tcp, 1), (first, udp, 2), (second, udp, 3), (bridge, tcp, 3)]
        {
            context.is_answered(Host::ThisNode, to, protocol, &pods[pod])?;
        }
        for to in [first, second] {
            let outcome = context.fixture.probe(Host::Outside, to, Protocol::Sctp)?;
            ensure!(outcome.endpoint().is_none(), "{to}: {outcome:?}");
        }
    }
    let output = context.conflicts()?;
    ensure!(output.is_empty(), "{output:?}");
    context.end(pods)
}
