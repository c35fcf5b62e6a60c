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

/// What the kernel holds that it cannot give back, in KiB. Other programs' share moves too, so that small
/// differences mean nothing.
pub fn kernel_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("/proc is there");
    ["SUnreclaim:", "VmallocUsed:", "Percpu:"]
        .into_iter()
        .filter_map(|name| kibibytes(&text, name))
        .sum()
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
    let path = folder.path().to_str().expect("a temporary folder's path is text").to_owned();
    let run_dir = tempfile::tempdir().expect("a temporary folder");
    let run = run_dir.path().join("run");
    let run = run.to_str().expect("a temporary folder's path is text");
    let agent = ["run", "--manifests", &path, "--run-dir", run, "--node-name", NODE];
    resident("denizen-agent run", &agent, "ruleset programmed");
    resident("an engine alone", &["engine", &path], "ruleset programmed");
}

/// Runs this program again as something else, and reads its memory once it says `ready`.
fn resident(what: &str, arguments: &[&str], ready: &str) {
    let namespace = Namespace::new();
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut command = Command::new(std::env::current_exe().expect("a bench has a path"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.reopen().expect("a temporary file"));
    let mut child = namespace.spawn(command);
    let said = || std::fs::read_to_string(log.path()).unwrap_or_default();
    let is_ready = |child: &mut Child| {
        let ended = child.try_wait().is_ok_and(|ended| ended.is_some());
        let both = said().matches(ready).count() >= 2;
        (both || ended).then_some(both)
    };
    let programmed = (0..PATIENCE).find_map(|_| {
        sleep(Duration::from_millis(100));
        is_ready(&mut child)
    });
    // What comes right after the first load belongs to it.
    sleep(Duration::from_secs(1));
    match programmed {
        Some(true) => println!("{what}: {}", of_process(child.id())),
        Some(false) | None => println!("{what}: not measured, it said: {}", said()),
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// This process is `denizen-agent`, with the same arguments.
pub fn agent() -> ExitCode {
    end_with_the_bench();
    match denizen_agent::cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// This process parses a folder of manifests, programs it, and holds what an engine holds.
pub fn engine_alone(arguments: &[String]) -> ExitCode {
    end_with_the_bench();
    let folder = arguments.first().expect("the bench names it");
    let _engine = started(manifests::facts(folder.as_ref())).0;
    eprintln!("ruleset programmed\nruleset programmed");
    sleep(Duration::from_secs(60));
    ExitCode::SUCCESS
}

/// A bench that is killed leaves nobody behind.
fn end_with_the_bench() {
    let _ = set_pdeathsig(Signal::SIGKILL);
}
