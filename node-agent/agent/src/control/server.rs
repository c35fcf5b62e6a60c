//! The agent's end of its socket.

#![expect(clippy::disallowed_methods, reason = "the socket bounds each wait for a client")]

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::{Pin, pin};
use std::time::Duration;

use denizen_state::run_dir::{NEXT_SOCKET, SOCKET};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::debug;

use super::{AgentRequest, ControlError, Reply, Request};

/// The future answer to a request; `None` if the loop drops it.
type JsonAnswer = Pin<Box<dyn Future<Output = Option<Value>> + Send>>;

/// Size limit of a request in bytes. Requests are small.
const LONGEST_REQUEST: u64 = 64 * 1024;
/// Size of a connection's buffer in bytes: more than a plugin's request has, and small, since
/// hundreds of plugins may wait.
const USUAL_REQUEST: usize = 1024;
/// Time limit for a client to write a request.
const REQUEST_TIME: Duration = Duration::from_secs(5);

/// Listens on the run directory's socket, and replaces a dead one in one step: a plugin that finds
/// no socket assumes that no agent runs here, and does not wait.
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
    let next = run_dir.join(NEXT_SOCKET);
    match std::fs::remove_file(&next) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(&next).map_err(failed)?;
    std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&next, &path).map_err(failed)?;
    Ok(listener)
}

/// Accepts connections until the receiver of requests is closed. Accepted connections continue if
/// this is dropped.
pub async fn serve(listener: &UnixListener, requests: &mpsc::Sender<AgentRequest>) {
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

/// Answers requests in order until the client has no more. Requests that arrive together are
/// answered together.
async fn converse(stream: UnixStream, requests: mpsc::Sender<AgentRequest>) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::with_capacity(USUAL_REQUEST, read.take(LONGEST_REQUEST));
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

/// Passes a request on to the loop; `None` if the loop has ended.
async fn send(line: &str, requests: &mpsc::Sender<AgentRequest>) -> Option<JsonAnswer> {
    match serde_json::from_str(line) {
        Ok(request) => {
            let (call, answer) = with_reply(request);
            requests.send(call).await.ok()?;
            Some(answer)
        }
        Err(error) => {
            let error = json!({ "error": format!("not a request: {error}") });
            Some(Box::pin(async { Some(error) }))
        }
    }
}

/// The request to the loop for a request of the socket, and the loop's future answer.
fn with_reply(request: Request) -> (AgentRequest, JsonAnswer) {
    match request {
        Request::WaitFor(wait_for) => with_answer(|reply| AgentRequest::WaitFor(wait_for, reply)),
        Request::Explain { explain } => with_answer(|reply| AgentRequest::Explain(explain, reply)),
        Request::Announce { announce } => {
            with_answer(|reply| AgentRequest::Announce(announce, reply))
        }
        Request::Trace { trace } => with_answer(|reply| AgentRequest::Trace(trace, reply)),
        Request::Names { .. } => with_answer(AgentRequest::Names),
        Request::VirtualServers { .. } => with_answer(AgentRequest::VirtualServers),
        Request::Sample { .. } => with_answer(AgentRequest::Sample),
        Request::LogLevel { log_level } => {
            with_answer(|reply| AgentRequest::LogLevel(log_level, reply))
        }
        Request::Status { .. } => with_answer(AgentRequest::Status),
        Request::View { view } => with_answer(|reply| AgentRequest::View(view, reply)),
        Request::Measure { .. } => with_answer(AgentRequest::Measure),
    }
}

fn with_answer<T: Serialize + Send + 'static>(
    request: impl FnOnce(Reply<T>) -> AgentRequest,
) -> (AgentRequest, JsonAnswer) {
    let (reply, answered) = oneshot::channel();
    let answer = async move {
        Some(match answered.await.ok()? {
            Ok(answer) => json!(answer),
            Err(error) => json!({ "error": error }),
        })
    };
    (request(reply), Box::pin(answer))
}

/// Waits for the answers; `None` if there will be none.
async fn lines(answers: Vec<JsonAnswer>) -> Option<String> {
    let mut lines = String::new();
    for answer in answers {
        lines.push_str(&answer.await?.to_string());
        lines.push('\n');
    }
    Some(lines)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    /// The plugin looks for the socket once. Without one, it does not wait for an agent.
    #[tokio::test]
    async fn a_dead_socket_is_replaced_without_a_moment_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SOCKET);
        drop(listen(folder.path()).await.unwrap());
        let (stop, missing) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let checker = std::thread::spawn({
            let (stop, missing) = (stop.clone(), missing.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    missing.fetch_add(usize::from(!path.exists()), Ordering::Relaxed);
                }
            }
        });
        for _ in 0..1000 {
            drop(listen(folder.path()).await.unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        checker.join().unwrap();
        assert_eq!(missing.load(Ordering::Relaxed), 0, "checks that found no socket");
    }
}
