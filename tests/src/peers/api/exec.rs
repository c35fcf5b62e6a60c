//! What the tests' server executes in containers: real processes, or what a test specifies, over
//! WebSockets as kubectl uses them.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::answer::failure;
use super::server::Shared;
use super::watch::Body;
use crate::node::netns::Netns;

/// Channels of the WebSocket protocol.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const CLOSE: u8 = 255;

/// The largest size of one message of output.
const PIECE: usize = 16 << 10;

/// A command for a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// What the container's process does.
pub enum Execution {
    /// It prints this, and ends with this code.
    Prints {
        /// Standard output.
        stdout: Vec<u8>,
        /// Standard error.
        stderr: Vec<u8>,
        /// The exit code.
        code: i32,
    },
    /// Behaves as `denizen-agent relay`: gives the line that answers each request, after this time.
    Relays(Duration, Box<dyn Fn(&Value) -> String + Send>),
    /// It prints this, and the connection breaks.
    BreaksOff(Vec<u8>),
    /// Nothing, for ever.
    Hangs,
    /// A real process, in a network namespace.
    Runs(Command, PathBuf),
}

impl Execution {
    /// Behaves as `denizen-agent relay`, without delay. Answers are JSON: as values, or as text if
    /// long.
    pub fn relays<T: Display>(answer: impl Fn(&Value) -> T + Send + 'static) -> Self {
        Self::relays_after(Duration::ZERO, answer)
    }

    /// The same with a delay.
    pub fn relays_after<T: Display>(
        time: Duration,
        answer: impl Fn(&Value) -> T + Send + 'static,
    ) -> Self {
        Self::Relays(time, Box::new(move |request| format!("{}\n", answer(request))))
    }
}

/// Decides what a command does.
pub type Executor = Arc<dyn Fn(&ExecRequest) -> Execution + Send + Sync>;

/// The pod's namespace and name, and the rest of the path, if it is a pod's subresource: `exec` or
/// `log`.
pub(super) fn subresource(path: &str) -> Option<(String, String, &str)> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "v1", "namespaces", namespace, "pods", pod, last @ ("exec" | "log")] => {
            Some(((*namespace).to_owned(), (*pod).to_owned(), last))
        }
        _ => None,
    }
}

/// Upgrades the connection to a WebSocket, and executes the command.
pub(super) fn exec(
    shared: &Arc<Shared>,
    mut request: Request<Incoming>,
    (namespace, pod): (String, String),
) -> Response<Body> {
    let Some(executor) = shared.executor() else {
        return failure(500, "InternalError", "nothing can be executed here");
    };
    let header = |name: &str| {
        request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    let accept = derive_accept_key(header("sec-websocket-key").as_bytes());
    let offered: Vec<&str> = header("sec-websocket-protocol").split(", ").collect();
    let protocol = shared.behaviour().exec_protocol;
    if !offered.contains(&protocol) {
        return failure(403, "Forbidden", "unable to upgrade: no protocol in common");
    }
    let query = request.uri().query().unwrap_or_default();
    let all = super::behaviour::pairs_of(query);
    let values = |name: &str| {
        all.iter()
            .filter(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
            .collect::<Vec<_>>()
    };
    let container = values("container").pop().unwrap_or_default();
    let call = ExecRequest { namespace, pod, container, command: values("command") };
    let upgrade = hyper::upgrade::on(&mut request);
    let shared = shared.clone();
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let socket =
            WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        let _executing = shared.executing();
        let execution = executor(&call);
        // It is no error of the server's if the client goes away.
        let _ = Executing { socket, input: VecDeque::new() }.execute(execution).await;
    });
    Response::builder()
        .status(101)
        .header("upgrade", "websocket")
        .header("connection", "Upgrade")
        .header("sec-websocket-accept", accept)
        .header("sec-websocket-protocol", protocol)
        .body(Empty::new().map_err(|never| match never {}).boxed_unsync())
        .expect("a status and headers that exist")
}

/// A running command, with the connection to its client.
struct Executing {
    socket: WebSocketStream<TokioIo<Upgraded>>,
    /// Input that was received and not used yet.
    input: VecDeque<u8>,
}

impl Executing {
    async fn execute(mut self, execution: Execution) -> Result<()> {
        match execution {
            Execution::Prints { stdout, stderr, code } => {
                // In turns: a client that reads one of them to its end first would wait for ever.
                let (mut out, mut err) = (stdout.chunks(PIECE), stderr.chunks(PIECE));
                loop {
                    let (out, err) = (out.next(), err.next());
                    if out.is_none() && err.is_none() {
                        break;
                    }
                    self.send(STDERR, err.unwrap_or_default()).await?;
                    self.send(STDOUT, out.unwrap_or_default()).await?;
                }
                self.end(code).await
            }
            Execution::Relays(time, answer) => {
                let hello = json!({ "agent": "0.1.0", "protocol": 1 });
                self.send(STDOUT, format!("{hello}\n").as_bytes()).await?;
                while let Some(line) = self.line().await? {
                    let request: Value = serde_json::from_str(&line)?;
                    if request.get("end").is_some() {
                        break;
                    }
                    sleep(time).await;
                    for piece in answer(&request).as_bytes().chunks(PIECE) {
                        self.send(STDOUT, piece).await?;
                    }
                }
                self.end(0).await
            }
            Execution::BreaksOff(stdout) => {
                self.send(STDOUT, &stdout).await?;
                // What was written must have left before the connection is gone.
                sleep(Duration::from_millis(20)).await;
                Ok(())
            }
            Execution::Hangs => {
                while self.socket.next().await.transpose()?.is_some() {}
                Ok(())
            }
            Execution::Runs(command, netns) => self.run(command, netns).await,
        }
    }

    async fn send(&mut self, channel: u8, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut message = vec![channel];
        message.extend_from_slice(bytes);
        Ok(self.socket.send(Message::binary(message)).await?)
    }

    /// Sends the status that says how the process ended, and closes the connection.
    async fn end(&mut self, code: i32) -> Result<()> {
        let status = match code {
            0 => json!({ "metadata": {}, "status": "Success" }),
            code => json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": "command terminated with non-zero exit code",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
        };
        self.send(STATUS, status.to_string().as_bytes()).await?;
        self.socket.close(None).await?;
        // If a connection ends with unread input, data on its way to the client is lost.
        while self.socket.next().await.transpose()?.is_some() {}
        Ok(())
    }

    /// The next line of the input; `None` at its end.
    async fn line(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(at) = self.input.iter().position(|byte| *byte == b'\n') {
                let line = self.input.drain(..=at).collect();
                return Ok(Some(String::from_utf8(line)?));
            }
            match self.read().await? {
                Some(bytes) => self.input.extend(bytes),
                None => return Ok(None),
            }
        }
    }

    /// What comes next of the input; `None` at its end.
    async fn read(&mut self) -> Result<Option<Vec<u8>>> {
        while let Some(message) = self.socket.next().await.transpose()? {
            match message.into_data().as_ref() {
                [STDIN, bytes @ ..] => return Ok(Some(bytes.to_vec())),
                [CLOSE, STDIN] => return Ok(None),
                _ => {}
            }
        }
        Ok(None)
    }

    async fn run(mut self, mut command: Command, netns: PathBuf) -> Result<()> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Netns::run_at(&netns, || command.spawn())?.context("cannot execute")?;
        let mut stdin = child.stdin.take();
        let mut output = outputs(&mut child)?;
        let mut is_open = true;
        let gone = loop {
            tokio::select! {
                piece = output.recv() => match piece {
                    Some((channel, bytes)) => if let Err(gone) = self.send(channel, &bytes).await {
                        break Some(gone);
                    },
                    None => break None,
                },
                input = self.read(), if is_open => match input {
                    Ok(Some(bytes)) => {
                        // The process may have ended; then its output says why.
                        let _ = stdin.as_mut().map(|stdin| stdin.write_all(&bytes));
                    }
                    Ok(None) => {
                        is_open = false;
                        drop(stdin.take());
                    }
                    Err(gone) => break Some(gone),
                },
            }
        };
        if let Some(gone) = gone {
            // As with container runtimes, nobody kills the process: it only sees its input end.
            drop(stdin.take());
            while output.recv().await.is_some() {}
            child.wait()?;
            return Err(gone);
        }
        let code = child.wait()?.code().unwrap_or(137);
        self.end(code).await
    }
}

/// What the process prints, piece by piece, until it has ended.
fn outputs(child: &mut Child) -> Result<mpsc::Receiver<(u8, Vec<u8>)>> {
    let (sender, receiver) = mpsc::channel(16);
    let stdout: Box<dyn Read + Send> = Box::new(child.stdout.take().context("no output")?);
    let stderr: Box<dyn Read + Send> = Box::new(child.stderr.take().context("no output")?);
    for (channel, mut pipe) in [(STDOUT, stdout), (STDERR, stderr)] {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut piece = vec![0; PIECE];
            while let Ok(read @ 1..) = pipe.read(&mut piece) {
                if sender.blocking_send((channel, piece[..read].to_vec())).is_err() {
                    return;
                }
            }
        });
    }
    Ok(receiver)
}
