//! At which of the node's addresses a host port answers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::Who;
use denizen_tests::node::pod::Wiring;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Outcome, Protocol};
use serde_json::json;

use super::context::{Context, Services, of_node, port_at};

#[test]
fn a_host_ip_is_served_there_alone() -> Result<()> {
    for services in Services::ALL {
        let context = Context::new("hp-ip", services)?;
        let ports =
            json!([port_at(8080, "tcp", "192.168.1.2"), port_at(8080, "tcp", "2001:db8:1::2"),]);
        let asking = context.asks("pod", Wiring::Bridged, &ports)?;
        let [v4, v4_other, v6, v6_other] =
            [0, 1, 2, 3].map(|n| SocketAddr::new(context.addresses()[n], 8080));
        for who in [Who::Outside, Who::Routed, Who::ThisNode] {
            context.is_answered(who, v4_other, Protocol::Tcp, &asking)?;
            context.is_answered(who, v6_other, Protocol::Tcp, &asking)?;
            context.is_left_alone(who, v4, Protocol::Tcp)?;
            context.is_left_alone(who, v6, Protocol::Tcp)?;
        }
    }
    Ok(())
}

#[test]
fn an_address_that_comes_later_is_served_soon() -> Result<()> {
    let context = Context::new("hp-later", Services::Off)?;
    let ports = json!([port_at(8081, "tcp", "192.168.9.9"), port_at(8082, "tcp", "")]);
    let asking = context.asks("pod", Wiring::Routed, &ports)?;
    let said = context.conflicts()?;
    ensure!(said.len() == 1 && said[0].contains("192.168.9.9:8081/tcp of default/pod"), "{said:?}");
    context.node().ip("addr add 192.168.9.9/32 dev eth0")?;
    let own = ip("192.168.0.2");
    for number in [8081, 8082] {
        let to = SocketAddr::new(ip("192.168.9.9"), number);
        eventually("served", Duration::from_secs(2), || {
            let outcome = of_node(Protocol::Tcp, own, to).ask_in(context.node());
            Ok(outcome.endpoint().map(|endpoint| endpoint.ip()) == asking.pod.address_like(own))
        })?;
    }
    assert_eq!(context.conflicts()?, [""; 0]);
    Ok(())
}

/// What a pod sends to somebody else's address is not the node's business.
#[test]
fn a_host_ip_of_others_leaves_them_alone() -> Result<()> {
    for services in Services::ALL {
        let context = Context::new("hp-transit", services)?;
        let world = &context.fixture.cluster.world;
        let other = ip("1.1.1.1");
        world.add_client(other)?;
        let _dns = serve(&world.client, &[other], &[(Protocol::Udp, 53), (Protocol::Tcp, 53)])?;
        let ports = json!([
            port_at(53, "udp", "1.1.1.1"),
            port_at(53, "tcp", "1.1.1.1"),
            port_at(53, "udp", ""),
            port_at(53, "tcp", ""),
        ]);
        let _asking = context.asks("pod", Wiring::Bridged, &ports)?;
        for who in [Who::Bridged, Who::Routed, Who::ThisNode] {
            for protocol in [Protocol::Udp, Protocol::Tcp] {
                let to = SocketAddr::new(other, 53);
                let outcome = context.fixture.ask(who, to, protocol)?;
                assert_eq!(outcome.endpoint(), Some(to), "{services:?} {who:?}: {outcome:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_unspecified_addresses_stand_for_their_family() -> Result<()> {
    for services in Services::ALL {
        let context = Context::new("hp-any", services)?;
        let ports = json!([
            port_at(8081, "tcp", "0.0.0.0"),
            port_at(8082, "tcp", "::"),
            port_at(8083, "tcp", ""),
        ]);
        let asking = context.asks("pod", Wiring::Bridged, &ports)?;
        let to = |n: usize, port| SocketAddr::new(context.addresses()[n], port);
        for who in [Who::Outside, Who::ThisNode] {
            for (n, port) in [(0, 8081), (1, 8081), (2, 8082), (3, 8082), (0, 8083), (2, 8083)] {
                context.is_answered(who, to(n, port), Protocol::Tcp, &asking)?;
            }
            context.is_left_alone(who, to(2, 8081), Protocol::Tcp)?;
            context.is_left_alone(who, to(0, 8082), Protocol::Tcp)?;
        }
    }
    Ok(())
}

/// Kubernetes' own two cases: one port with another hostIP or another protocol.
#[test]
fn each_protocol_and_host_ip_has_its_own_pod() -> Result<()> {
    for services in Services::ALL {
        let context = Context::new("hp-each", services)?;
        let [first, second] = ["192.168.0.2", "192.168.1.2"];
        let asked = [("a", "tcp", first), ("b", "tcp", second), ("c", "udp", first)];
        let mut pods = Vec::new();
        for (name, protocol, at) in asked {
            let ports = json!([port_at(8080, protocol, at)]);
            pods.push(context.asks(name, Wiring::Bridged, &ports)?);
        }
        // And one that takes what they leave.
        let ports = json!([port_at(8080, "tcp", ""), port_at(8080, "udp", "")]);
        pods.push(context.asks("d", Wiring::Routed, &ports)?);
        let at = |ip_text: &str| SocketAddr::new(ip(ip_text), 8080);
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        for (to, protocol, n) in [
            (at(first), tcp, 0),
            (at(second), tcp, 1),
            (at(first), udp, 2),
            (at(second), udp, 3),
            (at("10.10.0.1"), tcp, 3),
        ] {
            context.is_answered(Who::ThisNode, to, protocol, &pods[n])?;
        }
        assert_eq!(context.conflicts()?, [""; 0], "{services:?}");
        for to in [at(first), at(second)] {
            let outcome = context.fixture.ask(Who::Outside, to, Protocol::Sctp)?;
            ensure!(matches!(outcome, Outcome::Refused | Outcome::Unreachable | Outcome::Dropped));
        }
    }
    Ok(())
}
