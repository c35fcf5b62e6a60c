//! Keeps the kernel's settings as the facts ask for, and remembers what it could not set.

use std::path::{Path, PathBuf};

use tracing::warn;

use super::conntrack::Conntrack;
use super::file::apply;
use super::loopback::Loopback;
use super::setting::{Setting, foreseen, on_loopback};
use crate::describe::describe;
use crate::plan::NodePortAddresses;

/// What an operator should know until the first full set of rules is there, whoever set it.
const UNGUARDED: &str = "net.ipv4.conf.all.route_localnet is 1, and the rule that keeps neighbours out of 127.0.0.0/8 \
                         may not be there yet";

/// The settings that are wanted now, and what is wrong with them.
#[derive(Debug)]
pub struct Reconciler {
    /// The folder of the kernel's settings.
    sysctls: PathBuf,
    loopback: Loopback,
    /// Node ports are asked for on 127.0.0.1, sooner or later.
    needs_loopback: bool,
    wanted: Vec<Setting>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

impl Reconciler {
    /// For the settings below the folder `sysctls`; none is wanted yet. What denizen set for node
    /// ports on 127.0.0.1, and noted in `run_dir`, stays where `node_ports` asks for these.
    pub fn new(sysctls: &Path, run_dir: &Path, node_ports: &NodePortAddresses) -> Self {
        Self {
            sysctls: sysctls.to_owned(),
            loopback: Loopback::new(sysctls, run_dir),
            needs_loopback: on_loopback(node_ports).is_some(),
            wanted: Vec::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Makes the settings what they should be. What was right when it was looked at last is not
    /// looked at again, unless `look` says so.
    pub fn keep(&mut self, wanted: Vec<Setting>, look: bool) {
        if self.wanted == wanted && self.problems.is_empty() && self.warnings.is_empty() && !look {
            return;
        }
        let (vital, others): (Vec<_>, Vec<_>) =
            wanted.iter().cloned().partition(|setting| setting.is_vital);
        let set_both = || (set(&self.sysctls, &vital), set(&self.sysctls, &others));
        let (problems, mut warnings) = self.loopback.remembering(set_both);
        if !self.needs_loopback {
            let left = self.loopback.set_back().err();
            warnings.extend(left.map(|error| describe(&error)));
        }
        let is_new = |problem: &&String| {
            !self.problems.contains(problem) && !self.warnings.contains(problem)
        };
        for problem in problems.iter().chain(&warnings).filter(is_new) {
            warn!(problem, "a setting of the kernel is not as it should be");
        }
        (self.wanted, self.problems, self.warnings) = (wanted, problems, warnings);
    }

    /// Sets everything that an agent with these flags may need: for an agent that may not. That
    /// includes what node ports on 127.0.0.1 need, before the agent's rule keeps neighbours out; an
    /// agent that may set it itself programs that rule first.
    pub fn set_all(mut self, conntrack: &Conntrack, node_ports: &NodePortAddresses) {
        set_up(&self.sysctls, conntrack);
        // Whatever cannot be set is logged.
        self.keep(foreseen().into_iter().chain(on_loopback(node_ports)).collect(), true);
    }

    /// What is wrong right now.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// What else is not as it should be, with which the node does its work. The rule that keeps
    /// neighbours out of loopback addresses is one of the first full set of rules: `guarded`,
    /// whether that is in the kernel.
    pub fn warnings(&self, guarded: bool) -> Vec<String> {
        let unguarded = (!guarded && self.loopback.is_open()).then(|| UNGUARDED.to_owned());
        self.warnings.iter().cloned().chain(unguarded).collect()
    }
}

/// Sets connection tracking up, once. Where the kernel does not let us (it keeps the limit for the
/// host's own network namespace, and a container may see these files read-only) it is logged, as
/// kube-proxy does.
pub fn set_up(sysctls: &Path, conntrack: &Conntrack) {
    for problem in set(sysctls, &conntrack.settings(cpus())) {
        warn!(problem, "connection tracking stays as it is");
    }
}

fn set(sysctls: &Path, settings: &[Setting]) -> Vec<String> {
    let errors = apply(sysctls, settings);
    errors.iter().map(|error| describe(error)).collect()
}

/// The CPUs of the machine, whatever share of them this process may use.
fn cpus() -> u32 {
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN);
    online.ok().flatten().and_then(|n| u32::try_from(n).ok()).unwrap_or(1)
}
