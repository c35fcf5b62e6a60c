//! A blocking netlink socket: requests out, answers in.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname,
    recvmsg, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use nix::sys::uio::writev;
use thiserror::Error;

use crate::message::{Attributes, Message, parse_messages};

#[cfg(test)]
mod tests;

/// Why a netlink request to the kernel failed.
#[derive(Debug, Error)]
pub enum NetlinkError {
    /// A system call failed.
    #[error("netlink: cannot {doing}")]
    Io {
        /// The operation, as a verb and its object.
        doing: &'static str,
        /// The system call's error.
        #[source]
        source: io::Error,
    },
    /// Answers were lost: the socket's buffer was too small for them.
    #[error("netlink: answers were lost, the receive buffer overflowed")]
    Overflow,
    /// The kernel's tables changed during a dump; it must be repeated.
    #[error("netlink: the kernel's tables changed while they were read")]
    Interrupted,
    /// The kernel rejected a request.
    #[error("the kernel refused {}", .0)]
    Refused(KernelRejection),
    /// The kernel did not report the result of a request.
    #[error("the kernel never acknowledged the request")]
    Unacknowledged,
}

/// The kernel rejected a message.
#[derive(Debug, Clone)]
pub struct KernelRejection {
    /// Sequence number of the rejected message.
    pub sequence: u32,
    /// The kernel's error number.
    pub errno: Errno,
    /// The kernel's own text, if it has one (extended acknowledgement).
    pub message: Option<String>,
}

impl std::fmt::Display for KernelRejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "message {}: {}", self.sequence, self.errno.desc())?;
        match &self.message {
            Some(message) => write!(f, " ({message})"),
            None => Ok(()),
        }
    }
}

impl NetlinkError {
    fn io(doing: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Io { doing, source: errno.into() }
    }

    /// The kernel's error number, if it has rejected a request.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused(refusal) => Some(refusal.errno),
            Self::Io { .. } | Self::Overflow | Self::Interrupted | Self::Unacknowledged => None,
        }
    }
}

impl From<NetlinkError> for io::Error {
    /// Keeps the kernel's error number: callers distinguish "no such device" from other errors by
    /// it.
    fn from(error: NetlinkError) -> Self {
        match error {
            NetlinkError::Io { source, .. } => source,
            NetlinkError::Refused(refusal) => refusal.errno.into(),
            NetlinkError::Overflow | NetlinkError::Interrupted | NetlinkError::Unacknowledged => {
                Self::other(error)
            }
        }
    }
}

/// Size of the receive buffer in bytes: the answers to one batch, or notifications, must fit.
const RECEIVE_BUFFER: usize = 8 << 20;
/// The most bytes of one receive (the kernel's dumps come in pieces of at most 32 KiB, or of one
/// link, which has at most 64 KiB).
const RECEIVE_PIECE: usize = 64 << 10;

/// A netlink socket, in the network namespace of the thread that opened it. The socket stays in
/// that namespace.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    portid: u32,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket to netfilter.
    ///
    /// # Errors
    /// [`NetlinkError::Io`]. Opening needs no capability; most requests need `CAP_NET_ADMIN`.
    pub fn open() -> Result<Self, NetlinkError> {
        Self::open_to(SockProtocol::NetlinkNetFilter)
    }

    /// Opens a socket to generic netlink, whose messages have a command where netfilter's have a
    /// family.
    pub fn generic() -> Result<Self, NetlinkError> {
        Self::open_to(SockProtocol::NetlinkGeneric)
    }

    /// Opens a socket to rtnetlink: links, addresses and routes.
    pub fn route() -> Result<Self, NetlinkError> {
        Self::open_to(SockProtocol::NetlinkRoute)
    }

    fn open_to(protocol: SockProtocol) -> Result<Self, NetlinkError> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)
            .map_err(NetlinkError::io("open a socket"))?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))
            .map_err(NetlinkError::io("bind the socket"))?;
        let address: NetlinkAddr =
            getsockname(fd.as_raw_fd()).map_err(NetlinkError::io("read the socket's address"))?;
        let socket =
            Self { fd, portid: address.pid(), sequence: 0, buffer: vec![0; RECEIVE_PIECE] };
        socket.set_option(libc::NETLINK_CAP_ACK, 1)?;
        socket.set_option(libc::NETLINK_EXT_ACK, 1)?;
        // Beyond net.core.rmem_max, which an ordinary node leaves at 208 KiB.
        let _ = setsockopt(&socket.fd, sockopt::RcvBufForce, &RECEIVE_BUFFER);
        Ok(socket)
    }

    /// Makes the kernel reject requests that it does not understand in full, and apply more of
    /// their filters (since Linux 4.20).
    pub fn check_strictly(&self) -> Result<(), NetlinkError> {
        self.set_option(libc::NETLINK_GET_STRICT_CHK, 1)
    }

    /// Limits the wait for an answer, in whole microseconds; zero waits for ever. The kernel
    /// answers a request while it is sent, so for requests the limit matters only if something is
    /// wrong.
    pub fn set_timeout(&self, timeout: Duration) -> Result<(), NetlinkError> {
        let timeout = TimeVal::new(timeout.as_secs() as i64, i64::from(timeout.subsec_micros()));
        setsockopt(&self.fd, sockopt::ReceiveTimeout, &timeout)
            .map_err(NetlinkError::io("set a time-out"))
    }

    /// The portid by which notifications identify the socket that caused them.
    pub fn portid(&self) -> u32 {
        self.portid
    }

    /// Reserves numbers for `count` messages; returns the first.
    pub fn sequences(&mut self, count: u32) -> u32 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(count);
        first
    }

    /// Sends a datagram of messages, however large.
    pub fn send(&self, bytes: &[u8]) -> Result<(), NetlinkError> {
        self.make_room(bytes.len());
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.fd.as_raw_fd(), bytes, &kernel, MsgFlags::empty())
            .map(drop)
            .map_err(NetlinkError::io("send a request"))
    }

    /// Sends a datagram of messages that is in at most 1,024 pieces (`UIO_MAXIOV`).
    pub fn send_pieces(&self, pieces: &[Vec<u8>]) -> Result<(), NetlinkError> {
        if let [bytes] = pieces {
            return self.send(bytes);
        }
        self.make_room(pieces.iter().map(Vec::len).sum());
        let pieces: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        // A netlink socket without a peer writes to the kernel.
        writev(&self.fd, &pieces).map(drop).map_err(NetlinkError::io("send a request"))
    }

    /// The kernel copies a datagram into one buffer, and charges the sender twice its size.
    fn make_room(&self, bytes: usize) {
        let _ = setsockopt(&self.fd, sockopt::SndBufForce, &(bytes * 2).max(1 << 20));
    }

    /// Receives pending messages, and passes each to `each`; false if there were none.
    ///
    /// # Errors
    ///
    /// [`NetlinkError::Overflow`] when answers were lost, else [`NetlinkError::Io`].
    pub fn receive(
        &mut self,
        wait: bool,
        mut each: impl FnMut(Message<'_>),
    ) -> Result<bool, NetlinkError> {
        let flags = if wait { MsgFlags::empty() } else { MsgFlags::MSG_DONTWAIT };
        let mut pieces = [IoSliceMut::new(&mut self.buffer)];
        let length = loop {
            match recvmsg::<NetlinkAddr>(self.fd.as_raw_fd(), &mut pieces, None, flags) {
                Ok(received) => break received.bytes,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(false),
                Err(Errno::ENOBUFS) => return Err(NetlinkError::Overflow),
                Err(errno) => return Err(NetlinkError::io("receive an answer")(errno)),
            }
        };
        parse_messages(&self.buffer[..length]).for_each(&mut each);
        Ok(true)
    }

    /// Sends a dump request (numbered `sequence`) and passes each answer to `each`.
    ///
    /// # Errors
    ///
    /// [`NetlinkError::Interrupted`] if the tables changed meanwhile, [`NetlinkError::Refused`] if
    /// the kernel ends the dump with an error. The answers so far are useless then.
    pub fn dump(
        &mut self,
        request: &[u8],
        sequence: u32,
        mut each: impl FnMut(Message<'_>),
    ) -> Result<(), NetlinkError> {
        self.send(request)?;
        let mut end = None;
        let mut torn = false;
        while end.is_none() {
            let received = self.receive(true, |message| {
                if message.sequence != sequence || end.is_some() {
                    return;
                }
                torn |= message.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                match i32::from(message.kind) {
                    libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                        end = Some(answer(&message).map_err(NetlinkError::Refused))
                    }
                    _ => each(message),
                }
            })?;
            if !received {
                return Err(NetlinkError::Unacknowledged);
            }
        }
        if torn {
            return Err(NetlinkError::Interrupted);
        }
        end.unwrap_or(Ok(()))
    }

    /// Sends a request (numbered `sequence`) that one message answers, and passes that to `read`.
    ///
    /// # Errors
    ///
    /// [`NetlinkError::Refused`] if the kernel rejects it.
    pub fn ask<T>(
        &mut self,
        request: &[u8],
        sequence: u32,
        mut read: impl FnMut(Message<'_>) -> T,
    ) -> Result<T, NetlinkError> {
        self.send(request)?;
        let mut answered = None;
        while answered.is_none() {
            let received = self.receive(true, |message| {
                if message.sequence != sequence || answered.is_some() {
                    return;
                }
                answered = Some(match i32::from(message.kind) {
                    libc::NLMSG_ERROR => Err(match answer(&message) {
                        Err(refusal) => NetlinkError::Refused(refusal),
                        Ok(()) => NetlinkError::Unacknowledged,
                    }),
                    _ => Ok(read(message)),
                });
            })?;
            if !received {
                break;
            }
        }
        answered.unwrap_or(Err(NetlinkError::Unacknowledged))
    }

    /// Sends requests, of which each is answered by one message, and passes each answer to `each`,
    /// with the number of its request. The kernel answers before the send returns.
    ///
    /// # Errors
    /// [`NetlinkError::Overflow`] if answers were lost, else [`NetlinkError::Io`].
    pub fn ask_all(
        &mut self,
        requests: &[u8],
        mut each: impl FnMut(u32, Result<Message<'_>, KernelRejection>),
    ) -> Result<(), NetlinkError> {
        self.send(requests)?;
        while self.receive(false, |message| {
            let answer = match i32::from(message.kind) {
                libc::NLMSG_ERROR => answer(&message).map(|()| message),
                _ => Ok(message),
            };
            each(message.sequence, answer);
        })? {}
        Ok(())
    }

    /// Reads the result of a batch that was just sent. Its last message, numbered `last`, asked for
    /// an acknowledgement. The kernel answers before the send returns.
    ///
    /// # Errors
    ///
    /// [`NetlinkError::Refused`] with the first rejection; then the batch has changed nothing.
    pub fn outcome(&mut self, last: u32) -> Result<(), NetlinkError> {
        let mut refused = None;
        let mut acknowledged = false;
        self.answers(|sequence, answer| match answer {
            Err(refusal) if refused.is_none() => refused = Some(refusal),
            Ok(()) if sequence == last => acknowledged = true,
            Ok(()) | Err(_) => {}
        })?;
        match (refused, acknowledged) {
            (Some(refusal), _) => Err(NetlinkError::Refused(refusal)),
            (None, true) => Ok(()),
            (None, false) => Err(NetlinkError::Unacknowledged),
        }
    }

    /// Reads the results of requests that were just sent in one datagram but are not a batch: each
    /// is done or rejected by itself. The last, numbered `last`, asked for an acknowledgement.
    ///
    /// # Errors
    ///
    /// [`NetlinkError::Unacknowledged`] if the kernel did not get to the last one.
    pub fn refusals(&mut self, last: u32) -> Result<Vec<KernelRejection>, NetlinkError> {
        let mut refusals = Vec::new();
        let mut answered = false;
        self.answers(|sequence, answer| {
            answered |= sequence == last;
            refusals.extend(answer.err());
        })?;
        if answered { Ok(refusals) } else { Err(NetlinkError::Unacknowledged) }
    }

    /// Passes the kernel's answers so far to `each`, with the number of the request.
    fn answers(
        &mut self,
        mut each: impl FnMut(u32, Result<(), KernelRejection>),
    ) -> Result<(), NetlinkError> {
        while self.receive(false, |message| {
            if i32::from(message.kind) == libc::NLMSG_ERROR {
                each(message.sequence, answer(&message));
            }
        })? {}
        Ok(())
    }

    fn set_option(&self, option: libc::c_int, value: libc::c_int) -> Result<(), NetlinkError> {
        // SAFETY: the pointer and the length describe `value`, which outlives the call.
        #[expect(unsafe_code, reason = "nix has no netlink socket options")]
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_NETLINK,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        Errno::result(result).map(drop).map_err(NetlinkError::io("set a socket option"))
    }

    /// Receives the notifications of a multicast group (`enum nfnetlink_groups`, `enum
    /// rtnetlink_groups`) from now on.
    pub fn join(&self, group: libc::c_int) -> Result<(), NetlinkError> {
        self.set_option(libc::NETLINK_ADD_MEMBERSHIP, group)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}

/// The result in an NLMSG_ERROR message (an acknowledgement or a rejection), or in the NLMSG_DONE
/// message that ends a dump.
fn answer(message: &Message<'_>) -> Result<(), KernelRejection> {
    const NLMSGERR_ATTR_MSG: u16 = 1;
    const CODE: usize = 4;
    let code =
        message.payload.get(..CODE).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
    if code == 0 {
        return Ok(());
    }
    // With NETLINK_CAP_ACK, an error contains the original header without its payload; then the
    // attributes follow.
    let header = if i32::from(message.kind) == libc::NLMSG_ERROR { 16 } else { 0 };
    let attributes = Attributes::new(message.payload.get(CODE + header..).unwrap_or_default());
    Err(KernelRejection {
        sequence: message.sequence,
        errno: Errno::from_raw(-code),
        message: attributes.find_str(NLMSGERR_ATTR_MSG).map(str::to_owned),
    })
}
