//! A pod's questions: many at once, each with a first packet that no earlier question sent.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::packets::sctp;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, SockAddr, Socket, Type};

/// What a pod is to ask.
#[derive(Debug, Clone, Copy)]
pub struct ProbedPort {
    /// `None` for a ping.
    pub protocol: Option<Protocol>,
    /// A ping has no port.
    pub to: SocketAddr,
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Answered,
    /// Nothing came back in time.
    Silent,
    /// Somebody said no, which the firewall never does.
    Refused(String),
}

/// Source ports are used in turn, so that no question continues the flow of an earlier one.
const FIRST_PORT: u16 = 10_000;
const PORTS: u16 = 50_000;

/// Questions that are asked at once, and how long each waits for its answer.
type Batch = (Vec<ProbedPort>, Duration);

/// Asks from one pod until it is dropped.
#[derive(Debug)]
pub struct Prober {
    batches: Sender<Batch>,
    answers: Receiver<io::Result<Vec<Answer>>>,
}

impl Prober {
    /// Asks nothing yet.
    pub fn start(pod: &Netns) -> Result<Self> {
        // Pings without raw sockets, for whoever.
        pod.sysctl("net.ipv4.ping_group_range", "0 2147483647")?;
        let (batches, asked) = channel::<Batch>();
        let (output, answers) = channel();
        pod.spawn(move || {
            let mut ports = Ports::new();
            asked.into_iter().try_for_each(|(questions, timeout)| {
                output.send(ask(&questions, timeout, &mut ports))
            })
        })?;
        Ok(Self { batches, answers })
    }

    /// Asks all of these at once; [`Self::answers`] waits for what comes of it. Answers may take so
    /// long. TCP sends a first packet again after a second.
    pub fn ask(&self, questions: Vec<ProbedPort>, timeout: Duration) -> Result<()> {
        self.batches.send((questions, timeout)).context("the prober has ended")
    }

    /// The answers, in the questions' order.
    pub fn answers(&self) -> Result<Vec<Answer>> {
        self.answers.recv().context("the prober has ended")?.context("a question cannot be asked")
    }
}

struct Ports(u16);

impl Ports {
    /// Beginning far from where the prober before did: pods may follow each other at one address.
    fn new() -> Self {
        static STARTED: AtomicU16 = AtomicU16::new(0);
        Self(STARTED.fetch_add(1, Ordering::Relaxed).wrapping_mul(997) % PORTS)
    }

    fn next(&mut self) -> u16 {
        self.0 = (self.0 + 1) % PORTS;
        FIRST_PORT + self.0
    }
}

/// A question whose answer is not there yet.
struct Open {
    question: usize,
    socket: Socket,
    protocol: Option<Protocol>,
}

fn ask(questions: &[ProbedPort], timeout: Duration, ports: &mut Ports) -> io::Result<Vec<Answer>> {
    let mut answers = vec![Answer::Silent; questions.len()];
    let mut open = Vec::new();
    let mut chunks = [Chunks::open(Domain::IPV4)?, Chunks::open(Domain::IPV6)?];
    for (number, question) in questions.iter().enumerate() {
        let to = question.to;
        match question.protocol {
            Some(Protocol::Sctp) => {
                chunks[usize::from(to.is_ipv6())].send(number, to, ports.next())?;
            }
            Some(Protocol::Tcp | Protocol::Udp) | None => {
                let socket = first_packet(*question, ports)?;
                open.push(Open { question: number, socket, protocol: question.protocol });
            }
        }
    }
    let deadline = Instant::now() + timeout;
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        let is_done = |chunks: &Chunks| chunks.asked.is_empty();
        if open.is_empty() && chunks.iter().all(is_done) {
            break;
        }
        let mut has_something = wait(&open, &chunks, left)?.into_iter();
        open.retain(|connection| {
            let answer =
                has_something.next().unwrap_or_default().then(|| connection.answer()).flatten();
            let is_open = answer.is_none();
            answers[connection.question] = answer.unwrap_or(Answer::Silent);
            is_open
        });
        for number in chunks.iter_mut().flat_map(Chunks::answered) {
            answers[number] = Answer::Answered;
        }
    }
    Ok(answers)
}

/// Waits until something has come, and says which questions have something.
fn wait(open: &[Open], chunks: &[Chunks], left: Duration) -> io::Result<Vec<bool>> {
    // What comes within this time is read at once.
    const TOGETHER: Duration = Duration::from_millis(1);
    thread::sleep(TOGETHER);
    // A connection is writable, a datagram's answer readable.
    let events = PollFlags::POLLIN | PollFlags::POLLERR;
    let sockets = open.iter().map(|connection| {
        let is_tcp = connection.protocol == Some(Protocol::Tcp);
        PollFd::new(connection.socket.as_fd(), if is_tcp { PollFlags::POLLOUT } else { events })
    });
    let raw = chunks.iter().map(|chunk| PollFd::new(chunk.socket.as_fd(), events));
    let mut all: Vec<_> = sockets.chain(raw).collect();
    let left = left.max(Duration::from_millis(1));
    poll(&mut all, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))?;
    Ok(all.iter().map(|poll| poll.any().unwrap_or(true)).collect())
}

/// A SYN, a datagram or an echo request on its way.
fn first_packet(question: ProbedPort, ports: &mut Ports) -> io::Result<Socket> {
    let (kind, protocol) = match (question.protocol, question.to) {
        (Some(Protocol::Tcp), _) => (Type::STREAM, None),
        (Some(Protocol::Udp | Protocol::Sctp), _) => (Type::DGRAM, None),
        (None, SocketAddr::V4(_)) => (Type::DGRAM, Some(socket2::Protocol::ICMPV4)),
        (None, SocketAddr::V6(_)) => (Type::DGRAM, Some(socket2::Protocol::ICMPV6)),
    };
    let socket = Socket::new(Domain::for_address(question.to), kind, protocol)?;
    socket.set_nonblocking(true)?;
    let any: IpAddr = if question.to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    while let Err(error) = socket.bind(&SocketAddr::new(any, ports.next()).into()) {
        if error.kind() != io::ErrorKind::AddrInUse {
            return Err(error);
        }
    }
    match socket.connect(&question.to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        Ok(()) | Err(_) => {}
    }
    match question.protocol {
        Some(Protocol::Udp) => drop(socket.send(b"who?")?),
        // The kernel fills in its identifier, which is the port, and its checksum.
        None => {
            let request = if question.to.is_ipv4() { 8 } else { 128 };
            socket.send(&[request, 0, 0, 0, 0, 0, 0, 1])?;
        }
        Some(Protocol::Tcp | Protocol::Sctp) => {}
    }
    Ok(socket)
}

impl Open {
    /// `None` while there is none.
    fn answer(&self) -> Option<Answer> {
        let refused = |error: io::Error| Some(Answer::Refused(error.to_string()));
        match self.socket.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return refused(error),
        }
        if self.protocol == Some(Protocol::Tcp) {
            self.socket.peer_addr().ok()?;
            // A reset leaves no socket in TIME_WAIT.
            let _ = self.socket.set_linger(Some(Duration::ZERO));
            return Some(Answer::Answered);
        }
        match (&self.socket).read(&mut [0; 256]) {
            Ok(_) => Some(Answer::Answered),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => refused(error),
        }
    }
}

/// SCTP's questions of one family. Every raw socket hears every answer, so there is one.
struct Chunks {
    socket: Socket,
    is_v6: bool,
    /// The source port of each question.
    asked: Vec<(u16, usize)>,
}

impl Chunks {
    fn open(family: Domain) -> io::Result<Self> {
        let socket = Socket::new(family, Type::RAW, Some(sctp::PROTOCOL.into()))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, is_v6: family == Domain::IPV6, asked: Vec::new() })
    }

    fn send(&mut self, number: usize, to: SocketAddr, port: u16) -> io::Result<()> {
        let init = sctp::init(port, to.port(), u32::from(port) + 1);
        self.socket.send_to(&init, &SockAddr::from(SocketAddr::new(to.ip(), 0)))?;
        self.asked.push((port, number));
        Ok(())
    }

    /// The questions that were answered since the last look.
    fn answered(&mut self) -> Vec<usize> {
        let family: IpAddr = if self.is_v6 { [0u16; 8].into() } else { [0; 4].into() };
        let mut found = Vec::new();
        let mut buffer = [0; 2048];
        while let Ok(length) = (&self.socket).read(&mut buffer) {
            let packet = sctp::parse(family, &buffer[..length]);
            let Some(packet) = packet.filter(|packet| packet.cookie.is_some()) else { continue };
            let port = packet.destination_port;
            if let Some(at) = self.asked.iter().position(|(asked, _)| *asked == port) {
                found.push(self.asked.swap_remove(at).1);
            }
        }
        found
    }
}
