//! `denizen-agent connections`: it agrees with conntrack's own listing, and names what is known.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::agent::watch::WatchCommand;
use denizen_tests::binary;
use denizen_tests::eventually::observed;
use denizen_tests::kernel::conntrack::tracked;
use denizen_tests::node::fixture::{Fixture, Host, PORT, PROTOCOLS, every_protocol, service_ips};
use denizen_tests::node::netns::checked;
use denizen_tests::packets::probe::Protocol;
use serde_json::Value;

const NODE_PORT: u16 = 30080;

/// `denizen-agent connections` with these arguments.
fn connections(fixture: &Fixture, agent: &Agent, arguments: &[&str]) -> Result<Value> {
    let mut command = Command::new(binary::ours("denizen-agent")?);
    command.arg("connections").arg("--run-dir").arg(agent.run_dir());
    command.args(["--output", "json"]).args(arguments);
    let output = fixture.cluster.world.node.run(|| checked(&mut command))??;
    serde_json::from_slice(&output.stdout).context("connections that are no JSON")
}

/// Service `web` over every protocol, also at a node port, served by the bridged pod.
fn context(label: &str) -> Result<(Fixture, Agent)> {
    let fixture = Fixture::new(label)?;
    fixture.cluster.world.node.sysctl("net.netfilter.nf_conntrack_timestamp", "1")?;
    let ports: Vec<_> = every_protocol().into_iter().map(|port| port.at_node(NODE_PORT)).collect();
    fixture.cluster.manifests.put("web", &fixture.service("web", 10, &ports, &[Host::Bridged])?)?;
    let agent = fixture.cluster.start_agent()?;
    Ok((fixture, agent))
}

fn rows(shown: &Value) -> &[Value] {
    shown["connections"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Protocol, client, destination and endpoint.
type Tuple = (String, SocketAddr, SocketAddr, SocketAddr);

fn tuple(row: &Value) -> Result<Tuple> {
    let address = |place: &Value| -> Result<SocketAddr> {
        Ok(place["address"].as_str().context("an address")?.parse()?)
    };
    let destination = address(&row["destination"])?;
    let endpoint = match row["endpoint"].is_null() {
        true => destination,
        false => address(&row["endpoint"])?,
    };
    let protocol = row["protocol"].as_str().context("a protocol")?;
    Ok((protocol.to_owned(), address(&row["client"])?, destination, endpoint))
}

fn listed(fixture: &Fixture) -> Result<BTreeSet<Tuple>> {
    let mut all = BTreeSet::new();
    for protocol in PROTOCOLS {
        let name = protocol.to_string().to_lowercase();
        let found = tracked(&fixture.cluster.world.node, protocol)?.into_iter();
        all.extend(
            found.map(|flow| (name.clone(), flow.source, flow.destination, flow.reply_source)),
        );
    }
    Ok(all)
}

/// Who asks what, and what must be said of it: client, service, endpoint, masqueraded or not.
type ConnectionCase = (Host, SocketAddr, Option<&'static str>, Option<&'static str>, bool);

fn cases(fixture: &Fixture) -> Result<Vec<ConnectionCase>> {
    let mut cases = Vec::new();
    for like in service_ips(10) {
        let pod = |who| Ok::<_, anyhow::Error>(SocketAddr::new(fixture.address(who, like)?, PORT));
        let node = SocketAddr::new(fixture.address(Host::ThisNode, like)?, NODE_PORT);
        let cluster_ip = SocketAddr::new(like, 80);
        let served = Some("default/bridged");
        cases.extend([
            (Host::Routed, cluster_ip, Some("default/routed"), served, false),
            (Host::Outside, cluster_ip, None, served, true),
            (Host::Outside, node, None, served, true),
            (Host::Bridged, cluster_ip, Some("default/bridged"), served, true),
            (Host::Routed, pod(Host::Bridged)?, Some("default/routed"), None, false),
            (Host::Remote, pod(Host::Routed)?, None, None, false),
        ]);
    }
    Ok(cases)
}

#[test]
fn connections_agree_with_conntrack_and_have_names() -> Result<()> {
    let (fixture, agent) = context("conns")?;
    let cases = cases(&fixture)?;
    for protocol in PROTOCOLS {
        for (who, to, ..) in &cases {
            let outcome = fixture.probe(*who, *to, protocol)?;
            ensure!(outcome.endpoint().is_some(), "{who:?} to {to}/{protocol}: {outcome:?}");
        }
    }
    // What ends between two looks would differ.
    let shown = observed(
        "the same as conntrack",
        std::time::Duration::from_secs(20),
        || Ok((listed(&fixture)?, connections(&fixture, &agent, &[])?)),
        |(listed, shown)| {
            let shown = rows(shown).iter().map(tuple).collect::<Result<BTreeSet<_>>>();
            shown.is_ok_and(|shown| shown == *listed)
        },
    )?;
    let shown = shown.1;
    assert_eq!(shown["total"], rows(&shown).len());
    for protocol in PROTOCOLS {
        for case in &cases {
            check(&fixture, &shown, protocol, case)?;
        }
    }
    let web = format!("default/web:{}", "tcp");
    let of_web = rows(&shown).iter().filter(|row| row["service"] == web.as_str());
    let masqueraded = of_web.clone().filter(|row| row.get("masqueradedAs").is_some());
    let total = shown["services"].as_array().context("services")?.iter();
    let total = total.into_iter().find(|row| row["service"] == web.as_str()).context("web")?;
    assert_eq!(total["connections"], of_web.count());
    assert_eq!(total["masqueraded"], masqueraded.count());
    narrowed(&fixture, &agent, &shown)
}

fn check(
    fixture: &Fixture,
    shown: &Value,
    protocol: Protocol,
    case: &ConnectionCase,
) -> Result<()> {
    let (who, to, client, endpoint, masqueraded) = case;
    let name = protocol.to_string().to_lowercase();
    let source = fixture.address(*who, to.ip())?;
    let is_it = |row: &&Value| {
        let of = tuple(row).ok();
        of.is_some_and(|(of, client, destination, _)| {
            of == name && client.ip() == source && destination == *to
        })
    };
    let row = rows(shown).iter().find(is_it);
    let row = row.with_context(|| format!("no {who:?} to {to}/{protocol}: {shown:#}"))?;
    if let Some(client) = client {
        assert_eq!(row["client"]["name"], *client, "{row:#}");
    }
    match endpoint {
        Some(endpoint) => {
            assert_eq!(row["endpoint"]["name"], *endpoint, "{row:#}");
            assert_eq!(row["service"], format!("default/web:{name}"), "{row:#}");
        }
        None => {
            ensure!(row["endpoint"].is_null() && row["service"].is_null(), "{row:#}");
            ensure!(row["destination"]["name"].is_string(), "{row:#}");
        }
    }
    assert_eq!(row["masqueradedAs"].is_string(), *masqueraded, "{row:#}");
    ensure!(row["seconds"].is_u64(), "the kernel's timestamps are on: {row:#}");
    ensure!(row["state"].is_string(), "{row:#}");
    Ok(())
}

fn narrowed(fixture: &Fixture, agent: &Agent, all: &Value) -> Result<()> {
    let of = |shown: &Value, is: &dyn Fn(&Value) -> bool| -> Result<BTreeSet<Tuple>> {
        rows(shown).iter().filter(|row| is(row)).map(tuple).collect()
    };
    let has_service = |row: &Value, name: &str| {
        row["service"].as_str().is_some_and(|service| service.starts_with(name))
    };
    let is_routed = |row: &Value| {
        ["client", "destination", "endpoint"].iter().any(|end| row[end]["name"] == "default/routed")
    };
    let service = connections(fixture, agent, &["--service", "default/web"])?;
    assert_eq!(of(&service, &|_| true)?, of(all, &|row| has_service(row, "default/web:"))?);
    let port = connections(fixture, agent, &["--service", "default/web:udp"])?;
    assert_eq!(of(&port, &|_| true)?, of(all, &|row| has_service(row, "default/web:udp"))?);
    let pod = connections(fixture, agent, &["--pod", "default/routed"])?;
    assert_eq!(of(&pod, &|_| true)?, of(all, &is_routed)?);
    ensure!(!rows(&pod).is_empty() && rows(&pod).len() < rows(all).len());
    for (flag, name, error) in [
        ("--service", "default/we", "the agent knows no service default/we"),
        ("--pod", "default/nobody", "the agent knows no pod default/nobody"),
    ] {
        let refused = connections(fixture, agent, &[flag, name]).err().context("shown")?;
        ensure!(format!("{refused:#}").contains(error), "{refused:#}");
    }
    Ok(())
}

#[test]
fn connections_are_watched_as_they_begin_and_end() -> Result<()> {
    let (fixture, agent) = context("conns-watch")?;
    let node = &fixture.cluster.world.node;
    let watching =
        WatchCommand::start(node, &agent, &["connections", "--service", "default/web:udp"])?;
    for like in service_ips(10) {
        let to = SocketAddr::new(like, 80);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let outcome = fixture.probe(Host::Routed, to, protocol)?;
            ensure!(outcome.endpoint().is_some(), "{outcome:?}");
        }
        let is = |event: &'static str| {
            let address = to.to_string();
            move |seen: &Value| seen["event"] == event && seen["destination"]["address"] == *address
        };
        let new = watching.until("a connection begins", is("new"))?;
        assert_eq!(new["endpoint"]["name"], "default/bridged", "{new:#}");
        node.output("conntrack", &["-D", "-p", "udp", "-d", &like.to_string()])?;
        let ended = watching.until("it ends", is("ended"))?;
        assert_eq!(ended["client"]["name"], "default/routed", "{ended:#}");
    }
    let others = watching.seen().into_iter().find(|event| event["protocol"] != "udp");
    assert_eq!(others, None);
    watching.kill()
}
