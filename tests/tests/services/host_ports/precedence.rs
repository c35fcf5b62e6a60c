//! Services come before host ports, and their addresses are nobody else's.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use denizen_tests::node::fixture::{PORT, Who, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::pod::Wiring;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Outcome, Protocol};
use serde_json::json;

use super::context::{Context, Services, port};
use crate::context::BALANCER;

const NODE_PORT: u16 = 30080;

/// `hostPort: 443`, and services with that port and without it.
#[test]
fn the_addresses_of_services_are_no_host_ports() -> Result<()> {
    for services in Services::SERVED {
        let flags = ["--host-ports=on"];
        let context = Context::with("hp-service", services, &flags, |fixture| {
            let https = [Port::tcp("https", 443, PORT)];
            let mut objects = fixture.service("api", 10, &https, &[Who::Remote])?;
            let balancer = service_ips(BALANCER).map(|ip| json!({ "ip": ip }));
            objects[0]["spec"]["type"] = json!("LoadBalancer");
            objects[0]["status"] = json!({ "loadBalancer": { "ingress": balancer } });
            let http = [Port::tcp("http", 80, PORT)];
            objects.extend(fixture.service("web", 11, &http, &[Who::Remote])?);
            Ok(objects)
        })?;
        let asking = context.asks("pod", Wiring::Bridged, &json!([port(443)]))?;
        for who in [Who::Outside, Who::Routed, Who::ThisNode] {
            for to in context.addresses().iter().map(|ip| SocketAddr::new(*ip, 443)) {
                context.is_answered(who, to, Protocol::Tcp, &asking)?;
            }
            for to in [service_ips(10), service_ips(BALANCER)].concat() {
                let to = SocketAddr::new(to, 443);
                let by = context.fixture.ask(who, to, Protocol::Tcp)?;
                let remote = context.fixture.address(Who::Remote, to.ip())?;
                ensure!(
                    by.endpoint().map(|endpoint| endpoint.ip()) == Some(remote),
                    "{services:?} {who:?} {to}: {by:?}"
                );
            }
            for to in service_ips(11) {
                let by = context.fixture.ask(who, SocketAddr::new(to, 443), Protocol::Tcp)?;
                ensure!(by.endpoint().is_none(), "{services:?} {who:?} {to}: {by:?}");
            }
        }
    }
    Ok(())
}

/// kube-proxy's IPVS mode has services' addresses on a device.
#[test]
fn the_addresses_of_kube_ipvs_are_no_host_ports() -> Result<()> {
    let context = Context::new("hp-ipvs0", Services::Off)?;
    context.node().ip("link add kube-ipvs0 type bridge\naddr add 10.96.0.1/32 dev kube-ipvs0")?;
    let asking = context.asks("pod", Wiring::Bridged, &json!([port(443)]))?;
    context.is_left_alone(Who::ThisNode, SocketAddr::new(ip("10.96.0.1"), 443), Protocol::Tcp)?;
    let to = SocketAddr::new(context.addresses()[0], 443);
    context.is_answered(Who::ThisNode, to, Protocol::Tcp, &asking).map(drop)
}

#[test]
fn a_node_port_comes_first() -> Result<()> {
    for services in Services::SERVED {
        for members in [&[Who::Remote][..], &[]] {
            let flags = ["--host-ports=on", "--nodeport-addresses=primary"];
            let context = Context::with("hp-node", services, &flags, |fixture| {
                let ports = [Port::tcp("http", 80, PORT).at_node(NODE_PORT)];
                fixture.service("shop", 10, &ports, members)
            })?;
            let asking = context.asks("pod", Wiring::Bridged, &json!([port(NODE_PORT)]))?;
            let [v4, v4_other, v6, v6_other] =
                [0, 1, 2, 3].map(|n| SocketAddr::new(context.addresses()[n], NODE_PORT));
            for who in [Who::Outside, Who::ThisNode] {
                for to in [v4, v6] {
                    let outcome = context.fixture.ask(who, to, Protocol::Tcp)?;
                    let what = format!("{services:?} {who:?} {to} {members:?}: {outcome:?}");
                    match members {
                        [] => ensure!(outcome == Outcome::Refused, "{what}"),
                        [_, ..] => {
                            let remote = context.fixture.address(Who::Remote, to.ip())?;
                            ensure!(
                                outcome.endpoint().map(|endpoint| endpoint.ip()) == Some(remote),
                                "{what}"
                            );
                        }
                    }
                }
                for to in [v4_other, v6_other] {
                    context.is_answered(who, to, Protocol::Tcp, &asking)?;
                }
            }
            let said = context.conflicts()?;
            let expected = format!(
                "host port {NODE_PORT}/tcp of default/pod is shadowed at 192.168.0.2 by node port of \
                 default/shop:http"
            );
            ensure!(said.contains(&expected), "{said:?}");
        }
    }
    Ok(())
}
