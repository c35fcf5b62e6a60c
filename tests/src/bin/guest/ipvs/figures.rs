//! The backend ipvs counts connections and notes refused flows as the other backends do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::cases::counted_connections::{self, CONNECTIONS, PLAIN};
use denizen_tests::cases::refused_flows;
use denizen_tests::eventually::observed;
use denizen_tests::node::fixture::{Fixture, service_ips};
use denizen_tests::node::netns::Netns;

/// An emulated processor takes its time.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The rules count connections. The virtual servers count too, as `ipvsadm` shows: the kernel sums
/// that up every two seconds.
pub(crate) fn connections_are_counted() -> Result<()> {
    let fixture = Fixture::new("ipvs-count")?;
    let by_ipvs = |node: &Netns| {
        let arguments = ["--list", "--numeric", "--exact", "--stats"];
        let list = || node.output("ipvsadm", &arguments);
        observed("IPVS has counted", TIMEOUT, list, |listed| has_counted(listed)).map(drop)
    };
    counted_connections::are_counted(&fixture, "--backend=ipvs", scrape, by_ipvs)
}

/// Whether these lines say that the virtual servers counted their connections.
fn has_counted(listed: &str) -> bool {
    PLAIN.into_iter().zip(CONNECTIONS).all(|(number, connections)| {
        service_ips(number).into_iter().all(|ip| {
            let server = ["TCP", &SocketAddr::new(ip, 80).to_string(), &connections.to_string()];
            let is_it = |line: &str| line.split_whitespace().take(3).eq(server);
            listed.lines().any(is_it)
        })
    })
}

/// The rules before IPVS note refused flows.
pub(crate) fn refused_flows_are_noted() -> Result<()> {
    let (fixture, agent) = refused_flows::context("ipvs-refused", &["--backend=ipvs"])?;
    let sent = refused_flows::all(&fixture)?;
    sent.iter().try_for_each(|flow| refused_flows::send(&fixture, flow))?;
    refused_flows::are_shown(&fixture, &agent, &sent, 1)?;
    let status = agent.status()?;
    ensure!(status["driftRepaired"] == 0, "{status:#}");
    Ok(())
}

/// The metrics of a node's agent, without the start of a program.
fn scrape(node: &Netns) -> Result<String> {
    const METRICS: u16 = 10249;
    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let mut stream = node.run(|| TcpStream::connect((Ipv4Addr::LOCALHOST, METRICS)))??;
    stream.write_all(REQUEST)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no HTTP")?;
    ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
    Ok(body.to_owned())
}
