//! The kernel's settings when the agent starts.

use anyhow::ensure;
use tracing::info;

use crate::config::Config;
use crate::sysctl::{self, Reconciler};

/// Sets them as `config` says. Returns what keeps them so; `None` if this run is for the settings
/// alone.
///
/// # Errors
/// When there are none at `--sysctl-dir`.
pub(super) fn set_up(config: &Config) -> anyhow::Result<Option<Reconciler>> {
    let sysctls = &config.sysctl_dir;
    ensure!(
        sysctls.join("net").is_dir(),
        "--sysctl-dir {0}: {0}/net does not exist",
        sysctls.display()
    );
    let mut settings = Reconciler::new(sysctls, &config.run_dir, &config.policy.node_ports);
    if config.init_only {
        settings.set_all(&config.conntrack, &config.policy.node_ports);
        info!("kernel settings are set up; exiting because of --init-only");
        return Ok(None);
    }
    sysctl::set_up(sysctls, &config.conntrack);
    if config.backend.name.capabilities().balances_by_ipvs {
        // IPVS is not used without them.
        settings.keep(sysctl::for_ipvs().into(), true);
    }
    Ok(Some(settings))
}
