//! The harness against rules written by hand: it must tell a right verdict from every wrong one, or
//! else no other kernel test could fail.

#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

use std::net::{IpAddr, SocketAddr};

use crate::node::cni::Chain;
use crate::node::netns::Netns;
use crate::node::pod::{BRIDGE, Pod, Wiring};
use crate::node::world::{Addresses, World, ip};
use crate::packets::probe::{ANSWER_TIMEOUT, Outcome, Probe, Protocol, SILENCE};
use crate::packets::server::{Listen, Server};
use anyhow::Result;
use serde_json::Value;

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

struct HarnessContext {
    world: World,
    client: Pod,
    server: Pod,
    _server: Server,
}

/// Two pods of one wiring, and [`RULES`].
fn context(label: &str, wiring: Wiring) -> Result<HarnessContext> {
    let world = World::new(label, Addresses::default())?;
    let pod = |name: &str, addresses: &[IpAddr]| {
        Pod::wire(&world.node, Netns::new(&format!("{label}-{name}"))?, name, wiring, addresses)
    };
    let client = pod("client", &[ip("10.10.0.2"), ip("fd00:10::2")])?;
    let server = pod("server", &[ip("10.10.0.3"), ip("fd00:10::3")])?;
    let at = |address: &IpAddr| {
        PROTOCOLS.map(|protocol| Listen { protocol, address: SocketAddr::new(*address, 8080) })
    };
    let listens: Vec<_> = server.addresses.iter().flat_map(at).collect();
    let _server = Server::start(&server.netns, &listens)?;
    world.node.nft(RULES)?;
    Ok(HarnessContext { world, client, server, _server })
}

/// Services: `.1` is plain, `.2` is masqueraded, `.3` rejects, `.4` drops, `.5` is in no rule.
const RULES: &str = r#"
table ip self {
    chain dispatch {
        ip daddr { 172.30.0.1, 172.30.0.2 } meta l4proto { tcp, udp, sctp } dnat to 10.10.0.3
        ip daddr 172.30.0.3 reject
        ip daddr 172.30.0.4 drop
    }
    chain prerouting { type nat hook prerouting priority -100; jump dispatch; }
    chain output { type nat hook output priority -100; jump dispatch; }
    chain postrouting {
        type nat hook postrouting priority 100
        ct original ip daddr 172.30.0.2 masquerade
    }
}
table ip6 self {
    chain dispatch {
        ip6 daddr { fd00:172::1, fd00:172::2 } meta l4proto { tcp, udp, sctp } dnat to fd00:10::3
        ip6 daddr fd00:172::3 reject
        ip6 daddr fd00:172::4 drop
    }
    chain prerouting { type nat hook prerouting priority -100; jump dispatch; }
    chain output { type nat hook output priority -100; jump dispatch; }
    chain postrouting {
        type nat hook postrouting priority 100
        ct original ip6 daddr fd00:172::2 masquerade
    }
}
"#;

const FAMILIES: [&str; 2] = ["172.30.0.", "fd00:172::"];

fn service(family: &str, last: u8) -> SocketAddr {
    SocketAddr::new(ip(&format!("{family}{last}")), 8080)
}

fn tells_verdicts_apart(label: &str, wiring: Wiring) -> Result<()> {
    let context = context(label, wiring)?;
    let node = context.world.node_addresses()?;
    for (family, protocol) in
        FAMILIES.iter().flat_map(|family| PROTOCOLS.map(|protocol| (family, protocol)))
    {
        let ask = |last: u8| {
            let timeout = if last == 4 { SILENCE } else { ANSWER_TIMEOUT };
            Probe { protocol, timeout, ..Probe::tcp(service(family, last)) }
                .send_in(&context.client.netns)
        };
        let like = service(family, 1).ip();
        let own = context.client.address_like(like);
        let endpoint =
            context.server.address_like(like).map(|address| SocketAddr::new(address, 8080));
        let what = format!("{family} {protocol}");

        let (plain, masqueraded) = (ask(1), ask(2));
        assert_eq!((plain.endpoint(), plain.seen()), (endpoint, own), "{what}: {plain:?}");
        assert_eq!(masqueraded.endpoint(), endpoint, "{what}: {masqueraded:?}");
        assert!(
            masqueraded.seen().is_some_and(|source| node.contains(&source)),
            "{what}: {masqueraded:?}"
        );
        assert_ne!(masqueraded.seen(), own, "{what}");
        assert_eq!(ask(3), Outcome::Refused, "{what}");
        assert_eq!(ask(4), Outcome::Dropped, "{what}");
        assert_eq!(ask(5), Outcome::Unreachable, "{what}");
    }
    Ok(())
}

#[test]
fn tells_verdicts_apart_for_bridged_pods() -> Result<()> {
    tells_verdicts_apart("self-bridged", Wiring::Bridged)
}

#[test]
fn tells_verdicts_apart_for_routed_pods() -> Result<()> {
    tells_verdicts_apart("self-routed", Wiring::Routed)
}

#[test]
fn sees_a_missing_hairpin_masquerade() -> Result<()> {
    for (label, wiring) in [("self-hair-b", Wiring::Bridged), ("self-hair-r", Wiring::Routed)] {
        let context = context(label, wiring)?;
        for family in FAMILIES {
            let to_itself = |last| {
                Probe::tcp(service(family, last)).timeout(SILENCE).send_in(&context.server.netns)
            };
            assert_eq!(
                to_itself(1).endpoint(),
                None,
                "{wiring:?} {family}: an endpoint cannot answer itself"
            );
            assert!(to_itself(2).endpoint().is_some(), "{wiring:?} {family}: {:?}", to_itself(2));
        }
    }
    Ok(())
}

#[test]
fn reaches_everybody_from_everywhere() -> Result<()> {
    let HarnessContext { world, client, server, _server } = context("self-reach", Wiring::Routed)?;
    let ports = [Protocol::Tcp, Protocol::Udp].map(|protocol| (protocol, 7000));
    let mut servers = Vec::new();
    for (host, addresses) in
        [(&world.remote, &world.addresses().remote), (&world.client, &world.addresses().client)]
    {
        let at = |address: &IpAddr| {
            ports.map(|(protocol, port)| Listen { protocol, address: (*address, port).into() })
        };
        servers.push(Server::start(host, &addresses.iter().flat_map(at).collect::<Vec<_>>())?);
    }
    let outside = world.addresses().remote.iter().chain(&world.addresses().client);
    for (address, (protocol, port)) in
        outside.flat_map(|address| ports.map(|port| (*address, port)))
    {
        let to = SocketAddr::new(address, port);
        for (who, netns) in [("node", &world.node), ("pod", &client.netns)] {
            let answer = Probe { protocol, ..Probe::tcp(to) }.send_in(netns);
            assert_eq!(answer.endpoint(), Some(to), "{who} to {to}/{protocol}: {answer:?}");
        }
    }
    for (family, host) in
        FAMILIES.iter().flat_map(|family| [(family, &world.client), (family, &world.remote)])
    {
        let answer = Probe::tcp(service(family, 1)).send_in(host);
        let endpoint = server.address_like(service(family, 1).ip());
        assert_eq!(
            answer.endpoint().map(|endpoint| endpoint.ip()),
            endpoint,
            "{}: {answer:?}",
            host.name()
        );
    }
    Ok(())
}

#[test]
fn real_plugins_attach_pods_in_disjoint_ranges() -> Result<()> {
    let world = World::new("self-cni", Addresses::default())?;
    let data = world.subfolder("cni")?;
    let bridged_ranges = [("10.10.0.0/24", ip("10.10.0.1")), ("fd00:10::/64", ip("fd00:10::1"))];
    let routed_ranges =
        [("172.20.5.0/24", ip("172.20.5.1")), ("fd00:172:20::/64", ip("fd00:172:20::1"))];
    let bridged = Chain::bridged(BRIDGE, &bridged_ranges, &data);
    let routed = Chain::routed(&routed_ranges, &data);
    let attach = |name: &str, chain: &Chain| {
        Pod::attach(&world.node, Netns::new(&format!("self-cni-{name}"))?, name, chain)
    };
    let one = attach("one", &bridged)?;
    let two = attach("two", &routed)?;
    assert_eq!(one.input_interface, BRIDGE);
    assert_eq!(two.input_interface, two.host_interface());
    assert_eq!((one.addresses.len(), two.addresses.len()), (2, 2), "both families");
    for (from, to) in [(&one, &two), (&two, &one)] {
        let listens = to
            .addresses
            .iter()
            .map(|address| Listen { protocol: Protocol::Tcp, address: (*address, 80).into() });
        let _server = Server::start(&to.netns, &listens.collect::<Vec<_>>())?;
        for address in &to.addresses {
            let answer = Probe::tcp(SocketAddr::new(*address, 80)).send_in(&from.netns);
            assert_eq!(answer.seen(), from.address_like(*address), "to {address}: {answer:?}");
        }
    }
    let gone = two.addresses[0];
    two.detach(&world.node)?;
    let answer = Probe::tcp(SocketAddr::new(gone, 80)).send_in(&one.netns);
    assert_eq!(answer, Outcome::Unreachable, "after DEL");
    Ok(())
}

#[test]
fn the_real_plugin_records_pods_of_either_make() -> Result<()> {
    let world = World::new("self-record", Addresses::default())?;
    let run_dir = world.subfolder("run")?;
    let mut pods = Vec::new();
    for (name, wiring) in [("b", Wiring::Bridged), ("r", Wiring::Routed)] {
        let netns = Netns::new(&format!("self-record-{name}"))?;
        let mut pod =
            Pod::wire(&world.node, netns, name, wiring, &[ip(&format!("10.10.{}.2", pods.len()))])?;
        pod.record(&world.node, &run_dir, &Value::Null)?;
        pods.push(pod);
    }
    let ranges = [("172.20.5.0/24", ip("172.20.5.1"))];
    let chain =
        Chain::routed(&ranges, &world.subfolder("cni")?).then_denizen(&run_dir, &Value::Null);
    pods.push(Pod::attach(&world.node, Netns::new("self-record-c")?, "c", &chain)?);
    let recorded = || -> Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(run_dir.join("pods.json"))?)?)
    };
    let state = recorded()?;
    for pod in &pods {
        let record = &state["attachments"][pod.attachment()];
        assert_eq!(record["hostInterface"]["name"], pod.host_interface(), "{record}");
        let bridge = if pod.input_interface == BRIDGE { BRIDGE.into() } else { Value::Null };
        assert_eq!(record["bridge"], bridge, "{record}");
        assert_eq!(record["ips"], serde_json::to_value(&pod.addresses)?, "{record}");
    }
    for pod in pods {
        pod.detach(&world.node)?;
    }
    assert_eq!(recorded()?["attachments"], serde_json::json!({}), "after every DEL");
    Ok(())
}
