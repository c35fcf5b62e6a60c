//! A packet, as rules see it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, bail};

use super::hooks::Arrival;
use super::syntax::Field;
use super::value::{Atom, Key, PacketType};

/// Foreign bits of the mark that no rule of ours may touch.
pub const FOREIGN_MARK: u32 = 0x0001_2030;

/// Foreign bits of the connection mark: all but the one that the pod firewall matches on.
pub const FOREIGN_CONNECTION_MARK: u32 = !0x20;

/// A packet as rules see it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadPacket {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// Bytes 2 and 3 of the transport header: of TCP, UDP and SCTP the destination port.
    pub port: u16,
    /// IANA's protocol number.
    pub protocol: u8,
    /// The type of an ICMPv6 message.
    pub icmpv6_type: Option<u8>,
    /// IPv6's hop limit.
    pub hop_limit: u8,
    /// The source MAC address of its frame, if known.
    pub ether: Option<[u8; 6]>,
    /// Whether it belongs to an established connection; otherwise it is a first packet.
    pub established: bool,
    /// The interface that it comes in through; empty for what the node itself sends.
    pub interface: String,
    /// The interface that it leaves through, if known.
    pub output: Option<String>,
    /// Whom its frame is addressed to, if known.
    pub packet_type: Option<PacketType>,
    /// `meta mark`.
    pub mark: u32,
    /// `ct mark`.
    pub connection_mark: u32,
    /// `meta priority`.
    pub priority: u32,
    /// Whether the destination was replaced.
    pub translated: bool,
    /// Whether the source will be replaced.
    pub masqueraded: bool,
    /// The content of the dynamic maps, by map and key.
    pub memory: BTreeMap<(String, Key), Key>,
}

impl From<&Arrival> for ReadPacket {
    fn from(arrival: &Arrival) -> Self {
        let interface = arrival.interface.clone().unwrap_or_default();
        let packet = Self::new(arrival.source, arrival.destination, arrival.protocol);
        Self { interface, ..packet }
    }
}

impl ReadPacket {
    /// The first packet of a connection.
    pub fn new(source: IpAddr, destination: SocketAddr, protocol: u8) -> Self {
        Self {
            source,
            destination: destination.ip(),
            port: destination.port(),
            protocol,
            icmpv6_type: None,
            hop_limit: 64,
            ether: None,
            established: false,
            interface: String::new(),
            output: None,
            packet_type: None,
            mark: FOREIGN_MARK,
            connection_mark: FOREIGN_CONNECTION_MARK,
            priority: 0,
            translated: false,
            masqueraded: false,
            memory: BTreeMap::new(),
        }
    }

    /// The same packet with another mark or priority.
    pub fn with(&self, field: Field, number: u32) -> Result<Self> {
        let mut packet = self.clone();
        let set = [(Field::Mark, &mut packet.mark), (Field::Priority, &mut packet.priority)];
        let (_, place) =
            set.into_iter().find(|(of, _)| *of == field).context("a field that can be set")?;
        *place = number;
        Ok(packet)
    }

    /// The same packet with its destination translated.
    pub fn sent_to(&self, to: &[Atom]) -> Result<Self> {
        let [address, port] = to else { bail!("{to:?} is no address and port") };
        let destination = match self.destination {
            IpAddr::V4(_) => Ipv4Addr::from(u32::try_from(address.number()?)?).into(),
            IpAddr::V6(_) => Ipv6Addr::from(address.number()?).into(),
        };
        let port = u16::try_from(port.number()?)?;
        Ok(Self { destination, port, translated: true, ..self.clone() })
    }
}
