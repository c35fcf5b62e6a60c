//! Kills a program at an exact place: right before or right after one of its system calls.

use std::fs;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::node::cni::give;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was killed at the place.
    Killed,
    /// It exited by itself, after this many places.
    Behind(usize),
}

/// Kills `child`, which waits for its standard input and has one thread, at a place: the beginning
/// or the end of one of its system calls. Places count from 0, the first one after that wait.
///
/// # Errors
/// The kernel's, and when the program is stopped by something other than a system call.
pub fn killed_at(mut child: Child, input: &[u8], place: usize) -> Result<Ended> {
    let pid = Pid::from_raw(child.id().cast_signed());
    ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD)?;
    ptrace::interrupt(pid)?;
    waitpid(pid, None)?;
    give(&mut child, input);
    let mut signal = None;
    for behind in 0.. {
        ptrace::syscall(pid, signal.take())?;
        match waitpid(pid, None)? {
            WaitStatus::PtraceSyscall(_) if behind >= place => {
                kill(pid, Signal::SIGKILL)?;
                waitpid(pid, None)?;
                break;
            }
            WaitStatus::PtraceSyscall(_) => {}
            WaitStatus::Stopped(_, of) => signal = Some(of),
            WaitStatus::Exited(..) => return Ok(Ended::Behind(behind)),
            other @ (WaitStatus::Signaled(..)
            | WaitStatus::PtraceEvent(..)
            | WaitStatus::Continued(_)
            | WaitStatus::StillAlive) => bail!("stopped by {other:?}"),
        }
    }
    Ok(Ended::Killed)
}

/// A program that has sent nothing through netlink for this long has done its work.
const QUIET: Duration = Duration::from_secs(3);

/// System calls that may send; their first parameter is the socket.
const SENDS: [libc::c_long; 4] =
    [libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_sendmmsg, libc::SYS_write];

/// How [`stopped_behind`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// The process is stopped after sending as many messages as asked for, and waits for this
    /// thread to kill it.
    Stopped,
    /// The process goes on, or has ended. It sent only this many messages, and then nothing for a
    /// while.
    Only(usize),
}

/// Stops the first thread of process `pid` once it has sent `count` times through netlink sockets,
/// counted from `begin`. The kernel takes all that one call sends before it looks at signals, so
/// these are all the places where a kill can separate two messages.
///
/// # Errors
/// The kernel's, that of `begin`, and when the process fails.
pub fn stopped_behind(pid: Pid, count: usize, begin: impl FnOnce() -> Result<()>) -> Result<Sent> {
    followed(pid, begin, |sent| Ok(sent >= count))
}

/// Calls `probe` whenever the first thread of process `pid` has sent through a netlink socket,
/// counted from `begin`; the thread stands still meanwhile. Ends when the thread sends nothing
/// more, and lets it go on. Returns how often it sent.
///
/// # Errors
/// The kernel's, that of `begin`, that of `probe`, and when the process fails.
pub fn at_each_message(
    pid: Pid,
    begin: impl FnOnce() -> Result<()>,
    mut probe: impl FnMut(usize) -> Result<()>,
) -> Result<usize> {
    match followed(pid, begin, |sent| probe(sent).map(|()| false))? {
        Sent::Only(count) => Ok(count),
        Sent::Stopped => bail!("stopped, although nobody wanted it to"),
    }
}

/// Follows the first thread of process `pid` from `begin` on. Before it sends anything, and each
/// time that it has sent, `is_enough` says whether to stop there.
fn followed(
    pid: Pid,
    begin: impl FnOnce() -> Result<()>,
    mut is_enough: impl FnMut(usize) -> Result<bool>,
) -> Result<Sent> {
    ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD)?;
    ptrace::interrupt(pid)?;
    waitpid(pid, None)?;
    begin()?;
    let (mut sent, mut is_inside, mut sends, mut signal) = (0, false, false, None);
    let mut is_done = is_enough(sent)?;
    let mut since = Instant::now();
    while !is_done {
        ptrace::syscall(pid, signal.take())?;
        match next_stop(pid, since + QUIET)? {
            None => {
                ptrace::interrupt(pid)?;
                waitpid(pid, None)?;
                ptrace::detach(pid, None)?;
                return Ok(Sent::Only(sent));
            }
            Some(WaitStatus::PtraceSyscall(_)) if is_inside => {
                is_inside = false;
                if std::mem::take(&mut sends) {
                    sent += 1;
                    is_done = is_enough(sent)?;
                    since = Instant::now();
                }
            }
            Some(WaitStatus::PtraceSyscall(_)) => (is_inside, sends) = (true, is_sending(pid)?),
            Some(WaitStatus::Stopped(_, of)) => signal = Some(of),
            Some(WaitStatus::Exited(_, 0)) => return Ok(Sent::Only(sent)),
            Some(other) => bail!("behind {sent} messages: {other:?}"),
        }
    }
    Ok(Sent::Stopped)
}

/// The next stop of the process, if it comes before `until`.
fn next_stop(pid: Pid, until: Instant) -> Result<Option<WaitStatus>> {
    while Instant::now() < until {
        let stop = waitpid(pid, Some(WaitPidFlag::WNOHANG))?;
        if stop != WaitStatus::StillAlive {
            return Ok(Some(stop));
        }
        thread::sleep(Duration::from_micros(100));
    }
    Ok(None)
}

/// Whether the system call that this process has just begun sends through a netlink socket.
fn is_sending(pid: Pid) -> Result<bool> {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall"))?;
    let mut words = call.split_whitespace();
    let number = words.next().and_then(|word| word.parse().ok());
    if !number.is_some_and(|number| SENDS.contains(&number)) {
        return Ok(false);
    }
    let file = words.next().and_then(|word| i32::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    let file = file.with_context(|| format!("a system call: {call}"))?;
    let target = fs::read_link(format!("/proc/{pid}/fd/{file}"))?;
    let target = target.to_string_lossy();
    let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/netlink"))?;
    let mut inodes = sockets.lines().filter_map(|line| line.split_whitespace().last());
    Ok(inode.is_some_and(|inode| inodes.any(|other| other == inode)))
}
