//! Cluster IPs: reached by everybody, over every protocol, in both families, served by bridged,
//! routed and other nodes' pods.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use denizen_tests::node::fixture::{
    EVERYONE, Fixture, Host, PORT, PROTOCOLS, every_protocol, every_way, service_ips,
};
use denizen_tests::packets::probe::{Outcome, Probe};

use crate::context::{AgentContext, at, by};

const SERVERS: [Host; 3] = [Host::Bridged, Host::Routed, Host::Remote];

#[test]
fn everybody_reaches_every_endpoint() -> Result<()> {
    let fixture = Fixture::new("cip-all")?;
    fixture
        .cluster
        .manifests
        .put("web", &fixture.service("web", 10, &every_protocol(), &SERVERS)?)?;
    let _agent = fixture.cluster.start_agent()?;
    for (to, protocol) in every_way(10) {
        let wanted: BTreeSet<_> = SERVERS
            .iter()
            .map(|who| Ok(SocketAddr::new(fixture.address(*who, to.ip())?, PORT)))
            .collect::<Result<_>>()?;
        for who in EVERYONE {
            let mut answered = BTreeSet::new();
            for _ in 0..100 {
                let outcome = fixture.probe(who, to, protocol)?;
                let Some(endpoint) = outcome.endpoint() else {
                    panic!("{who:?} to {to}/{protocol}: {outcome:?}");
                };
                answered.insert(endpoint);
                if answered == wanted {
                    break;
                }
            }
            assert_eq!(answered, wanted, "{who:?} to {to}/{protocol}");
        }
    }
    Ok(())
}

#[test]
fn each_protocol_of_one_port_number_goes_its_own_way() -> Result<()> {
    let fixture = Fixture::new("cip-proto")?;
    let mut objects = fixture.service("mixed", 20, &every_protocol(), &[])?;
    for (index, who) in SERVERS.into_iter().enumerate() {
        // One slice a protocol and family, each with a name of its own.
        for mut slice in
            fixture.service("mixed", 20, &[every_protocol()[index]], &[who])?.split_off(1)
        {
            let name =
                format!("mixed-{index}-{}", slice["addressType"]).to_lowercase().replace('"', "");
            slice["metadata"]["name"] = name.into();
            objects.push(slice);
        }
    }
    fixture.cluster.manifests.put("mixed", &objects)?;
    let _agent = fixture.cluster.start_agent()?;
    for (index, who) in SERVERS.into_iter().enumerate() {
        for ip in service_ips(20) {
            let outcome =
                fixture.probe(Host::Outside, SocketAddr::new(ip, 80), PROTOCOLS[index])?;
            let endpoint = outcome.endpoint().map(|endpoint| endpoint.ip());
            assert_eq!(
                endpoint,
                Some(fixture.address(who, ip)?),
                "{}: {outcome:?}",
                PROTOCOLS[index]
            );
        }
    }
    Ok(())
}

#[test]
fn what_is_no_service_is_left_alone() -> Result<()> {
    let fixture = Fixture::new("cip-none")?;
    fixture
        .cluster
        .manifests
        .put("web", &fixture.service("web", 10, &every_protocol(), &SERVERS)?)?;
    let agent = fixture.cluster.start_agent()?;
    for like in service_ips(10) {
        let remote = SocketAddr::new(fixture.address(Host::Remote, like)?, PORT);
        for who in [Host::Bridged, Host::Routed] {
            let outcome = fixture.probe(who, remote, PROTOCOLS[0])?;
            ensure!(outcome.endpoint() == Some(remote), "{outcome:?}");
            ensure!(!fixture.was_masqueraded(who, &outcome)?, "{who:?} to another node's pod");
            let explained = fixture.explain(&agent, who, remote, PROTOCOLS[0])?;
            assert_eq!(
                (explained.verdict.as_str(), explained.local),
                ("untouched", true),
                "{explained:?}"
            );
        }
    }
    Ok(())
}

/// A connection of the pods' own, which no service is part of, must not wait for the agent either.
#[test]
fn pods_talk_to_each_other_without_an_agent() -> Result<()> {
    let fixture = Fixture::new("cip-bare")?;
    let to = SocketAddr::new(fixture.routed.addresses[0], PORT);
    let outcome = Probe::tcp(to).send_in(&fixture.bridged.netns);
    assert!(matches!(outcome, Outcome::Answered { .. }), "{outcome:?}");
    Ok(())
}

#[test]
fn protocols_of_one_port_number_are_apart() -> Result<()> {
    let context = AgentContext::new("cip-apart", &[], |fixture| {
        let all = every_protocol().into_iter().zip(SERVERS);
        let mut objects = Vec::new();
        for ((port, member), name) in all.zip(["tcp", "udp", "sctp"]) {
            let mut one = fixture.service(name, 10, &[port], &[member])?;
            one[0]["metadata"]["name"] = name.into();
            objects.extend(one);
        }
        Ok(objects)
    })?;
    for to in at(10, 80) {
        for (protocol, member) in PROTOCOLS.into_iter().zip(SERVERS) {
            assert_eq!(context.fate(Host::Outside, to, protocol)?, by([member]), "{protocol}");
        }
    }
    Ok(())
}
