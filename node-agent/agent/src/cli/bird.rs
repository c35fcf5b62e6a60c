//! `bird`: what the container of BIRD runs.

#![expect(clippy::disallowed_methods, reason = "it waits for a file, and becomes BIRD")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;

use crate::config::RunDirArgs;
use denizen_routing::bird::{CONFIGURATION, FOLDER, SOCKET};
use denizen_routing::routes::LearnedRoutes;

/// Poll interval for the configuration file.
const EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(super) struct BirdArgs {
    #[command(flatten)]
    run_dir: RunDirArgs,

    /// BIRD's program
    #[arg(long, value_name = "FILE", default_value = "/usr/sbin/bird")]
    program: PathBuf,
}

/// Becomes BIRD, as soon as there is a configuration. If the kernel has routes of an earlier BIRD,
/// the new BIRD keeps them until its peers have advertised all routes (`-R`). If it has none, BIRD
/// need not wait for a peer that may be dead.
pub(super) fn bird(args: &BirdArgs) -> anyhow::Result<()> {
    let folder = std::path::absolute(args.run_dir.run_dir.join(FOLDER))?;
    let configuration = folder.join(CONFIGURATION);
    while !configuration.exists() {
        sleep(EVERY);
    }
    let is_restart = LearnedRoutes::open()
        .and_then(|mut routes| routes.count())
        .context("cannot read the routes of an earlier BIRD")?
        > 0;
    let mut command = command(&args.program, &configuration, &folder.join(SOCKET), is_restart);
    let error = command.exec();
    Err(anyhow!(error).context(format!("cannot execute {}", args.program.display())))
}

fn command(program: &Path, configuration: &Path, socket: &Path, is_restart: bool) -> Command {
    let mut command = Command::new(program);
    command.arg("-f").arg("-c").arg(configuration).arg("-s").arg(socket);
    command.args(is_restart.then_some("-R"));
    command
}
