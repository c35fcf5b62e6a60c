//! The agent's part of the run directory: creates its socket, creates it again if it is gone, and
//! checks whether the directory is still the one that the CNI plugin uses.
//!
//! A removed directory can be created again, except in a container that has it as a mount: the
//! mount still refers to the removed directory, in which nothing can be created. Only a restart
//! mounts the new one.

use std::fs::{self, File};
use std::io;
use std::mem::replace;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use denizen_state::RunDir;
use denizen_state::run_dir::SOCKET;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::control::{self, AgentRequest};

/// How often the directory is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The state of the run directory, always up to date.
#[derive(Debug)]
pub(super) struct RunDirState {
    /// The current problems.
    pub(super) problems: watch::Receiver<Vec<String>>,
    /// Whether only a restart helps.
    pub(super) is_lost: watch::Receiver<bool>,
}

/// Creates the run directory if it is missing, and serves its socket, with requests passed to
/// `to_loop`, until the agent ends.
///
/// # Errors
/// When the directory cannot be used, or another agent answers there.
pub(super) async fn start(
    path: &Path,
    to_loop: mpsc::Sender<AgentRequest>,
) -> anyhow::Result<RunDirState> {
    let dir = RunDir::create(path).context("cannot use the run directory")?;
    let mount = mount_of(dir.dir()).context("cannot find the mount of the run directory")?;
    let socket = Socket::listen(path).await?;
    let (problems, problem_receiver) = watch::channel(Vec::new());
    let (is_lost, lost_receiver) = watch::channel(false);
    let restorer = Restorer { path: path.to_owned(), mount, problems, is_lost };
    tokio::spawn(restorer.keep(socket, to_loop));
    Ok(RunDirState { problems: problem_receiver, is_lost: lost_receiver })
}

/// A socket, and the identity of its file.
#[derive(Debug)]
struct Socket {
    listener: UnixListener,
    file: (u64, u64),
}

impl Socket {
    async fn listen(run_dir: &Path) -> anyhow::Result<Self> {
        let listener = control::listen(run_dir).await?;
        let file = identity(run_dir).context("cannot read the agent's socket file")?;
        Ok(Self { listener, file })
    }

    /// Whether a client finds this socket at its path.
    fn is_there(&self, run_dir: &Path) -> bool {
        identity(run_dir).is_ok_and(|file| file == self.file)
    }
}

/// The id of the mount through which `dir` was opened.
#[expect(clippy::disallowed_methods, reason = "the kernel reports it only in /proc")]
fn mount_of(dir: &File) -> io::Result<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", dir.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("no mnt_id in fdinfo"))
}

fn identity(run_dir: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(run_dir.join(SOCKET))?;
    Ok((file.dev(), file.ino()))
}

#[derive(Debug)]
struct Restorer {
    path: PathBuf,
    /// The mount that the directory was on at the start.
    mount: u64,
    problems: watch::Sender<Vec<String>>,
    is_lost: watch::Sender<bool>,
}

impl Restorer {
    async fn keep(self, socket: Socket, to_loop: mpsc::Sender<AgentRequest>) {
        let mut socket = Some(socket);
        while !to_loop.is_closed() {
            let lost = self.lost();
            let is_lost = lost.is_some();
            self.is_lost.send_if_modified(|was_lost| replace(was_lost, is_lost) != is_lost);
            let failed = self.listen_again(&mut socket).await.err();
            self.report(lost.or_else(|| failed.map(|error| format!("{error:#}"))));
            let answering = async {
                match &socket {
                    Some(socket) => control::serve(&socket.listener, &to_loop).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = answering => {}
                () = sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// Why only a restart restores the directory; `None` if no restart is needed.
    fn lost(&self) -> Option<String> {
        // A missing directory can be created.
        let now = File::open(&self.path).ok()?;
        let why = if now.metadata().ok()?.nlink() == 0 {
            "was removed on the host"
        } else if mount_of(&now).ok()? != self.mount {
            "is not on the mount that it was on at the start"
        } else {
            return None;
        };
        let path = self.path.display();
        Some(format!(
            "the run directory {path} {why}; restart the agent to use the current directory"
        ))
    }

    /// Creates the socket, and if necessary the directory, again if the socket is gone.
    async fn listen_again(&self, socket: &mut Option<Socket>) -> anyhow::Result<()> {
        if socket.as_ref().is_some_and(|socket| socket.is_there(&self.path)) {
            return Ok(());
        }
        *socket = None;
        RunDir::create(&self.path).context("cannot use the run directory")?;
        *socket = Some(Socket::listen(&self.path).await?);
        info!(path = %self.path.display(), "created the agent's socket again");
        Ok(())
    }

    fn report(&self, problem: Option<String>) {
        self.problems.send_if_modified(|now| {
            let problems = Vec::from_iter(problem);
            let differs = *now != problems;
            if let Some(error) = problems.first().filter(|_| differs) {
                warn!(error, "cannot use the run directory");
            }
            *now = problems;
            differs
        });
    }
}
