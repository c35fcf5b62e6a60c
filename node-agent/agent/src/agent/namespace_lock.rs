//! The lock of a network namespace: only one agent programs it.
//!
//! The lock is a group of the kernel's packet log (nfnetlink_log), to which nothing logs. The
//! kernel gives a group to one netlink socket per network namespace, only with `CAP_NET_ADMIN`, and
//! frees it with the socket, however the process ends. A process that can take the group can also
//! change the rules, so a process without that privilege cannot keep an agent from starting.
//!
//! Alternatives that do not work: any user can take the name of an abstract unix socket, or a fixed
//! netlink portid. A port below 1024 needs a capability that the DaemonSet drops, and a sysctl can
//! open such ports to every user. A lock file is as private as its folder, and containers share no
//! folder except the run directory. An nf_tables table with an owner needs Linux 5.12, and while it
//! exists, `nft -f` refuses a saved listing of the ruleset.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use denizen_netlink::{NetlinkError, Socket, Writer};
use nix::errno::Errno;
use nix::libc;
use thiserror::Error;
use tracing::warn;

/// The number of the nfnetlink_log group. Packet logs use small numbers, so this one is free.
const GROUP: u16 = 0xd312;

/// linux/netfilter/nfnetlink.h and nfnetlink_log.h.
const NFNL_SUBSYS_ULOG: u16 = 4;
const NFULNL_MSG_CONFIG: u16 = 1;
const NFULA_CFG_CMD: u16 = 1;
const NFULNL_CFG_CMD_BIND: u8 = 1;

/// How long an agent waits for the lock. A program that an agent starts holds the agent's lock
/// between its fork and its exec, so the lock may outlive the agent for an instant.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// The groups of this network namespace, each with the netlink portid that has it.
const GROUPS: &str = "/proc/thread-self/net/netfilter/nfnetlink_log";

/// The netlink sockets of this network namespace (net/netlink/af_netlink.c).
const SOCKETS: &str = "/proc/thread-self/net/netlink";

/// Why the lock cannot be taken.
#[derive(Debug, Error)]
pub enum NamespaceLockError {
    /// Another process has it.
    #[error("another agent ({}) runs in this network namespace", named(*.process))]
    Another {
        /// The other process's id; `None` if it is not visible from here, because it is in another
        /// container, for example.
        process: Option<u32>,
    },
    /// It cannot be taken, typically without `CAP_NET_ADMIN`.
    #[error("cannot take the lock of this network namespace, which needs CAP_NET_ADMIN")]
    Lock(#[source] NetlinkError),
}

/// The lock, held until this value is dropped or the process ends.
#[derive(Debug)]
#[must_use = "the lock is released with this value"]
pub struct NamespaceLock {
    _socket: Socket,
}

/// Takes the lock: two agents in one network namespace would undo each other's work. The process
/// that holds the lock gets [`PATIENCE`] to release it.
///
/// A kernel that was built without nfnetlink_log has no such lock. The agent logs that, and works
/// without the lock.
///
/// # Errors
/// [`NamespaceLockError::Another`] names the process that has the lock.
#[expect(
    clippy::disallowed_methods,
    reason = "only a start waits here, and nothing is decided by it"
)]
pub fn lock_namespace() -> Result<NamespaceLock, NamespaceLockError> {
    let started = Instant::now();
    loop {
        match take() {
            Err(NamespaceLockError::Another { .. }) if started.elapsed() < PATIENCE => {
                thread::sleep(PAUSE)
            }
            result => return result,
        }
    }
}

/// Takes the lock if it is free.
fn take() -> Result<NamespaceLock, NamespaceLockError> {
    let mut socket = Socket::open().map_err(NamespaceLockError::Lock)?;
    match bind(&mut socket) {
        Ok(()) => {}
        Err(error) if error.errno() == Some(Errno::EINVAL) => warn!(
            "this kernel has no nfnetlink_log: a second agent in this network namespace would not be noticed"
        ),
        // EPERM: another process has the group, or this one lacks CAP_NET_ADMIN.
        Err(error) if error.errno() == Some(Errno::EPERM) => {
            return Err(match holder() {
                Some(portid) => NamespaceLockError::Another { process: process_of(portid) },
                None => NamespaceLockError::Lock(error),
            });
        }
        Err(error) => return Err(NamespaceLockError::Lock(error)),
    }
    Ok(NamespaceLock { _socket: socket })
}

/// Requests the group from the kernel.
fn bind(socket: &mut Socket) -> Result<(), NetlinkError> {
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let kind = NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_CONFIG;
    let flags = libc::NLM_F_ACK as u16;
    let message = request.begin_message(kind, flags, sequence, libc::AF_UNSPEC as u8, GROUP);
    request.put(NFULA_CFG_CMD, &[NFULNL_CFG_CMD_BIND]);
    request.end_message(message);
    socket.send(request.bytes())?;
    socket.outcome(sequence)
}

/// The netlink portid that has the group.
#[expect(clippy::disallowed_methods, reason = "only this file says which process holds the lock")]
fn holder() -> Option<u32> {
    let groups = fs::read_to_string(GROUPS).ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let group: u16 = fields.next()?.parse().ok()?;
        let portid = fields.next()?.parse().ok()?;
        (group == GROUP).then_some(portid)
    })
}

/// The process that has the netlink socket of this portid. The portid equals the process id only
/// for a process's first socket, and then it is the id in the process's own PID namespace.
#[expect(clippy::disallowed_methods, reason = "only this file says which process holds the lock")]
fn process_of(portid: u32) -> Option<u32> {
    let sockets = fs::read_to_string(SOCKETS).ok()?;
    let inode = sockets.lines().find_map(|line| inode_of(line, portid))?;
    let link = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(|process: &u32| {
        let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
        links.any(|file| file.to_str() == Some(&link))
    })
}

/// `sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode`: the inode, if the line is of this socket.
fn inode_of(line: &str, portid: u32) -> Option<&str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let is_wanted = fields.get(1)?.parse() == Ok(libc::NETLINK_NETFILTER)
        && fields.get(2)?.parse() == Ok(portid);
    fields.get(9).copied().filter(|_| is_wanted)
}

/// A process, as messages name it.
pub(crate) fn named(process: Option<u32>) -> String {
    match process {
        Some(process) => format!("process {process}"),
        None => "a process that is not seen from here".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Runs `test` in a network namespace of its own.
    fn in_a_namespace<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
            test()
        });
        thread.join().unwrap()
    }

    /// Takes the lock as an unprivileged user.
    fn as_nobody() -> Result<NamespaceLock, NamespaceLockError> {
        let become_user = |user: libc::uid_t| {
            // SAFETY: it changes the effective user of this thread alone, and touches no memory.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
            assert_eq!(changed, 0);
        };
        become_user(65534);
        let result = lock_namespace();
        become_user(0);
        result
    }

    #[test]
    fn one_agent_holds_the_lock_until_it_drops_it() {
        in_a_namespace(|| {
            // Only a process's first socket has the process id as its portid: of these two, at most
            // one.
            let own = Socket::open().unwrap();
            let first = lock_namespace().unwrap();
            assert!(
                [&own, &first._socket].iter().any(|socket| socket.portid() != std::process::id())
            );
            for _ in 0..2 {
                let error = lock_namespace().unwrap_err();
                let named = format!("another agent (process {})", std::process::id());
                assert!(error.to_string().starts_with(&named), "{error}");
            }
            let elsewhere = in_a_namespace(lock_namespace).unwrap();
            drop((first, elsewhere));
            let _again = lock_namespace().unwrap();
        });
    }

    #[test]
    fn a_lock_that_is_soon_released_is_waited_for() {
        in_a_namespace(|| {
            let first = lock_namespace().unwrap();
            let ending = thread::spawn(move || {
                thread::sleep(PATIENCE / 5);
                drop(first);
            });
            let _second = lock_namespace().unwrap();
            ending.join().unwrap();
        });
    }

    #[test]
    fn only_a_process_that_may_change_the_rules_gets_the_lock() {
        in_a_namespace(|| {
            match as_nobody() {
                Err(NamespaceLockError::Lock(error)) => {
                    assert_eq!(error.errno(), Some(Errno::EPERM))
                }
                other => panic!("{other:?}"),
            }
            let _mine = lock_namespace().unwrap();
        });
    }
}
