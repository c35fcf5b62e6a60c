//! A blocking rtnetlink socket, as far as it takes to ask for links: requests out, attributes in.
//!
//! Every length in a reply is checked before it is used.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
};
use nix::sys::time::TimeVal;

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;

/// A kernel message is at most a page or two; a dump comes in pieces of at most 32 KiB.
const BUFFER: usize = 64 << 10;

/// How often a dump that was disturbed by a change is begun again.
const DUMP_TRIES: usize = 10;

/// The kernel answers while the request is sent. This bounds what should not happen.
const ANSWER_SECONDS: i64 = 2;

/// A socket in one network namespace.
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// The body of one message of a reply.
pub(crate) type Body = Vec<u8>;

impl Netlink {
    /// A socket in the network namespace that the calling thread is in now. It stays in it.
    pub(crate) fn open() -> io::Result<Netlink> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(ANSWER_SECONDS, 0))?;
        Ok(Netlink {
            socket,
            sequence: 0,
            buffer: vec![0; BUFFER],
        })
    }

    /// From now on the kernel refuses what it does not understand of a request, and understands more (Linux 4.20).
    pub(crate) fn check_strictly(&self) -> io::Result<()> {
        let on: libc::c_int = 1;
        // SAFETY: the pointer and the length describe `on`, which outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_NETLINK,
                libc::NETLINK_GET_STRICT_CHK,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        Errno::result(result).map(drop).map_err(io::Error::from)
    }

    /// Asks for one thing. `None` when the kernel knows no such thing.
    pub(crate) fn get(&mut self, kind: u16, body: &[u8]) -> io::Result<Option<Body>> {
        match self.ask(kind, 0, body) {
            Ok(answer) => Ok(answer.messages.into_iter().next()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks for all of a kind.
    pub(crate) fn dump(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<Body>> {
        for _ in 0..DUMP_TRIES {
            let answer = self.ask(kind, libc::NLM_F_DUMP as u16, body)?;
            if !answer.interrupted {
                return Ok(answer.messages);
            }
        }
        Err(io::Error::other(
            "the links change faster than they can be listed",
        ))
    }

    fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Answer> {
        self.sequence += 1;
        let mut request = Vec::with_capacity(HEADER + body.len());
        request.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        request.extend_from_slice(&kind.to_ne_bytes());
        request.extend_from_slice(&(libc::NLM_F_REQUEST as u16 | flags).to_ne_bytes());
        request.extend_from_slice(&self.sequence.to_ne_bytes());
        request.extend_from_slice(&[0; 4]);
        request.extend_from_slice(body);
        send(self.socket.as_raw_fd(), &request, MsgFlags::empty())?;

        let mut answer = Answer::default();
        while !answer.complete {
            // With MSG_TRUNC the kernel says the whole length, also where the buffer is shorter.
            let length = recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_TRUNC)?;
            let datagram = self.buffer.get(..length).ok_or_else(malformed)?;
            answer.take(datagram, self.sequence)?;
        }
        Ok(answer)
    }
}

/// What came back to one request so far.
#[derive(Debug, Default)]
struct Answer {
    messages: Vec<Body>,
    complete: bool,
    interrupted: bool,
}

impl Answer {
    /// Takes in one datagram: messages, each with a header, each padded to four bytes.
    fn take(&mut self, mut datagram: &[u8], sequence: u32) -> io::Result<()> {
        while !datagram.is_empty() && !self.complete {
            let length = u32_at(datagram, 0)? as usize;
            let message = datagram.get(..length).ok_or_else(malformed)?;
            let body = message.get(HEADER..).ok_or_else(malformed)?;
            if u32_at(message, 8)? == sequence {
                self.message(i32::from(u16_at(message, 4)?), u16_at(message, 6)?, body)?;
            }
            datagram = datagram.get(aligned(length)..).unwrap_or_default();
        }
        Ok(())
    }

    fn message(&mut self, kind: i32, flags: u16, body: &[u8]) -> io::Result<()> {
        let has = |flag: i32| flags & flag as u16 != 0;
        self.interrupted |= has(libc::NLM_F_DUMP_INTR);
        if kind == libc::NLMSG_ERROR {
            let errno = u32_at(body, 0)? as i32;
            self.complete = true;
            return if errno == 0 {
                Ok(())
            } else {
                Err(io::Error::from_raw_os_error(errno.wrapping_neg()))
            };
        }
        if kind == libc::NLMSG_DONE {
            self.complete = true;
        } else {
            self.messages.push(body.to_vec());
            self.complete = !has(libc::NLM_F_MULTI);
        }
        Ok(())
    }
}

/// The attributes of `bytes`, by type. Stops at the first whose length cannot be.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    // The two high bits are flags: nested, and in network byte order.
    const TYPE: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0).ok()?);
        let kind = u16_at(bytes, 2).ok()? & TYPE;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of type `kind`.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(found, _)| *found == kind)
        .map(|(_, value)| value)
}

/// Appends an attribute.
pub(crate) fn push(request: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = 4 + value.len();
    request.extend_from_slice(&(length as u16).to_ne_bytes());
    request.extend_from_slice(&kind.to_ne_bytes());
    request.extend_from_slice(value);
    request.resize(request.len() + aligned(length) - length, 0);
}

/// A number that the kernel sends as four bytes.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map(u32::from_ne_bytes).ok_or_else(malformed)
}

/// A number that the kernel sends as two bytes.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> io::Result<u16> {
    let two = bytes.get(at..at + 2).and_then(|two| two.try_into().ok());
    two.map(u16::from_ne_bytes).ok_or_else(malformed)
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

pub(crate) fn malformed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the kernel's answer is cut off or malformed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_as_they_were_pushed() {
        let mut bytes = Vec::new();
        push(&mut bytes, 3, b"eth0\0");
        push(&mut bytes, 0x8000 | 18, &[1, 2]);
        let all: Vec<_> = attributes(&bytes).collect();
        assert_eq!(all, [(3, b"eth0\0".as_slice()), (18, &[1, 2])]);
        assert_eq!(attribute(&bytes, 18), Some([1, 2].as_slice()));
        assert_eq!(attribute(&bytes, 19), None);
    }

    #[test]
    fn lengths_that_cannot_be_end_the_reading() {
        for bytes in [&[0_u8, 0, 1, 0][..], &[3, 0, 1, 0], &[200, 0, 1, 0, 9], &[4], &[]] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
        }
        for length in [0_u32, 15, 17, u32::MAX] {
            let mut message = [0; HEADER];
            message[..4].copy_from_slice(&length.to_ne_bytes());
            Answer::default().take(&message, 0).unwrap_err();
        }
    }
}
