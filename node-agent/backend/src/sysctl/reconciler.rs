//! Keeps the kernel's settings as the facts require, and remembers what it could not set.

use std::path::{Path, PathBuf};

use tracing::warn;

use super::CheckScope;
use super::conntrack::Conntrack;
use super::file::apply;
use super::loopback::Loopback;
use super::setting::{Setting, host_ports_on_loopback, on_loopback, possible};
use denizen_plan::Policy;
use denizen_text::describe;

/// The warning until the first full set of rules is programmed, whoever set the setting.
const UNGUARDED: &str = "net.ipv4.conf.all.route_localnet is 1, and the rule that protects \
                         127.0.0.0/8 from neighbours may not be programmed yet";

/// The wanted settings, and their problems.
#[derive(Debug)]
pub struct Reconciler {
    /// The folder of the kernel's settings.
    sysctls: PathBuf,
    loopback: Loopback,
    /// Node ports or host ports are configured on 127.0.0.1.
    needs_loopback: bool,
    wanted: Vec<Setting>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

impl Reconciler {
    /// For the settings below the folder `sysctls`; none is wanted yet. If `policy` has node ports
    /// or host ports on 127.0.0.1, the setting that an earlier run made for it, and noted in
    /// `run_dir`, stays.
    pub fn new(sysctls: &Path, run_dir: &Path, policy: &Policy) -> Self {
        Self {
            sysctls: sysctls.to_owned(),
            loopback: Loopback::new(sysctls, run_dir),
            needs_loopback: all_on_loopback(policy).is_some(),
            wanted: Vec::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Gives the settings their wanted values. With [`CheckScope::Changed`], those that were right
    /// at the last check are not checked again.
    pub fn keep(&mut self, wanted: Vec<Setting>, check: CheckScope) {
        let were_right = self.problems.is_empty() && self.warnings.is_empty();
        let check_all = check == CheckScope::All || !were_right;
        let is_due = |setting: &&Setting| check_all || !self.wanted.contains(setting);
        let due: Vec<Setting> = wanted.iter().filter(is_due).cloned().collect();
        if due.is_empty() && !check_all {
            self.wanted = wanted;
            return;
        }
        let (vital, others): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|setting| setting.is_vital);
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
            warn!(problem, "cannot set a kernel setting");
        }
        (self.wanted, self.problems, self.warnings) = (wanted, problems, warnings);
    }

    /// Sets everything that an agent with these flags may need, for an agent that may not set it.
    /// That includes what node ports on 127.0.0.1 need, before the agent's rule protects
    /// 127.0.0.0/8 from neighbours. An agent that may set it itself programs that rule first.
    pub fn set_all(mut self, conntrack: &Conntrack, policy: &Policy, ipvs: Vec<Setting>) {
        set_up(&self.sysctls, conntrack);
        let all = possible().into_iter().chain(all_on_loopback(policy)).chain(ipvs);
        // Failures are logged.
        self.keep(all.collect(), CheckScope::All);
    }

    /// The folder of the kernel's settings.
    pub fn sysctls(&self) -> &Path {
        &self.sysctls
    }

    /// The current errors.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Other deviations, with which the node still works. The rule that protects loopback addresses
    /// from neighbours is in the first full set of rules: `guarded` says whether that is in the
    /// kernel.
    pub fn warnings(&self, guarded: bool) -> Vec<String> {
        let unguarded = (!guarded && self.loopback.is_open()).then(|| UNGUARDED.to_owned());
        self.warnings.iter().cloned().chain(unguarded).collect()
    }
}

/// The setting that node ports or host ports on 127.0.0.1 require.
fn all_on_loopback(policy: &Policy) -> Option<Setting> {
    on_loopback(&policy.node_ports).or_else(|| host_ports_on_loopback(policy.host_ports))
}

/// Sets connection tracking up, once. If the kernel does not permit it, that is logged, as in
/// kube-proxy: the limit belongs to the host's own network namespace, and a container may see these
/// files read-only.
pub fn set_up(sysctls: &Path, conntrack: &Conntrack) {
    for problem in set(sysctls, &conntrack.settings(cpus())) {
        warn!(problem, "connection tracking is unchanged");
    }
}

fn set(sysctls: &Path, settings: &[Setting]) -> Vec<String> {
    let errors = apply(sysctls, settings);
    errors.iter().map(|error| describe(error)).collect()
}

/// The CPUs of the machine, whatever share this process may use.
pub fn cpus() -> u32 {
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN);
    online.ok().flatten().and_then(|n| u32::try_from(n).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysctl::setting::WantedValue;
    use denizen_plan::fixture::policy;

    #[expect(clippy::disallowed_methods, reason = "a test creates its files")]
    #[test]
    fn what_was_right_is_only_checked_when_asked() {
        let root = tempfile::tempdir().unwrap();
        let now = |name: &str| std::fs::read_to_string(root.path().join(name)).unwrap();
        let be_zero = |name: &str| std::fs::write(root.path().join(name), "0").unwrap();
        be_zero("first");
        be_zero("second");
        let one = |name| Setting::new(name, WantedValue::Exactly(1), "nothing works");
        let mut settings = Reconciler::new(root.path(), root.path(), &policy());
        settings.keep(vec![one("first")], CheckScope::Changed);
        assert_eq!(now("first"), "1");
        be_zero("first");
        settings.keep(vec![one("first"), one("second")], CheckScope::Changed);
        assert_eq!([now("first"), now("second")], ["0", "1"]);
        be_zero("second");
        settings.keep(vec![one("second")], CheckScope::Changed);
        assert_eq!(now("second"), "0");
        settings.keep(vec![one("first"), one("second")], CheckScope::Changed);
        assert_eq!([now("first"), now("second")], ["1", "0"]);
        settings.keep(vec![one("first"), one("second")], CheckScope::All);
        assert_eq!([now("first"), now("second")], ["1", "1"]);
        assert!(settings.problems().is_empty());
    }
}
