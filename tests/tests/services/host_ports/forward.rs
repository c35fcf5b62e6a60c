//! On a host whose own firewall drops what is forwarded.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use denizen_tests::eventually::observed;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{PORT, Who};
use denizen_tests::node::pod::Wiring;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};

use super::context::{BOUND, Context, Services, every_protocol};

const FIREWALL: &str = "table inet filter { chain forward { type filter hook forward priority 0; \
    policy drop; }; }";

#[test]
fn a_firewall_that_drops_is_opened_for_host_ports_alone() -> Result<()> {
    for services in Services::ALL {
        let flags = ["--host-ports=on", "--open-forward"];
        let context = Context::with("hp-fw", services, &flags, |fixture| {
            fixture.cluster.world.node.nft(FIREWALL)?;
            Ok(Vec::new())
        })?;
        let asking = context.asks("pod", Wiring::Bridged, &every_protocol(8080))?;
        let addresses = context.addresses();
        let _own = serve(context.node(), addresses, &[(Protocol::Tcp, 7070)])?;
        for ip in addresses {
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                let to = SocketAddr::new(*ip, 8080);
                for who in [Who::Outside, Who::Routed] {
                    let is_served = |outcome: &Outcome| outcome.endpoint().is_some();
                    observed(
                        "served",
                        BOUND,
                        || context.fixture.ask(who, to, protocol),
                        is_served,
                    )?;
                    context.is_answered(who, to, protocol, &asking)?;
                }
            }
            // What is not forwarded is not marked.
            let own = SocketAddr::new(*ip, 7070);
            let outcome = context.fixture.ask(Who::Outside, own, Protocol::Tcp)?;
            ensure!(outcome.endpoint() == Some(own), "{services:?} {own}: {outcome:?}");
            let pod = asking.pod.address_like(*ip).expect("of both families");
            let from = context.fixture.address(Who::Outside, *ip)?;
            let straight = Probe::tcp((pod, PORT).into()).from(from).patience(SILENCE);
            let outcome = straight.ask_in(context.fixture.place(Who::Outside).0);
            ensure!(outcome.endpoint().is_none(), "{services:?} {pod}: {outcome:?}");
        }
        let arguments = ["-L", "-p", "tcp", "--dport", "7070"];
        for family in ["ipv4", "ipv6"] {
            let seen =
                context.node().output("conntrack", &[&arguments[..], &["-f", family]].concat())?;
            ensure!(seen.contains("dport=7070") && !seen.contains("mark=4096"), "{seen}");
        }
    }
    Ok(())
}
