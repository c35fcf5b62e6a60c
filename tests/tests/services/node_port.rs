//! Node ports: every source is masqueraded, in both families, and only the node's own addresses
//! answer.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use denizen_tests::eventually::observed;
use denizen_tests::node::fixture::{
    EVERYONE, Fixture, Host, PORT, PROTOCOLS, every_protocol, service_ips,
};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{ANSWER_TIMEOUT, Outcome, Probe, Protocol, SILENCE};

use crate::context::{AgentContext, Fate, HTTP, NODE_PORT, at, at_node, by};

const AT_NODE: [Port; 1] = [HTTP[0].at_node(NODE_PORT)];

const TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn everybody_reaches_a_node_port_and_is_masqueraded() -> Result<()> {
    let fixture = Fixture::new("np-all")?;
    let ports: Vec<_> = every_protocol().into_iter().map(|port| port.at_node(NODE_PORT)).collect();
    fixture
        .cluster
        .manifests
        .put("web", &fixture.service("web", 10, &ports, &[Host::Bridged, Host::Remote])?)?;
    let agent = fixture.cluster.start_agent()?;
    for (like, protocol) in
        service_ips(10).into_iter().flat_map(|ip| PROTOCOLS.map(|protocol| (ip, protocol)))
    {
        let to = SocketAddr::new(fixture.address(Host::ThisNode, like)?, NODE_PORT);
        for who in EVERYONE {
            let outcome = fixture.probe(who, to, protocol)?;
            if who != Host::ThisNode {
                assert!(
                    fixture.was_masqueraded(who, &outcome)?,
                    "{who:?} to {to}/{protocol}: {outcome:?}"
                );
            }
            assert!(outcome.endpoint().is_some(), "{who:?} to {to}/{protocol}: {outcome:?}");
            let explained = fixture.explain(&agent, who, to, protocol)?;
            assert_eq!(
                (explained.verdict.as_str(), explained.masquerade),
                ("forward", true),
                "{explained:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_node_port_without_endpoints_refuses() -> Result<()> {
    let fixture = Fixture::new("np-none")?;
    let ports = [Port::tcp("http", 80, PORT).at_node(NODE_PORT)];
    fixture.cluster.manifests.put("web", &fixture.service("web", 10, &ports, &[])?)?;
    let _agent = fixture.cluster.start_agent()?;
    for like in service_ips(10) {
        let to = SocketAddr::new(fixture.address(Host::ThisNode, like)?, NODE_PORT);
        for who in EVERYONE {
            assert_eq!(fixture.probe(who, to, Protocol::Tcp)?, Outcome::Refused, "{who:?} to {to}");
        }
    }
    Ok(())
}

/// The same number at somebody else's address is somebody else's port.
#[test]
fn a_node_port_is_the_nodes_alone() -> Result<()> {
    let fixture = Fixture::new("np-else")?;
    let ports = [Port::tcp("http", 80, PORT).at_node(PORT)];
    fixture.cluster.manifests.put("web", &fixture.service("web", 10, &ports, &[Host::Bridged])?)?;
    let _agent = fixture.cluster.start_agent()?;
    for like in service_ips(10) {
        let to = SocketAddr::new(fixture.address(Host::Remote, like)?, PORT);
        let outcome = fixture.probe(Host::Routed, to, Protocol::Tcp)?;
        assert_eq!(outcome.endpoint(), Some(to), "{outcome:?}");
        assert!(!fixture.was_masqueraded(Host::Routed, &outcome)?, "{outcome:?}");
    }
    Ok(())
}

/// Found by the model test. Outside traffic took the node port: the frontends under policy Local
/// were looked up first, node ports among them.
#[test]
fn an_external_ip_of_the_node_is_not_taken_by_a_local_node_port_of_its_number() -> Result<()> {
    let fixture = Fixture::new("np-ext")?;
    let mut at_node = every_protocol();
    at_node.iter_mut().for_each(|port| port.node_port = Some(NODE_PORT));
    let mut local = fixture.service("local", 10, &at_node, &[Host::Bridged])?;
    local[0]["spec"]["externalTrafficPolicy"] = "Local".into();
    let mut at_address = every_protocol();
    at_address.iter_mut().for_each(|port| port.port = NODE_PORT);
    let mut external = fixture.service("external", 11, &at_address, &[Host::Remote])?;
    let nodes: Vec<_> = service_ips(11)
        .map(|like| fixture.address(Host::ThisNode, like))
        .into_iter()
        .collect::<Result<_>>()?;
    external[0]["spec"]["externalIPs"] = serde_json::json!(nodes);
    fixture.cluster.manifests.put("both", &[local, external].concat())?;
    let agent = fixture.cluster.start_agent()?;
    for (node, protocol) in nodes.iter().flat_map(|ip| PROTOCOLS.map(|protocol| (*ip, protocol))) {
        let to = SocketAddr::new(node, NODE_PORT);
        let wanted = SocketAddr::new(fixture.address(Host::Remote, node)?, PORT);
        for who in EVERYONE {
            let outcome = fixture.probe(who, to, protocol)?;
            assert_eq!(outcome.endpoint(), Some(wanted), "{who:?} to {to}/{protocol}: {outcome:?}");
            let explained = fixture.explain(&agent, who, to, protocol)?;
            assert_eq!(explained.endpoints, [wanted], "{explained:?}");
        }
    }
    Ok(())
}

#[test]
fn a_family_without_a_range_serves_no_node_port() -> Result<()> {
    let flag = "--nodeport-addresses=192.168.0.0/16";
    let context = AgentContext::new("np-family", &[flag], |fixture| {
        fixture.service("web", 10, &AT_NODE, &[Host::Remote])
    })?;
    for to in at_node(&context.fixture, NODE_PORT)? {
        let expected = if to.is_ipv4() { by([Host::Remote]) } else { Fate::Refused };
        assert_eq!(context.fate(Host::Outside, to, Protocol::Tcp)?, expected, "{to}");
    }
    Ok(())
}

#[test]
fn node_ports_follow_the_nodes_addresses() -> Result<()> {
    let flag = "--nodeport-addresses=192.168.0.0/16";
    let context = AgentContext::new("np-follow", &[flag], |fixture| {
        fixture.service("web", 10, &AT_NODE, &[Host::Remote])
    })?;
    let node = &context.fixture.cluster.world.node;
    let to = (ip("192.168.0.99"), NODE_PORT).into();
    let is = |wanted: fn(&Outcome) -> bool| -> Result<()> {
        let ask = || context.fixture.probe(Host::Outside, to, Protocol::Tcp);
        observed("followed", TIMEOUT, ask, wanted).map(drop)
    };
    node.ip("addr add 192.168.0.99/24 dev eth0")?;
    is(|outcome| outcome.endpoint().is_some())?;
    node.ip("addr del 192.168.0.99/24 dev eth0")?;
    is(|outcome| outcome.endpoint().is_none())
}

/// Google Cloud's agent makes the addresses of load balancers the node's own so.
#[test]
fn addresses_that_are_the_nodes_by_a_route_alone_serve_node_ports() -> Result<()> {
    // kube-proxy's way to say `all`, which the iptables backend takes as its default, too.
    let all = "--nodeport-addresses=0.0.0.0/0,::/0";
    for (label, backend) in [("np-rn", "nftables"), ("np-rt", "iptables"), ("np-rv", "ipvs")] {
        let fixture = Fixture::new(label)?;
        let node = &fixture.cluster.world.node;
        for routed in service_ips(99) {
            node.ip(&format!("route add local {routed} dev eth0 proto 66"))?;
        }
        let web = fixture.service("web", 10, &AT_NODE, &[Host::Remote])?;
        let ports = [HTTP[0].at_node(NODE_PORT + 1)];
        let mut local = fixture.service("local", 11, &ports, &[Host::Remote])?;
        local[0]["spec"]["externalTrafficPolicy"] = "Local".into();
        fixture.cluster.manifests.put("both", &[web, local].concat())?;
        let _agent = fixture.cluster.start_agent_with([&format!("--backend={backend}"), all])?;
        for (to, of_local) in at(99, NODE_PORT).into_iter().zip(at(99, NODE_PORT + 1)) {
            let served = SocketAddr::new(fixture.address(Host::Remote, to.ip())?, PORT);
            for who in EVERYONE {
                let outcome = fixture.probe(who, to, Protocol::Tcp)?;
                assert_eq!(outcome.endpoint(), Some(served), "{backend}: {who:?} to {to}");
                let is_inside = ![Host::Outside, Host::Remote].contains(&who);
                let timeout = if is_inside { ANSWER_TIMEOUT } else { SILENCE };
                let probe = Probe { timeout, ..Probe::tcp(of_local) };
                let probe = probe.from(fixture.address(who, to.ip())?);
                let outcome = probe.send_in(fixture.place(who).0);
                let expected = is_inside.then_some(served);
                assert_eq!(outcome.endpoint(), expected, "{backend}: {who:?} to {of_local}");
            }
        }
        for (loopback, is_served) in [("127.0.0.1", backend == "iptables"), ("::1", false)] {
            let to = SocketAddr::new(ip(loopback), NODE_PORT);
            let outcome = Probe::tcp(to).send_in(node);
            assert_eq!(outcome.endpoint().is_some(), is_served, "{backend}: {to}: {outcome:?}");
        }
    }
    Ok(())
}
