//! `trace` across two real nodes, beside real connections.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use denizen_tests::eventually::observed;
use denizen_tests::kernel::conntrack::tracked;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Probe, Protocol, SILENCE};
use denizen_tests::peers::api::exec::{ExecRequest, Execution};
use denizen_tests::workstation::{CommandOutput, agent_program, in_image, no_such_program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::explain::Shop;

/// What has not begun by then never will.
const BEGUN: Duration = Duration::from_secs(60);

/// Between two connections.
const PAUSE: Duration = Duration::from_millis(130);

fn service() -> SocketAddr {
    SocketAddr::new(ip("172.30.0.10"), 80)
}

/// Runs the program while a pod connects to `to` again and again: less often than packets are
/// followed, ten a second.
pub fn traced(shop: &Shop, words: &[&str], to: SocketAddr) -> Result<CommandOutput> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let connect = || {
            while !over.load(Ordering::Relaxed) {
                let netns = &shop.client.netns;
                netns.run(move || drop(Probe::tcp(to).timeout(SILENCE).connect()))?;
                thread::sleep(PAUSE);
            }
            anyhow::Ok(())
        };
        let connecting = scope.spawn(connect);
        let output = shop.workstation.run(&[&["trace", "client"], words].concat());
        over.store(true, Ordering::Relaxed);
        connecting.join().map_err(|_| anyhow!("the client panicked"))??;
        output
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
    let words = ["web:80", "--count", "40", "--for", "40s", "-o", "json"];
    let output = traced(&shop, &words, service())?;
    ensure!(output.code == 0, "{output:#?}");
    let json = output.json()?;
    ensure!(packets(&json)?.len() == 40 && json["unanswered"] == json!([]), "{json:#}");
    all_are_paired(&shop, &json)?;
    let far = SocketAddr::new(shop.far.addresses[0], 8080);
    let text = traced(&shop, &["far:8080"], far)?;
    for words in ["on node-1", "on node-2", "(default/client)", "=> arrived"] {
        ensure!(text.code == 0 && text.stdout.contains(words), "{words}: {text:#?}");
    }
    what_another_program_drops_is_named(&shop, far)?;
    who_does_not_answer_is_named(&shop, far)
}

/// On the receiver's node, which `explain` cannot know.
fn what_another_program_drops_is_named(shop: &Shop, far: SocketAddr) -> Result<()> {
    let node = &shop.nodes.hosts[1].netns;
    let chain = "add table ip strict; add chain ip strict forward \
                 { type filter hook forward priority 10; }; \
                 add rule ip strict forward tcp dport 8080 drop comment \"no web\"";
    node.output("nft", &[chain])?;
    let to = format!("{far}/tcp");
    let output = traced(shop, &[&to, "-o", "json"], far)?;
    node.output("nft", &["delete table ip strict"])?;
    let json = output.json()?;
    let packet = &packets(&json)?[0];
    let why = packet["why"].as_str().context("no reason")?;
    ensure!(output.code == 1 && packet["outcome"] == "ended", "{json:#}");
    ensure!(why.starts_with("dropped on node-2 by table ip strict"), "{why}");
    ensure!(nodes_of(packet) == ["node-1", "node-2"], "{packet:#}");
    Ok(())
}

fn who_does_not_answer_is_named(shop: &Shop, far: SocketAddr) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(shop.nodes.hosts[1].agent()?.pid())?);
    kill(pid, Signal::SIGSTOP)?;
    let output = traced(shop, &["far:8080", "-o", "json"], far);
    kill(pid, Signal::SIGCONT)?;
    let output = output?;
    let json = output.json()?;
    ensure!(output.code == 3 && packets(&json)?[0]["outcome"] == "left", "{json:#}");
    let (_, reason) = output.unanswered("node-2")?;
    ensure!(reason.contains("it is stopped, or hangs"), "{reason}");
    Ok(())
}

/// Connections that are open at once, whose sources are the node's, ten of them at the same moment.
/// Some are another pod's, which only the receiver's node follows. Connection tracking knows which
/// is which. The clocks of both nodes differ by ten minutes.
#[test]
fn masqueraded_packets_are_told_apart() -> Result<()> {
    const MANY: usize = 200;
    /// Packets that are followed at once, and in a second.
    const AT_ONCE: u32 = 10;
    let shop = Shop::with("trace-masq", &["--masquerade-all"])?;
    put_clock_forward(&shop)?;
    let count = MANY.to_string();
    let words = ["trace", "client", "web:80", "--count", &count, "--for", "5m", "-o", "json"];
    let (output, open) = thread::scope(|scope| {
        let tracing = scope.spawn(|| shop.workstation.run(&words));
        let connect = || {
            // The sender's node begins last.
            let node = &shop.nodes.hosts[0].netns;
            let tables = || node.output("nft", &["list", "tables"]);
            observed("followed", BEGUN, tables, |tables| tables.contains("denizen-trace-"))?;
            let mut open = Vec::new();
            while !tracing.is_finished() {
                // One of the other pod's before each four.
                for (pod, number) in [(&shop.near, 1), (&shop.client, 4)].repeat(2) {
                    let begin = || (0..number).map(|_| Probe::tcp(service()).begin()).collect();
                    let begun: io::Result<Vec<_>> = pod.netns.run(begin)?;
                    open.extend(begun?);
                }
                thread::sleep(PAUSE * AT_ONCE);
            }
            anyhow::Ok(open)
        };
        let open = connect();
        let output = tracing.join().map_err(|_| anyhow!("the trace panicked"));
        anyhow::Ok((output??, open?))
    })?;
    let json = output.json()?;
    ensure!(output.code == 0 && packets(&json)?.len() == MANY && open.len() >= MANY, "{json:#}");
    ensure!(json["unpaired"].as_u64() > Some(0), "the other pod's were not seen: {json:#}");
    all_are_paired(&shop, &json)?;
    pairs_are_what_was_translated(&shop, &json)
}

/// Commands on the second node have other clocks than those on the first. Only those that count
/// from the start can be set for a few processes; no report has a time of day.
fn put_clock_forward(shop: &Shop) -> Result<()> {
    let program = agent_program()?;
    let hosts = shop.nodes.hosts.iter();
    let paths: Vec<_> = hosts.map(|host| (host.node.name.clone(), host.netns.path())).collect();
    shop.workstation.execute(move |node, request: &ExecRequest| {
        let at = paths.iter().find(|(name, _)| name == node);
        match (at, in_image(&program, request)) {
            (Some((_, netns)), Some(command)) if node == "node-1" => {
                Execution::Runs(command, netns.clone())
            }
            (Some((_, netns)), Some(command)) => {
                let mut later = Command::new("unshare");
                later.args(["--time", "--monotonic=600", "--boottime=600", "--fork"]);
                later.arg(command.get_program()).args(command.get_args());
                Execution::Runs(later, netns.clone())
            }
            (None, _) | (_, None) => no_such_program(),
        }
    });
    Ok(())
}

/// The packet that is said to be the same on the other node has the source that this one's was
/// translated to.
fn pairs_are_what_was_translated(shop: &Shop, json: &Value) -> Result<()> {
    let host = &shop.nodes.hosts[0];
    let node = host.node.addresses[0];
    let all = tracked(&host.netns, Protocol::Tcp)?;
    let source = |there: &Value| -> Result<SocketAddr> {
        Ok(there["report"]["source"]["address"].as_str().context("no address")?.parse()?)
    };
    let mut sources = BTreeSet::new();
    for packet in packets(json)? {
        let Some(there) = packet["nodes"].get(1) else { continue };
        let (sent, translated) = (source(&packet["nodes"][0])?, source(there)?);
        let entry = all.iter().find(|entry| entry.source == sent);
        let entry = entry.with_context(|| format!("{sent} is not tracked"))?;
        ensure!(entry.reply_destination == translated, "{entry:?}: {packet:#}");
        ensure!(translated.ip() == node, "{packet:#}");
        sources.insert(translated);
    }
    ensure!(sources.len() > 20, "only {} went to the other node", sources.len());
    Ok(())
}
