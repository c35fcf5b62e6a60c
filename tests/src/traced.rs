//! A program that is killed at an exact place: right before or right behind one of its system
//! calls.

use std::process::Child;

use anyhow::{Result, bail};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::cni::give;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// At the place.
    Killed,
    /// By itself, behind so many places.
    Behind(usize),
}

/// Kills `child`, which waits for its standard input and has one thread, at this place. The first
/// place is the first system call's beginning or end behind that wait, the next one its end or the
/// next one's beginning.
///
/// # Errors
/// The kernel's, and when the program is stopped by what is no system call.
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
