//! Malicious clients: thousands of connections that send nothing, send half a request, or do not
//! read the answer, each made again as soon as it is closed.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::eventually::observed;
use crate::node::netns::Netns;

/// What each kind of client sends, over and over: nothing, half a request, or a whole request whose
/// answer it never reads.
const REQUESTS: [&[u8]; 3] = [
    b"",
    b"GET /healthz HTTP/1.1\r\nHost: half\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: unread\r\n\r\n",
];

/// How often a client checks its connections.
const ROUND: Duration = Duration::from_millis(50);

/// How many connections a client makes again in one round: 200 a second, which leaves the test's
/// own requests enough processor time.
const AGAIN: usize = 10;

/// How long anything may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A running flood. Dropping it ends it.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Result<Result<()>>>>,
}

impl Flood {
    /// Makes `each` connections from every one of these namespaces to an address; returns once all
    /// were made for the first time. First raises this process's limit of open files to its
    /// maximum.
    pub fn start(clients: &[(&Netns, SocketAddr)], each: usize) -> Result<Self> {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
        let (stop, made) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let mut threads = Vec::new();
        for (netns, to) in clients {
            let (to, stop, made) = (*to, stop.clone(), made.clone());
            threads.push(netns.spawn(move || attack(to, each, &stop, &made))?);
        }
        let flood = Self { stop, made, threads };
        let all = clients.len() * each;
        observed("all connections are made", TIMEOUT, || Ok(flood.made()), |made| *made >= all)?;
        Ok(flood)
    }

    /// How many connections were tried until now.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Ends the flood; an error when a client could not do what it should.
    pub fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let mut threads = self.threads.drain(..);
        threads.try_for_each(|thread| thread.join().expect("a client does not panic")?)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// One hostile connection.
struct HostileConnection {
    socket: Socket,
    /// What is still to be sent, once it is connected.
    request: Option<&'static [u8]>,
}

fn attack(to: SocketAddr, count: usize, stop: &AtomicBool, made: &AtomicUsize) -> Result<()> {
    let mut connections: Vec<Option<HostileConnection>> = (0..count).map(|_| None).collect();
    // First all connections are made, later those that were closed.
    let mut budget = count;
    while !stop.load(Ordering::Relaxed) {
        let empty =
            connections.iter_mut().enumerate().filter(|(_, connection)| connection.is_none());
        for (number, connection) in empty.take(budget) {
            *connection =
                Some(connect(to, REQUESTS[number % REQUESTS.len()]).context("cannot attack")?);
            made.fetch_add(1, Ordering::Relaxed);
        }
        budget = AGAIN;
        look_after(&mut connections)?;
        thread::sleep(ROUND);
    }
    Ok(())
}

fn connect(to: SocketAddr, request: &'static [u8]) -> io::Result<HostileConnection> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        Ok(()) | Err(_) => {}
    }
    Ok(HostileConnection { socket, request: Some(request) })
}

/// Sends the requests that are due, and removes connections that the server closed.
fn look_after(connections: &mut [Option<HostileConnection>]) -> Result<()> {
    let interest = |connection: &HostileConnection| match connection.request {
        Some(_) => PollFlags::POLLOUT,
        // Readable: the server has closed the connection, or it has answered and will close it.
        None => PollFlags::POLLIN,
    };
    let mut open: Vec<_> =
        connections.iter_mut().filter(|connection| connection.is_some()).collect();
    let seen: Vec<PollFlags> = {
        let open = open.iter().filter_map(|connection| connection.as_ref());
        let mut asked: Vec<_> = open
            .map(|connection| PollFd::new(connection.socket.as_fd(), interest(connection)))
            .collect();
        poll(&mut asked, PollTimeout::ZERO)?;
        asked.iter().map(|poll| poll.revents().unwrap_or(PollFlags::empty())).collect()
    };
    for (slot, seen) in open.iter_mut().zip(seen) {
        let closed = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
        if seen.intersects(closed) {
            **slot = None;
        } else if seen.contains(PollFlags::POLLOUT)
            && let Some(connection) = slot
            && let Some(request) = connection.request.take()
        {
            // If the connection was closed meanwhile, the next round notices.
            let _ = connection.socket.write(request);
        }
    }
    Ok(())
}
