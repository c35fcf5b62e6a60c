//! On a host whose own firewall drops what is forwarded.

use std::net::SocketAddr;

use anyhow::{Result, ensure};

use super::context::{Context, TIMEOUT, every_protocol};
use crate::eventually::observed;
use crate::node::cluster::serve;
use crate::node::fixture::{Host, PORT, PROTOCOLS};
use crate::node::netns::Netns;
use crate::node::pod::Wiring;
use crate::packets::probe::{Outcome, Probe, Protocol, SILENCE};

/// The firewall, which is there before the agent.
pub fn drop_what_is_forwarded(node: &Netns) -> Result<()> {
    let chain = "chain forward { type filter hook forward priority 0; policy drop; }";
    node.nft(&format!("table inet filter {{ {chain}; }}"))
}

/// With `--open-forward`, and [`drop_what_is_forwarded`].
pub fn a_firewall_that_drops_is_opened_for_host_ports_alone(context: &Context) -> Result<()> {
    let serving = context.add_pod("pod", Wiring::Bridged, &every_protocol(8080))?;
    let addresses = context.addresses();
    let _own = serve(context.node(), addresses, &[(Protocol::Tcp, 7070)])?;
    for ip in addresses {
        for protocol in PROTOCOLS {
            let to = SocketAddr::new(*ip, 8080);
            for who in [Host::Outside, Host::Routed] {
                let is_served = |outcome: &Outcome| outcome.endpoint().is_some();
                let ask = || context.fixture.probe(who, to, protocol);
                observed("served", TIMEOUT, ask, is_served)?;
                context.is_answered(who, to, protocol, &serving)?;
            }
        }
        // What is not forwarded is not marked.
        let own = SocketAddr::new(*ip, 7070);
        let outcome = context.fixture.probe(Host::Outside, own, Protocol::Tcp)?;
        ensure!(outcome.endpoint() == Some(own), "{own}: {outcome:?}");
        let pod = serving.address_like(*ip)?;
        let from = context.fixture.address(Host::Outside, *ip)?;
        let straight = Probe::tcp((pod, PORT).into()).from(from).timeout(SILENCE);
        let outcome = straight.send_in(context.fixture.place(Host::Outside).0);
        ensure!(outcome.endpoint().is_none(), "{pod}: {outcome:?}");
    }
    let arguments = ["-L", "-p", "tcp", "--dport", "7070"];
    for family in ["ipv4", "ipv6"] {
        let seen =
            context.node().output("conntrack", &[&arguments[..], &["-f", family]].concat())?;
        ensure!(seen.contains("dport=7070") && !seen.contains("mark=4096"), "{seen}");
    }
    context.end([serving])
}
