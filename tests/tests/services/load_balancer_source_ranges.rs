//! `loadBalancerSourceRanges`: who may use a load balancer's addresses.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::Result;
use denizen_tests::node::fixture::{Host, PORT};
use denizen_tests::node::manifest::Port;
use denizen_tests::packets::probe::Protocol::{Tcp, Udp};
use serde_json::json;

use crate::context::{AgentContext, BALANCER, Fate, HTTP, at, balanced, by};

#[test]
fn source_ranges_bind_pods_and_the_node() -> Result<()> {
    let context = AgentContext::new("ranges", &[], |fixture| {
        let ranges = |objects: &mut [serde_json::Value], ranges: &[&str]| {
            objects[0]["spec"]["loadBalancerSourceRanges"] = json!(ranges);
        };
        let mut outside = balanced(fixture, &HTTP, &[Host::Remote])?;
        ranges(&mut outside, &[" 203.0.113.0/24", "2600:5200::/32 "]);
        Ok(outside)
    })?;
    for (inside, guarded) in at(10, 80).into_iter().zip(at(BALANCER, 80)) {
        assert_eq!(context.fate(Host::Outside, guarded, Tcp)?, by([Host::Remote]), "{guarded}");
        for who in [Host::Bridged, Host::Routed, Host::ThisNode] {
            assert_eq!(context.fate(who, guarded, Tcp)?, Fate::Dropped, "{who:?} to {guarded}");
            assert_eq!(context.fate(who, inside, Tcp)?, by([Host::Remote]), "{who:?} to {inside}");
        }
    }
    Ok(())
}

/// Only the first packet of a flow meets the rules, and a sender that nobody answers never begins
/// another flow.
#[test]
fn a_source_that_is_no_longer_permitted_loses_its_one_way_flow() -> Result<()> {
    const SINK: u16 = PORT + 1;
    const MARKER: &[u8] = b"through the cluster IP";
    let syslog = [Port::tcp("syslog", 514, SINK).over(Udp)];
    for (label, backend) in [("ru-n", "nftables"), ("ru-t", "iptables"), ("ru-v", "ipvs")] {
        let flags = [format!("--backend={backend}")];
        let flags = flags.each_ref().map(String::as_str);
        let context =
            AgentContext::new(label, &flags, |all| balanced(all, &syslog, &[Host::Routed]))?;
        let in_netns = |who, at: SocketAddr| -> Result<UdpSocket> {
            Ok(context.fixture.place(who).0.run(|| UdpSocket::bind(at))??)
        };
        let sink = in_netns(Host::Routed, format!("[::]:{SINK}").parse()?)?;
        sink.set_read_timeout(Some(Duration::from_secs(20)))?;
        let received = || -> Result<Vec<u8>> {
            let mut packet = [0; 64];
            let length = sink.recv(&mut packet)?;
            Ok(packet[..length].to_vec())
        };
        let mut flows = Vec::new();
        for (guarded, inside) in at(BALANCER, 514).into_iter().zip(at(10, 514)) {
            for who in [Host::Outside, Host::Bridged, Host::ThisNode] {
                let own = context.fixture.address(who, guarded.ip())?;
                let socket = in_netns(who, SocketAddr::new(own, 0))?;
                let name = format!("{who:?} to {guarded}, {backend}");
                socket.send_to(name.as_bytes(), guarded)?;
                assert_eq!(received()?, name.as_bytes());
                flows.push((socket, name, guarded, inside));
            }
        }
        let mut objects = balanced(&context.fixture, &syslog, &[Host::Routed])?;
        objects[0]["spec"]["loadBalancerSourceRanges"] = json!(["198.51.100.0/24", "fd00:9::/64"]);
        context.becomes(&objects)?;
        for (socket, name, guarded, inside) in &flows {
            // A packet that is dropped in the output hook is an error of the sender's.
            let _ = socket.send_to(name.as_bytes(), *guarded);
            socket.send_to(MARKER, *inside)?;
            let first = received()?;
            assert_eq!(first, MARKER, "{} arrived", String::from_utf8_lossy(&first));
        }
    }
    Ok(())
}
