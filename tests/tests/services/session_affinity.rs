//! Session affinity while endpoints come and go: a client keeps its endpoint as long as that is
//! one, whichever frontend it uses, and nobody is sent to one that is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use anyhow::{Context, Result, bail, ensure};
use denizen_tests::agent::programmed;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{Fixture, Host, PORT, PROTOCOLS, every_protocol, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{fetch, url};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::packets::syn::forged_syn;
use denizen_tests::test_length::times;
use serde_json::Value;
use socket2::{Domain, Protocol as SocketProtocol, Socket, Type};

use crate::context::{AgentContext, HTTP, at};

const NODE_PORT: u16 = 30080;
const TWO: [Port; 2] = [HTTP[0], Port::tcp("more", 81, PORT)];
const ALL: [Host; 3] = [Host::Bridged, Host::Routed, Host::Remote];
const CLIENTS: [Host; 4] = [Host::Bridged, Host::Routed, Host::Remote, Host::Outside];

/// Who answers whom, over what and in which family.
type Choices = BTreeMap<(usize, String), Host>;

fn put(fixture: &Fixture, members: &[Host]) -> Result<()> {
    let ports: Vec<Port> =
        every_protocol().into_iter().map(|port| port.at_node(NODE_PORT)).collect();
    let mut objects = fixture.service("sticky", 10, &ports, members)?;
    objects[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    fixture.cluster.manifests.put("sticky", &objects)
}

/// Asks at the cluster IP and at the node port, more than once: all must be answered by the same.
fn choice(
    fixture: &Fixture,
    who: Host,
    frontends: [SocketAddr; 2],
    protocol: Protocol,
) -> Result<Host> {
    let mut chosen = None;
    for frontend in [frontends, frontends].concat() {
        let outcome = fixture.probe(who, frontend, protocol)?;
        let by = outcome.endpoint().and_then(|endpoint| fixture.owner(endpoint.ip()));
        let by =
            by.with_context(|| format!("{who:?} to {frontend} over {protocol}: {outcome:?}"))?;
        ensure!(
            chosen.is_none_or(|chosen| chosen == by),
            "{who:?} to {frontends:?} over {protocol}: {chosen:?}, then {by:?} at {frontend}"
        );
        chosen = Some(by);
    }
    chosen.context("it was asked")
}

fn choices(fixture: &Fixture) -> Result<Choices> {
    let mut found = Choices::new();
    for (number, who) in CLIENTS.into_iter().enumerate() {
        for ip in service_ips(10) {
            let node = fixture.address(Host::ThisNode, ip)?;
            let frontends = [SocketAddr::new(ip, 80), SocketAddr::new(node, NODE_PORT)];
            for protocol in PROTOCOLS {
                let by = choice(fixture, who, frontends, protocol)?;
                found.insert((number, format!("{protocol} to {ip}")), by);
            }
        }
    }
    Ok(found)
}

#[test]
fn a_client_keeps_its_endpoint_while_others_come_and_go_and_loses_it_with_the_endpoint()
-> Result<()> {
    let fixture = Fixture::new("aff-churn")?;
    put(&fixture, &[Host::Bridged, Host::Routed, Host::Remote])?;
    let agent = fixture.cluster.start_agent()?;
    let mut before = choices(&fixture)?;
    let churn = [
        &[Host::Routed, Host::Remote][..],
        &[Host::Remote],
        &[Host::Bridged, Host::Remote],
        &[Host::Bridged, Host::Routed],
        &[Host::Remote, Host::Bridged, Host::Routed],
    ];
    for members in churn {
        programmed(&agent, || put(&fixture, members), || ())?;
        let now = choices(&fixture)?;
        for (client, by) in &now {
            ensure!(members.contains(by), "{client:?} by {by:?}, of {members:?}");
            let earlier = before[client];
            ensure!(
                !members.contains(&earlier) || earlier == *by,
                "{client:?} was {earlier:?}'s, which is still there, and is {by:?}'s now"
            );
        }
        before = now;
    }
    Ok(())
}

/// More than the map of clients has room for, in one family (262,144), and more than the flooded
/// service port's share of the second map beyond that.
const FORGED: usize = 290_000;
/// So many of them are in the map already where there is no time to forge them all.
const LISTED: usize = 257_000;
/// … and where there is. The rest is forged. It stays below what the kernel itself has room for: by
/// default 262,144 tracked connections, and 64,512 that the node masquerades to one endpoint.
const LISTED_AT_FULL_LENGTH: usize = 150_000;

/// `IPPROTO_RAW`.
const BRINGS_ITS_HEADER: i32 = 255;

/// Fills the map with clients of another service port, by nft.
fn fill(fixture: &Fixture, clients: usize) -> Result<()> {
    let client = |n: usize| {
        let [_, a, b, c] = (n as u32).to_be_bytes();
        format!("7fff:c000 . 12.{a}.{b}.{c} timeout 3h : 7fff:c001")
    };
    let all: Vec<String> = (0..clients).map(client).collect();
    let add =
        |some: &[String]| format!("add element ip denizen affinity {{ {} }}\n", some.join(","));
    fixture.cluster.world.node.nft(&all.chunks(10_000).map(add).collect::<String>())
}

/// Sends SYNs from as many addresses, none of which is the sender's.
fn flood(fixture: &Fixture, who: Host, to: SocketAddr, sources: usize) -> Result<()> {
    let SocketAddr::V4(to) = to else { bail!("{to} is not of IPv4") };
    let send = || -> Result<()> {
        let raw =
            Socket::new(Domain::IPV4, Type::RAW, Some(SocketProtocol::from(BRINGS_ITS_HEADER)))?;
        let first = u32::from(Ipv4Addr::new(11, 0, 0, 1));
        for source in (first..).take(sources).map(Ipv4Addr::from) {
            raw.send_to(
                &forged_syn(SocketAddrV4::new(source, 4000), to),
                &SocketAddr::V4(to).into(),
            )?;
        }
        Ok(())
    };
    fixture.place(who).0.run(send)?
}

/// A service at the cluster IPs of `number`, over TCP.
fn put_tcp(fixture: &Fixture, name: &str, number: u8) -> Result<()> {
    let members = [Host::Bridged, Host::Routed, Host::Remote];
    let mut objects = fixture.service(name, number, &[Port::tcp("http", 80, PORT)], &members)?;
    objects[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    fixture.cluster.manifests.put(name, &objects)
}

/// Who answers `who` at a service of IPv4, time after time.
fn kept(fixture: &Fixture, who: Host, number: u8) -> Result<Host> {
    let frontend = SocketAddr::new(service_ips(number)[0], 80);
    choice(fixture, who, [frontend, frontend], Protocol::Tcp)
}

#[test]
fn forged_clients_of_one_service_end_nobodys_affinity() -> Result<()> {
    let fixture = Fixture::new("aff-flood")?;
    put_tcp(&fixture, "flooded", 10)?;
    put_tcp(&fixture, "other", 11)?;
    let agent = fixture.cluster.start_agent()?;
    let before = kept(&fixture, Host::Outside, 10)?;
    let listed = times(LISTED_AT_FULL_LENGTH, LISTED);
    fill(&fixture, listed)?;
    flood(&fixture, Host::Routed, SocketAddr::new(service_ips(10)[0], 80), FORGED - listed)?;

    for who in CLIENTS {
        kept(&fixture, who, 11).context("a new client of another service")?;
    }
    let after = kept(&fixture, Host::Outside, 10)?;
    ensure!(after == before, "remembered with {before:?}, sent to {after:?}");
    for who in [Host::Bridged, Host::Remote] {
        kept(&fixture, who, 10).context("a new client of the flooded service")?;
    }

    let status = agent.status()?;
    let figure = |map: &str| {
        let maps = status["affinity"]["clients"].as_array().into_iter().flatten();
        let of_map = maps.filter(|entry| entry["family"] == "IPv4" && entry["map"] == map);
        of_map.filter_map(|entry| entry["clients"].as_u64()).sum::<u64>()
    };
    // One of the clients above was remembered in the ordinary map before it was full.
    ensure!(figure("affinity") == 262_144, "{status:#}");
    // The budget of the flooded service port, and the new clients from this node's pods and of the
    // other service.
    ensure!((1_024..1_100).contains(&figure("affinity-reserved")), "{status:#}");
    ensure!(figure("affinity-brief") > 1_000, "{status:#}");
    ensure!(status["warnings"].to_string().contains("session affinity"), "{status:#}");
    let metrics =
        fetch(&fixture.cluster.world.node, &url(ip("127.0.0.1"), 10249, "/metrics"), &[])?;
    let shown = [
        "denizen_rule_elements{ip_family=\"IPv4\",set=\"affinity\"} 262144",
        "denizen_affinity_crowded_total{remembered=\"briefly\"}",
    ];
    for line in shown {
        ensure!(metrics.body.contains(line), "no {line} in {}", metrics.body);
    }

    // nft shows the budget, which has an expression of its own beside the key.
    let listed = fixture
        .cluster
        .world
        .node
        .output("nft", &["list", "set", "ip", "denizen", "affinity-budget"])?;
    let limit = "limit rate 341/hour burst 1024 packets";
    ensure!(listed.contains(limit) && !listed.contains("unknown"), "{listed}");

    // A restarted agent, which remembers nothing, does not read all these clients.
    agent.terminate()?;
    let _agent = fixture.cluster.start_agent()?;
    let restarted = kept(&fixture, Host::Outside, 10)?;
    ensure!(restarted == before, "remembered with {before:?}, sent to {restarted:?}");
    Ok(())
}

fn sticky(fixture: &Fixture, members: &[Host]) -> Result<Vec<Value>> {
    let mut objects = fixture.service("web", 10, &TWO, members)?;
    objects[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    Ok(objects)
}

/// The one that all connections of a client go to.
fn chosen(context: &AgentContext, to: SocketAddr) -> Result<Host> {
    let mut answered = BTreeSet::new();
    for _ in 0..12 {
        let outcome = context.fixture.probe(Host::Outside, to, Protocol::Tcp)?;
        let endpoint = outcome.endpoint().with_context(|| format!("{to}: {outcome:?}"))?;
        answered.extend(context.fixture.owner(endpoint.ip()));
    }
    let only = answered.pop_first().context("nobody answered")?;
    assert_eq!(answered, BTreeSet::new(), "{to}: besides {only:?}");
    Ok(only)
}

#[test]
fn affinity_is_per_port_and_forgets_who_is_removed() -> Result<()> {
    let context = AgentContext::new("aff-port", &[], |fixture| sticky(fixture, &ALL))?;
    let [first, second] = [80, 81].map(|port| at(10, port));
    for (first, second) in first.into_iter().zip(second) {
        // A service port each: where the one's choice goes, the other's need not.
        let (gone, kept) = (chosen(&context, first)?, chosen(&context, second)?);
        let rest: Vec<Host> = ALL.into_iter().filter(|who| *who != gone).collect();
        context.becomes(&sticky(&context.fixture, &rest)?)?;
        let next = chosen(&context, first)?;
        assert_ne!(next, gone, "it is no endpoint any more");
        if kept != gone {
            assert_eq!(chosen(&context, second)?, kept, "nothing of its own changed");
        }
        context.becomes(&sticky(&context.fixture, &ALL)?)?;
        assert_eq!(chosen(&context, first)?, next, "who came back has no claim");
    }
    Ok(())
}

fn affinity_chains(fixture: &Fixture) -> Result<Vec<String>> {
    let listed = fixture.cluster.world.node.output("nft", &["-t", "list", "chains"])?;
    let names = listed.lines().filter_map(|line| line.trim().strip_prefix("chain "));
    let names = names.filter(|name| name.contains("-affinity-"));
    Ok(names.map(str::to_owned).collect())
}

/// Whoever may change one Service may give it each of 86,400 time-outs, one after the other.
#[test]
fn a_former_time_out_leaves_no_chains() -> Result<()> {
    for (label, flag) in [("aff-time", "--backend=nftables"), ("aff-ipvs", "--backend=ipvs")] {
        let fixture = Fixture::new(label)?;
        let mut objects = fixture.service("sticky", 10, &HTTP, &ALL)?;
        objects[0]["spec"]["sessionAffinity"] = "ClientIP".into();
        fixture.cluster.manifests.put("sticky", &objects)?;
        let agent = fixture.cluster.start_agent_with([flag])?;
        let first = affinity_chains(&fixture)?.len();
        ensure!(first > 0, "{flag}");
        for seconds in 1..=10 {
            let config = &mut objects[0]["spec"]["sessionAffinityConfig"];
            config["clientIP"]["timeoutSeconds"] = seconds.into();
            programmed(&agent, || fixture.cluster.manifests.put("sticky", &objects), || ())?;
            let chains = affinity_chains(&fixture)?;
            let its_own = |name: &String| name.contains(&format!("-{seconds}s "));
            ensure!(chains.len() == first && chains.iter().all(its_own), "{flag}: {chains:?}");
        }
        programmed(&agent, || fixture.cluster.manifests.remove("sticky"), || ())?;
        let chains = affinity_chains(&fixture)?;
        ensure!(chains.is_empty(), "{flag}, the service is gone: {chains:?}");
    }
    Ok(())
}

/// Longer than a comment in the kernel, by which a restarted agent knows whose memory it finds.
#[test]
fn ports_of_a_service_with_long_names_are_remembered_apart_and_over_a_restart() -> Result<()> {
    for (label, flag) in [
        ("aff-long", "--backend=nftables"),
        ("aff-long-ipt", "--backend=iptables"),
        ("aff-long-ipvs", "--backend=ipvs"),
    ] {
        let mut fixture = Fixture::new(label)?;
        for who in ALL {
            let addresses = service_ips(10).into_iter().map(|ip| fixture.address(who, ip));
            let addresses = addresses.collect::<Result<Vec<_>>>()?;
            let place = fixture.place(who).0;
            let server = serve(place, &addresses, &[(Protocol::Tcp, PORT + 1)])?;
            fixture.servers.push(server);
        }
        let ports = [Port::tcp("http", 80, PORT), Port::tcp("admin", 81, PORT + 1)];
        let mut objects = fixture.service(&"s".repeat(63), 10, &ports, &ALL)?;
        objects[0]["spec"]["sessionAffinity"] = "ClientIP".into();
        for object in &mut objects {
            object["metadata"]["namespace"] = "n".repeat(63).into();
        }
        fixture.cluster.manifests.put("sticky", &objects)?;
        let each_in_turn = || -> Result<Vec<Host>> {
            let frontends = service_ips(10).into_iter().flat_map(|ip| [(ip, 80), (ip, 81)]);
            let asked = frontends.map(|(ip, port)| {
                let outcome =
                    fixture.probe(Host::Outside, SocketAddr::new(ip, port), Protocol::Tcp)?;
                let by = outcome.endpoint().and_then(|endpoint| fixture.owner(endpoint.ip()));
                by.with_context(|| format!("{flag}: {outcome:?}"))
            });
            asked.collect()
        };
        let agent = fixture.cluster.start_agent_with([flag])?;
        let chosen = each_in_turn()?;
        for _ in 0..5 {
            assert_eq!(each_in_turn()?, chosen, "{flag}: http and admin, one after the other");
        }
        agent.terminate()?;
        let _agent = fixture.cluster.start_agent_with([flag])?;
        assert_eq!(each_in_turn()?, chosen, "{flag}: after a restart");
    }
    Ok(())
}
