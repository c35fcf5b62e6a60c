//! The agent in the run directory: its socket, which is made again where it is gone, and whether
//! this still is the directory that the CNI plugin uses.
//!
//! A directory that was removed can be made again, unless a container has it by a mount: the mount
//! goes on to hold what was removed, where nothing can be made any more. Only a restart mounts what
//! is there now.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use denizen_shared::run_dir::SOCKET;
use denizen_shared::store::RunDir;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::control::{self, Asked};

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What is known of it, always as it is now.
#[derive(Debug)]
pub(super) struct Known {
    /// What is wrong.
    pub(super) problems: watch::Receiver<Vec<String>>,
    /// Whether only a restart helps.
    pub(super) is_lost: watch::Receiver<bool>,
}

/// Makes the run directory where it is missing, and answers on its socket by `asked` until the
/// agent ends.
///
/// # Errors
/// When the directory cannot be used, or another agent answers there.
pub(super) async fn start(path: &Path, asked: mpsc::Sender<Asked>) -> anyhow::Result<Known> {
    let dir = RunDir::create(path).context("cannot use the run directory")?;
    let mount = mount_of(dir.dir()).context("cannot tell where the run directory is mounted")?;
    let socket = Socket::listen(path).await?;
    let (problems, told_problems) = watch::channel(Vec::new());
    let (is_lost, told_lost) = watch::channel(false);
    let restorer = Restorer { path: path.to_owned(), mount, problems, is_lost };
    tokio::spawn(restorer.keep(socket, asked));
    Ok(Known { problems: told_problems, is_lost: told_lost })
}

/// A socket, and which file it was.
#[derive(Debug)]
struct Socket {
    listener: UnixListener,
    file: (u64, u64),
}

impl Socket {
    async fn listen(run_dir: &Path) -> anyhow::Result<Self> {
        let listener = control::listen(run_dir).await?;
        let file = identity(run_dir).context("cannot look at the agent's socket")?;
        Ok(Self { listener, file })
    }

    /// Whether who looks for the agent finds it.
    fn is_there(&self, run_dir: &Path) -> bool {
        identity(run_dir).is_ok_and(|file| file == self.file)
    }
}

/// The id of the mount through which `dir` was opened.
#[expect(clippy::disallowed_methods, reason = "the kernel tells it in a file of /proc alone")]
fn mount_of(dir: &File) -> io::Result<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", dir.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("the kernel names no mount"))
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
    async fn keep(self, socket: Socket, asked: mpsc::Sender<Asked>) {
        let mut socket = Some(socket);
        while !asked.is_closed() {
            let lost = self.lost();
            self.is_lost.send_if_modified(|now| {
                let differs = *now != lost.is_some();
                *now = lost.is_some();
                differs
            });
            let unheard = self.listen_again(&mut socket).await.err();
            self.report(lost.or_else(|| unheard.map(|error| format!("{error:#}"))));
            let answering = async {
                match &socket {
                    Some(socket) => control::serve(&socket.listener, &asked).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = answering => {}
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Why the directory cannot be had again without a restart, where that is so.
    fn lost(&self) -> Option<String> {
        // One that is not there at all can be made.
        let now = File::open(&self.path).ok()?;
        let why = if now.metadata().ok()?.nlink() == 0 {
            "was removed where it is mounted from"
        } else if mount_of(&now).ok()? != self.mount {
            "is on another mount than at the start: it was unmounted, or something was mounted over it"
        } else {
            return None;
        };
        let path = self.path.display();
        Some(format!(
            "the run directory {path} {why}; restart the agent to use the one that is there now"
        ))
    }

    /// Makes the socket again where it is gone, and the directory.
    async fn listen_again(&self, socket: &mut Option<Socket>) -> anyhow::Result<()> {
        if socket.as_ref().is_some_and(|socket| socket.is_there(&self.path)) {
            return Ok(());
        }
        *socket = None;
        RunDir::create(&self.path).context("cannot use the run directory")?;
        *socket = Some(Socket::listen(&self.path).await?);
        info!(path = %self.path.display(), "the agent's socket was gone and is made again");
        Ok(())
    }

    fn report(&self, problem: Option<String>) {
        self.problems.send_if_modified(|now| {
            let problems = Vec::from_iter(problem);
            let differs = *now != problems;
            if let Some(error) = problems.first().filter(|_| differs) {
                warn!(error, "the run directory is not as it should be");
            }
            *now = problems;
            differs
        });
    }
}
