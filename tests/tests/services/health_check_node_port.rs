//! Health-check node ports: what a load balancer sees of `externalTrafficPolicy: Local`, asked by
//! curl.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::agent::programmed;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::fixture::{Fixture, Host, PORT, put_load_balancer, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{Reply, fetch, url};
use denizen_tests::packets::probe::{Probe, Protocol};
use denizen_tests::packets::server::Server;
use serde_json::{Value, json};

use crate::context::{AgentContext, BALANCER, HTTP, at, by, draining, local};

const CHECK: u16 = 32100;
const NODE_PORT: u16 = 30080;
/// Two ports, so that counting endpoints in place of addresses would count twice.
const PORTS: [Port; 2] = [
    Port::tcp("http", 80, PORT).at_node(NODE_PORT),
    Port::tcp("more", 81, PORT).at_node(NODE_PORT + 1),
];

/// What has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A load balancer's service under policy Local, with a health-check node port.
fn balanced(fixture: &Fixture, name: &str, number: u8, members: &[Host]) -> Result<Vec<Value>> {
    let ports = PORTS.map(|port| Port {
        node_port: port.node_port.map(|at| at + 10 * u16::from(number)),
        ..port
    });
    let mut objects = fixture.service(name, number, &ports, members)?;
    objects[0]["spec"]["type"] = "LoadBalancer".into();
    objects[0]["spec"]["externalTrafficPolicy"] = "Local".into();
    objects[0]["spec"]["healthCheckNodePort"] = CHECK.into();
    Ok(objects)
}

fn ask(fixture: &Fixture, address: IpAddr, port: u16) -> Result<Reply> {
    fetch(&fixture.cluster.world.client, &url(address, port, "/"), &[])
}

/// Asks until `now` holds of the answer, or of there being none.
fn until(fixture: &Fixture, address: IpAddr, now: impl Fn(&Result<Reply>) -> bool) -> Result<()> {
    observed("as expected", TIMEOUT, || Ok(ask(fixture, address, CHECK)), now).map(drop)
}

fn says(status: u16, weight: usize) -> impl Fn(&Result<Reply>) -> bool {
    move |reply| {
        reply.as_ref().is_ok_and(|reply| {
            reply.status == status
                && reply.header("x-load-balancing-endpoint-weight") == Some(&weight.to_string())
        })
    }
}

fn is_refused(reply: &Result<Reply>) -> bool {
    // curl's exit status 7: could not connect.
    reply.as_ref().is_err_and(|error| error.to_string().contains("exit status: 7"))
}

fn of_node(fixture: &Fixture) -> Result<[IpAddr; 2]> {
    let [v4, v6] = service_ips(10);
    Ok([fixture.address(Host::ThisNode, v4)?, fixture.address(Host::ThisNode, v6)?])
}

/// The conditions of every endpoint of this address.
fn condition(objects: &mut [Value], address: IpAddr, conditions: &Value) {
    for object in objects {
        for endpoint in object["endpoints"].as_array_mut().into_iter().flatten() {
            if endpoint["addresses"][0] == address.to_string() {
                endpoint["conditions"] = conditions.clone();
            }
        }
    }
}

#[test]
fn a_load_balancer_is_told_as_by_kube_proxy() -> Result<()> {
    let fixture = Fixture::new("hc-as")?;
    let everybody = [Host::Bridged, Host::Routed, Host::Remote];
    fixture.cluster.manifests.put("web", &balanced(&fixture, "web", 10, &everybody)?)?;
    let _agent = fixture.cluster.start_agent()?;
    for address in of_node(&fixture)? {
        until(&fixture, address, says(200, 2))?;
        for (path, method) in [("/", "GET"), ("/any/path?at=all", "GET"), ("/", "POST")] {
            let more = ["--request", method];
            let reply = fetch(&fixture.cluster.world.client, &url(address, CHECK, path), &more)?;
            assert_eq!(reply.status, 200, "{reply:?}");
            assert_eq!(reply.header("content-type"), Some("application/json"));
            assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
            assert_eq!(reply.header("x-load-balancing-endpoint-weight"), Some("2"));
            let expected = "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\
                            \t\t\"name\": \"web\"\n\t},\n\
                            \t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}";
            assert_eq!(reply.body, expected);
            assert_eq!(reply.json()?["localEndpoints"], 2);
        }
    }
    Ok(())
}

/// A node whose last endpoints terminate still serves, and yet asks for no new connections.
#[test]
fn a_terminating_endpoint_serves_and_does_not_count() -> Result<()> {
    let fixture = Fixture::new("hc-term")?;
    let manifests = &fixture.cluster.manifests;
    let members = [Host::Bridged, Host::Routed];
    let mut objects = balanced(&fixture, "web", 10, &members)?;
    manifests.put("web", &objects)?;
    let _agent = fixture.cluster.start_agent()?;
    let leaving = json!({ "ready": false, "serving": true, "terminating": true });
    let nodes = of_node(&fixture)?;
    for (left, status) in [(1, 200), (0, 503)] {
        for like in nodes {
            condition(&mut objects, fixture.address(members[left], like)?, &leaving);
        }
        manifests.put("web", &objects)?;
        for address in nodes {
            until(&fixture, address, says(status, left))?;
            let reply = ask(&fixture, address, CHECK)?.json()?;
            assert_eq!(reply["serviceProxyHealthy"], true, "{reply}");
            let to = SocketAddr::new(address, NODE_PORT + 100);
            let outcome = fixture.probe(Host::Outside, to, Protocol::Tcp)?;
            assert!(outcome.endpoint().is_some(), "{left} ready: {outcome:?}");
        }
    }
    Ok(())
}

#[test]
fn a_port_follows_its_service() -> Result<()> {
    let fixture = Fixture::new("hc-live")?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("web", &balanced(&fixture, "web", 10, &[Host::Remote])?)?;
    let _agent = fixture.cluster.start_agent()?;
    for address in of_node(&fixture)? {
        until(&fixture, address, says(503, 0))?;
        manifests.put("web", &balanced(&fixture, "web", 10, &[Host::Routed])?)?;
        until(&fixture, address, says(200, 1))?;
        let mut moved = balanced(&fixture, "web", 10, &[Host::Routed])?;
        moved[0]["spec"]["healthCheckNodePort"] = (CHECK + 1).into();
        manifests.put("web", &moved)?;
        until(&fixture, address, is_refused)?;
        assert!(says(200, 1)(&ask(&fixture, address, CHECK + 1)));
        // Under policy Cluster a number that is left over means nothing.
        moved[0]["spec"]["externalTrafficPolicy"] = "Cluster".into();
        moved[0]["spec"]["healthCheckNodePort"] = CHECK.into();
        manifests.put("web", &moved)?;
        until(&fixture, address, is_refused)?;
        manifests.put("web", &balanced(&fixture, "web", 10, &[Host::Remote])?)?;
        until(&fixture, address, says(503, 0))?;
    }
    manifests.remove("web")?;
    for address in of_node(&fixture)? {
        until(&fixture, address, is_refused)?;
    }
    Ok(())
}

/// Only where node ports are served: and the addresses are followed as they come and go.
#[test]
fn a_port_is_served_where_node_ports_are() -> Result<()> {
    let fixture = Fixture::new("hc-where")?;
    fixture.cluster.manifests.put("web", &balanced(&fixture, "web", 10, &[Host::Routed])?)?;
    let _agent = fixture.cluster.start_agent_with(["--nodeport-addresses=192.168.1.0/24"])?;
    until(&fixture, ip("192.168.1.2"), says(200, 1))?;
    for elsewhere in ["192.168.0.2", "2001:db8::1", "2001:db8:1::2"].map(ip) {
        assert!(is_refused(&ask(&fixture, elsewhere, CHECK)), "{elsewhere}");
    }
    let node = &fixture.cluster.world.node;
    let late = url(ip("192.168.1.9"), CHECK, "/");
    for (change, wanted) in [("add", true), ("del", false), ("add", true)] {
        node.ip(&format!("addr {change} 192.168.1.9/32 dev eth0"))?;
        // As the node itself: the fabric does not know the way to this address.
        eventually(&format!("served after {change}: {wanted}"), TIMEOUT, || {
            Ok(fetch(node, &late, &["--connect-timeout", "1"]).is_ok() == wanted)
        })?;
    }
    Ok(())
}

#[test]
fn a_port_that_is_taken_is_named_and_tried_again() -> Result<()> {
    let fixture = Fixture::new("hc-taken")?;
    let [address, other] = of_node(&fixture)?;
    let at = SocketAddr::new(address, CHECK);
    let squatter = Server::at(&fixture.cluster.world.node, Protocol::Tcp, at)?;
    fixture.cluster.manifests.put("web", &balanced(&fixture, "web", 10, &[Host::Routed])?)?;
    let agent = fixture.cluster.start_agent()?;
    // The other family is served meanwhile.
    until(&fixture, other, says(200, 1))?;
    let errors = agent.status()?["errors"].to_string();
    for part in [&at.to_string(), "default/web", "in use"] {
        assert!(errors.contains(part), "{part} in {errors}");
    }
    drop(squatter);
    until(&fixture, address, says(200, 1))?;
    agent.until("without errors", TIMEOUT, |status| status["errors"] == json!([]))?;
    Ok(())
}

/// Two services that ask for one port: the older has it, the other is named; when it goes, the
/// other gets it, and no connection in between is refused.
#[test]
fn a_port_of_two_services_changes_hands_without_a_gap() -> Result<()> {
    let fixture = Fixture::new("hc-two")?;
    let manifests = &fixture.cluster.manifests;
    let mut young = balanced(&fixture, "a-young", 10, &[Host::Routed])?;
    young[0]["metadata"]["creationTimestamp"] = "2026-11-21T12:00:00Z".into();
    let mut old = balanced(&fixture, "old", 20, &[Host::Routed, Host::Bridged])?;
    old[0]["metadata"]["creationTimestamp"] = "2026-11-20T12:00:00Z".into();
    manifests.put("young", &young)?;
    manifests.put("old", &old)?;
    let agent = fixture.cluster.start_agent()?;
    let [address, _] = of_node(&fixture)?;
    until(&fixture, address, says(200, 2))?;
    let errors = agent.status()?["errors"].to_string();
    for part in [&CHECK.to_string(), "default/a-young", "default/old"] {
        assert!(errors.contains(part), "{part} in {errors}");
    }
    manifests.remove("old")?;
    until(&fixture, address, |reply| {
        assert!(reply.is_ok(), "{reply:?}");
        says(200, 1)(reply)
    })?;
    manifests.put("old", &old)?;
    until(&fixture, address, |reply| {
        assert!(reply.is_ok(), "{reply:?}");
        says(200, 2)(reply)
    })
}

/// Who asks slowly, and many of them: neither the loop nor, for long, the port.
#[test]
fn slow_clients_hold_nobody_up() -> Result<()> {
    let fixture = Fixture::new("hc-slow")?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("web", &balanced(&fixture, "web", 10, &[Host::Routed])?)?;
    let _agent = fixture.cluster.start_agent()?;
    let [address, _] = of_node(&fixture)?;
    until(&fixture, address, says(200, 1))?;
    let at = SocketAddr::new(address, CHECK);
    let client = &fixture.cluster.world.client;
    let half = || -> Result<TcpStream> {
        let mut stream = Probe::tcp(at).connect()?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: slow\r\n")?;
        Ok(stream)
    };
    let slow: Result<Vec<_>> = client.run(|| (0..150).map(|_| half()).collect())?;
    let slow =
        slow.context("more connections than are served at a time, fewer than the kernel keeps")?;
    manifests.put("web", &balanced(&fixture, "web", 10, &[Host::Routed, Host::Bridged])?)?;
    let to = SocketAddr::new(service_ips(10)[0], 80);
    let bridged = fixture.address(Host::Bridged, to.ip())?;
    eventually("changed", TIMEOUT, || {
        let outcome = fixture.probe(Host::Outside, to, Protocol::Tcp)?;
        Ok(outcome.endpoint().map(|at| at.ip()) == Some(bridged))
    })?;
    let reply = fetch(client, &url(address, CHECK, "/"), &["--max-time", "60"])?;
    assert!(says(200, 2)(&Ok(reply)));
    drop(slow);
    let long = format!("X-Long: {}", "x".repeat(20_000));
    let reply = fetch(client, &url(address, CHECK, "/"), &["--header", &long])?;
    assert_eq!(reply.status, 431, "{reply:?}");
    Ok(())
}

#[test]
fn the_health_port_counts_addresses_and_no_terminating_ones() -> Result<()> {
    const TWO: [Port; 2] = [HTTP[0], Port::tcp("more", 81, PORT)];
    let context = AgentContext::new("hc-count", &[], |fixture| {
        let mut objects = local(fixture, &TWO, &[Host::Bridged])?;
        objects[0]["spec"]["healthCheckNodePort"] = CHECK.into();
        Ok(objects)
    })?;
    let fixture = &context.fixture;
    let node = fixture.address(Host::ThisNode, service_ips(1)[0])?;
    let ask = || fetch(&fixture.cluster.world.client, &url(node, CHECK, "/"), &[]);
    let reply = ask()?;
    assert_eq!((reply.status, &reply.json()?["localEndpoints"]), (200, &json!(1)), "{reply:?}");
    let mut objects = local(fixture, &TWO, &[Host::Bridged])?;
    objects[0]["spec"]["healthCheckNodePort"] = CHECK.into();
    crate::context::condition(&mut objects, fixture, Host::Bridged, &draining());
    context.becomes(&objects)?;
    assert_eq!(ask()?.status, 503, "new connections should go elsewhere");
    assert_eq!(
        context.fate(Host::Outside, at(BALANCER, 80)[0], Protocol::Tcp)?,
        by([Host::Bridged]),
        "those that come are served"
    );
    Ok(())
}

/// Rules of node ports come before this node's own sockets: who asks there reaches a service.
#[test]
fn a_port_that_is_another_services_node_port_is_named() -> Result<()> {
    let fixture = Fixture::new("hc-shadow")?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("web", &balanced(&fixture, "web", 10, &[Host::Bridged])?)?;
    let agent = fixture.cluster.start_agent()?;
    for address in of_node(&fixture)? {
        until(&fixture, address, says(200, 1))?;
    }
    let errors = || Ok(agent.status()?["errors"].clone());
    let is_named = |errors: &Value| {
        let output = errors.to_string();
        output.contains("health-check node port 32100 of default/web")
            && output.contains("node port 32100/tcp of default/thief:http")
    };
    assert_eq!(errors()?, json!([]));
    // A node port of UDP, and of another number, takes nothing away.
    let udp = [Port::tcp("dns", 80, PORT).over(Protocol::Udp).at_node(CHECK)];
    let beside = [Port::tcp("http", 80, PORT).at_node(CHECK + 1)];
    for (ports, number) in [(udp, 11), (beside, 12)] {
        let thief = fixture.service("thief", number, &ports, &[Host::Routed])?;
        programmed(&agent, || manifests.put("thief", &thief), || {})?;
        assert_eq!(errors()?, json!([]));
    }
    let tcp = [Port::tcp("http", 80, PORT).at_node(CHECK)];
    manifests.put("thief", &fixture.service("thief", 13, &tcp, &[Host::Routed])?)?;
    let named = observed("named", TIMEOUT, errors, is_named)?;
    assert_eq!(named.as_array().map(Vec::len), Some(1), "{named}");
    for address in of_node(&fixture)? {
        until(&fixture, address, |reply| !says(200, 1)(reply))?;
    }
    manifests.remove("thief")?;
    observed("not named", TIMEOUT, errors, |errors| *errors == json!([]))?;
    for address in of_node(&fixture)? {
        until(&fixture, address, says(200, 1))?;
    }
    Ok(())
}

/// Google Cloud's load balancer asks at its own address, which the node gets by a route.
#[test]
fn a_load_balancers_own_address_is_answered() -> Result<()> {
    let cases: [(&str, &[&str]); 5] = [
        ("hc-bal-n", &["--backend=nftables"]),
        ("hc-bal-a", &["--backend=nftables", "--nodeport-addresses=all"]),
        ("hc-bal-r", &["--backend=nftables", "--nodeport-addresses=192.168.0.0/16,::/0"]),
        ("hc-bal-t", &["--backend=iptables"]),
        ("hc-bal-v", &["--backend=ipvs"]),
    ];
    for (label, flags) in cases {
        let fixture = Fixture::new(label)?;
        let mut objects = balanced(&fixture, "web", 10, &[Host::Routed])?;
        put_load_balancer(&mut objects, BALANCER);
        fixture.cluster.manifests.put("web", &objects)?;
        let agent = fixture.cluster.start_agent_with(flags.iter().copied())?;
        until(&fixture, of_node(&fixture)?[0], says(200, 1))?;
        for address in service_ips(BALANCER) {
            fixture.cluster.world.node.ip(&format!("route add local {address} dev eth0"))?;
            until(&fixture, address, says(200, 1))?;
        }
        let errors = agent.status()?["errors"].to_string();
        assert!(!errors.contains("cannot listen"), "{flags:?}: {errors}");
    }
    Ok(())
}

/// Every interface of a pod has such an address.
#[test]
fn link_local_addresses_are_no_error() -> Result<()> {
    let ranges = "--nodeport-addresses=192.168.0.0/16,2001:db8::/32,fe80::/10";
    let cases: [(&str, &[&str]); 3] = [
        ("hc-link-a", &["--nodeport-addresses=all"]),
        ("hc-link-r", &[ranges]),
        ("hc-link-t", &["--backend=iptables"]),
    ];
    for (label, flags) in cases {
        let fixture = Fixture::new(label)?;
        fixture.cluster.manifests.put("web", &balanced(&fixture, "web", 10, &[Host::Routed])?)?;
        let agent = fixture.cluster.start_agent_with(flags.iter().copied())?;
        for address in of_node(&fixture)? {
            until(&fixture, address, says(200, 1))?;
        }
        let errors = agent.status()?["errors"].to_string();
        assert!(!errors.contains("cannot listen"), "{flags:?}: {errors}");
    }
    Ok(())
}
