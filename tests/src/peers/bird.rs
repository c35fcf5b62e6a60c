//! BIRD 2 in network namespaces: on routers, and on nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::binary;
use crate::node::netns::Netns;

/// BIRD in a network namespace. Dropping it kills it.
#[derive(Debug)]
pub struct Bird {
    child: Child,
    socket: PathBuf,
}

impl Bird {
    /// Starts BIRD with this configuration. Its files are in the folder, under this name.
    pub fn start(netns: &Netns, folder: &Path, name: &str, configuration: &str) -> Result<Self> {
        let file = folder.join(format!("{name}.conf"));
        fs::write(&file, configuration)?;
        Self::with(netns, &file, &folder.join(name))
    }

    /// Starts BIRD with this configuration file, and its control socket at this path.
    pub fn with(netns: &Netns, file: &Path, socket: &Path) -> Result<Self> {
        let mut command = program("bird")?;
        command.arg("-f").arg("-c").arg(file).arg("-s").arg(socket);
        Self::spawn(netns, command, socket.to_owned())
    }

    /// Starts a node's BIRD as its container does: once the agent has written its configuration.
    pub fn of_node(netns: &Netns, run_dir: &Path) -> Result<Self> {
        let bird = program("bird")?;
        let mut command = Command::new(binary::ours("denizen-agent")?);
        command.arg("bird").arg("--run-dir").arg(run_dir);
        command.arg("--program").arg(bird.get_program());
        command.envs(bird.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Self::spawn(netns, command, run_dir.join("bird/bird.ctl"))
    }

    fn spawn(netns: &Netns, mut command: Command, socket: PathBuf) -> Result<Self> {
        let log = socket.with_extension("log");
        let output = fs::File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = netns.run(|| command.spawn())?.context("cannot start bird")?;
        Ok(Self { child, socket })
    }

    /// BIRD's answer to a command of `birdcl`.
    pub fn ask(&self, words: &str) -> Result<String> {
        let mut command = program("birdcl")?;
        command.arg("-s").arg(&self.socket).args(words.split(' '));
        let output = command.output()?;
        ensure!(output.status.success(), "birdcl {words}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// How many updates and withdrawals each session has received, by BIRD's counters.
    pub fn heard(&self) -> Result<Vec<String>> {
        let shown = self.ask("show protocols all")?;
        let counts = shown.lines().map(str::trim).filter(|line| line.starts_with("Import "));
        Ok(counts.map(str::to_owned).collect())
    }

    /// Stops the process, as if it got no processor, or lets it go on.
    pub fn pause(&self, is_paused: bool) -> Result<()> {
        let signal = if is_paused { Signal::SIGSTOP } else { Signal::SIGCONT };
        Ok(kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?)
    }

    /// What it has logged (`log stderr`).
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.socket.with_extension("log"))?)
    }

    /// How many sessions are up.
    pub fn established(&self) -> Result<usize> {
        Ok(self.ask("show protocols")?.matches("Established").count())
    }
}

impl Drop for Bird {
    /// Kills it, as by `kill -9`.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One of BIRD's programs, as `tests/run` unpacked them.
pub fn program(name: &str) -> Result<Command> {
    let folder = binary::bird()?;
    let mut command = Command::new(folder.join("usr/sbin").join(name));
    let libraries = fs::read_dir(folder.join("usr/lib"))?.flatten().map(|entry| entry.path());
    let libraries = std::env::join_paths(libraries)?;
    command.env("LD_LIBRARY_PATH", libraries);
    Ok(command)
}
