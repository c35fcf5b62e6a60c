//! Connections both of whose ends send all the time.

use std::io::Read;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use denizen_tests::node::netns::Netns;
use socket2::{Domain, Protocol, Socket, Type};

use super::test_cluster::TIMEOUT;

/// Conversations have numbers from here on. With ports, it is the server's port, which nobody else
/// uses.
pub const PORT: u16 = 9000;
/// The IP protocol of the conversation with the first number: this one and many after it belong to
/// nobody.
const UNASSIGNED: u16 = 150;

/// What carries a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarriedBy {
    Tcp,
    Udp,
    /// Echo requests and their answers, with the number as id. The server's kernel answers too.
    Ping,
    /// An IP protocol for each, of which conntrack knows nothing.
    Other,
}

impl CarriedBy {
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Ping, Self::Other];

    fn socket(self, own: SocketAddr, number: u16) -> Result<Socket> {
        let domain = Domain::for_address(own);
        let (kind, protocol) = match self {
            Self::Tcp => (Type::STREAM, None),
            Self::Udp => (Type::DGRAM, None),
            Self::Ping if own.is_ipv4() => (Type::RAW, Some(Protocol::ICMPV4)),
            Self::Ping => (Type::RAW, Some(Protocol::ICMPV6)),
            Self::Other => {
                let protocol = i32::from(UNASSIGNED + number - PORT);
                (Type::RAW, Some(Protocol::from(protocol)))
            }
        };
        let socket = Socket::new(domain, kind, protocol)?;
        socket.set_reuse_address(true)?;
        socket.bind(&own.into())?;
        Ok(socket)
    }

    /// What the client, and what the server sends.
    fn messages(self, is_ipv4: bool, number: u16) -> [Vec<u8>; 2] {
        match self {
            Self::Tcp | Self::Udp | Self::Other => [b"!".into(), b"!".into()],
            Self::Ping if is_ipv4 => [8, 0].map(|kind| echo(kind, number)),
            Self::Ping => [128, 129].map(|kind| echo(kind, number)),
        }
    }

    /// What both messages end with. A raw socket is given what other conversations of the same
    /// hosts send, too.
    fn ending(self, number: u16) -> Vec<u8> {
        match self {
            Self::Tcp | Self::Udp | Self::Other => b"!".into(),
            Self::Ping => echo(0, number).split_off(4),
        }
    }
}

/// A message of ICMP with a checksum. In ICMPv6 the kernel replaces that.
fn echo(kind: u8, id: u16) -> Vec<u8> {
    let sum = u32::from(kind) * 256 + u32::from(id);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    let words = [u16::from(kind) * 256, checksum, id, 0];
    words.into_iter().flat_map(u16::to_be_bytes).collect()
}

pub struct Conversation {
    pub name: String,
    /// The client's, the server's.
    ends: [Socket; 2],
    messages: [Vec<u8>; 2],
    ending: Vec<u8>,
    /// How often each has heard the other.
    heard: [AtomicUsize; 2],
}

impl Conversation {
    /// The port of `to` is its number.
    pub fn open(
        kind: CarriedBy,
        (from, client): (&Netns, IpAddr),
        (at, server): (&Netns, SocketAddr),
        to: SocketAddr,
    ) -> Result<Self> {
        let name = format!("{kind:?} from {client} to {to}");
        let socket = |netns: &Netns, own: SocketAddr| -> Result<Socket> {
            netns.run(|| kind.socket(own, to.port()))?
        };
        let listener = socket(at, server)?;
        let client = socket(from, SocketAddr::new(client, 0))?;
        let server = match kind {
            CarriedBy::Tcp => {
                listener.listen(1)?;
                client.connect(&to.into())?;
                listener.accept()?.0
            }
            CarriedBy::Udp => {
                client.connect(&to.into())?;
                client.send(b"?")?;
                listener.set_read_timeout(Some(TIMEOUT))?;
                let (_, peer) = listener.peek_from(&mut [MaybeUninit::uninit()])?;
                listener.connect(&peer)?;
                listener
            }
            CarriedBy::Ping | CarriedBy::Other => {
                let own = client.local_addr()?;
                client.connect(&to.into())?;
                listener.connect(&own)?;
                listener
            }
        };
        let ends = [client, server];
        ends.iter().try_for_each(|end| end.set_nonblocking(true))?;
        let messages = kind.messages(to.is_ipv4(), to.port());
        Ok(Self { name, ends, messages, ending: kind.ending(to.port()), heard: Default::default() })
    }

    /// Each end sends, and takes what has come.
    pub fn talk(&self) {
        for ((mut end, message), heard) in self.ends.iter().zip(&self.messages).zip(&self.heard) {
            let _ = end.send(message);
            let mut bytes = [0; 512];
            while let Ok(length) = end.read(&mut bytes)
                && length > 0
            {
                let is_its = bytes[..length].ends_with(&self.ending);
                heard.fetch_add(usize::from(is_its), Ordering::Relaxed);
            }
        }
    }

    pub fn heard(&self) -> [usize; 2] {
        self.heard.each_ref().map(|heard| heard.load(Ordering::Relaxed))
    }
}
