//! Who is no local pod in the default mode: whoever was not recorded, or sends with another address
//! or through another interface than was recorded.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use denizen_tests::agent::Agent;
use denizen_tests::node::fixture::{Fixture, Host, every_protocol, service_ips};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::world::{host_length, ip};
use denizen_tests::packets::probe::{Probe, Protocol};

/// A service that the remote pod alone serves, so that no connection is a hairpin.
fn with_agent(label: &str) -> Result<(Fixture, Agent)> {
    let fixture = Fixture::new(label)?;
    let ports = every_protocol();
    fixture.cluster.manifests.put("web", &fixture.service("web", 10, &ports, &[Host::Remote])?)?;
    let agent = fixture.cluster.start_agent()?;
    Ok((fixture, agent))
}

#[test]
fn a_pod_that_nobody_recorded_is_not_local() -> Result<()> {
    let (fixture, _agent) = with_agent("masq-unrec")?;
    for (name, wiring, address) in
        [("b", Wiring::Bridged, "10.10.99.2"), ("r", Wiring::Routed, "172.20.99.2")]
    {
        // In the very ranges of the recorded pods: a CIDR would have called it local.
        let netns = Netns::new(&format!("masq-unrec-{name}"))?;
        let stranger = Pod::wire(&fixture.cluster.world.node, netns, name, wiring, &[ip(address)])?;
        let outcome = Probe::tcp(SocketAddr::new(service_ips(10)[0], 80)).send_in(&stranger.netns);
        let seen = outcome.seen().expect("answered");
        assert!(fixture.cluster.is_nodes(seen)?, "{wiring:?}: {outcome:?}");
    }
    Ok(())
}

/// A recorded pod's address, coming in through another way than that pod's, is somebody else's
/// packet.
#[test]
fn a_borrowed_address_is_not_local() -> Result<()> {
    let (fixture, agent) = with_agent("masq-borrow")?;
    let to = SocketAddr::new(service_ips(10)[0], 80);
    let address = fixture.address(Host::Bridged, to.ip())?;
    let explained = agent.explain(address, fixture.place(Host::Routed).1, to, Protocol::Tcp)?;
    assert_eq!((explained.local, explained.masquerade), (false, true), "{explained:?}");
    let explained = agent.explain(address, Some("eth0"), to, Protocol::Tcp)?;
    assert_eq!((explained.local, explained.masquerade), (false, true), "{explained:?}");
    Ok(())
}

/// A pod may send from an address that is not the one it was given: that is not the recorded pod's
/// packet.
#[test]
fn another_address_of_a_recorded_pod_is_not_local() -> Result<()> {
    let (fixture, _agent) = with_agent("masq-second")?;
    let extra: IpAddr = ip("172.20.99.9");
    let pod = &fixture.routed;
    pod.netns.ip(&format!("addr add {extra}/{} dev eth0", host_length(extra)))?;
    fixture.cluster.world.node.ip(&format!("route add {extra} dev {}", pod.host_interface()))?;
    let to = SocketAddr::new(service_ips(10)[0], 80);
    let outcome = Probe::tcp(to).from(extra).send_in(&pod.netns);
    let seen = outcome.seen().expect("answered");
    assert!(fixture.cluster.is_nodes(seen)?, "{outcome:?}");
    Ok(())
}
