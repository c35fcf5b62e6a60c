//! The work that is measured: packets of one long flow, or short connections. All of it takes turns
//! on one processor, which is never idle: who waits for an answer lets the other work for it.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::manifest::Port;
use denizen_tests::netns::Netns;
use denizen_tests::pod::Wiring;
use denizen_tests::probe::Protocol;

use super::cost::Cost;
use super::table::Path;

const SINK: u16 = 9001;
const ECHO: u16 = 9002;
const DATAGRAMS: u16 = 9003;
const ANSWERS: u16 = 9004;

/// The ports of the other node's pod, and of its service.
pub(super) const PORTS: [Port; 4] = [
    Port::tcp("sink", SINK, SINK),
    Port::tcp("echo", ECHO, ECHO),
    Port::tcp("datagrams", DATAGRAMS, DATAGRAMS).over(Protocol::Udp),
    Port::tcp("answers", ANSWERS, ANSWERS).over(Protocol::Udp),
];

/// After so many bytes, the sink answers with one.
const CHUNK: usize = 1 << 20;
/// What is written at once.
static PIECE: [u8; 1 << 16] = [0; 1 << 16];
/// After so many datagrams, one comes back.
const BURST: usize = 16;
const DATAGRAM: [u8; 64] = [0; 64];

/// UDP counts as assured when it still goes both ways after two seconds.
const ASSURED: Duration = Duration::from_millis(2500);

/// What has not come by then never will.
const PATIENCE: Duration = Duration::from_secs(30);

/// One kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// TCP, which leaves it to the interfaces to cut large packets, as these never do.
    Stream,
    /// TCP in packets of the link's MTU.
    Segments,
    /// UDP, small packets.
    Datagrams,
    /// A byte there and a byte back over one TCP connection.
    Exchanges,
    /// A TCP connection for each byte there and back.
    Connections,
    /// A UDP socket for each datagram there and back: such a flow is never assured.
    Questions,
}

impl fmt::Display for Work {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Stream => "TCP, KiB in packets of 64 KiB",
            Self::Segments => "TCP, KiB in packets of 1500 bytes",
            Self::Datagrams => "UDP, datagrams of 64 bytes",
            Self::Exchanges => "TCP, exchanges of one byte",
            Self::Connections => "TCP, connections",
            Self::Questions => "UDP, questions",
        })
    }
}

impl Work {
    pub(super) const ALL: [Self; 6] = [
        Self::Stream,
        Self::Segments,
        Self::Datagrams,
        Self::Exchanges,
        Self::Connections,
        Self::Questions,
    ];

    /// How much of it is measured at once: KiB, or datagrams, exchanges and so on.
    pub(super) fn units(self) -> f64 {
        match self {
            Self::Stream | Self::Segments => (self.times() * (CHUNK >> 10)) as f64,
            Self::Datagrams => (self.times() * BURST) as f64,
            Self::Exchanges | Self::Connections | Self::Questions => self.times() as f64,
        }
    }

    fn times(self) -> usize {
        match self {
            Self::Stream => 32,
            Self::Segments => 2,
            Self::Datagrams => 128,
            Self::Exchanges => 1_000,
            Self::Connections => 200,
            Self::Questions => 400,
        }
    }

    /// The ways that are compared; the first and the last are without a flowtable.
    pub(super) fn paths(self, wiring: Wiring) -> &'static [Path] {
        const ROUTED: [Path; 3] = [Path::Slow, Path::Late, Path::Slow];
        const BRIDGED: [Path; 4] = [Path::Slow, Path::Late, Path::LateWithPorts, Path::Slow];
        const SHORT: [Path; 6] = [
            Path::Slow,
            Path::AtOnce,
            Path::AtOnceBriefly,
            Path::Late,
            Path::LateAskedFirst,
            Path::Slow,
        ];
        match wiring {
            Wiring::Routed | Wiring::Bridged if !self.is_one_flow() => &SHORT,
            Wiring::Routed => &ROUTED,
            Wiring::Bridged => &BRIDGED,
        }
    }

    pub(super) fn is_one_flow(self) -> bool {
        !matches!(self, Self::Connections | Self::Questions)
    }

    pub(super) fn port(self) -> u16 {
        match self {
            Self::Stream | Self::Segments => SINK,
            Self::Datagrams => DATAGRAMS,
            Self::Exchanges | Self::Connections => ECHO,
            Self::Questions => ANSWERS,
        }
    }

    /// Does it from inside `pod`, which sends through `eth0`. A long flow has
    /// had enough packets for the flowtable before `measured` is called for the rest of it.
    pub(super) fn run(
        self,
        pod: &Netns,
        to: IpAddr,
        measured: impl FnOnce(&mut (dyn FnMut() -> Result<()> + '_)) -> Result<Cost> + Send,
    ) -> Result<Cost> {
        let segments = if self == Self::Segments { 1 } else { 65_535 };
        pod.ip(&format!("link set eth0 gso_max_segs {segments}"))?;
        let (to, times) = (SocketAddr::new(to, self.port()), self.times());
        pod.run(move || match self {
            Self::Stream | Self::Segments => {
                let mut stream = connected(to)?;
                (0..4).try_for_each(|_| chunk(&mut stream))?;
                measured(&mut || (0..times).try_for_each(|_| chunk(&mut stream)))
            }
            Self::Datagrams => {
                let socket = bound(to)?;
                burst(&socket, BURST)?;
                thread::sleep(ASSURED);
                (0..4).try_for_each(|_| burst(&socket, BURST))?;
                measured(&mut || (0..times).try_for_each(|_| burst(&socket, BURST)))
            }
            Self::Exchanges => {
                let mut stream = connected(to)?;
                (0..32).try_for_each(|_| exchange(&mut stream))?;
                measured(&mut || (0..times).try_for_each(|_| exchange(&mut stream)))
            }
            Self::Connections => {
                let connection = || exchange(&mut connected(to)?);
                (0..8).try_for_each(|_| connection())?;
                measured(&mut || (0..times).try_for_each(|_| connection()))
            }
            Self::Questions => {
                let question = || burst(&bound(to)?, 1);
                (0..8).try_for_each(|_| question())?;
                measured(&mut || (0..times).try_for_each(|_| question()))
            }
        })?
    }
}

fn connected(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn chunk(stream: &mut TcpStream) -> Result<()> {
    for _ in 0..CHUNK / PIECE.len() {
        stream.write_all(&PIECE)?;
    }
    stream.read_exact(&mut [0]).context("the sink does not answer")
}

fn exchange(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(&[0])?;
    stream.read_exact(&mut [0]).context("no byte comes back")
}

fn bound(to: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn burst(socket: &UdpSocket, count: usize) -> Result<()> {
    for _ in 0..count {
        socket.send(&DATAGRAM)?;
    }
    socket.recv(&mut [0; 64]).context("datagrams are lost").map(drop)
}

/// Answers as long as the guest lives.
pub(super) fn serve(peer: &Netns) -> Result<()> {
    for (port, answers) in [(SINK, sink as fn(TcpStream) -> io::Result<()>), (ECHO, echo)] {
        let listener = peer.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))??;
        // One after the other: a client that goes away is its own business.
        thread::spawn(move || listener.incoming().flatten().for_each(|it| drop(answers(it))));
    }
    for (port, count) in [(DATAGRAMS, BURST), (ANSWERS, 1)] {
        let socket = peer.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))??;
        thread::spawn(move || datagrams(&socket, count));
    }
    Ok(())
}

fn sink(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut piece = vec![0; PIECE.len()];
    loop {
        let mut left = CHUNK;
        while left > 0 {
            let most = left.min(piece.len());
            let read = stream.read(&mut piece[..most])?;
            if read == 0 {
                return Ok(());
            }
            left -= read;
        }
        stream.write_all(&[0])?;
    }
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&byte)?;
    }
    Ok(())
}

/// One answer to so many.
fn datagrams(socket: &UdpSocket, count: usize) -> io::Result<()> {
    let mut piece = [0; 64];
    loop {
        for _ in 1..count {
            socket.recv(&mut piece)?;
        }
        let (_, from) = socket.recv_from(&mut piece)?;
        socket.send_to(&DATAGRAM, from)?;
    }
}
