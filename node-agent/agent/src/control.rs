//! The agent's socket: each request and each answer is one JSON line. A client may send more of
//! them over its connection; they are answered in order.

#![expect(clippy::disallowed_methods, reason = "the socket bounds each wait for a client")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use denizen_state::run_dir::SOCKET;
use denizen_state::socket::WaitFor;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::debug;

use denizen_observe::status::view::ViewQuery;
use denizen_plan::{FrontendAddress, FrontendKey, Plan};

/// A request to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Request {
    /// Wait until a pod is programmed.
    WaitFor(WaitFor),
    /// Explain what happens to a packet.
    Explain {
        /// Source and destination, as on the command line.
        explain: ExplainQuery,
    },
    /// Explain why an address is, or is not, announced.
    Announce {
        /// The address.
        announce: IpAddr,
    },
    /// Resolve and explain a packet for `denizen-agent trace`.
    Trace {
        /// Source and destination, as on the command line.
        trace: ExplainQuery,
    },
    /// The names of pods and services.
    Names {
        /// No parameters.
        names: Empty,
    },
    /// The virtual servers that are planned, as [`ServerAddress`]es.
    VirtualServers {
        /// No parameters.
        #[serde(rename = "virtualServers")]
        virtual_servers: Empty,
    },
    /// Show packets that rules drop or refuse, for a few seconds from now on.
    Sample {
        /// No parameters.
        sample: Empty,
    },
    /// The agent's status.
    Status {
        /// No parameters.
        status: Empty,
    },
    /// The content of the status page.
    View {
        /// The selected part.
        view: ViewQuery,
    },
    /// Update the metrics' gauges. The answer is empty.
    Measure {
        /// No parameters.
        measure: Empty,
    },
}

/// `--from` and `--to` of `denizen-agent explain` and `trace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainQuery {
    /// `ADDR[@INTERFACE]`, or a pod of this node.
    pub from: String,
    /// `ADDR:PORT[/PROTO]`, `ADDR/icmp` or `ADDR/icmpv6`, or a service or a pod in place of the
    /// address.
    pub to: String,
}

/// Whose dropped packets are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sampled {
    /// Those that the rules of services drop or refuse.
    pub services: bool,
    /// Those that NetworkPolicies drop.
    pub network_policies: bool,
}

/// Where a virtual server is asked: the protocol's number in the IP header, and the address.
pub type ServerAddress = (u8, SocketAddr);

/// Where the planned virtual servers are asked.
pub fn server_addresses(plan: &Plan) -> Vec<ServerAddress> {
    let keys = plan.ipvs().into_iter().flat_map(|ipvs| ipvs.servers().keys());
    let at = |key: &FrontendKey| match key.address {
        FrontendAddress::Ip(ip) => Some((key.protocol.number(), (ip, key.port.get()).into())),
        FrontendAddress::Node(_) => None,
    };
    keys.filter_map(at).collect()
}

/// `{}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// A request, and the channel for its answer (one JSON value).
#[derive(Debug)]
pub struct Asked {
    /// The request.
    pub request: Request,
    /// The channel for the answer; closed if the client is gone.
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
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The socket cannot be created.
    #[error("cannot listen on {path}", path = .path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The agent accepts the request and does not answer.
    #[error(
        "the agent (process {pid}) does not answer on {path} within {within:?}: it is stopped, or hangs",
        path = .path.display()
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The agent's process id from the socket; 0 if it runs in another PID namespace.
        pid: i32,
        /// The time limit.
        within: Duration,
    },
    /// The agent's answer is not valid.
    #[error("the agent's answer cannot be read: {0}")]
    Answer(String),
    /// The agent's answer is why it does not do what was asked for.
    #[error("{0}")]
    Refused(String),
}

/// Size limit of a request in bytes. Requests are small.
const LONGEST_REQUEST: u64 = 64 * 1024;
/// Time limit for a client to write a request.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Time limit for an answer to a person's request. A loop that programs ten thousand services with
/// iptables is busy for some seconds.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Listens on the run directory's socket, and replaces a dead one.
///
/// # Errors
/// [`ControlError::Taken`] if a running agent listens there.
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

/// Accepts connections until the receiver of requests is closed. Accepted connections continue if
/// this is dropped.
pub async fn serve(listener: &UnixListener, requests: &mpsc::Sender<Asked>) {
    while !requests.is_closed() {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(converse(stream, requests.clone()));
            }
            Err(error) => {
                debug!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Answers requests in order until the client has no more. Those that come together are answered
/// together.
async fn converse(stream: UnixStream, requests: mpsc::Sender<Asked>) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read.take(LONGEST_REQUEST));
    loop {
        let mut answers = Vec::new();
        while answers.is_empty() || read.buffer().contains(&b'\n') {
            let mut line = String::new();
            read.get_mut().set_limit(LONGEST_REQUEST);
            if !matches!(timeout(REQUEST_TIME, read.read_line(&mut line)).await, Ok(Ok(1..))) {
                return;
            }
            let Some(answer) = send(&line, &requests).await else { return };
            answers.push(answer);
        }
        let mut all = pin!(lines(answers));
        // A client that waits for a pod may give up; the agent then forgets it.
        let lines = tokio::select! {
            lines = &mut all => lines,
            next = read.fill_buf() => match next {
                Ok([_, ..]) => all.await,
                Ok([]) | Err(_) => return,
            },
        };
        let Some(lines) = lines else { return };
        if write.write_all(lines.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Passes a request on; `None` if nobody takes it any more.
async fn send(
    line: &str,
    requests: &mpsc::Sender<Asked>,
) -> Option<oneshot::Receiver<serde_json::Value>> {
    let (answer, answered) = oneshot::channel();
    match serde_json::from_str(line) {
        Ok(request) => requests.send(Asked { request, answer }).await.ok()?,
        Err(error) => {
            let _ = answer.send(serde_json::json!({ "error": format!("not a request: {error}") }));
        }
    }
    Some(answered)
}

/// Waits for the answers; `None` if there will be none.
async fn lines(answers: Vec<oneshot::Receiver<serde_json::Value>>) -> Option<String> {
    let mut lines = String::new();
    for answer in answers {
        lines.push_str(&answer.await.ok()?.to_string());
        lines.push('\n');
    }
    Some(lines)
}

/// Sends a request to the running agent, and waits for the answer for a limited time.
///
/// # Errors
/// [`ControlError::Nobody`] if no agent runs, [`ControlError::Silent`] if it does not answer in
/// time, [`ControlError::Refused`] with the agent's reason if it refuses the request.
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
    // The kernel accepts connections for a stopped agent until its queue is full.
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
        Some(error) => Err(ControlError::Refused(error.to_owned())),
        None => Ok(answer),
    }
}

/// Writes `line`, and reads the line of the answer.
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
    async fn an_agent_that_does_not_answer_in_time_is_named() {
        let dir = tempfile::tempdir().unwrap();
        // As with a stopped agent: the kernel accepts the connection, and nobody reads.
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
