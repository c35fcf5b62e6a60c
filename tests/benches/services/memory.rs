//! The memory of a running agent, of an engine alone, and of the kernel.

use std::process::{Child, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail};
use denizen_tests::bench::{Memory, own_program};
use denizen_tests::node::cni::Namespace;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::manifests::{self, NODE};
use crate::programmed::started;

const SERVICES: usize = 10_000;
/// How long the agent may take to program them, in tenths of a second.
const TIMEOUT_IN_TENTHS: usize = 600;

/// What the kernel has allocated with kmalloc, in KiB: elements of sets, among others. Other
/// programs' share changes too, so small differences mean nothing. `None` without `/proc/slabinfo`.
pub fn kernel_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/slabinfo").ok()?;
    let pieces = text.lines().filter(|line| line.starts_with("kmalloc-"));
    let bytes = pieces.filter_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let in_use: u64 = columns.next()?.parse().ok()?;
        Some(in_use * columns.nth(1)?.parse::<u64>().ok()?)
    });
    Some(bytes.sum::<u64>() / 1024)
}

/// The memory of a process, for people.
fn of_process(id: u32) -> String {
    let memory = Memory::of(id).expect("the process is running");
    let [resident, own, most] =
        [memory.resident, memory.anonymous, memory.most].map(|kibibytes| kibibytes as f64 / 1024.0);
    format!("VmRSS {resident:.1} MiB (its own {own:.1}, at most {most:.1})")
}

/// Measures and prints it.
pub fn report() {
    println!("\n## Memory, {SERVICES} services of 4 endpoints\n");
    let folder = manifests::folder(SERVICES);
    let run_dir = tempfile::tempdir().expect("a temporary folder");
    let (path, run) = (folder.path(), run_dir.path().join("run"));
    let namespace = Namespace::new();
    let again = |process| own_program(process).expect("a bench has a path");
    let mut agent = again("run");
    agent.args(["--node-name", NODE, "--manifests"]).arg(path).arg("--run-dir").arg(&run);
    let status = || {
        let mut status = again("status");
        status.args(["--output", "json", "--run-dir"]).arg(&run);
        let status = status.stderr(Stdio::null()).output();
        let output: serde_json::Value = serde_json::from_slice(&status.ok()?.stdout).ok()?;
        (output["synced"] == true).then_some(())
    };
    resident("denizen-agent run", namespace.spawn(agent), status);
    let ready = run_dir.path().join("ready");
    let mut engine = again("engine");
    engine.arg(path).arg(&ready);
    let there = || ready.exists().then_some(());
    resident("an engine after one update", namespace.spawn(engine), there);
}

/// Reads a process's memory once the process is ready, and ends it.
fn resident(what: &str, mut process: Child, ready: impl Fn() -> Option<()>) {
    let is_ready = (0..TIMEOUT_IN_TENTHS).find_map(|_| {
        sleep(Duration::from_millis(100));
        let ended = process.try_wait().is_ok_and(|ended| ended.is_some());
        if ended { Some(false) } else { ready().map(|()| true) }
    });
    // Memory taken right after the first load is counted too.
    sleep(Duration::from_secs(1));
    match is_ready {
        Some(true) => println!("{what}: {}", of_process(process.id())),
        Some(false) | None => println!("{what}: not measured, it was never ready"),
    }
    let _ = process.kill();
    let _ = process.wait();
}

/// Runs `denizen-agent` in this process, with the same arguments.
pub fn agent(_: &[String]) -> Result<ExitCode> {
    end_with_the_bench();
    denizen_agent::cli::run()
}

/// Parses a folder of manifests in this process, programs it, and keeps the engine.
pub fn engine_alone(words: &[String]) -> Result<ExitCode> {
    end_with_the_bench();
    let [_, folder, ready] = words else {
        bail!("a folder, and a file to make when it is programmed");
    };
    let _engine = started(manifests::facts(folder.as_ref())).0;
    std::fs::write(ready, "")?;
    sleep(Duration::from_secs(60));
    Ok(ExitCode::SUCCESS)
}

/// Ends this process when the bench is killed.
fn end_with_the_bench() {
    let _ = set_pdeathsig(Signal::SIGKILL);
}
