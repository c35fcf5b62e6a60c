//! Memory: of a running agent, of an engine alone, of the kernel.

use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use denizen_tests::cni::Namespace;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::manifests::{self, NODE};
use crate::programmed::started;

const SERVICES: usize = 10_000;
/// How long the agent may take to program them, in tenths of a second.
const PATIENCE: usize = 600;

/// What the kernel has allocated in pieces, in KiB: sets' elements among others. Other programs'
/// share moves too, so that small differences mean nothing. `None` where there is no
/// `/proc/slabinfo`.
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

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What a process holds.
fn of_process(id: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let mebibytes = |name| kibibytes(&text, name).unwrap_or_default() as f64 / 1024.0;
    format!(
        "VmRSS {:.1} MiB (its own {:.1}, at most {:.1})",
        mebibytes("VmRSS:"),
        mebibytes("RssAnon:"),
        mebibytes("VmHWM:")
    )
}

/// Measures and prints it.
pub fn report() {
    println!("\n## Memory, {SERVICES} services of 4 endpoints\n");
    let folder = manifests::folder(SERVICES);
    let run_dir = tempfile::tempdir().expect("a temporary folder");
    let (path, run) = (folder.path(), run_dir.path().join("run"));
    let namespace = Namespace::new();
    let mut agent = again(&["run", "--node-name", NODE]);
    agent.arg("--manifests").arg(path).arg("--run-dir").arg(&run);
    let status = || {
        let mut status = again(&["status", "--output", "json"]);
        let status = status.arg("--run-dir").arg(&run).stderr(Stdio::null()).output();
        let said: serde_json::Value = serde_json::from_slice(&status.ok()?.stdout).ok()?;
        (said["synced"] == true).then_some(())
    };
    resident("denizen-agent run", namespace.spawn(agent), status);
    let ready = run_dir.path().join("ready");
    let mut engine = again(&["engine"]);
    engine.arg(path).arg(&ready);
    let there = || ready.exists().then_some(());
    resident("an engine after one update", namespace.spawn(engine), there);
}

/// This program as something else.
fn again(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a bench has a path"));
    command.args(arguments).stdin(Stdio::null()).env("RUST_LOG", "warn");
    command
}

/// Reads a process's memory once it is ready, and ends it.
fn resident(what: &str, mut process: Child, ready: impl Fn() -> Option<()>) {
    let is_ready = (0..PATIENCE).find_map(|_| {
        sleep(Duration::from_millis(100));
        let ended = process.try_wait().is_ok_and(|ended| ended.is_some());
        if ended { Some(false) } else { ready().map(|()| true) }
    });
    // What comes right after the first load belongs to it.
    sleep(Duration::from_secs(1));
    match is_ready {
        Some(true) => println!("{what}: {}", of_process(process.id())),
        Some(false) | None => println!("{what}: not measured, it was never ready"),
    }
    let _ = process.kill();
    let _ = process.wait();
}

/// This process is `denizen-agent`, with the same arguments.
pub fn agent() -> ExitCode {
    end_with_the_bench();
    match denizen_agent::cli::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// This process parses a folder of manifests, programs it, and holds what an engine holds.
pub fn engine_alone(arguments: &[String]) -> ExitCode {
    end_with_the_bench();
    let [folder, ready] = arguments else {
        return ExitCode::FAILURE;
    };
    let _engine = started(manifests::facts(folder.as_ref())).0;
    std::fs::write(ready, "").expect("the bench made the folder");
    sleep(Duration::from_secs(60));
    ExitCode::SUCCESS
}

/// A bench that is killed leaves nobody behind.
fn end_with_the_bench() {
    let _ = set_pdeathsig(Signal::SIGKILL);
}
