//! Who reaches a host port, and as whom the pod sees them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Result, ensure};
use denizen_tests::agent::trace::TraceCommand;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{PORT, PROTOCOLS, Who};
use denizen_tests::node::pod::Wiring;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use serde_json::{Value, json};

use super::context::{Context, Services, every_protocol, of_node, port};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[test]
fn everybody_reaches_the_pod_as_himself() -> Result<()> {
    for services in Services::ALL {
        let context = Context::new("hp-reach", services)?;
        ensure!(!context.has_tables()? || services == Services::Off, "nobody asks");
        for (name, wiring, number) in [("b", Wiring::Bridged, 8081), ("r", Wiring::Routed, 8082)] {
            let asking = context.asks(name, wiring, &every_protocol(number))?;
            let senders = [Who::Outside, Who::Remote, Who::Bridged, Who::Routed, Who::ThisNode];
            for who in senders {
                for to in context.addresses().iter().map(|ip| SocketAddr::new(*ip, number)) {
                    for protocol in PROTOCOLS {
                        let outcome = context.is_answered(who, to, protocol, &asking)?;
                        let own = context.fixture.address(who, to.ip())?;
                        let is_node = who == Who::ThisNode;
                        ensure!(is_node || outcome.seen() == Some(own), "{who:?}: {outcome:?}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_source_port_is_kept() -> Result<()> {
    let context = Context::new("hp-port", Services::Off)?;
    let _asking = context.asks("pod", Wiring::Bridged, &json!([port(8080)]))?;
    for to in [ip("192.168.0.2"), ip("2001:db8::1")] {
        let from = context.fixture.address(Who::Outside, to)?;
        let probe = Probe { port: 40_404, ..Probe::tcp(SocketAddr::new(to, 8080)) }.from(from);
        let outcome = probe.ask_in(&context.fixture.cluster.world.client);
        let Outcome::Answered { seen, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(seen, SocketAddr::new(from, 40_404));
    }
    Ok(())
}

#[test]
fn a_pod_reaches_itself() -> Result<()> {
    for services in Services::ALL {
        let context = Context::new("hp-self", services)?;
        for (name, wiring, number) in [("b", Wiring::Bridged, 8081), ("r", Wiring::Routed, 8082)] {
            let asking = context.asks(name, wiring, &every_protocol(number))?;
            for to in context.addresses().iter().map(|ip| SocketAddr::new(*ip, number)) {
                for protocol in PROTOCOLS {
                    let outcome = of_node(protocol, asking.pod.address_like(to.ip()).unwrap(), to)
                        .ask_in(&asking.pod.netns);
                    let what = format!("{services:?}, {name} to {to}/{protocol}: {outcome:?}");
                    let seen = outcome.seen();
                    ensure!(
                        seen.is_some_and(|ip| Some(ip) != asking.pod.address_like(ip)),
                        "{what}"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_node_reaches_it_on_localhost() -> Result<()> {
    for services in Services::ALL {
        let context = Context::new("hp-lo", services)?;
        let asking = context.asks("pod", Wiring::Bridged, &every_protocol(8080))?;
        let to = SocketAddr::new(LOCALHOST, 8080);
        denizen_tests::eventually::eventually("route_localnet", super::context::BOUND, || {
            let read = ["/proc/sys/net/ipv4/conf/all/route_localnet"];
            Ok(context.node().output("cat", &read)?.trim() == "1")
        })?;
        for protocol in PROTOCOLS {
            let outcome = of_node(protocol, LOCALHOST, to).ask_in(context.node());
            let by = outcome.endpoint().map(|endpoint| endpoint.ip());
            ensure!(
                by == asking.pod.address_like(LOCALHOST),
                "{services:?} {protocol}: {outcome:?}"
            );
            let seen = outcome.seen().unwrap();
            ensure!(context.fixture.cluster.is_nodes(seen)? && !seen.is_loopback(), "{outcome:?}");
            let explained = context.agent.explain(LOCALHOST, None, to, protocol)?;
            ensure!(explained.verdict == "forward" && explained.masquerade, "{explained:?}");
        }
        // IPv6 has no route_localnet: refused at once.
        let to = SocketAddr::new(ip("::1"), 8080);
        let outcome = Probe::tcp(to).patience(SILENCE).ask_in(context.node());
        assert_eq!(outcome, Outcome::Refused, "{services:?}");
    }
    Ok(())
}

#[test]
fn localhost_stays_the_nodes_own_if_asked() -> Result<()> {
    for services in Services::ALL {
        let flags = ["--host-ports=without-localhost"];
        let context = Context::with("hp-nolo", services, &flags, |_| Ok(Vec::new()))?;
        let asking = context.asks("pod", Wiring::Bridged, &every_protocol(8080))?;
        let to = SocketAddr::new(LOCALHOST, 8080);
        let _own = serve(context.node(), &[LOCALHOST], &[(Protocol::Tcp, 8080)])?;
        let outcome = of_node(Protocol::Tcp, LOCALHOST, to).ask_in(context.node());
        assert_eq!(outcome.endpoint(), Some(to), "{services:?}");
        let first = SocketAddr::new(context.addresses()[0], 8080);
        context.is_answered(Who::Outside, first, Protocol::Tcp, &asking)?;
    }
    Ok(())
}

/// With `route_localnet`, a neighbour's packets to 127.0.0.1 would come in.
#[test]
fn neighbours_are_kept_out_of_localhost() -> Result<()> {
    for services in Services::ALL {
        let context = Context::new("hp-martian", services)?;
        let _asking = context.asks("pod", Wiring::Bridged, &json!([port(8080)]))?;
        let _private = serve(context.node(), &[LOCALHOST], &[(Protocol::Tcp, 9999)])?;
        let pod = &context.fixture.routed.netns;
        let gateway = pod.output("ip", &["-4", "route", "show", "default"])?;
        let via = gateway.split_whitespace().nth(2).unwrap().to_owned();
        pod.sysctl("net.ipv4.conf.all.route_localnet", "1")?;
        pod.ip(&format!("addr del 127.0.0.1/8 dev lo\nroute add 127.0.0.1/32 via {via} dev eth0"))?;
        for number in [8080, 9999] {
            let to = SocketAddr::new(LOCALHOST, number);
            let from = context.fixture.address(Who::Routed, LOCALHOST)?;
            let outcome = Probe::tcp(to).from(from).patience(SILENCE).ask_in(pod);
            assert_eq!(outcome, Outcome::Dropped, "{services:?} {number}");
        }
    }
    Ok(())
}

/// What the kernel does is what `explain` says, rule by rule.
#[test]
fn a_trace_follows_a_packet_to_the_pod() -> Result<()> {
    let traced = [Services::SERVED[0], Services::SERVED[2], Services::Off];
    for services in traced {
        let context = Context::new("hp-trace", services)?;
        let asking = context.asks("pod", Wiring::Bridged, &json!([port(8080)]))?;
        for ip in context.addresses() {
            let to = SocketAddr::new(*ip, 8080);
            let from = context.fixture.address(Who::Outside, *ip)?.to_string();
            let arguments = ["--from", &from, "--to", &to.to_string()];
            let tracing = TraceCommand::start(context.node(), &context.agent, &arguments)?;
            context.is_answered(Who::Outside, to, Protocol::Tcp, &asking)?;
            let traced = tracing.end()?;
            traced.ensure_as_predicted()?;
            let packet = &traced.packets()[0];
            ensure!(packet["hostPort"] == "default/pod", "{services:?}: {packet:#}");
            ensure!(packet["lastDestination"]["name"] == "default/pod", "{packet:#}");
            let hooks = packet["hooks"].to_string();
            ensure!(hooks.contains("protocol and port name the pod"), "{packet:#}");
        }
    }
    Ok(())
}

#[test]
fn without_ports_there_is_no_rule() -> Result<()> {
    let context = Context::new("hp-none", Services::SERVED[0])?;
    for (name, ports) in [("null", Value::Null), ("empty", json!([]))] {
        let _asking = context.asks(name, Wiring::Bridged, &ports)?;
        ensure!(!context.has_tables()?, "{name}");
    }
    let multus = json!([{ "hostPort": 8080, "containerPort": PORT, "protocol": "TCP" }]);
    let asking = context.asks("multus", Wiring::Bridged, &multus)?;
    let to = SocketAddr::new(context.addresses()[0], 8080);
    context.is_answered(Who::Outside, to, Protocol::Tcp, &asking)?;
    asking.pod.detach(context.node())?;
    context.has_no_tables_soon()
}
