//! What every bench begins with: cargo builds benches for tests too, and runs them; a bench may
//! start its own program anew to be a process that is measured; the words behind `--` of `cargo
//! bench` choose which parts are measured, and for which sizes.

pub mod objects;
pub mod timing;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde_json::Value;

use crate::node::cni::NodeNamespace;

/// A bench: what its command line may say.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    /// The processes that the bench's program can be instead: the first word chooses one.
    pub processes: &'a [Process],
    pub parts: &'a [&'static str],
    pub sizes: Sizes<'a>,
}

/// The words that start a process, and the process.
pub type Process = (&'static [&'static str], ProcessMain);

/// The process's main function, which gets all words of the command line.
pub type ProcessMain = fn(&[String]) -> Result<ExitCode>;

impl Default for Bench<'_> {
    fn default() -> Self {
        Self { processes: &[], parts: &[], sizes: Sizes::Of(&[]) }
    }
}

impl Bench<'_> {
    /// Becomes the process that the first word names, if it names one. Otherwise measures what the
    /// command line chooses, but only under `cargo bench`. A goal that is missed is an error.
    pub fn run(self, measure: impl FnOnce(&Chosen) -> Result<()>) -> ExitCode {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let ended = match self.process(&words) {
            Some(process) => process(&words),
            None => self.measured(&words, measure).map(|()| ExitCode::SUCCESS),
        };
        ended.unwrap_or_else(|error| {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        })
    }

    fn process(&self, words: &[String]) -> Option<ProcessMain> {
        let first = words.first()?;
        let (_, process) = self.processes.iter().find(|(of, _)| of.contains(&first.as_str()))?;
        Some(*process)
    }

    fn measured(
        &self,
        words: &[String],
        measure: impl FnOnce(&Chosen) -> Result<()>,
    ) -> Result<()> {
        if !words.iter().any(|word| word == "--bench") {
            println!("not run: this is a bench, and `cargo test` builds it only");
            return Ok(());
        }
        measure(&Chosen::of(words, self.parts, self.sizes)?)
    }
}

/// The bench's own program, to be one of its [processes](Bench::processes).
pub fn own_program(process: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(process).stdin(Stdio::null()).env("RUST_LOG", "warn");
    Ok(command)
}

/// An agent that is measured. It ends with this value.
#[derive(Debug)]
pub struct MeasuredAgent {
    child: Child,
    program: PathBuf,
    run_dir: PathBuf,
}

impl MeasuredAgent {
    /// Starts this program on `node`. `objects`: the flag that says where the agent's objects come
    /// from, and the flag's value.
    ///
    /// # Errors
    /// Where there is no such program.
    pub fn start(
        node: &impl NodeNamespace,
        program: &Path,
        run_dir: &Path,
        objects: (&str, &Path),
        flags: &[&str],
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["run", "--cni-cache-dir", "", "--run-dir"]).arg(run_dir);
        command.args(flags).arg(objects.0).arg(objects.1);
        command.stdin(Stdio::null()).env("RUST_LOG", "warn");
        let (program, run_dir) = (program.to_owned(), run_dir.to_owned());
        Ok(Self { child: node.start(command), program, run_dir })
    }

    /// Waits until the agent's status says that everything is programmed, and `is_all` accepts the
    /// status; returns that status.
    ///
    /// # Errors
    /// When it has ended, or takes longer than `timeout`.
    pub fn programmed(
        &mut self,
        timeout: Duration,
        is_all: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let begun = Instant::now();
        loop {
            let mut command = Command::new(&self.program);
            command.args(["status", "--output", "json", "--run-dir"]).arg(&self.run_dir);
            let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if status["synced"] == true && is_all(&status) {
                return Ok(status);
            }
            ensure!(self.child.try_wait()?.is_none(), "the agent has ended");
            ensure!(begun.elapsed() < timeout, "not programmed: {status}");
            sleep(Duration::from_millis(10));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for MeasuredAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The memory of a process, in KiB.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// What is in memory.
    pub resident: u64,
    /// The part of it without a file behind it.
    pub anonymous: u64,
    /// The part of it that is pages of files: mostly of the program itself.
    pub of_files: u64,
    /// The peak of `resident`, since the start or since 5 was written to the process's
    /// `clear_refs`.
    pub most: u64,
}

impl Memory {
    /// That of a process now, by its id.
    ///
    /// # Errors
    /// Where there is no such process.
    pub fn of(process: u32) -> Result<Self> {
        let path = format!("/proc/{process}/status");
        let text = fs::read_to_string(&path).context(path)?;
        let kibibytes = |field: &str| -> Result<u64> {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let line = lines.find(|(name, _)| *name == field).map(|(_, value)| value);
            let number = line.and_then(|value| value.split_whitespace().next());
            Ok(number.with_context(|| format!("no {field}"))?.parse()?)
        };
        Ok(Self {
            resident: kibibytes("VmRSS")?,
            anonymous: kibibytes("RssAnon")?,
            of_files: kibibytes("RssFile")?,
            most: kibibytes("VmHWM")?,
        })
    }

    /// That of this process now.
    ///
    /// # Errors
    /// Where there is no `/proc`.
    pub fn own() -> Result<Self> {
        Self::of(std::process::id())
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [resident, most] = [self.resident, self.most].map(megabytes);
        write!(formatter, "{resident:.1} MB resident, {most:.1} MB at most")
    }
}

/// KiB in MB.
pub fn megabytes(kibibytes: u64) -> f64 {
    kibibytes as f64 * 1024.0 / 1e6
}

/// How long this process has been working, and the kernel on its behalf.
pub fn processor_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let of = |time: TimeVal| {
        Duration::new(time.tv_sec().unsigned_abs(), 1000 * time.tv_usec().unsigned_abs() as u32)
    };
    Ok(of(usage.user_time()) + of(usage.system_time()))
}

/// The sizes that a bench has.
#[derive(Debug, Clone, Copy)]
pub enum Sizes<'a> {
    /// These.
    Of(&'a [usize]),
    /// Any number.
    Any,
}

/// What is measured. If the command line names no part, all parts; if it names no size, all sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    parts: Vec<&'static str>,
    /// The sizes; with [`Sizes::Any`] only those that are named.
    pub sizes: Vec<usize>,
}

impl Chosen {
    /// From the words of the command line.
    ///
    /// # Errors
    /// A word that is neither a part nor a size: it would measure nothing, or something else than
    /// was asked for.
    pub fn of(words: &[String], parts: &[&'static str], sizes: Sizes<'_>) -> Result<Self> {
        let (mut named, mut numbers) = (Vec::new(), Vec::new());
        // cargo adds the flag.
        for word in words.iter().filter(|word| *word != "--bench") {
            match (parts.iter().find(|part| *part == word), word.parse()) {
                (Some(part), _) => named.push(*part),
                (None, Ok(number)) if sizes.has(number) => numbers.push(number),
                (None, _) => {
                    let known = [listed("parts", parts), sizes.known()].concat();
                    ensure!(!known.is_empty(), "{word:?} chooses nothing: there is no choice");
                    bail!("{word:?} chooses nothing: {}", known.trim_end_matches("; "));
                }
            }
        }
        if named.is_empty() {
            named.extend(parts);
        }
        if let (true, Sizes::Of(all)) = (numbers.is_empty(), sizes) {
            numbers.extend(all);
        }
        Ok(Self { parts: named, sizes: numbers })
    }

    /// Whether this part is measured.
    pub fn has(&self, part: &str) -> bool {
        self.parts.contains(&part)
    }
}

impl Sizes<'_> {
    fn has(self, number: usize) -> bool {
        match self {
            Self::Of(sizes) => sizes.contains(&number),
            Self::Any => number > 0,
        }
    }

    fn known(self) -> String {
        match self {
            Self::Of(sizes) => listed("sizes", sizes),
            Self::Any => "a size is a number above 0".to_owned(),
        }
    }
}

/// Nothing if there are none.
fn listed<T: ToString>(what: &str, all: &[T]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    match all.is_empty() {
        true => String::new(),
        false => format!("the {what} are {}; ", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [&str; 2] = ["cold", "memory"];
    const SIZES: [usize; 2] = [1_000, 50_000];

    fn chosen(words: &str, sizes: Sizes<'_>) -> Result<(Vec<&'static str>, Vec<usize>)> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        Chosen::of(&words, &PARTS, sizes).map(|chosen| (chosen.parts, chosen.sizes))
    }

    #[test]
    fn what_is_named_is_measured_and_everything_if_nothing_is() -> Result<()> {
        let all = Sizes::Of(&SIZES);
        assert_eq!(chosen("--bench", all)?, (PARTS.to_vec(), SIZES.to_vec()));
        assert_eq!(chosen("cold --bench", all)?, (vec!["cold"], SIZES.to_vec()));
        assert_eq!(chosen("50000 memory --bench", all)?, (vec!["memory"], vec![50_000]));
        assert_eq!(chosen("7 --bench", Sizes::Any)?, (PARTS.to_vec(), vec![7]));
        Ok(())
    }

    #[test]
    fn a_word_that_chooses_nothing_is_an_error_that_says_what_there_is() {
        for (words, sizes) in [
            ("cold 100000 --bench", Sizes::Of(&SIZES)),
            ("cold 1000 100000 --bench", Sizes::Of(&SIZES)),
            ("warm --bench", Sizes::Of(&SIZES)),
            ("--warm --bench", Sizes::Of(&SIZES)),
            ("cold 0 --bench", Sizes::Any),
            ("7 --bench", Sizes::Of(&[])),
        ] {
            let error = chosen(words, sizes).unwrap_err().to_string();
            assert!(error.contains("the parts are cold, memory"), "{words}: {error}");
        }
        let error = chosen("100000", Sizes::Of(&SIZES)).unwrap_err().to_string();
        let expected =
            "\"100000\" chooses nothing: the parts are cold, memory; the sizes are 1000, 50000";
        assert_eq!(error, expected);
    }
}
