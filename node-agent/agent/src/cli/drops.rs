//! `drops`.

#![expect(clippy::disallowed_methods, reason = "the command says to the agent that it still runs")]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use denizen_nft::Kernel;
use serde::{Deserialize, Serialize};

use super::{Output, ask, end_with_reader, names, show};
use crate::config::RunDirArgs;
use crate::control::{ControlError, ExplainQuery, Sampled};
use denizen_backend::{BackendName, firewall};
use denizen_model::Protocol;
use denizen_observe::drops::{
    DropCounts, DropVerdict, DropWatch, DroppedPacket, RefusedFlows, count,
    refused as read_refused, remove_samples,
};
use denizen_observe::names::Names;
use denizen_plan::explain::PolicyRow;
use denizen_text::{Printable, eprint_line, printable_json};

/// How often the command repeats its request to sample drops.
const RENEW: Duration = Duration::from_secs(2);

/// The longest that [`dropped`] watches, in seconds.
const LONGEST_WATCH: u64 = 10;

/// If less time than this is left, the command stops: the kernel takes a timeout of 0 for no limit.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The most kinds of packets that [`dropped`] tells apart, and the most flows whose policy
/// [`refused`] looks up.
const KINDS: usize = 100;

/// The most flows that are named; further flows are only counted.
const MOST_FLOWS: usize = 1_000;

#[derive(Debug, Args)]
pub(super) struct DropsArgs {
    /// Show dropped and refused packets as they come, until interrupted
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    run_dir: RunDirArgs,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// Prints what the rules counted, or packets as they come.
pub(super) fn drops(args: DropsArgs) -> anyhow::Result<()> {
    let DropsArgs { watch: watches, run_dir, output } = args;
    let run_dir = run_dir.run_dir;
    if watches {
        return watch(&run_dir, output);
    }
    let is_iptables = is_iptables(&run_dir)?;
    let counts = read_counts(is_iptables)?;
    show(&Drops { counts, refused: read_flows(is_iptables, MOST_FLOWS, &run_dir)? }, output)
}

/// What the rules counted, and the flows of the packets.
#[derive(Debug, Serialize)]
struct Drops {
    #[serde(flatten)]
    counts: DropCounts,
    #[serde(flatten)]
    refused: RefusedFlows,
}

impl fmt::Display for Drops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.counts, self.refused)
    }
}

/// How many flows [`refused`] names.
#[derive(Debug, Deserialize)]
pub(super) struct RefusedQuery {
    limit: usize,
}

/// The flows whose packets the rules dropped or refused within the last 15 minutes.
pub(super) fn refused(query: RefusedQuery, run_dir: &Path) -> anyhow::Result<RefusedFlows> {
    read_flows(is_iptables(run_dir)?, query.limit.min(MOST_FLOWS), run_dir)
}

fn read_flows(is_iptables: bool, limit: usize, run_dir: &Path) -> anyhow::Result<RefusedFlows> {
    let names: Names = names(run_dir)?;
    let read = read_refused(&mut Kernel::open()?, is_iptables, &names, limit);
    let mut refused = read.context("cannot read the flows that were refused")?;
    for flow in refused.flows.iter_mut().take(KINDS) {
        let (source, destination) = (flow.source.address.ip(), flow.destination.address);
        flow.policy = refusing(run_dir, &flow.table, &flow.protocol, source, destination);
    }
    Ok(refused)
}

fn is_iptables(run_dir: &Path) -> anyhow::Result<bool> {
    let status = ask(run_dir, async |agent| agent.status().await)?;
    Ok(status.backend == BackendName::Iptables.to_string())
}

pub(super) fn counts(run_dir: &Path) -> anyhow::Result<DropCounts> {
    read_counts(is_iptables(run_dir)?)
}

fn read_counts(is_iptables: bool) -> anyhow::Result<DropCounts> {
    count(&mut Kernel::open()?, is_iptables).context("cannot read the counters")
}

fn watch(run_dir: &Path, output: Output) -> anyhow::Result<()> {
    end_with_reader();
    // Before the request, so that the first packets are not lost.
    let mut watch = DropWatch::open()?;
    let Sampled { services, network_policies } = sample(run_dir)?;
    let mut names: Names = names(run_dir)?;
    eprint_line("watching packets that are dropped or refused: at most five a second of each rule");
    if !services {
        eprint_line(
            "what the rules of services drop is not shown: they are not denizen's nftables",
        );
    }
    if !network_policies {
        eprint_line("NetworkPolicies are not enforced here");
    }
    let mut renewed = Instant::now();
    loop {
        let mut packets = Vec::new();
        if watch.receive(RENEW, &names, |packet| packets.push(packet))? {
            eprint_line("packets are missing: the kernel had more to tell than was read in time");
        }
        for packet in &mut packets {
            packet.policy = refusing_packet(run_dir, packet);
        }
        match print(&packets, output) {
            // The reader, such as `head`, has read enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            printed => printed.context("cannot write to standard output")?,
        }
        if renewed.elapsed() >= RENEW {
            renew(run_dir)?;
            names = super::names(run_dir)?;
            renewed = Instant::now();
        }
    }
}

/// How long [`dropped`] watches.
#[derive(Debug, Deserialize)]
pub(super) struct DroppedQuery {
    seconds: u64,
}

/// Packets that were seen: at most five a second of each rule.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DroppedKinds {
    dropped: Vec<DroppedKind>,
    /// There were more kinds, or more packets than were read in time.
    has_more: bool,
    /// Which drops are sampled: services', NetworkPolicies'.
    sampled: Sampled,
}

/// Packets that differ only in their source port: the first packet, and how many there were.
#[derive(Debug, Serialize)]
struct DroppedKind {
    #[serde(flatten)]
    first: DroppedPacket,
    packets: u64,
}

/// What the packets of one [`DroppedKind`] have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct DroppedKey {
    verdict: DropVerdict,
    reason: String,
    table: String,
    ends: Option<DroppedEnds>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct DroppedEnds {
    protocol: String,
    source: IpAddr,
    destination: SocketAddr,
}

impl DroppedEnds {
    fn of(packet: &DroppedPacket) -> Option<Self> {
        let report = packet.packet.as_ref()?;
        Some(Self {
            protocol: report.protocol.clone(),
            source: report.source.address.ip(),
            destination: report.destination.address,
        })
    }
}

/// What is dropped within a few seconds, for `relay`. The agent removes its sampling rules soon
/// afterwards.
pub(super) fn dropped(query: DroppedQuery, run_dir: &Path) -> anyhow::Result<DroppedKinds> {
    let mut watch = DropWatch::open()?;
    let sampled = sample(run_dir)?;
    let names: Names = names(run_dir)?;
    let mut kinds: BTreeMap<DroppedKey, DroppedKind> = BTreeMap::new();
    let (mut has_lost, mut has_other) = (false, false);
    let mut renewed = Instant::now();
    let until = renewed + Duration::from_secs(query.seconds.min(LONGEST_WATCH));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left < SHORTEST_WAIT {
            break;
        }
        has_lost |= watch.receive(left.min(RENEW), &names, |packet| {
            let has_room = kinds.len() < KINDS;
            match kinds.entry(key_of(&packet)) {
                Entry::Occupied(mut kind) => kind.get_mut().packets += 1,
                Entry::Vacant(kind) if has_room => {
                    kind.insert(DroppedKind { first: packet, packets: 1 });
                }
                Entry::Vacant(_) => has_other = true,
            }
        })?;
        // The sampling rules stay for a while after each request. A request shortly before the end
        // would only keep them longer than needed.
        if renewed.elapsed() >= RENEW && until > renewed + 2 * RENEW {
            renew(run_dir)?;
            renewed = Instant::now();
        }
    }
    let with_policy = |mut kind: DroppedKind| {
        kind.first.policy = refusing_packet(run_dir, &kind.first);
        kind
    };
    Ok(DroppedKinds {
        dropped: kinds.into_values().map(with_policy).collect(),
        has_more: has_lost || has_other,
        sampled,
    })
}

fn key_of(packet: &DroppedPacket) -> DroppedKey {
    DroppedKey {
        verdict: packet.verdict,
        reason: packet.reason.clone(),
        table: packet.table.clone(),
        ends: DroppedEnds::of(packet),
    }
}

fn refusing_packet(run_dir: &Path, packet: &DroppedPacket) -> Option<String> {
    let DroppedEnds { protocol, source, destination } = DroppedEnds::of(packet)?;
    refusing(run_dir, &packet.table, &protocol, source, destination)
}

/// The policy that drops such packets, as `explain` names it. It may be wrong if the agent's facts
/// have changed since the packet was dropped.
fn refusing(
    run_dir: &Path,
    table: &str,
    protocol: &str,
    source: IpAddr,
    destination: SocketAddr,
) -> Option<String> {
    if !table.ends_with(firewall::TABLE) {
        return None;
    }
    Protocol::parse(protocol)?;
    let query = ExplainQuery { from: source.to_string(), to: format!("{destination}/{protocol}") };
    let explanation = ask(run_dir, async |agent| agent.explain(query.clone()).await).ok()?;
    explanation.policies.iter().find_map(PolicyRow::refusing)
}

/// Repeats the request to sample drops. If the agent is gone, it may have been killed while its
/// sampling rules were in place; then the command removes them.
fn renew(run_dir: &Path) -> anyhow::Result<()> {
    let result = sample(run_dir).map(drop);
    let is_gone =
        |error: &anyhow::Error| matches!(error.downcast_ref(), Some(ControlError::Nobody { .. }));
    if result.as_ref().is_err_and(is_gone) {
        remove_samples(&mut Kernel::open()?)?;
    }
    result
}

fn sample(run_dir: &Path) -> anyhow::Result<Sampled> {
    ask(run_dir, async |agent| agent.sample().await)
}

fn print(packets: &[DroppedPacket], output: Output) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for packet in packets {
        match output {
            Output::Text => writeln!(out, "{}", Printable(&packet.to_string()))?,
            Output::Json => {
                let json = serde_json::to_string(packet).expect("plain data");
                writeln!(out, "{}", printable_json(&json))?;
            }
        }
    }
    out.flush()
}
