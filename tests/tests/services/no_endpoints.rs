//! A service that nobody serves refuses at once, so that clients need not wait for a time-out.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use denizen_tests::node::fixture::{
    EVERYONE, Fixture, Host, PORT, every_protocol, every_way, service_ips,
};
use denizen_tests::node::manifest::Port;
use denizen_tests::packets::probe::{Outcome, Protocol};

use crate::context::{AgentContext, Fate, at};

/// Far below the second after which TCP would try again.
const AT_ONCE: Duration = Duration::from_millis(500);

#[test]
fn a_service_without_endpoints_refuses_everybody_at_once() -> Result<()> {
    let fixture = Fixture::new("reject")?;
    let ports = every_protocol();
    fixture.cluster.manifests.put("lonely", &fixture.service("lonely", 99, &ports, &[])?)?;
    let agent = fixture.cluster.start_agent()?;
    for (to, protocol) in every_way(99) {
        for who in EVERYONE {
            let started = Instant::now();
            let outcome = fixture.probe(who, to, protocol)?;
            assert_eq!(outcome, Outcome::Refused, "{who:?} to {to}/{protocol}");
            assert!(
                started.elapsed() < AT_ONCE,
                "{who:?} to {to}/{protocol} after {:?}",
                started.elapsed()
            );
            let explained = fixture.explain(&agent, who, to, protocol)?;
            assert_eq!(explained.verdict, "reject", "{explained:?}");
        }
    }
    Ok(())
}

/// One port of a service may have endpoints and another none: the slices' port names decide.
#[test]
fn a_port_that_no_slice_names_refuses() -> Result<()> {
    let fixture = Fixture::new("reject-port")?;
    let (http, admin) = (Port::tcp("http", 80, PORT), Port::tcp("admin", 81, PORT));
    let mut objects = fixture.service("web", 10, &[http], &[Host::Routed])?;
    objects[0] = fixture.service("web", 10, &[http, admin], &[])?.remove(0);
    fixture.cluster.manifests.put("web", &objects)?;
    let _agent = fixture.cluster.start_agent()?;
    for ip in service_ips(10) {
        let answered = fixture.probe(Host::Bridged, SocketAddr::new(ip, 80), Protocol::Tcp)?;
        assert!(answered.endpoint().is_some(), "{answered:?}");
        let refused = fixture.probe(Host::Bridged, SocketAddr::new(ip, 81), Protocol::Tcp)?;
        assert_eq!(refused, Outcome::Refused);
    }
    Ok(())
}

#[test]
fn udp_clients_learn_that_no_endpoint_is_left() -> Result<()> {
    let udp = [Port::tcp("dns", 53, PORT).over(Protocol::Udp)];
    let context = AgentContext::new("ct-udp", &[], |fixture| {
        fixture.service("dns", 10, &udp, &[Host::Remote])
    })?;
    let client = &context.fixture.cluster.world.client;
    for to in at(10, 53) {
        context
            .becomes(&context.fixture.service("dns", 10, &udp, &[Host::Remote])?)
            .or_else(|error| if to.is_ipv4() { Ok(()) } else { Err(error) })?;
        let from = SocketAddr::new(context.fixture.address(Host::Outside, to.ip())?, 0);
        let socket = client.run(|| UdpSocket::bind(from))??;
        socket.set_read_timeout(Some(Duration::from_secs(4)))?;
        socket.connect(to)?;
        let mut buffer = [0; 256];
        socket.send(b"who?")?;
        socket.recv(&mut buffer).context("an answer while there is an endpoint")?;
        context.becomes(&context.fixture.service("dns", 10, &udp, &[])?)?;
        socket.send(b"who?")?;
        let answer = socket.recv(&mut buffer).map_err(|error| error.kind());
        assert_eq!(answer, Err(ErrorKind::ConnectionRefused), "the old flow goes to nobody");
        assert_eq!(context.fate(Host::Outside, to, Protocol::Udp)?, Fate::Refused);
    }
    Ok(())
}
