//! A client of the running agent's socket.

#![expect(clippy::disallowed_methods, reason = "a client bounds its wait for the agent")]

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use denizen_state::run_dir::SOCKET;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{ControlError, Empty, ExplainQuery, Request, Sampled, ServerAddress};
use crate::log::{LogLevel, LogLevelQuery};
use denizen_observe::names::Names;
use denizen_observe::status::Status;
use denizen_observe::trace::Prediction;
use denizen_plan::explain::{Announced, Explanation};

/// Time limit for an answer to a person's request. A loop that programs ten thousand services with
/// iptables is busy for some seconds.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Asks the agent of a run directory. Each request waits for its answer for a limited time.
///
/// Each fails with [`ControlError::Nobody`] if no agent runs, with [`ControlError::Silent`] if it
/// does not answer in time, and with [`ControlError::Refused`] and the agent's reason if it
/// refuses.
#[derive(Debug, Clone)]
pub struct AgentClient {
    run_dir: PathBuf,
}

impl AgentClient {
    /// A client of the agent with this run directory.
    pub fn new(run_dir: &Path) -> Self {
        Self { run_dir: run_dir.to_owned() }
    }

    pub async fn status(&self) -> Result<Status, ControlError> {
        self.ask(Request::Status { status: Empty {} }).await
    }

    pub async fn names(&self) -> Result<Names, ControlError> {
        self.ask(Request::Names { names: Empty {} }).await
    }

    /// What happens to a packet.
    pub async fn explain(&self, explain: ExplainQuery) -> Result<Explanation, ControlError> {
        self.ask(Request::Explain { explain }).await
    }

    /// Why an address is, or is not, announced.
    pub async fn announce(&self, announce: IpAddr) -> Result<Announced, ControlError> {
        self.ask(Request::Announce { announce }).await
    }

    /// A packet, resolved and explained.
    pub async fn trace(&self, trace: ExplainQuery) -> Result<Prediction, ControlError> {
        self.ask(Request::Trace { trace }).await
    }

    /// Shows dropped packets, for a few seconds from now on.
    pub async fn sample(&self) -> Result<Sampled, ControlError> {
        self.ask(Request::Sample { sample: Empty {} }).await
    }

    /// Shows or changes what is logged.
    pub async fn log_level(&self, log_level: LogLevelQuery) -> Result<LogLevel, ControlError> {
        self.ask(Request::LogLevel { log_level }).await
    }

    /// The virtual servers that are planned.
    pub async fn virtual_servers(&self) -> Result<Vec<ServerAddress>, ControlError> {
        self.ask(Request::VirtualServers { virtual_servers: Empty {} }).await
    }

    /// Passes on a request, and returns its answer as JSON.
    pub async fn relay(&self, request: Request) -> Result<Value, ControlError> {
        self.ask(request).await
    }

    async fn ask<T: DeserializeOwned>(&self, request: Request) -> Result<T, ControlError> {
        ask_within(ANSWER_TIME, &self.run_dir, &request).await
    }
}

async fn ask_within<T: DeserializeOwned>(
    within: Duration,
    run_dir: &Path,
    request: &Request,
) -> Result<T, ControlError> {
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
    let line =
        serde_json::to_string(request).map_err(|error| ControlError::Answer(error.to_string()))?;
    let answer = timeout(within, converse_once(stream, &line)).await;
    let answer = answer.map_err(|_| silent(pid.unwrap_or_default()))?.map_err(nobody)?;
    let answer: Value =
        serde_json::from_str(&answer).map_err(|error| ControlError::Answer(error.to_string()))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(ControlError::Refused(error.to_owned())),
        None => {
            serde_json::from_value(answer).map_err(|error| ControlError::Answer(error.to_string()))
        }
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
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn an_agent_that_does_not_answer_in_time_is_named() {
        let dir = tempfile::tempdir().unwrap();
        // As with a stopped agent: the kernel accepts the connection, and nobody reads.
        let _listener = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
        let request = Request::Status { status: Empty {} };
        let answer = ask_within::<Status>(Duration::from_millis(50), dir.path(), &request).await;
        let error = answer.unwrap_err();
        let text = error.to_string();
        for word in [SOCKET, "does not answer", "50ms", &format!("process {}", std::process::id())]
        {
            assert!(text.contains(word), "{text}");
        }
    }
}
