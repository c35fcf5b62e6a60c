//! `trace` across two real nodes, beside real connections.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use denizen_tests::desk::Said;
use denizen_tests::eventually::eventually;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Probe, SILENCE};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::explain::Shop;

/// Names that tell each node's tables of a trace from others.
const TABLE: &str = "denizen-trace-";

/// A killed watcher's tables are gone within this time.
const GONE: Duration = Duration::from_secs(10);

/// Between two connections.
const PAUSE: Duration = Duration::from_millis(130);

fn service() -> SocketAddr {
    SocketAddr::new(ip("172.30.0.10"), 80)
}

/// Runs the program while so many clients in one pod connect to `to`, again and again: together
/// less often than packets are followed, ten a second.
pub fn traced(shop: &Shop, words: &[&str], to: SocketAddr, clients: u32) -> Result<Said> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let connect = || {
            while !over.load(Ordering::Relaxed) {
                let netns = &shop.client.netns;
                netns.run(move || drop(Probe::tcp(to).patience(SILENCE).connect()))?;
                thread::sleep(PAUSE * clients);
            }
            Ok::<_, anyhow::Error>(())
        };
        let connecting: Vec<_> = (0..clients).map(|_| scope.spawn(connect)).collect();
        let said = shop.desk.run(&[&["trace", "client"], words].concat());
        over.store(true, Ordering::Relaxed);
        for client in connecting {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        said
    })
}

fn packets(json: &Value) -> Result<&Vec<Value>> {
    json["packets"].as_array().with_context(|| format!("no packets: {json:#}"))
}

fn nodes_of(packet: &Value) -> Vec<&str> {
    let nodes = packet["nodes"].as_array().into_iter().flatten();
    nodes.filter_map(|node| node["node"].as_str()).collect()
}

/// Each packet of the far endpoint was followed on both nodes, each as the same one; those of the
/// near one on one node.
fn all_are_paired(shop: &Shop, json: &Value) -> Result<()> {
    let far = format!("{}:8080", shop.far.addresses[0]);
    let (mut identities, mut ends) = (BTreeSet::new(), BTreeSet::new());
    for packet in packets(json)? {
        ensure!(packet["outcome"] == "arrived", "{packet:#}");
        let first = &packet["nodes"][0]["report"];
        let end = first["lastDestination"]["address"].as_str().context("no address")?;
        let expected = if end == far { vec!["node-1", "node-2"] } else { vec!["node-1"] };
        ensure!(nodes_of(packet) == expected, "{packet:#}");
        ensure!(identities.insert(first["identity"].to_string()), "twice: {packet:#}");
        if let Some(there) = packet["nodes"].get(1).map(|node| &node["report"]) {
            ensure!(there["identity"] == first["identity"], "{packet:#}");
            ensure!(there["destination"]["address"] == end, "{packet:#}");
        }
        ends.insert(end.to_owned());
    }
    ensure!(ends.len() == 2, "only {ends:?}");
    Ok(())
}

#[test]
fn packets_are_followed_on_both_nodes_at_once() -> Result<()> {
    let shop = Shop::with("trace", &[])?;
    let said =
        traced(&shop, &["web:80", "--count", "40", "--for", "40s", "-o", "json"], service(), 1)?;
    ensure!(said.code == 0, "{said:#?}");
    let json = said.json()?;
    ensure!(packets(&json)?.len() == 40 && json["unanswered"] == json!([]), "{json:#}");
    all_are_paired(&shop, &json)?;
    let far = SocketAddr::new(shop.far.addresses[0], 8080);
    let text = traced(&shop, &["far:8080"], far, 1)?;
    for words in ["on node-1", "on node-2", "(default/client)", "=> arrived"] {
        ensure!(text.code == 0 && text.stdout.contains(words), "{words}: {text:#?}");
    }
    what_another_program_drops_is_named(&shop, far)?;
    who_does_not_answer_is_named(&shop, far)?;
    a_killed_trace_leaves_nothing(&shop)
}

/// On the receiver's node, which `explain` cannot know.
fn what_another_program_drops_is_named(shop: &Shop, far: SocketAddr) -> Result<()> {
    let node = &shop.nodes.hosts[1].netns;
    let chain = "add table ip strict; add chain ip strict forward \
                 { type filter hook forward priority 10; }; \
                 add rule ip strict forward tcp dport 8080 drop comment \"no web\"";
    node.output("nft", &[chain])?;
    let to = format!("{far}/tcp");
    let said = traced(shop, &[&to, "-o", "json"], far, 1)?;
    node.output("nft", &["delete table ip strict"])?;
    let json = said.json()?;
    let packet = &packets(&json)?[0];
    let why = packet["why"].as_str().context("no reason")?;
    ensure!(said.code == 1 && packet["outcome"] == "ended", "{json:#}");
    ensure!(why.starts_with("dropped on node-2 by table ip strict"), "{why}");
    ensure!(nodes_of(packet) == ["node-1", "node-2"], "{packet:#}");
    Ok(())
}

fn who_does_not_answer_is_named(shop: &Shop, far: SocketAddr) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(shop.nodes.hosts[1].agent()?.pid())?);
    kill(pid, Signal::SIGSTOP)?;
    let said = traced(shop, &["far:8080", "-o", "json"], far, 1);
    kill(pid, Signal::SIGCONT)?;
    let said = said?;
    let json = said.json()?;
    ensure!(said.code == 3 && packets(&json)?[0]["outcome"] == "left", "{json:#}");
    let (_, reason) = said.unanswered("node-2")?;
    ensure!(reason.contains("it is stopped, or hangs"), "{reason}");
    Ok(())
}

fn a_killed_trace_leaves_nothing(shop: &Shop) -> Result<()> {
    let is_traced = |node: usize| -> Result<bool> {
        let tables = shop.nodes.hosts[node].netns.output("nft", &["list", "tables"])?;
        Ok(tables.contains(TABLE))
    };
    let mut command = shop.desk.command(&["trace", "client", "far:8080", "--for", "10m"])?;
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = shop.desk.netns().run(|| command.spawn())??;
    let begun =
        eventually("both nodes follow packets", GONE, || Ok(is_traced(0)? && is_traced(1)?));
    child.kill()?;
    child.wait()?;
    begun?;
    eventually("nothing is left", GONE, || Ok(!is_traced(0)? && !is_traced(1)?))
}

/// Many at once, whose sources are the node's.
#[test]
fn masqueraded_packets_are_told_apart() -> Result<()> {
    const MANY: usize = 60;
    let shop = Shop::with("trace-masq", &["--masquerade-all"])?;
    let count = MANY.to_string();
    let words = ["web:80", "--count", &count, "--for", "50s", "-o", "json"];
    let said = traced(&shop, &words, service(), 8)?;
    let json = said.json()?;
    ensure!(said.code == 0 && packets(&json)?.len() == MANY, "{json:#}");
    all_are_paired(&shop, &json)?;
    let node = shop.nodes.hosts[0].node.addresses[0].to_string();
    let away = packets(&json)?.iter().filter_map(|packet| packet["nodes"].get(1));
    for there in away {
        let source = there["report"]["source"]["address"].as_str().context("no source")?;
        ensure!(source.starts_with(&format!("{node}:")), "{there:#}");
    }
    Ok(())
}
