//! A probe: one connection or datagram to one address, from the network namespace of the calling
//! thread, and its outcome.

use std::fmt;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::node::netns::Netns;
use crate::packets::sctp;
use crate::packets::server::receive_from;

/// How long an answer may take. A probe waits this long only if a packet is lost.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// How long to wait for an answer that should not come. Shorter than TCP's first retransmission, so
/// that a packet of which only the second try gets through counts as lost.
pub const SILENCE: Duration = Duration::from_millis(700);

/// A transport protocol that services know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// A connection.
    Tcp,
    /// A datagram and its answer.
    Udp,
    /// An INIT and its INIT ACK.
    Sctp,
}

impl Protocol {
    pub(crate) fn socket(self, address: SocketAddr) -> io::Result<Socket> {
        let (kind, protocol) = match self {
            Self::Tcp => (Type::STREAM, None),
            Self::Udp => (Type::DGRAM, None),
            Self::Sctp => (Type::RAW, Some(sctp::PROTOCOL.into())),
        };
        Socket::new(Domain::for_address(address), kind, protocol)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

impl FromStr for Protocol {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "TCP" => Self::Tcp,
            "UDP" => Self::Udp,
            "SCTP" => Self::Sctp,
            other => anyhow::bail!("{other} is no protocol: TCP, UDP or SCTP"),
        })
    }
}

/// The outcome of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Somebody answered.
    Answered {
        /// The address that answered, as its server reports it.
        endpoint: SocketAddr,
        /// The source that the server saw.
        seen: SocketAddr,
    },
    /// Refused: by `reject`, or by a host without a listener at that port.
    Refused,
    /// A router reported that there is no route: nothing translated the address.
    Unreachable,
    /// No answer, or a packet that was dropped on its way out of this host.
    Dropped,
    /// An outcome that no verdict explains.
    Broken(String),
}

impl Outcome {
    /// The address that answered, if any.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        if let Self::Answered { endpoint, .. } = self { Some(*endpoint) } else { None }
    }

    /// The source address that the server saw.
    pub fn seen(&self) -> Option<IpAddr> {
        if let Self::Answered { seen, .. } = self { Some(seen.ip()) } else { None }
    }
}

impl From<io::Error> for Outcome {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Self::Refused,
            Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENOPROTOOPT) => Self::Unreachable,
            // A packet dropped in the output hook is reported to its sender.
            Some(libc::EPERM) => Self::Dropped,
            _ if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                Self::Dropped
            }
            _ => Self::Broken(error.to_string()),
        }
    }
}

/// A probe that was not sent yet.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    /// Over which protocol.
    pub protocol: Protocol,
    /// The source address; `None` leaves it to the kernel.
    pub from: Option<IpAddr>,
    /// The source port; if it is in use, one of the next two. 0: with a given address, a port that
    /// no earlier probe of this process had; otherwise the kernel's choice.
    pub port: u16,
    /// Where to.
    pub to: SocketAddr,
    /// How long to wait for each step.
    pub timeout: Duration,
}

impl Probe {
    /// A probe over TCP, with the usual timeout.
    pub fn tcp(to: SocketAddr) -> Self {
        Self { protocol: Protocol::Tcp, from: None, port: 0, to, timeout: ANSWER_TIMEOUT }
    }

    /// A probe over UDP, with the usual timeout.
    pub fn udp(to: SocketAddr) -> Self {
        Self { protocol: Protocol::Udp, ..Self::tcp(to) }
    }

    /// A probe over SCTP, with the usual timeout.
    pub fn sctp(to: SocketAddr) -> Self {
        Self { protocol: Protocol::Sctp, ..Self::tcp(to) }
    }

    /// The same probe from another source address.
    #[must_use]
    pub fn from(self, source: IpAddr) -> Self {
        Self { from: Some(source), ..self }
    }

    /// The same probe with another timeout.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Probes from inside `namespace`.
    ///
    /// # Panics
    /// When the namespace cannot be entered: then there is no outcome.
    pub fn send_in(self, namespace: &Netns) -> Outcome {
        namespace.run(|| self.send()).expect("a namespace of ours can be entered")
    }

    /// Probes from the namespace that this thread is in.
    pub fn send(self) -> Outcome {
        let answer = match self.protocol {
            Protocol::Tcp => self.connect().and_then(|stream| self.read_line(stream)),
            Protocol::Udp => self.connected().and_then(|socket| self.datagram(&socket)),
            Protocol::Sctp => {
                let _turn = Self::sctp_turn();
                self.connected().and_then(|socket| self.chunk(&socket, Self::sctp_port()))
            }
        };
        answer.map_or_else(Outcome::from, |line| parse(&line))
    }

    /// Opens a TCP connection from the namespace that this thread is in and leaves the rest to the
    /// caller.
    pub fn connect(self) -> io::Result<TcpStream> {
        let socket = self.begin()?;
        self.until_connected(&socket)?;
        socket.set_nonblocking(false)?;
        Ok(TcpStream::from(socket))
    }

    /// Sends the SYN of a TCP connection from the namespace that this thread is in. The kernel
    /// retransmits it after 1, 3 and 7 seconds.
    pub fn begin(self) -> io::Result<Socket> {
        let socket = self.bound()?;
        socket.set_nonblocking(true)?;
        match socket.connect(&SockAddr::from(self.to)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            Ok(()) | Err(_) => Ok(socket),
        }
    }

    /// The outcome of a connection that [began](Self::begin).
    pub fn end(self, socket: Socket) -> Outcome {
        let line = self.until_connected(&socket).and_then(|()| {
            socket.set_nonblocking(false)?;
            self.read_line(TcpStream::from(socket))
        });
        line.map_or_else(Outcome::from, |line| parse(&line))
    }

    /// Within one machine a refusal may come back while the kernel is still sending. It is then
    /// kept as a "soft" error that wakes nobody until the retransmission a second later: so this
    /// function also polls for errors, and does not only wait.
    fn until_connected(self, socket: &Socket) -> io::Result<()> {
        let deadline = Instant::now() + self.timeout;
        let mut step = Duration::from_millis(1);
        loop {
            let mut ready = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
            let connected =
                poll(&mut ready, PollTimeout::try_from(step).unwrap_or(PollTimeout::MAX))? > 0;
            if let Some(error) = socket.take_error()? {
                return Err(error);
            }
            if connected {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            step = (step * 2).min(Duration::from_millis(50));
        }
    }

    fn bound(self) -> io::Result<Socket> {
        let socket = self.protocol.socket(self.to)?;
        self.bind(&socket)?;
        // Without it a connectionless socket receives refusals, but not missing routes.
        if self.protocol != Protocol::Tcp {
            match self.to {
                SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?,
                SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?,
            }
        }
        socket.set_read_timeout(Some(self.timeout))?;
        Ok(socket)
    }

    fn bind(self, socket: &Socket) -> io::Result<()> {
        let any: IpAddr = match self.to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let bind = |port| socket.bind(&SocketAddr::new(self.from.unwrap_or(any), port).into());
        match (self.from, self.port) {
            (None, 0) => Ok(()),
            (Some(_), 0) => bind(Self::new_port()).or_else(|_| bind(0)),
            (_, port) => bind(port).or_else(|_| bind(port + 1)).or_else(|_| bind(port + 2)),
        }
    }

    fn read_line(self, mut stream: TcpStream) -> io::Result<String> {
        let mut line = String::new();
        stream.read_to_string(&mut line)?;
        // Thousands of probes would leave thousands of sockets in TIME_WAIT; a reset leaves none.
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        Ok(line)
    }

    /// A socket connected to the one address, which reports ICMP errors.
    pub(crate) fn connected(self) -> io::Result<Socket> {
        let socket = self.bound()?;
        let mut to = self.to;
        if self.protocol == Protocol::Sctp {
            to.set_port(0);
        }
        socket.connect(&SockAddr::from(to))?;
        Ok(socket)
    }

    /// Probes once through a [connected](Self::connected) socket; over SCTP, from this port.
    pub(crate) fn send_through(self, socket: &Socket, port: u16) -> Outcome {
        let _turn = Self::sctp_turn();
        // An earlier refusal is not the outcome of this probe.
        let _ = socket.take_error();
        let answer = match self.protocol {
            Protocol::Tcp => Err(io::ErrorKind::Unsupported.into()),
            Protocol::Udp => self.datagram(socket),
            Protocol::Sctp => self.chunk(socket, port),
        };
        answer.map_or_else(Outcome::from, |line| parse(&line))
    }

    /// A source port for a socket that is bound to an address. The kernel would pick one at random:
    /// once in some thousand clients, the port of an earlier client, whose connection to another
    /// frontend of the same service IPVS still knows, and would continue.
    fn new_port() -> u16 {
        static PORTS: AtomicU16 = AtomicU16::new(0);
        43_000 + PORTS.fetch_add(1, Ordering::Relaxed) % 17_000
    }

    /// A port that no other raw socket of this process sends from.
    pub(crate) fn sctp_port() -> u16 {
        static PORTS: AtomicU16 = AtomicU16::new(0);
        20_000 + PORTS.fetch_add(1, Ordering::Relaxed) % 40_000
    }

    fn datagram(self, socket: &Socket) -> io::Result<String> {
        socket.send(b"who?").or_else(|error| refusal(socket, error))?;
        let mut buffer = [0; 256];
        let length = (&mut &*socket).read(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    /// A raw socket receives every refusal by its peer, whatever the port: so only one SCTP probe
    /// runs at a time.
    fn sctp_turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chunk(self, socket: &Socket, port: u16) -> io::Result<String> {
        let init = sctp::init(port, self.to.port(), u32::from(port) + 1);
        socket.send(&init).or_else(|error| refusal(socket, error))?;
        let deadline = Instant::now() + self.timeout;
        let mut buffer = [0; 2048];
        while Instant::now() < deadline {
            let (length, _) = receive_from(socket, &mut buffer)?;
            let packet = sctp::parse(self.to.ip(), &buffer[..length]);
            let ours = packet.filter(|packet| packet.destination_port == port);
            if let Some(cookie) = ours.and_then(|packet| packet.cookie) {
                return Ok(cookie);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// A packet that is rejected on its way out is first reported as dropped; the refusal comes a
/// moment later.
fn refusal(socket: &Socket, dropped: io::Error) -> io::Result<usize> {
    const SHORTLY: u16 = 50;
    let mut ready = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    poll(&mut ready, PollTimeout::from(SHORTLY))?;
    Err(socket.take_error()?.unwrap_or(dropped))
}

fn parse(line: &str) -> Outcome {
    let mut words = line.split_whitespace().map(str::parse);
    if let (Some(Ok(endpoint)), Some(Ok(seen))) = (words.next(), words.next()) {
        Outcome::Answered { endpoint, seen }
    } else {
        Outcome::Broken(format!("an answer that says {line:?}"))
    }
}
