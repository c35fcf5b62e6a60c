//! Clients of a cluster IP whose conntrack entries are older than the rules: the kernel evaluates
//! no NAT rule for their packets any more.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, START_TIMEOUT};
use denizen_tests::node::fixture::{Fixture, Host, service_ips};
use denizen_tests::packets::long_connection;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use denizen_tests::packets::server::{Listen, Server};

/// Where the node itself listens, at every address.
const OWN_PORT: u16 = 7777;

/// A client's source port, used before there are rules and again after, and another one.
const EARLIER: u16 = 9100;
const LATER: u16 = 9200;

/// Foreign rules that turn connection tracking on.
const TRACKING: &str = r"
table inet others {
    chain prerouting { type filter hook prerouting priority 0; ct state invalid drop; }
}
";

/// What a host outside gets when it connects from this source port.
fn ask(fixture: &Fixture, port: u16, to: SocketAddr) -> Result<Outcome> {
    let probe = Probe::tcp(to).from(fixture.address(Host::Outside, to.ip())?).timeout(SILENCE);
    Ok(Probe { port, ..probe }.send_in(fixture.place(Host::Outside).0))
}

/// They get neither a port of the node itself, nor an endpoint that sees another source than the
/// node's: they are refused, and their next connection works.
pub(crate) fn are_refused() -> Result<()> {
    let fixture = long_connection::fixture("ipvs-earlier")?;
    let node = &fixture.cluster.world.node;
    node.nft(TRACKING)?;
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let listen = |any| Listen { protocol: Protocol::Tcp, address: SocketAddr::new(any, OWN_PORT) };
    let _own = Server::start(node, &any.map(listen))?;
    let asked = service_ips(10).map(|ip| [80, OWN_PORT].map(|port| SocketAddr::new(ip, port)));
    let asked = asked.concat();
    for to in &asked {
        let outcome = ask(&fixture, EARLIER, *to)?;
        ensure!(outcome.endpoint().is_none(), "{to} without an agent: {outcome:?}");
    }
    for family in ["ipv4", "ipv6"] {
        let remembered = node.output("conntrack", &["--dump", "--family", family])?;
        let is_it = |line: &str| line.contains("sport=9100 ") && line.contains("UNREPLIED");
        ensure!(remembered.lines().any(is_it), "nothing is remembered: {remembered}");
    }
    let mut agent = Agent::spawn(node, fixture.cluster.settings_with(["--backend=ipvs"]))?;
    agent.quiet();
    agent.wait_programmed(START_TIMEOUT)?;
    for to in &asked {
        let outcome = ask(&fixture, EARLIER, *to)?;
        ensure!(outcome == Outcome::Refused, "{to} from the earlier port: {outcome:?}");
        let outcome = ask(&fixture, LATER, *to)?;
        if to.port() == OWN_PORT {
            ensure!(outcome == Outcome::Refused, "{to}: {outcome:?}");
        } else {
            let seen = outcome.seen().with_context(|| format!("{to}: {outcome:?}"))?;
            ensure!(fixture.cluster.is_nodes(seen)?, "{to} is not masqueraded: {outcome:?}");
        }
    }
    agent.terminate()?;
    Ok(())
}
