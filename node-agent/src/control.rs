//! The agent's socket: one JSON line asks, one JSON line answers.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use denizen_shared::run_dir::SOCKET;
use denizen_shared::socket::WaitFor;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::debug;

use crate::status::view::ViewQuery;

/// What may be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Request {
    /// Answer when a pod is programmed.
    WaitFor(WaitFor),
    /// What becomes of a packet?
    Explain {
        /// The two ends, as on the command line.
        explain: ExplainQuery,
    },
    /// What does the agent know and do?
    Status {
        /// Nothing to say.
        status: Empty,
    },
    /// What does the page for people show?
    View {
        /// Which part.
        view: ViewQuery,
    },
    /// Bring the gauges of the metrics up to date. The answer says nothing.
    Measure {
        /// Nothing to say.
        measure: Empty,
    },
}

/// `--from` and `--to` of `denizen-agent explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainQuery {
    /// `ADDR[@INTERFACE]`.
    pub from: String,
    /// `ADDR:PORT[/PROTO]`.
    pub to: String,
}

/// `{}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// A request, and where its answer (one JSON value) goes.
#[derive(Debug)]
pub struct Asked {
    /// What was asked.
    pub request: Request,
    /// Where the answer goes; closed when nobody waits any more.
    pub answer: oneshot::Sender<serde_json::Value>,
}

/// Why the socket cannot be used.
#[derive(Debug, Error)]
pub enum ControlError {
    /// Another agent answers there.
    #[error("another agent (process {pid}) runs on {path}", path = .path.display())]
    Taken {
        /// The socket.
        path: PathBuf,
        /// The other agent.
        pid: i32,
    },
    /// No agent answers.
    #[error("no agent answers on {path}: is `denizen-agent run` running with this --run-dir?", path = .path.display())]
    Nobody {
        /// The socket.
        path: PathBuf,
        /// What happened instead.
        #[source]
        source: io::Error,
    },
    /// The socket cannot be made.
    #[error("cannot listen on {path}", path = .path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An agent takes the question and does not answer.
    #[error(
        "the agent (process {pid}) does not answer on {path} within {within:?}: it is stopped, or hangs",
        path = .path.display()
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The agent, as its socket names it; 0 where it runs in another PID namespace.
        pid: i32,
        /// How long it was waited for.
        within: Duration,
    },
    /// The agent answers something else than was asked.
    #[error("the agent's answer cannot be read: {0}")]
    Answer(String),
}

/// A request is small; whoever writes more is no friend.
const LONGEST_REQUEST: u64 = 64 * 1024;
/// Nobody needs longer to write a line.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// How long a person who asks waits for the answer. A loop that programs ten thousand services anew
/// with iptables is busy for some seconds.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Listens on the run directory's socket, in the place of a dead one.
///
/// # Errors
/// [`ControlError::Taken`] when a living agent listens there.
pub async fn listen(run_dir: &Path) -> Result<UnixListener, ControlError> {
    let path = run_dir.join(SOCKET);
    if let Ok(other) = UnixStream::connect(&path).await {
        let pid = other.peer_cred().ok().and_then(|peer| peer.pid()).unwrap_or_default();
        return Err(ControlError::Taken { path, pid });
    }
    let failed = |source| ControlError::Listen { path: path.clone(), source };
    match std::fs::remove_file(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(&path).map_err(failed)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Takes connections until nobody answers requests any more. Those that were taken go on when it is
/// dropped.
pub async fn serve(listener: &UnixListener, requests: &mpsc::Sender<Asked>) {
    while !requests.is_closed() {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(converse(stream, requests.clone()));
            }
            Err(error) => {
                debug!(%error, "cannot take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, requests: mpsc::Sender<Asked>) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read.take(LONGEST_REQUEST));
    let mut line = String::new();
    if !matches!(timeout(REQUEST_TIME, read.read_line(&mut line)).await, Ok(Ok(1..))) {
        return;
    }
    let answer = match serde_json::from_str(&line) {
        Err(error) => serde_json::json!({ "error": format!("not a request: {error}") }),
        Ok(request) => {
            let (answer, answered) = oneshot::channel();
            if requests.send(Asked { request, answer }).await.is_err() {
                return;
            }
            // Who waits for a pod may give up; the agent then forgets it.
            let mut rest = String::new();
            let answer = tokio::select! {
                answer = answered => answer,
                _ = read.read_line(&mut rest) => return,
            };
            let Ok(answer) = answer else { return };
            answer
        }
    };
    let _ = write.write_all(format!("{answer}\n").as_bytes()).await;
}

/// Asks the running agent, and waits for its answer for a while.
///
/// # Errors
/// [`ControlError::Nobody`] when there is none, [`ControlError::Silent`] when it does not
/// answer in time, [`ControlError::Answer`] with the agent's own words when it cannot answer.
pub async fn ask(run_dir: &Path, request: &Request) -> Result<serde_json::Value, ControlError> {
    ask_within(ANSWER_TIME, run_dir, request).await
}

async fn ask_within(
    within: Duration,
    run_dir: &Path,
    request: &Request,
) -> Result<serde_json::Value, ControlError> {
    let path = run_dir.join(SOCKET);
    let nobody = |source| ControlError::Nobody { path: path.clone(), source };
    let silent = |pid| ControlError::Silent { path: path.clone(), pid, within };
    // The kernel accepts for an agent that is stopped, until its queue is full.
    let connected = timeout(within, UnixStream::connect(&path)).await;
    let stream = match connected {
        Ok(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => return Err(nobody(error)),
        Ok(Ok(stream)) => stream,
        Ok(Err(_)) | Err(_) => return Err(silent(0)),
    };
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
    let line = serde_json::to_string(request).map_err(|e| ControlError::Answer(e.to_string()))?;
    let answer = timeout(within, converse_once(stream, &line)).await;
    let answer = answer.map_err(|_| silent(pid.unwrap_or_default()))?.map_err(nobody)?;
    let answer: serde_json::Value =
        serde_json::from_str(&answer).map_err(|error| ControlError::Answer(error.to_string()))?;
    match answer.get("error").and_then(|error| error.as_str()) {
        Some(error) => Err(ControlError::Answer(error.to_owned())),
        None => Ok(answer),
    }
}

/// Writes `line`, and reads the answer's.
async fn converse_once(mut stream: UnixStream, line: &str) -> io::Result<String> {
    stream.write_all(format!("{line}\n").as_bytes()).await?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_that_does_not_answer_is_named_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        // What an agent that is stopped does: the kernel takes the connection, and nobody reads.
        let _listener = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
        let request = Request::Status { status: Empty {} };
        let error = ask_within(Duration::from_millis(50), dir.path(), &request).await.unwrap_err();
        let text = error.to_string();
        for word in [SOCKET, "does not answer", "50ms", &format!("process {}", std::process::id())]
        {
            assert!(text.contains(word), "{text}");
        }
    }
}
