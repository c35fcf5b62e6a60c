//! A connection that two nodes know, as it is shown and counted; and what watchers leave on both
//! nodes that are killed.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Probe;

use super::explain::Shop;
use super::picture::ask::Picture;

/// What a killed watcher had put on the nodes is gone within this time.
const GONE: Duration = Duration::from_secs(10);

/// What is not there by then never will be.
const BEGUN: Duration = Duration::from_secs(60);

/// The rules that show dropped packets, and the tables that mark those of a trace.
const MARKS: [&str; 2] = ["nftrace", "denizen-trace-"];

/// How many nodes have such rules.
fn marked(shop: &Shop) -> Result<usize> {
    let mut marked = 0;
    for host in &shop.nodes.hosts {
        let rules = host.netns.output("nft", &["list", "ruleset"])?;
        marked += usize::from(MARKS.iter().any(|mark| rules.contains(mark)));
    }
    Ok(marked)
}

#[test]
fn a_killed_watcher_leaves_nothing_and_one_connection_is_one() -> Result<()> {
    let shop = Shop::with("killed", &["--masquerade-all"])?;
    let (open, _streams) = connected(&shop)?;
    ensure!(marked(&shop)? == 0, "nobody watches");
    // It watches what is dropped on all nodes.
    let picture = Picture::of(&shop.workstation, &["--every", "1h"])?;
    let page = picture.body("/picture")?;
    ensure!(row(&page, ["default/client", "service default/web"])? == open, "{page}");
    ensure!(row(&page, ["service default/web", "default/far"])? == 1, "{page}");
    eventually("both nodes show what is dropped", BEGUN, || Ok(marked(&shop)? == 2))?;
    drop(picture);
    eventually("nothing is left of ui", GONE, || Ok(marked(&shop)? == 0))?;

    let mut command = shop.workstation.command(&["trace", "client", "far:8080", "--for", "10m"])?;
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = shop.workstation.netns().run(|| command.spawn())??;
    let begun = eventually("both nodes follow packets", BEGUN, || Ok(marked(&shop)? == 2));
    child.kill()?;
    child.wait()?;
    begun?;
    eventually("nothing is left of trace", GONE, || Ok(marked(&shop)? == 0))
}

/// Connects to the service until the other node's pod has a connection, which is masqueraded. All
/// are shown once, and counted once.
fn connected(shop: &Shop) -> Result<(usize, Vec<std::net::TcpStream>)> {
    let (service, far) = (SocketAddr::new(ip("172.30.0.10"), 80), shop.far.addresses[0]);
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(shop.client.netns.run(move || Probe::tcp(service).connect())??);
        let output = shop.workstation.json(&["connections"], 0)?.json()?;
        let all = output["connections"].as_array().context("no connections")?;
        ensure!(all.len() == streams.len(), "{} of {}: {output:#}", all.len(), streams.len());
        let is_far = |end: &str| end.starts_with(&format!("{far}:"));
        let far = all.iter().find(|of| of["endpoint"]["address"].as_str().is_some_and(is_far));
        let Some(far) = far else { continue };
        ensure!(far["nodes"].as_array().map(Vec::len) == Some(2), "{far:#}");
        let own = shop.nodes.hosts[0].node.addresses[0];
        let source = far["masqueradedAs"].as_str().unwrap_or_default();
        ensure!(source.starts_with(&format!("{own}:")), "{far:#}");
        let text = shop.workstation.run(&["connections"])?.stdout;
        let sum = format!("connections: {}", streams.len());
        ensure!(text.lines().any(|line| line == sum), "{text}");
        return Ok((streams.len(), streams));
    }
    anyhow::bail!("no connection to the pod of the other node")
}

/// How many connections the table beside the picture has between these.
fn row(page: &str, ends: [&str; 2]) -> Result<usize> {
    let [from, to] = ends;
    let mut rows = page.split("<tr data-row=").skip(1);
    let row = rows.find(|row| {
        let cells = row.split_once(&format!(">{from}</th>"));
        cells.is_some_and(|(_, rest)| rest.starts_with(&format!("<td>{to}</td>")))
    });
    let row = row.with_context(|| format!("nobody shows {from} to {to}: {page}"))?;
    let (_, rest) = row.split_once("<td class=\"number\">").context("no number")?;
    Ok(rest.split('<').next().context("no number")?.parse()?)
}
