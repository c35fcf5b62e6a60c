//! `probe serve`: the server of a connectivity test.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::connect::{ProbeOptions, probe, probe_all};
use super::message::{BACK, MAX_MESSAGE_BYTES, ProbeRequest};
use super::result::ProbeResult;
use super::{ProbeProtocol, ProbeTarget, ServeArgs};
use crate::agent;

/// Time limit for a client that sends or reads nothing.
const SILENCE: Duration = Duration::from_secs(10);

/// The most connections that are served at once; others wait.
const CONNECTIONS: usize = 256;

/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

struct ProbeServer {
    name: String,
    slots: Arc<Semaphore>,
    first: OnceLock<Vec<ProbeResult>>,
}

/// Serves until a signal.
///
/// # Errors
/// It cannot listen.
pub(super) async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let ServeArgs { name, ports, first, timeout } = args;
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let server = Arc::new(ProbeServer { name, slots, first: OnceLock::new() });
    for port in &ports {
        server.listen(port.get()).await.with_context(|| format!("cannot listen at port {port}"))?;
    }
    if !first.is_empty() {
        let back = ports.first().copied().map(NonZeroU16::get);
        tokio::spawn(async move {
            let options = ProbeOptions { timeout, handshake: false, back };
            let _ = server.first.set(probe_all(first, options).await);
        });
    }
    agent::pause().await
}

impl ProbeServer {
    /// Listens at all addresses of both families, or of the only family that the node has.
    async fn listen(self: &Arc<Self>, port: u16) -> io::Result<()> {
        let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        let mut bound = 0;
        let mut last = None;
        for address in any.map(|any| SocketAddr::new(any, port)) {
            match (TcpListener::bind(address).await, UdpSocket::bind(address).await) {
                (Ok(listener), Ok(socket)) => {
                    bound += 1;
                    tokio::spawn(self.clone().accept(listener));
                    tokio::spawn(self.clone().receive(socket));
                }
                // The IPv6 socket already listens at IPv4's addresses.
                (Err(error), _) | (_, Err(error))
                    if bound > 0 && error.kind() == ErrorKind::AddrInUse => {}
                (Err(error), _) | (_, Err(error)) => last = Some(error),
            }
        }
        match last.filter(|_| bound == 0) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok(slot) = self.slots.clone().acquire_owned().await else { return };
            let Ok((stream, client)) = listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            let server = self.clone();
            tokio::spawn(async move {
                // A client that leaves or sends an invalid request gets no answer.
                let _ = timeout(SILENCE, server.answer(stream, client.ip())).await;
                drop(slot);
            });
        }
    }

    async fn answer(&self, stream: TcpStream, client: IpAddr) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        (&mut stream).take(MAX_MESSAGE_BYTES).read_until(b'\n', &mut line).await?;
        let Some(request) = ProbeRequest::read(&line) else { return Ok(()) };
        let mut answer = request.answer(&self.name, client);
        answer.first = self.first.get().cloned();
        if let Some(port) = request.back {
            let host = SocketAddr::new(answer.client, port).to_string();
            let target = ProbeTarget { host, protocol: ProbeProtocol::Tcp };
            let options = ProbeOptions { timeout: BACK, handshake: true, back: None };
            answer.back = Some(Box::new(probe(&target, options).await));
        }
        let stream = stream.get_mut();
        stream.write_all(&answer.line()).await?;
        stream.shutdown().await
    }

    async fn receive(self: Arc<Self>, socket: UdpSocket) {
        let mut datagram = vec![0; MAX_MESSAGE_BYTES as usize];
        loop {
            // An error belongs to a datagram that was sent earlier.
            let Ok((length, client)) = socket.recv_from(&mut datagram).await else { continue };
            if let Some(request) = ProbeRequest::read(&datagram[..length]) {
                let answer = request.answer(&self.name, client.ip());
                let _ = socket.send_to(&answer.line(), client).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::connect::connect;
    use super::super::{ConnectArgs, ProbeArgs, ProbeEnd};
    use super::*;

    const PORT: u16 = 8080;

    /// Both ends, in a network namespace of their own.
    fn in_namespace<T: Send>(test: impl AsyncFnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let alone = || {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                let up =
                    std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
                assert!(up.unwrap().success());
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                runtime.enable_all().build().unwrap().block_on(test())
            };
            scope.spawn(alone).join().unwrap()
        })
    }

    fn args<'a>(words: impl IntoIterator<Item = &'a str>) -> ProbeEnd {
        #[derive(clap::Parser)]
        struct Parsed {
            #[command(flatten)]
            probe: ProbeArgs,
        }
        let words = ["probe"].into_iter().chain(words);
        <Parsed as clap::Parser>::try_parse_from(words).unwrap().probe.end
    }

    fn serving<'a>(words: impl IntoIterator<Item = &'a str>) {
        let ProbeEnd::Serve(args) = args(["serve"].into_iter().chain(words)) else { panic!() };
        tokio::spawn(serve(args));
    }

    async fn connected(words: &[&str]) -> Vec<Value> {
        let ProbeEnd::Connect(args) = args(["connect"].iter().chain(words).copied()) else {
            panic!()
        };
        let _: &ConnectArgs = &args;
        let json = serde_json::to_value(connect(args).await).unwrap();
        json["probes"].as_array().unwrap().clone()
    }

    #[test]
    fn both_protocols_and_families_are_answered() {
        in_namespace(async || {
            serving(["--name=one", "--port=8080", "--port=8081"]);
            let ends = ["127.0.0.1:8080", "[::1]:8080/udp", "127.0.0.1:8081/udp", "[::1]:8081"];
            for answer in connected(&ends).await {
                let client =
                    if answer["to"].to_string().contains("::1") { "::1" } else { "127.0.0.1" };
                assert_eq!(answer["outcome"], "answered", "{answer}");
                assert_eq!((&answer["name"], &answer["client"]), (&json!("one"), &json!(client)));
            }
            let silent = ["127.0.0.1:9", "127.0.0.1:9/udp", "--timeout=100ms"];
            for answer in connected(&silent).await {
                assert_eq!(answer["outcome"], "refused", "{answer}");
                assert!(answer["attempts"].as_u64() > Some(1), "{answer}");
            }
            let handshake = connected(&["127.0.0.1:8080", "--handshake"]).await;
            assert_eq!(handshake[0]["outcome"], "connected", "{handshake:?}");
        });
    }

    #[test]
    fn the_first_connections_are_remembered_with_the_way_back() {
        in_namespace(async || {
            serving(["--name=one"]);
            let first = ["--first=127.0.0.1:8080", "--first=127.0.0.1:8080/udp"];
            let late = ["--first=127.0.0.1:9", "--timeout=100ms", "--name=two", "--port=8090"];
            serving(first.into_iter().chain(late));
            let ask_two = async || connected(&["127.0.0.1:8090"]).await.remove(0)["first"].take();
            let mut first = ask_two().await;
            while first.is_null() {
                sleep(PAUSE).await;
                first = ask_two().await;
            }
            let of = |number: usize, key: &str| first[number][key].clone();
            let outcomes = [0, 1, 2].map(|number| of(number, "outcome"));
            assert_eq!(outcomes, ["answered", "answered", "refused"], "{first:#}");
            assert_eq!(of(0, "back")["to"], format!("127.0.0.1:{}/tcp", PORT + 10), "{first:#}");
            assert_eq!(of(0, "back")["outcome"], "connected", "{first:#}");
            assert_eq!(of(1, "back"), Value::Null, "a datagram's source may be anybody");
        });
    }

    /// Another program at the port is not taken for a server.
    #[test]
    fn what_another_program_answers_is_no_answer() {
        in_namespace(async || {
            let listener = TcpListener::bind(("127.0.0.1", PORT)).await.unwrap();
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
                }
            });
            let answer = connected(&["127.0.0.1:8080", "--timeout=200ms"]).await.remove(0);
            assert_eq!(answer["outcome"], "failed", "{answer}");
            assert_eq!(answer["why"], "another program answered", "{answer}");
        });
    }
}
