//! Arbitrary frames, as a pod with `CAP_NET_RAW` can send them; and whether such a frame arrives
//! somewhere.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::Value;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

pub use crate::node::links::Mac;
use crate::node::netns::Netns;

/// EtherTypes.
pub const IPV4: u16 = 0x0800;
pub const IPV6: u16 = 0x86dd;
pub const ARP: u16 = 0x0806;
/// IEEE 802.1Q's and 802.1ad's tags.
pub const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// IP protocols.
pub const ICMP: u8 = 1;
/// TCP's.
pub const TCP: u8 = 6;
/// UDP's.
pub const UDP: u8 = 17;
/// ICMPv6's.
pub const ICMPV6: u8 = 58;

/// All stations.
pub const BROADCAST: Mac = [0xff; 6];

/// Frames that are under way arrive within this time.
const DRAINING: Duration = Duration::from_millis(100);

/// The least that a socket's timeout can be: zero means forever.
const NO_WAIT: Duration = Duration::from_millis(1);

/// In bytes: enough for some thousand frames at once.
const RECEIVE_BUFFER: usize = 16 << 20;

/// Of linux/if_packet.h.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// A socket that sends and receives whole frames on one interface of a network namespace.
#[derive(Debug)]
pub struct FrameSocket(Socket);

impl FrameSocket {
    /// On this interface of `netns`.
    ///
    /// # Errors
    /// There is no such interface, or the process is not root.
    pub fn open(netns: &Netns, interface: &str) -> Result<Self> {
        netns.run(|| {
            let all = (libc::ETH_P_ALL as u16).to_be();
            let socket =
                Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(i32::from(all))))?;
            let index = if_nametoindex(interface).with_context(|| interface.to_owned())?;
            // SAFETY: a `sockaddr_ll` fits into the storage, which is as aligned as any address.
            let (_, address) = unsafe {
                SockAddr::try_init(|storage, length| {
                    let address = storage.cast::<libc::sockaddr_ll>();
                    (*address).sll_family = libc::AF_PACKET as u16;
                    (*address).sll_protocol = all;
                    (*address).sll_ifindex = index as i32;
                    *length = size_of::<libc::sockaddr_ll>() as u32;
                    Ok(())
                })
            }?;
            socket.bind(&address)?;
            setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)?;
            // Only frames that arrive, not those that are sent.
            let on: libc::c_int = 1;
            // SAFETY: the option is a number, and lives as long as the call.
            let set = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_PACKET,
                    PACKET_IGNORE_OUTGOING,
                    (&raw const on).cast(),
                    size_of_val(&on) as u32,
                )
            };
            ensure!(set == 0, "PACKET_IGNORE_OUTGOING: {}", std::io::Error::last_os_error());
            Ok(Self(socket))
        })?
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.0.send(frame).map(drop).context("a frame")
    }

    /// Discards what has arrived until now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn drain(&self) -> Result<()> {
        self.heard(&["<nobody sends this>".to_owned()], DRAINING).map(drop)
    }

    /// Which of these texts arrive, in frames that another host sent; no frame contains two of
    /// them. Returns when no further text has arrived for this time, and everything that has
    /// arrived was read.
    ///
    /// # Errors
    /// The kernel's.
    pub fn heard(&self, texts: &[String], timeout: Duration) -> Result<BTreeSet<usize>> {
        let mut end = Instant::now() + timeout;
        let mut buffer = vec![0; 65_536];
        let mut missing: BTreeSet<usize> = (0..texts.len()).collect();
        while !missing.is_empty() {
            // On a busy machine this process itself may be late: still read what has arrived.
            let left = end.saturating_duration_since(Instant::now()).max(NO_WAIT);
            self.0.set_read_timeout(Some(left))?;
            let length = match (&self.0).read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            let has = |text: &[u8]| buffer[..length].windows(text.len()).any(|part| part == text);
            // The texts arrive in the order in which they were sent: mostly, it is the first
            // missing one.
            let found = missing.iter().copied().find(|number| has(texts[*number].as_bytes()));
            if let Some(number) = found {
                missing.remove(&number);
                end = Instant::now() + timeout;
            }
        }
        Ok((0..texts.len()).filter(|number| !missing.contains(number)).collect())
    }
}

/// The Ethernet address of an interface.
///
/// # Errors
/// There is no such interface.
pub fn mac_of(netns: &Netns, interface: &str) -> Result<Mac> {
    let shown = netns.output("ip", &["-j", "link", "show", interface])?;
    let shown: Value = serde_json::from_str(&shown)?;
    parse(shown[0]["address"].as_str().context("an address")?)
}

/// Reads an Ethernet address.
///
/// # Errors
/// It is not one.
pub fn parse(text: &str) -> Result<Mac> {
    let bytes: Result<Vec<u8>, _> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    bytes?.try_into().ok().context("six bytes")
}

/// The link-local address that Linux makes of an Ethernet address.
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let id = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(u64::from_be_bytes(id)))
}

/// The Ethernet address of a multicast group.
pub fn group(address: IpAddr) -> Mac {
    match address {
        IpAddr::V4(ip) => {
            let [_, b, c, d] = ip.octets();
            [0x01, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(ip) => {
            let last: [u8; 16] = ip.octets();
            [0x33, 0x33, last[12], last[13], last[14], last[15]]
        }
    }
}

/// A frame. `tags`: the EtherType and the VLAN of each tag.
pub fn frame(from: Mac, to: Mac, tags: &[(u16, u16)], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [to, from].concat();
    for (kind, vlan) in tags {
        frame.extend([kind.to_be_bytes(), vlan.to_be_bytes()].concat());
    }
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The EtherType of this address's IP version.
pub fn ether_type(address: IpAddr) -> u16 {
    if address.is_ipv4() { IPV4 } else { IPV6 }
}

/// An IP packet with this hop limit.
///
/// # Panics
/// The addresses are of two versions.
pub fn packet(from: IpAddr, to: IpAddr, protocol: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0x45, 0];
            header.extend((20 + payload.len() as u16).to_be_bytes());
            header.extend([0, 0, 0, 0, hop_limit, protocol, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            let sum = checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            [&header, payload].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = vec![0x60, 0, 0, 0];
            header.extend((payload.len() as u16).to_be_bytes());
            header.extend([protocol, hop_limit]);
            header.extend(from.octets());
            header.extend(to.octets());
            [&header, payload].concat()
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
            panic!("{from} and {to}")
        }
    }
}

/// A UDP datagram as an IP packet.
pub fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len() as u16;
    let mut datagram = Vec::new();
    for number in [from.port(), to.port(), length, 0] {
        datagram.extend(number.to_be_bytes());
    }
    datagram.extend(payload);
    let sum = transport_checksum(from.ip(), to.ip(), UDP, &datagram);
    // A checksum of zero means that there is none.
    datagram[6..8].copy_from_slice(&if sum == 0 { u16::MAX } else { sum }.to_be_bytes());
    packet(from.ip(), to.ip(), UDP, 64, &datagram)
}

/// A TCP segment without data.
pub fn tcp(from: SocketAddr, to: SocketAddr, flags: u8, sequence: u32, ack: u32) -> Vec<u8> {
    let mut segment = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    segment.extend([sequence.to_be_bytes(), ack.to_be_bytes()].concat());
    segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    let sum = transport_checksum(from.ip(), to.ip(), TCP, &segment).to_be_bytes();
    segment[16..18].copy_from_slice(&sum);
    packet(from.ip(), to.ip(), TCP, 64, &segment)
}

/// A message of ICMP or ICMPv6 as an IP packet. `body` is what follows the checksum.
pub fn icmp(from: IpAddr, to: IpAddr, hop_limit: u8, kind: u8, code: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(body);
    let (protocol, sum) = match from {
        IpAddr::V4(_) => (ICMP, checksum(&message)),
        IpAddr::V6(_) => (ICMPV6, transport_checksum(from, to, ICMPV6, &message)),
    };
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    packet(from, to, protocol, hop_limit, &message)
}

/// An unsolicited ARP reply: `address` is at `mac`.
pub fn arp(mac: Mac, address: [u8; 4], to: (Mac, [u8; 4])) -> Vec<u8> {
    const ANSWER: u16 = 2;
    let mut message = vec![0, 1, 8, 0, 6, 4];
    message.extend(ANSWER.to_be_bytes());
    message.extend(mac);
    message.extend(address);
    message.extend(to.0);
    message.extend(to.1);
    message
}

/// The checksum with the pseudo header (RFC 768, RFC 8200).
fn transport_checksum(from: IpAddr, to: IpAddr, protocol: u8, data: &[u8]) -> u16 {
    let mut whole = Vec::new();
    for address in [from, to] {
        match address {
            IpAddr::V4(ip) => whole.extend(ip.octets()),
            IpAddr::V6(ip) => whole.extend(ip.octets()),
        }
    }
    whole.extend((data.len() as u32).to_be_bytes());
    whole.extend([0, 0, 0, protocol]);
    whole.extend(data);
    checksum(&whole)
}

/// The checksum of RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let sum = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or_default()));
    let mut sum: u32 = sum.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
