//! Waits until the agent has programmed the kernel for a pod, or without it: the client of the
//! agent's socket.
//!
//! No lock is held during the wait. The timeout limits the wait, whatever the agent, or another
//! program in its place, does.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use denizen_state::RunDir;
use denizen_state::run_dir::SOCKET;
use denizen_state::socket::{WaitAnswer, WaitFor};
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::{SFlag, fstatat};
use nix::time::{ClockId, clock_gettime};

/// The pause between two attempts to reach an agent whose socket exists but which does not listen:
/// it may be restarting.
const RETRY: Duration = Duration::from_millis(10);

/// Size limit of an answer in bytes, more than any answer needs.
const LONGEST_ANSWER: u64 = 64 << 10;

/// The result of the wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The kernel treats the pod's packets as a local pod's; after a DEL, it no longer does.
    Programmed,
    /// The agent has not done that, for this reason.
    Not(String),
}

/// Whether `run_dir` contains a socket that an agent may listen on.
pub(crate) fn has_socket(run_dir: &RunDir) -> bool {
    fstatat(run_dir.dir().as_fd(), SOCKET, AtFlags::AT_SYMLINK_NOFOLLOW)
        .is_ok_and(|entry| SFlag::from_bits_truncate(entry.st_mode).contains(SFlag::S_IFSOCK))
}

/// Whether an agent listens in `run_dir` now.
pub(crate) fn is_listened_to(run_dir: &RunDir) -> bool {
    has_socket(run_dir) && open(run_dir).is_ok()
}

/// Sends `ask` to the agent, and waits at most `timeout` for the answer.
pub(crate) fn wait(run_dir: &RunDir, ask: &WaitFor, timeout: Duration) -> Waited {
    wait_on(None, run_dir, ask, timeout)
}

/// As [`wait()`]; `None` at once if no agent listens.
pub(crate) fn wait_if_listened_to(
    run_dir: &RunDir,
    ask: &WaitFor,
    timeout: Duration,
) -> Option<Waited> {
    let stream = has_socket(run_dir).then(|| open(run_dir).ok()).flatten()?;
    Some(wait_on(Some(stream), run_dir, ask, timeout))
}

/// As [`wait()`], over `connection` first, if there is one.
#[expect(
    clippy::disallowed_methods,
    reason = "the I/O edge: the wait for another process is bounded here"
)]
fn wait_on(
    mut connection: Option<UnixStream>,
    run_dir: &RunDir,
    ask: &WaitFor,
    timeout: Duration,
) -> Waited {
    let begun = Instant::now();
    let ask = &WaitFor { asked_at: monotonic(), ..ask.clone() };
    let remaining = || timeout.saturating_sub(begun.elapsed());
    loop {
        if connection.is_none() && !has_socket(run_dir) {
            return Waited::Not(format!("no agent runs here: there is no {SOCKET}"));
        }
        let connected = connection.take().map_or_else(|| open(run_dir), Ok);
        match connected.and_then(|stream| answer(stream, ask, &remaining)) {
            Ok(WaitAnswer { programmed: true, .. }) => return Waited::Programmed,
            Ok(WaitAnswer { reason, .. }) => {
                return Waited::Not(
                    reason.unwrap_or_else(|| "the agent gave no reason".to_owned()),
                );
            }
            // Not repeated: an invalid answer does not become valid by asking again.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Waited::Not(format!("cannot parse the agent's answer: {error}"));
            }
            Err(error) if remaining() <= RETRY => {
                return Waited::Not(format!(
                    "no answer from the agent within {timeout:?}: {error}"
                ));
            }
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// Sends one request and reads the answer. An invalid answer is an error of kind `InvalidData`.
fn answer(
    mut stream: UnixStream,
    ask: &WaitFor,
    remaining: &impl Fn() -> Duration,
) -> io::Result<WaitAnswer> {
    let mut line = serde_json::to_vec(ask)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(positive(remaining())))?;
    stream.write_all(&line)?;

    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while !answer.contains(&b'\n') {
        // Set again for each piece: a server that sends a byte a second must not hold us longer
        // than one that sends none.
        stream.set_read_timeout(Some(positive(remaining())))?;
        match stream.read(&mut piece)? {
            0 if answer.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => break,
            length => answer.extend_from_slice(piece.get(..length).unwrap_or_default()),
        }
        if answer.len() as u64 > LONGEST_ANSWER {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("it is longer than {LONGEST_ANSWER} bytes"),
            ));
        }
        if remaining().is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    let line = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Connects to the agent without blocking: if the socket's queue is full, the agent is busy, and
/// this returns an error.
fn open(run_dir: &RunDir) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // Through the open directory: the path is not resolved again, and is never too long for a
    // socket address.
    let path = format!("/proc/self/fd/{}/{SOCKET}", run_dir.dir().as_raw_fd());
    match connect(socket.as_raw_fd(), &UnixAddr::new(path.as_str())?) {
        Ok(()) => {}
        Err(Errno::EAGAIN) => {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "too many ADDs already wait for it",
            ));
        }
        Err(errno) => return Err(errno.into()),
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The kernel's `CLOCK_MONOTONIC` in nanoseconds.
fn monotonic() -> Option<u64> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?);
    u64::try_from(now.as_nanos()).ok()
}

/// A valid timeout for the kernel: zero would mean no timeout.
fn positive(remaining: Duration) -> Duration {
    remaining.max(Duration::from_millis(1))
}
