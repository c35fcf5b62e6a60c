//! `trace`.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, value_parser};

use super::{Output, ask, end_with_reader, show};
use crate::config::RunDirArgs;
use crate::control::ExplainQuery;
use denizen_observe::trace::{PacketFollower, Prediction, TraceReport, TracedPackets};
use denizen_text::{duration, eprint_line, printable_lines};

#[derive(Debug, Args)]
pub(super) struct TraceArgs {
    /// The packets' source (a pod of this node by its name), and their input interface
    #[arg(long, value_name = "ADDR|NAMESPACE/POD[@INTERFACE]")]
    from: String,
    /// The packets' destination: an address, or a service or a pod of this node by its name
    #[arg(long, value_name = "ADDR:PORT|NAMESPACE/NAME:PORT[/PROTO]")]
    to: String,
    /// Stop after this many packets. Of TCP and SCTP connections, only the first packets count
    #[arg(long, value_name = "N", default_value = "1", value_parser = value_parser!(u16).range(1..=1000))]
    count: u16,
    /// Stop after this time
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    timeout: Duration,
    /// Stop when standard input has something, or ends
    #[arg(long)]
    until_input: bool,
    #[command(flatten)]
    run_dir: RunDirArgs,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// Follows packets, and prints each as it ends; as JSON, all of them at the end.
pub(super) fn trace(args: TraceArgs) -> anyhow::Result<()> {
    let TraceArgs { from, to, count, timeout, until_input, run_dir, output } = args;
    let prediction = predicted(run_dir.run_dir, from, to)?;
    let (from, to) = (prediction.from.clone(), prediction.to.clone());
    let mut follower = PacketFollower::start(prediction, count).context("cannot follow packets")?;
    eprint_line(format_args!(
        "following packets from {from} to {to}: at most {count}, for at most {timeout:?}"
    ));
    let mut packets: Vec<TraceReport> = Vec::new();
    let mut printed = Ok(());
    end_with_reader();
    let is_unwanted = Arc::new(AtomicBool::new(false));
    if until_input {
        let is_unwanted = is_unwanted.clone();
        thread::spawn(move || {
            // Any input, its end or an error ends the trace.
            let _ = io::stdin().read(&mut [0]);
            is_unwanted.store(true, Ordering::Relaxed);
        });
    }
    let is_wanted = || !is_unwanted.load(Ordering::Relaxed);
    follower.follow(timeout, is_wanted, |report| {
        if output == Output::Text {
            let text = printable_lines(&report.to_string());
            printed = io::stdout().write_all(text.as_bytes());
        }
        packets.push(report);
    })?;
    printed.context("cannot write to standard output")?;
    if follower.has_lost() {
        eprint_line("packets are missing: the kernel had more to tell than was read in time");
    }
    let is_seen = !packets.is_empty();
    if output == Output::Json {
        show(&TracedPackets { packets }, output)?;
    }
    ensure!(is_seen, "no packet of a new connection from {from} to {to} was seen");
    Ok(())
}

fn predicted(run_dir: PathBuf, from: String, to: String) -> anyhow::Result<Prediction> {
    ask(&run_dir, async |agent| agent.trace(ExplainQuery { from, to }).await)
}
