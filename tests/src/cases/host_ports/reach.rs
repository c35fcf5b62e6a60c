//! Who reaches a host port, and which source address the pod sees.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::context::{Context, Services, TIMEOUT, every_protocol, of_node, port};
use crate::agent::trace::TraceCommand;
use crate::eventually::eventually;
use crate::node::cluster::serve;
use crate::node::fixture::{Host, PORT, PROTOCOLS};
use crate::node::pod::Wiring;
use crate::node::world::ip;
use crate::packets::probe::{Outcome, Probe, Protocol, SILENCE};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Pods of both wirings are reached at every address of the node over every protocol, and see the
/// client's own address.
pub fn everybody_reaches_the_pod_as_himself(context: &Context) -> Result<()> {
    if context.services() != Services::Off {
        context.has_no_tables_soon()?;
    }
    for (name, wiring, number) in [("b", Wiring::Bridged, 8081), ("r", Wiring::Routed, 8082)] {
        let serving = context.add_pod(name, wiring, &every_protocol(number))?;
        let senders = [Host::Outside, Host::Remote, Host::Bridged, Host::Routed, Host::ThisNode];
        for who in senders {
            for to in context.at(number) {
                for protocol in PROTOCOLS {
                    let outcome = context.is_answered(who, to, protocol, &serving)?;
                    let own = context.fixture.address(who, to.ip())?;
                    let is_node = who == Host::ThisNode;
                    ensure!(is_node || outcome.seen() == Some(own), "{who:?}: {outcome:?}");
                }
            }
        }
        context.end([serving])?;
    }
    Ok(())
}

/// The pod sees the client's own port, too.
pub fn the_source_port_is_kept(context: &Context) -> Result<()> {
    let serving = context.add_pod("pod", Wiring::Bridged, &json!([port(8080)]))?;
    for to in [ip("192.168.0.2"), ip("2001:db8::1")] {
        let from = context.fixture.address(Host::Outside, to)?;
        let probe = Probe { port: 40_404, ..Probe::tcp(SocketAddr::new(to, 8080)) }.from(from);
        let outcome = probe.send_in(&context.fixture.cluster.world.client);
        let Outcome::Answered { seen, .. } = outcome else { anyhow::bail!("{outcome:?}") };
        ensure!(seen == SocketAddr::new(from, 40_404), "{seen}");
    }
    context.end([serving])
}

/// The pod answers itself, since the source is masqueraded: it sees another address than its own.
pub fn a_pod_reaches_itself(context: &Context) -> Result<()> {
    for (name, wiring, number) in [("b", Wiring::Bridged, 8081), ("r", Wiring::Routed, 8082)] {
        let serving = context.add_pod(name, wiring, &every_protocol(number))?;
        for to in context.at(number) {
            let own = serving.address_like(to.ip())?;
            for protocol in PROTOCOLS {
                let outcome = of_node(protocol, own, to).send_in(&serving.pod.netns);
                let is_masqueraded = outcome.seen().is_some_and(|seen| seen != own);
                ensure!(is_masqueraded, "{name} to {to}/{protocol}: {outcome:?}");
            }
        }
        context.end([serving])?;
    }
    Ok(())
}

/// The node reaches the pod at 127.0.0.1, masqueraded; `::1` refuses at once.
pub fn the_node_reaches_it_on_localhost(context: &Context) -> Result<()> {
    let serving = context.add_pod("pod", Wiring::Bridged, &every_protocol(8080))?;
    let to = SocketAddr::new(LOCALHOST, 8080);
    eventually("route_localnet", TIMEOUT, || {
        let setting = "/proc/sys/net/ipv4/conf/all/route_localnet";
        Ok(context.node().run(|| fs::read_to_string(setting))??.trim() == "1")
    })?;
    for protocol in PROTOCOLS {
        let outcome = of_node(protocol, LOCALHOST, to).send_in(context.node());
        let by = outcome.endpoint().map(|endpoint| endpoint.ip());
        ensure!(by == Some(serving.address_like(LOCALHOST)?), "{protocol}: {outcome:?}");
        let seen = outcome.seen().context("it was answered")?;
        ensure!(context.fixture.cluster.is_nodes(seen)? && !seen.is_loopback(), "{outcome:?}");
        let explained = context.agent.explain(LOCALHOST, None, to, protocol)?;
        ensure!(explained.verdict == "forward" && explained.masquerade, "{explained:?}");
    }
    // IPv6 has no route_localnet.
    let to = SocketAddr::new(ip("::1"), 8080);
    let outcome = Probe::tcp(to).timeout(SILENCE).send_in(context.node());
    ensure!(outcome == Outcome::Refused, "{outcome:?}");
    context.end([serving])
}

/// With `--host-ports=without-localhost`, a listener of the node at 127.0.0.1 is reached.
pub fn localhost_stays_the_nodes_own(context: &Context) -> Result<()> {
    let serving = context.add_pod("pod", Wiring::Bridged, &every_protocol(8080))?;
    let to = SocketAddr::new(LOCALHOST, 8080);
    let _own = serve(context.node(), &[LOCALHOST], &[(Protocol::Tcp, 8080)])?;
    let outcome = of_node(Protocol::Tcp, LOCALHOST, to).send_in(context.node());
    ensure!(outcome.endpoint() == Some(to), "{outcome:?}");
    let first = SocketAddr::new(context.addresses()[0], 8080);
    context.is_answered(Host::Outside, first, Protocol::Tcp, &serving)?;
    context.end([serving])
}

/// With `route_localnet`, a neighbour's packets to 127.0.0.1 would come in: they are dropped.
pub fn neighbours_are_kept_out_of_localhost(context: &Context) -> Result<()> {
    let serving = context.add_pod("pod", Wiring::Bridged, &json!([port(8080)]))?;
    let _private = serve(context.node(), &[LOCALHOST], &[(Protocol::Tcp, 9999)])?;
    let pod = &context.fixture.routed.netns;
    let gateway = pod.output("ip", &["-4", "route", "show", "default"])?;
    let via = gateway.split_whitespace().nth(2).context("a default route")?;
    pod.sysctl("net.ipv4.conf.all.route_localnet", "1")?;
    pod.ip(&format!("addr del 127.0.0.1/8 dev lo\nroute add 127.0.0.1/32 via {via} dev eth0"))?;
    for number in [8080, 9999] {
        let to = SocketAddr::new(LOCALHOST, number);
        let from = context.fixture.address(Host::Routed, LOCALHOST)?;
        let outcome = Probe::tcp(to).from(from).timeout(SILENCE).send_in(pod);
        ensure!(outcome == Outcome::Dropped, "{number}: {outcome:?}");
    }
    pod.ip("route del 127.0.0.1/32 dev eth0\naddr add 127.0.0.1/8 dev lo")?;
    context.end([serving])
}

/// The kernel does what `explain` predicts, rule by rule.
pub fn a_trace_follows_a_packet_to_the_pod(context: &Context) -> Result<()> {
    let serving = context.add_pod("pod", Wiring::Bridged, &json!([port(8080)]))?;
    for to in context.at(8080) {
        let from = context.fixture.address(Host::Outside, to.ip())?.to_string();
        let arguments = ["--from", &from, "--to", &to.to_string()];
        let tracing = TraceCommand::start(context.node(), &context.agent, &arguments)?;
        context.is_answered(Host::Outside, to, Protocol::Tcp, &serving)?;
        let traced = tracing.end()?;
        traced.ensure_as_predicted()?;
        let packet = &traced.packets()[0];
        ensure!(packet["hostPort"] == "default/pod", "{packet:#}");
        ensure!(packet["lastDestination"]["name"] == "default/pod", "{packet:#}");
        let hooks = packet["hooks"].to_string();
        ensure!(hooks.contains("protocol and port name the pod"), "{packet:#}");
    }
    context.end([serving])
}

/// A runtime writes "no ports" in several ways; and keys as Multus writes them are understood.
pub fn without_ports_there_is_no_rule(context: &Context) -> Result<()> {
    context.has_no_tables_soon()?;
    for (name, ports) in [("null", Value::Null), ("empty", json!([]))] {
        let serving = context.add_pod(name, Wiring::Bridged, &ports)?;
        ensure!(!context.has_tables()?, "{name}");
        context.end([serving])?;
    }
    let multus = json!([{ "hostPort": 8080, "containerPort": PORT, "protocol": "TCP" }]);
    let serving = context.add_pod("multus", Wiring::Bridged, &multus)?;
    let to = SocketAddr::new(context.addresses()[0], 8080);
    context.is_answered(Host::Outside, to, Protocol::Tcp, &serving)?;
    context.end([serving])?;
    context.has_no_tables_soon()
}
