//! The client. It tries again until there is an answer or the time is over.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::message::{BACK, MAX_MESSAGE_BYTES, ProbeAnswer, ProbeRequest};
use super::result::{ProbeOutcome, ProbeResult};
use super::{ConnectArgs, ProbeProtocol, ProbeTarget};

/// Time limit of one attempt: the kernel sends a SYN again after a second.
const ATTEMPT: Duration = Duration::from_secs(1);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Options of a probe.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProbeOptions {
    pub(super) timeout: Duration,
    /// A connection is enough.
    pub(super) handshake: bool,
    /// The port that the server is to connect back to.
    pub(super) back: Option<u16>,
}

#[derive(Debug, Serialize)]
pub(super) struct ProbeResults {
    probes: Vec<ProbeResult>,
}

pub(super) async fn connect(args: ConnectArgs) -> ProbeResults {
    let ConnectArgs { to, timeout, handshake } = args;
    let options = ProbeOptions { timeout, handshake, back: None };
    ProbeResults { probes: probe_all(to, options).await }
}

/// Probes all targets at once. The results have the order of the targets.
pub(super) async fn probe_all(
    targets: Vec<ProbeTarget>,
    options: ProbeOptions,
) -> Vec<ProbeResult> {
    let mut all = JoinSet::new();
    for (number, target) in targets.into_iter().enumerate() {
        all.spawn(async move { (number, probe(&target, options).await) });
    }
    let mut results = all.join_all().await;
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

pub(super) async fn probe(target: &ProbeTarget, options: ProbeOptions) -> ProbeResult {
    let begun = Instant::now();
    let mut result = ProbeResult {
        to: target.to_string(),
        outcome: ProbeOutcome::TimedOut,
        attempts: 0,
        milliseconds: 0,
        name: None,
        client: None,
        why: None,
        back: None,
        first: None,
    };
    let wait = if options.back.is_some() { ATTEMPT + BACK } else { ATTEMPT };
    loop {
        let left = options.timeout.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return result;
        }
        result.attempts += 1;
        let attempt = timeout(wait.min(left), attempt(target, options)).await;
        let elapsed = begun.elapsed().as_millis();
        result.milliseconds = elapsed.try_into().unwrap_or(u64::MAX);
        match attempt {
            Ok(Ok(None)) => {
                return ProbeResult { outcome: ProbeOutcome::Connected, why: None, ..result };
            }
            Ok(Ok(Some(answer))) => {
                let ProbeAnswer { name, client, back, first, .. } = answer;
                let (name, client) = (Some(name), Some(client));
                let outcome = ProbeOutcome::Answered;
                return ProbeResult { outcome, name, client, why: None, back, first, ..result };
            }
            Ok(Err(error)) => {
                (result.outcome, result.why) = (outcome_of(&error), Some(error.to_string()));
            }
            // The result of an earlier attempt says more than a timeout.
            Err(_) if left < wait && result.attempts > 1 => return result,
            Err(_) => (result.outcome, result.why) = (ProbeOutcome::TimedOut, None),
        }
        sleep(PAUSE.min(left)).await;
    }
}

/// One attempt. `None`: the connection was established, and with `handshake` that is enough.
async fn attempt(target: &ProbeTarget, options: ProbeOptions) -> io::Result<Option<ProbeAnswer>> {
    let address = lookup_host(&target.host).await?.next();
    let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
    let request = ProbeRequest::new(options.back);
    let answer = match target.protocol {
        ProbeProtocol::Tcp => {
            let stream = TcpStream::connect(address).await?;
            if options.handshake {
                return Ok(None);
            }
            over_tcp(stream, &request).await?
        }
        ProbeProtocol::Udp => over_udp(address, &request).await?,
    };
    let answer = ProbeAnswer::read(&answer, &request);
    answer.map(Some).ok_or_else(|| io::Error::other("another program answered"))
}

async fn over_tcp(mut stream: TcpStream, request: &ProbeRequest) -> io::Result<Vec<u8>> {
    stream.write_all(&request.line()).await?;
    let mut answer = Vec::new();
    BufReader::new(stream).take(MAX_MESSAGE_BYTES).read_until(b'\n', &mut answer).await?;
    Ok(answer)
}

async fn over_udp(address: SocketAddr, request: &ProbeRequest) -> io::Result<Vec<u8>> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(address).await?;
    socket.send(&request.datagram()).await?;
    let mut answer = vec![0; MAX_MESSAGE_BYTES as usize];
    let length = socket.recv(&mut answer).await?;
    answer.truncate(length);
    Ok(answer)
}

fn outcome_of(error: &io::Error) -> ProbeOutcome {
    let outcomes = [
        (ErrorKind::ConnectionRefused, ProbeOutcome::Refused),
        (ErrorKind::ConnectionReset, ProbeOutcome::Refused),
        (ErrorKind::HostUnreachable, ProbeOutcome::Unreachable),
        (ErrorKind::NetworkUnreachable, ProbeOutcome::Unreachable),
        // A route or a rule of this host prohibits the connection.
        (ErrorKind::PermissionDenied, ProbeOutcome::Unreachable),
        (ErrorKind::TimedOut, ProbeOutcome::TimedOut),
    ];
    let known = outcomes.into_iter().find(|(kind, _)| *kind == error.kind());
    known.map_or(ProbeOutcome::Failed, |(_, outcome)| outcome)
}
