//! A packet, as rules see it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, bail};

use super::hooks::Arrival;
use super::syntax::Field;
use super::value::{Atom, Key, PacketType};

/// Foreign bits of the mark that no rule of ours may touch.
pub const FOREIGN_MARK: u32 = 0x0001_2030;

/// Foreign bits of a connection's mark: all but the one that the pod firewall asks about.
pub const FOREIGN_CONNECTION_MARK: u32 = !0x20;

/// A packet as rules see it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadPacket {
    /// Who sends it.
    pub source: IpAddr,
    /// Whom it is for.
    pub destination: IpAddr,
    /// Bytes 2 and 3 of the transport header: of TCP, UDP and SCTP the destination port.
    pub port: u16,
    /// IANA's number.
    pub protocol: u8,
    /// The type of an ICMPv6 message.
    pub icmpv6_type: Option<u8>,
    /// IPv6's hop limit.
    pub hop_limit: u8,
    /// The Ethernet address that its frame comes from, where that is known.
    pub ether: Option<[u8; 6]>,
    /// Of a connection that passed before; else it is a first packet.
    pub established: bool,
    /// Where it comes in: empty for what the node itself sends.
    pub interface: String,
    /// Where it leaves, where that is known.
    pub output: Option<String>,
    /// Whom its frame is addressed to, where that is known.
    pub packet_type: Option<PacketType>,
    /// `meta mark`.
    pub mark: u32,
    /// `ct mark`.
    pub connection_mark: u32,
    /// `meta priority`.
    pub priority: u32,
    /// The destination was replaced.
    pub translated: bool,
    /// The source will be.
    pub masqueraded: bool,
    /// What the dynamic maps hold: map and key.
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

    /// With another mark or priority.
    pub fn with(&self, field: Field, number: u32) -> Result<Self> {
        let mut packet = self.clone();
        let set = [(Field::Mark, &mut packet.mark), (Field::Priority, &mut packet.priority)];
        let (_, place) =
            set.into_iter().find(|(of, _)| *of == field).context("a field that can be set")?;
        *place = number;
        Ok(packet)
    }

    /// With its destination translated.
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
