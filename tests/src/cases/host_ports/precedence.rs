//! Services come before host ports, and no host port is served at services' addresses.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::context::{Context, port};
use crate::node::fixture::{Fixture, Host, PORT, put_load_balancer, service_ips};
use crate::node::manifest::Port;
use crate::node::pod::Wiring;
use crate::node::world::ip;
use crate::packets::probe::{Outcome, Protocol};

/// Which [`service_ips`] are a load balancer's.
const BALANCER: u8 = 100;

/// The node ports of a service with an endpoint, and of one without.
const NODE_PORTS: [u16; 2] = [30_080, 30_081];

/// Services with a port that a pod may also ask for, and one with another port: the statements
/// about services need them.
pub fn services(fixture: &Fixture) -> Result<Vec<Value>> {
    let remote = [Host::Remote];
    let [https, http] = [Port::tcp("https", 443, PORT), Port::tcp("http", 80, PORT)];
    let mut objects = fixture.service("api", 10, &[https], &remote)?;
    put_load_balancer(&mut objects, BALANCER);
    objects.extend(fixture.service("web", 11, &[http], &remote)?);
    let [served, lonely] = NODE_PORTS.map(|number| http.at_node(number));
    objects.extend(fixture.service("shop", 12, &[served], &remote)?);
    objects.extend(fixture.service("lonely", 13, &[lonely], &[])?);
    Ok(objects)
}

/// `hostPort: 443`, and [`services`] with that port and without it.
pub fn the_addresses_of_services_are_no_host_ports(context: &Context) -> Result<()> {
    let serving = context.add_pod("pod", Wiring::Bridged, &json!([port(443)]))?;
    for who in [Host::Outside, Host::Routed, Host::ThisNode] {
        for to in context.at(443) {
            context.is_answered(who, to, Protocol::Tcp, &serving)?;
        }
        for to in [service_ips(10), service_ips(BALANCER)].concat() {
            is_services(context, who, SocketAddr::new(to, 443))?;
        }
        for to in service_ips(11) {
            let outcome = context.fixture.probe(who, SocketAddr::new(to, 443), Protocol::Tcp)?;
            ensure!(outcome.endpoint().is_none(), "{who:?} {to}: {outcome:?}");
        }
    }
    context.end([serving])
}

/// The service's endpoint answers.
fn is_services(context: &Context, who: Host, to: SocketAddr) -> Result<()> {
    let outcome = context.fixture.probe(who, to, Protocol::Tcp)?;
    let remote = context.fixture.address(Host::Remote, to.ip())?;
    let by = outcome.endpoint().map(|endpoint| endpoint.ip());
    ensure!(by == Some(remote), "{who:?} {to}: {outcome:?}");
    Ok(())
}

/// The pod asks for the node ports of [`services`], which the node's first addresses serve
/// (`--nodeport-addresses=primary`).
pub fn a_node_port_comes_first(context: &Context) -> Result<()> {
    let [served, lonely] = NODE_PORTS;
    let ports = json!([port(served), port(lonely)]);
    let serving = context.add_pod("pod", Wiring::Bridged, &ports)?;
    let [v4, v4_other, v6, v6_other] = [0, 1, 2, 3].map(|at| context.addresses()[at]);
    for who in [Host::Outside, Host::ThisNode] {
        for ip in [v4, v6] {
            is_services(context, who, SocketAddr::new(ip, served))?;
            let to = SocketAddr::new(ip, lonely);
            let outcome = context.fixture.probe(who, to, Protocol::Tcp)?;
            ensure!(outcome == Outcome::Refused, "{who:?} {to}: {outcome:?}");
        }
        for (ip, number) in
            [v4_other, v6_other].into_iter().flat_map(|ip| NODE_PORTS.map(|n| (ip, n)))
        {
            context.is_answered(who, SocketAddr::new(ip, number), Protocol::Tcp, &serving)?;
        }
    }
    let output = context.conflicts()?;
    for (number, service) in NODE_PORTS.into_iter().zip(["shop", "lonely"]) {
        let expected = format!(
            "host port {number}/tcp of default/pod is shadowed at 192.168.0.2 by node port of \
             default/{service}:http"
        );
        ensure!(output.contains(&expected), "{output:?}");
    }
    context.end([serving])
}

/// kube-proxy's IPVS mode has services' addresses on a device.
pub fn the_addresses_of_kube_ipvs_are_no_host_ports(context: &Context) -> Result<()> {
    context.node().ip("link add kube-ipvs0 type bridge\naddr add 10.96.0.1/32 dev kube-ipvs0")?;
    let serving = context.add_pod("pod", Wiring::Bridged, &json!([port(443)]))?;
    context.is_left_alone(Host::ThisNode, SocketAddr::new(ip("10.96.0.1"), 443), Protocol::Tcp)?;
    let to = SocketAddr::new(context.addresses()[0], 443);
    context.is_answered(Host::ThisNode, to, Protocol::Tcp, &serving)?;
    context.node().ip("link del kube-ipvs0")?;
    context.end([serving])
}
