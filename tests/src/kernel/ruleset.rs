//! What the kernel holds of denizen's tables, read through `nft`: independent of what the agent
//! believes.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::node::netns::Netns;

/// The pod firewall's tables, written as [`tables`] returns them.
pub const FIREWALL: [&str; 3] =
    ["table bridge denizen-firewall", "table ip denizen-firewall", "table ip6 denizen-firewall"];

/// Every table in a namespace, foreign ones too, sorted: `table FAMILY NAME`.
pub fn tables(node: &Netns) -> Result<Vec<String>> {
    let text = node.output("nft", &["list", "tables"])?;
    let mut tables: Vec<String> = text.lines().map(str::to_owned).collect();
    tables.sort();
    Ok(tables)
}

/// The pod firewall's tables and these others, written as [`tables`] returns them.
pub fn beside_firewall(others: &[&str]) -> Vec<String> {
    let mut tables: Vec<String> =
        FIREWALL.iter().chain(others).map(|table| (*table).to_owned()).collect();
    tables.sort();
    tables
}

/// The tables of both families as text, with elements in a stable order and counters zeroed.
pub fn dump(node: &Netns) -> Result<String> {
    let mut lines = Vec::new();
    for family in ["ip", "ip6"] {
        let text = node.output("nft", &["-n", "list", "table", family, "denizen"])?;
        lines.extend(text.lines().map(|line| line.trim().to_owned()));
    }
    Ok(stable(&lines).join("\n"))
}

/// Sorts what nft lists as `elements = { a, b, … }` over many lines, and zeroes counters. Elements
/// that packets have added are left out.
fn stable(lines: &[String]) -> Vec<String> {
    let mut stable = Vec::new();
    let (mut lines, mut is_packets) = (lines.iter(), false);
    while let Some(line) = lines.next() {
        is_packets = match line.split_once(' ') {
            Some(("set" | "map" | "chain", _)) => false,
            Some(("flags", flags)) => flags.contains("dynamic"),
            Some(_) | None => is_packets,
        };
        let Some(first) = line.strip_prefix("elements = {") else {
            stable.push(without_counts(line));
            continue;
        };
        let mut text = first.to_owned();
        while !text.trim_end().ends_with('}') {
            let Some(more) = lines.next() else { break };
            text.push(' ');
            text.push_str(more);
        }
        if is_packets {
            continue;
        }
        let text = text.trim_end().trim_end_matches('}');
        let mut elements: Vec<_> =
            text.split(',').map(|element| without_counts(element.trim())).collect();
        elements.sort();
        stable.extend(elements);
    }
    stable
}

fn without_counts(line: &str) -> String {
    let mut words: Vec<_> = line.split_whitespace().collect();
    for at in 1..words.len() {
        if matches!(words[at - 1], "packets" | "bytes") {
            words[at] = "0";
        }
    }
    words.join(" ")
}

/// How many packets were dropped by the last rules of the chains that choose an endpoint, because a
/// lookup found nothing.
pub fn missed(node: &Netns) -> Result<u64> {
    let mut sum = 0;
    for family in ["ip", "ip6"] {
        let text = node.output("nft", &["list", "table", family, "denizen"])?;
        let mut chooses = false;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("chain ") {
                chooses = name.contains("lb-");
            }
            if chooses && line.starts_with("counter packets") {
                sum += line
                    .split(' ')
                    .nth(2)
                    .and_then(|count| count.parse::<u64>().ok())
                    .context("a count")?;
            }
        }
    }
    Ok(sum)
}

/// The number of chains and of rules in both tables.
pub fn size(node: &Netns) -> Result<(usize, usize)> {
    let text = node.output("nft", &["-j", "-t", "list", "ruleset"])?;
    let all: serde_json::Value = serde_json::from_str(&text).context("nft -j")?;
    let count = |kind: &str| {
        let objects = all["nftables"].as_array().into_iter().flatten();
        objects.filter(|object| object[kind]["table"] == "denizen").count()
    };
    Ok((count("chain"), count("rule")))
}

/// Listens to every change of rules in a namespace.
#[derive(Debug)]
pub struct Monitor {
    child: Child,
    lines: Receiver<String>,
}

/// A table that is made and deleted to mark a position in the stream of changes.
const MARKER: &str = "denizen-test-marker";

/// How long a marker may take.
const MARKER_TIMEOUT: Duration = Duration::from_secs(10);

impl Monitor {
    /// Listens from now on.
    pub fn start(node: &Netns) -> Result<Self> {
        let mut command = Command::new("nft");
        command.arg("monitor").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = node.run(|| command.spawn())??;
        let lines = read_lines(child.stdout.take().context("no standard output")?);
        let monitor = Self { child, lines };
        monitor.changes(node).context("nft monitor does not listen")?;
        Ok(monitor)
    }

    /// Every change since the last call, a line each as nft writes them.
    pub fn changes(&self, node: &Netns) -> Result<Vec<String>> {
        let deadline = Instant::now() + MARKER_TIMEOUT;
        let mut changes = Vec::new();
        node.nft(&format!("table inet {MARKER} {{}}"))?;
        node.nft(&format!("delete table inet {MARKER}"))?;
        while Instant::now() < deadline {
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line.contains("delete table") && line.contains(MARKER) => {
                    return Ok(changes);
                }
                Ok(line) if line.contains(MARKER) || line.starts_with('#') => {}
                Ok(line) => changes.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    // The first marker may have come before `nft monitor` listened.
                    node.nft(&format!("table inet {MARKER} {{}}\ndelete table inet {MARKER}"))?;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        bail!("nft monitor no longer reports changes")
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.filter(|line| !line.trim().is_empty()).try_for_each(|line| sender.send(line)).ok();
    });
    receiver
}
