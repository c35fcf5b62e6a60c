//! Keeps the kernel's settings as the facts ask for, and remembers what it could not set.

use std::path::Path;

use tracing::warn;

use super::conntrack::Conntrack;
use super::setting::{Setting, foreseen};
use super::sysctl::{SYSCTLS, apply};
use crate::describe::describe;

/// The settings that are wanted now, and what is wrong with them.
#[derive(Debug, Default)]
pub struct Keeper {
    wanted: Vec<Setting>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

impl Keeper {
    /// Makes the settings what they should be. What was right when it was looked at last is not looked at
    /// again, unless `look` says so.
    pub fn keep(&mut self, wanted: Vec<Setting>, look: bool) {
        if self.wanted == wanted && self.problems.is_empty() && self.warnings.is_empty() && !look {
            return;
        }
        let (vital, others): (Vec<_>, Vec<_>) = wanted.iter().cloned().partition(|setting| setting.is_vital);
        let (problems, warnings) = (set(&vital), set(&others));
        let is_new = |problem: &&String| !self.problems.contains(problem) && !self.warnings.contains(problem);
        for problem in problems.iter().chain(&warnings).filter(is_new) {
            warn!(problem, "a setting of the kernel is not as it should be");
        }
        *self = Self {
            wanted,
            problems,
            warnings,
        };
    }

    /// What is wrong right now.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// What else is not as it should be, with which the node does its work.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Sets all that may be needed, for an agent that will not be allowed to.
pub fn set_all(conntrack: &Conntrack) {
    set_up(conntrack);
    for problem in set(&foreseen()) {
        warn!(problem, "a setting of the kernel is not as it may have to be");
    }
}

/// Sets connection tracking up, once. Where the kernel does not let us (it keeps the limit for the host's own
/// network namespace, and a container may see these files read-only) it is logged, as kube-proxy does.
pub fn set_up(conntrack: &Conntrack) {
    for problem in set(&conntrack.settings(cpus())) {
        warn!(problem, "connection tracking stays as it is");
    }
}

fn set(settings: &[Setting]) -> Vec<String> {
    let errors = apply(Path::new(SYSCTLS), settings);
    errors.iter().map(|error| describe(error)).collect()
}

/// The CPUs of the machine, whatever share of them this process may use.
fn cpus() -> u32 {
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN);
    online
        .ok()
        .flatten()
        .and_then(|n| u32::try_from(n).ok())
        .unwrap_or(1)
}
