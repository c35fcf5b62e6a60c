//! `denizen-agent check`, as an operator runs it.

mod node;

use std::ffi::OsStr;
use std::fmt;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::binary;
use crate::node::netns::Netns;

pub use self::node::CheckedNode;

/// Checks whose findings repeat messages of other parts, and so have no code.
const UNCODED: [&str; 4] = ["status", "manifests", "forward-chains", "vlans"];

/// What `denizen-agent check` reported.
#[derive(Debug, Clone)]
pub struct CheckReport {
    /// Its exit code.
    pub code: i32,
    /// Every check.
    pub checks: Vec<Value>,
}

impl CheckReport {
    /// Checks `node` with these flags.
    pub fn on<A: AsRef<OsStr>>(node: &Netns, flags: impl IntoIterator<Item = A>) -> Result<Self> {
        Self::behind(node, Command::new(binary::ours("denizen-agent")?), flags)
    }

    /// The same behind `program`, which must execute the agent.
    pub fn behind<A: AsRef<OsStr>>(
        node: &Netns,
        mut program: Command,
        flags: impl IntoIterator<Item = A>,
    ) -> Result<Self> {
        program.args(["check", "--output", "json"]).args(flags);
        let Output { status, stdout, stderr } = node.run(|| program.output())??;
        Self::read(status.code().context("it was killed")?, &stdout, &stderr)
    }

    /// From an exit code, and what the command wrote as JSON.
    pub fn read(code: i32, stdout: &[u8], stderr: &[u8]) -> Result<Self> {
        let output = || String::from_utf8_lossy(stderr).into_owned();
        let report: Value = serde_json::from_slice(stdout).with_context(output)?;
        let checks = report["checks"].as_array().with_context(output)?.clone();
        for check in checks.iter().filter(|check| is_unwell(check)) {
            let name = check["name"].as_str().unwrap_or_default();
            ensure!(check["code"].is_string() || UNCODED.contains(&name), "{check} has no code");
        }
        Ok(Self { code, checks })
    }

    /// The names of the checks with a warning or a failure, each once.
    pub fn unwell(&self) -> Vec<&str> {
        let unwell = self.checks.iter().filter(|check| is_unwell(check));
        let mut names: Vec<&str> = unwell.filter_map(|check| check["name"].as_str()).collect();
        names.dedup();
        names
    }

    /// How many checks have this verdict.
    pub fn count(&self, verdict: &str) -> usize {
        self.checks.iter().filter(|check| check["verdict"] == verdict).count()
    }

    /// Ensures that a check of this name has this verdict, and that its reason contains `words`. A
    /// warning or failure must also advise what to do.
    pub fn ensure(&self, name: &str, verdict: &str, words: &str) -> Result<()> {
        let named = || self.checks.iter().filter(|check| check["name"] == name);
        let is_so = |check: &&Value| {
            check["verdict"] == verdict
                && check["reason"].as_str().is_some_and(|reason| reason.contains(words))
        };
        let found = named().find(is_so);
        let found = found.with_context(|| {
            let all: Vec<String> = named().map(line).collect();
            format!("{name} should be {verdict:?} with {words:?}: {}", all.concat())
        })?;
        let is_wrong = matches!(verdict, "warning" | "failure");
        ensure!(found["advice"].is_string() == is_wrong, "{found:#}");
        Ok(())
    }

    /// Ensures that nothing but this check is unwell, and the exit code is right.
    pub fn ensure_only(&self, name: &str, verdict: &str, words: &str) -> Result<()> {
        self.ensure(name, verdict, words)?;
        ensure!(self.unwell() == [name], "{self}");
        let code = i32::from(verdict == "failure");
        ensure!(self.code == code, "exit code {}, not {code}", self.code);
        Ok(())
    }

    /// Ensures that nothing is wrong.
    pub fn ensure_well(&self) -> Result<()> {
        ensure!(self.unwell().is_empty() && self.code == 0, "exit code {}:{self}", self.code);
        Ok(())
    }
}

fn line(check: &Value) -> String {
    format!("\n{} {}: {}", check["name"], check["verdict"], check["reason"])
}

/// Lists the warnings and failures.
impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unwell = self.checks.iter().filter(|check| is_unwell(check));
        unwell.map(line).try_for_each(|line| f.write_str(&line))
    }
}

fn is_unwell(check: &Value) -> bool {
    !matches!(check["verdict"].as_str(), Some("ok" | "skipped"))
}
