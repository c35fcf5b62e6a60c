//! What work costs: the instructions of the guest's only processor, and what the node forwarded.

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::netns::Netns;
use denizen_tests::vm::INSTRUCTION;

/// The unit in which the kernel counts idle time.
const TICK: Duration = Duration::from_millis(10);

/// Of the processor's time, idle time is at most one in so many parts: what is measured is work.
const IDLE: u32 = 50;

/// The node's way to the other node's pods.
pub(super) const UPLINK: &str = "uplink";

/// What a piece of work took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    pub(super) instructions: f64,
    /// Which part of the packets on the node's uplink its forwarding counted. Packets of the fast
    /// path are not counted there.
    pub(super) forwarded: f64,
}

/// The same ratio of each round.
#[derive(Debug)]
pub(super) struct Ratios {
    median: f64,
    least: f64,
    most: f64,
}

impl Ratios {
    pub(super) fn of<T>(rounds: &[T], ratio: impl Fn(&T) -> f64) -> Self {
        let all: Vec<f64> = rounds.iter().map(ratio).collect();
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { median: median(all), least, most }
    }
}

impl fmt::Display for Ratios {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.3} ({:.3}–{:.3})", self.median, self.least, self.most)
    }
}

/// The one in the middle.
pub(super) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures work that passes `node`.
pub(super) fn measured(node: &Netns, work: impl FnOnce() -> Result<()>) -> Result<Cost> {
    let (forwarded, packets) = counters(node)?;
    let instructions = instructions(work)?;
    let (forwarded_now, packets_now) = counters(node)?;
    let forwarded = (forwarded_now - forwarded) as f64 / (packets_now - packets).max(1) as f64;
    Ok(Cost { instructions, forwarded })
}

/// The emulator's clock goes on with each instruction, and jumps while the processor is idle.
fn instructions(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let idle = idle()?;
    let begun = Instant::now();
    work()?;
    let took = begun.elapsed();
    let idle = self::idle()?.saturating_sub(idle);
    ensure!(idle <= TICK.max(took / IDLE), "the processor was idle for {idle:?} of {took:?}");
    Ok(took.div_duration_f64(INSTRUCTION))
}

/// For how long the processor has been idle, in whole ticks.
fn idle() -> Result<Duration> {
    let text = fs::read_to_string("/proc/stat")?;
    let ticks = text.split_whitespace().nth(4).and_then(|word| word.parse::<u32>().ok());
    Ok(TICK * ticks.context("/proc/stat says no idle time")?)
}

/// How many packets the node's forwarding has counted over IPv4, and how many its uplink has sent
/// and received.
fn counters(node: &Netns) -> Result<(u64, u64)> {
    node.run(|| {
        let snmp = fs::read_to_string("/proc/thread-self/net/snmp")?;
        let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Ip:"));
        let names = lines.next().context("no names")?.split_whitespace();
        let mut values = names.zip(lines.next().context("no values")?.split_whitespace());
        let forwarded = values.find(|(name, _)| *name == "ForwDatagrams");
        let devices = fs::read_to_string("/proc/thread-self/net/dev")?;
        let uplink =
            devices.lines().find_map(|line| line.trim().strip_prefix(UPLINK)?.strip_prefix(':'));
        let columns: Vec<&str> = uplink.context("no uplink")?.split_whitespace().collect();
        let number = |text: Option<&&str>| -> Result<u64> {
            Ok(text.context("a column is missing")?.parse()?)
        };
        let packets = number(columns.get(1))? + number(columns.get(9))?;
        Ok((number(forwarded.map(|(_, value)| value).as_ref())?, packets))
    })?
}
