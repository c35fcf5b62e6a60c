//! Sets the kernel's settings (sysctls) when the agent starts.

use anyhow::ensure;
use tracing::{info, warn};

use crate::config::Config;
use denizen_backend::sysctl::{self, CheckScope, Reconciler, Setting};
use denizen_text::describe;

/// Sets the sysctls as `config` says. Returns the reconciler that keeps them; `None` with
/// `--init-only`.
///
/// # Errors
/// When `--sysctl-dir` contains no sysctls.
pub(super) fn set_up(config: &Config) -> anyhow::Result<Option<Reconciler>> {
    let sysctls = &config.sysctl_dir;
    ensure!(
        sysctls.join("net").is_dir(),
        "--sysctl-dir {0}: {0}/net does not exist",
        sysctls.display()
    );
    let mut settings = Reconciler::new(sysctls, &config.run_dir, &config.policy);
    let ipvs = for_ipvs(config);
    if config.init_only {
        settings.set_all(&config.conntrack, &config.policy, ipvs);
        info!("kernel settings are set up; exiting because of --init-only");
        return Ok(None);
    }
    sysctl::set_up(sysctls, &config.conntrack);
    if !ipvs.is_empty() {
        // Before the backend opens: without these settings it does not use IPVS.
        settings.keep(ipvs, CheckScope::All);
    }
    Ok(Some(settings))
}

/// The settings of IPVS, if this run uses it. They exist once the kernel module is loaded.
fn for_ipvs(config: &Config) -> Vec<Setting> {
    if !config.backend.name.capabilities().balances_by_ipvs {
        return Vec::new();
    }
    if let Err(error) = denizen_ipvs::load() {
        warn!(problem = describe(&error), "the kernel does not load IPVS");
    }
    sysctl::for_ipvs().into()
}
