//! `check`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::Args;

use super::{Command, Output, Parsed, block_on, parsed, show, unusable};
use crate::check::{self, Report, Subject, Verdict};
use crate::config::{
    ConntrackArgs, InCluster, ListenArgs, ObjectsArgs, PolicyArgs, RoutingArgs, RunDirArgs,
};
use crate::control::{AgentClient, ControlError};
use denizen_backend::BackendName;
use denizen_backend::sysctl::{Conntrack, SYSCTLS};
use denizen_observe::status::Status;
use denizen_plan::Policy;
use denizen_source::{Features, state_file};

/// The exit code if something does not work.
const FAILED: u8 = 1;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Check a node before the installation: what the installation brings is left out
    #[arg(long)]
    pre: bool,

    #[command(flatten)]
    policy: PolicyArgs,

    #[command(flatten)]
    run_dir: RunDirArgs,

    #[command(flatten)]
    listen: ListenArgs,

    #[command(flatten)]
    objects: ObjectsArgs,

    #[command(flatten)]
    routing: RoutingArgs,

    #[command(flatten)]
    conntrack: ConntrackArgs,

    /// Directory of the kernel's settings, which are only read
    #[arg(long, value_name = "DIR", default_value = SYSCTLS)]
    sysctl_dir: PathBuf,

    /// The folder of the runtime's CNI configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,

    /// The folder of the runtime's CNI plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    cni_bin_dir: PathBuf,

    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// Runs the checks and prints the report. Returns the exit code.
pub(super) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let subject = match args.subject() {
        Ok(subject) => subject,
        Err(error) => return Ok(unusable(&error)),
    };
    let report = block_on(async { Ok(check::check(&subject).await) })?;
    show(&report, args.output)?;
    Ok(match report.count(Verdict::Failure) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(FAILED),
    })
}

/// The report of `denizen-agent check --run-dir`, for `relay`.
pub(super) fn report(run_dir: &Path) -> anyhow::Result<Report> {
    let words = ["denizen-agent", "check", "--run-dir"].map(OsString::from);
    let Parsed { command, .. } = parsed(words.into_iter().chain([run_dir.into()]).collect())?;
    let Command::Check(args) = command else { bail!("check is another command") };
    let subject = args.subject()?;
    block_on(async { Ok(check::check(&subject).await) })
}

impl CheckArgs {
    fn subject(&self) -> anyhow::Result<Subject> {
        let (run_dir, sysctls) = (&self.run_dir.run_dir, &self.sysctl_dir);
        ensure!(
            sysctls.join("net").is_dir(),
            "--sysctl-dir {0}: {0}/net does not exist",
            sysctls.display()
        );
        let agent = status(run_dir)?;
        let running = agent.as_ref().ok().and_then(|status| BackendName::named(&status.backend));
        let backend = match self.policy.services.are_served() {
            true => self.policy.backend.chosen().or(running),
            false => Some(BackendName::None),
        };
        let is_served = backend != Some(BackendName::None);
        let policy = self.policy.check(backend.unwrap_or(BackendName::Nftables))?;
        let config = state_file::StateFileConfig { run_dir: run_dir.clone() };
        Ok(Subject {
            is_before_installation: self.pre,
            policy: Policy { services: is_served, ..policy },
            backend,
            iptables_variant: self.policy.backend.iptables_variant,
            network_policy: self.policy.firewall.network_policy,
            features: Features { services: is_served, ..self.policy.features() },
            objects: self.objects.check(InCluster::from_environment(), is_served),
            conntrack: match is_served {
                true => self.conntrack.requested(),
                false => Conntrack::UNCHANGED,
            },
            listen: self.listen.check()?,
            routing: self.routing.check()?,
            sysctls: sysctls.clone(),
            run_dir: run_dir.clone(),
            cni_conf_dir: self.cni_conf_dir.clone(),
            cni_bin_dir: self.cni_bin_dir.clone(),
            records: state_file::read(&config),
            plugin_was_called: state_file::plugin_was_called(&config),
            agent,
        })
    }
}

/// The running agent's status, or why there is none.
fn status(run_dir: &Path) -> anyhow::Result<Result<Status, ControlError>> {
    block_on(async { Ok(AgentClient::new(run_dir).status().await) })
}
