//! Servers that answer every connection, datagram or INIT with one line: the address that answered,
//! and the source that it saw.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::str::FromStr;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{SockaddrStorage, recvfrom};
use socket2::{SockAddr, Socket, Type};

use crate::node::netns::Netns;
use crate::packets::probe::Protocol;
use crate::packets::sctp;

/// One address and port to answer at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listen {
    /// Over which protocol.
    pub protocol: Protocol,
    /// The address and port; an unspecified address, for TCP only, stands for every address of the
    /// namespace.
    pub address: SocketAddr,
}

/// Answers at a list of addresses in one namespace until it is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

struct Listener {
    listen: Listen,
    socket: Socket,
}

impl Server {
    /// Starts to answer; every probe that is sent after this has returned is answered.
    pub fn start(namespace: &Netns, listens: &[Listen]) -> Result<Self> {
        namespace.run(|| Self::start_here(listens))?
    }

    /// The same in the namespace that this thread is in.
    pub fn start_here(listens: &[Listen]) -> Result<Self> {
        let listeners =
            listens.iter().map(|listen| Listener::open(*listen)).collect::<Result<Vec<_>>>()?;
        // A program that another thread executes meanwhile must not inherit the pipe.
        let (ended, stop) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let thread = thread::spawn(move || answer_until(&ended, &listeners));
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Answers over `protocol` at one address and port.
    pub fn at(namespace: &Netns, protocol: Protocol, address: SocketAddr) -> Result<Self> {
        Self::start(namespace, &[Listen { protocol, address }])
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.protocol)
    }
}

impl FromStr for Listen {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (address, protocol) =
            text.rsplit_once('/').with_context(|| format!("{text}: no protocol"))?;
        let address = address.parse().with_context(|| format!("{text}: no address"))?;
        Ok(Self { protocol: protocol.parse()?, address })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread sees the other end of its pipe close.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Listener {
    fn open(listen: Listen) -> Result<Self> {
        let socket = Self::bound(listen).with_context(|| {
            format!("cannot listen at {} over {:?}", listen.address, listen.protocol)
        })?;
        Ok(Self { listen, socket })
    }

    fn bound(listen: Listen) -> io::Result<Socket> {
        let socket = listen.protocol.socket(listen.address)?;
        let mut address = listen.address;
        match listen.protocol {
            Protocol::Tcp => socket.set_reuse_address(true)?,
            Protocol::Udp => {}
            Protocol::Sctp => address.set_port(0),
        }
        // A raw socket has only one family, and refuses the option.
        if address.is_ipv6() && listen.protocol != Protocol::Sctp {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::from(address))?;
        if socket.r#type()? == Type::STREAM {
            socket.listen(4096)?;
        }
        Ok(socket)
    }

    /// Answers all that waits. It is no error if a client has gone away.
    fn answer(&self) {
        loop {
            let answered = match self.listen.protocol {
                Protocol::Tcp => self.accept(),
                Protocol::Udp => self.datagram(),
                Protocol::Sctp => self.chunk(),
            };
            if answered.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
        }
    }

    fn accept(&self) -> io::Result<()> {
        let (mut connection, peer) = self.socket.accept()?;
        let local = connection.local_addr()?;
        // The send buffer of a new connection takes one line without blocking. It is no error if
        // the peer has gone.
        let _ = connection.write_all(line(local.as_socket(), peer.as_socket()).as_bytes());
        Ok(())
    }

    fn datagram(&self) -> io::Result<()> {
        let mut buffer = [0; 64];
        let (_, peer) = receive_from(&self.socket, &mut buffer)?;
        let answer = line(Some(self.listen.address), Some(peer));
        let _ = self.socket.send_to(answer.as_bytes(), &SockAddr::from(peer));
        Ok(())
    }

    fn chunk(&self) -> io::Result<()> {
        let mut buffer = [0; 2048];
        let (length, mut peer) = receive_from(&self.socket, &mut buffer)?;
        let packet = sctp::parse(self.listen.address.ip(), &buffer[..length]);
        let Some(packet) =
            packet.filter(|packet| packet.destination_port == self.listen.address.port())
        else {
            return Ok(());
        };
        if packet.cookie.is_none() {
            let mut seen = peer;
            seen.set_port(packet.source_port);
            peer.set_port(0);
            let answer = sctp::init_ack(&packet, &line(Some(self.listen.address), Some(seen)));
            let _ = self.socket.send_to(&answer, &SockAddr::from(peer));
        }
        Ok(())
    }
}

/// What a socket received, and from whom.
pub(crate) fn receive_from(socket: &Socket, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    let (length, peer) = recvfrom::<SockaddrStorage>(socket.as_raw_fd(), buffer)?;
    let peer = peer.as_ref().and_then(socket_address);
    Ok((length, peer.ok_or_else(|| io::Error::other("a peer that has no IP address"))?))
}

/// An IPv4 or IPv6 address; `None` for other families.
pub(crate) fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

/// The answer: the address that answers, and the source that it sees.
fn line(local: Option<SocketAddr>, peer: Option<SocketAddr>) -> String {
    let text = |address: Option<SocketAddr>| {
        address.map_or_else(|| "-".to_owned(), |known| known.to_string())
    };
    format!("{} {}\n", text(local), text(peer))
}

/// Answers until the other end of `ended` is closed.
fn answer_until(ended: &OwnedFd, listeners: &[Listener]) {
    let fds = listeners.iter().map(|listener| listener.socket.as_fd());
    let mut fds: Vec<_> = std::iter::once(ended.as_fd())
        .chain(fds)
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
    // The time-out is a bound only: everything that matters here wakes the poll.
    let bound = PollTimeout::try_from(Duration::from_secs(3600)).unwrap_or(PollTimeout::MAX);
    while poll(&mut fds, bound).is_ok_and(|ready| ready > 0) {
        if fds[0].any().unwrap_or(true) {
            return;
        }
        for (fd, listener) in fds[1..].iter().zip(listeners) {
            if fd.any().unwrap_or(false) {
                listener.answer();
            }
        }
    }
}
