//! The packet that is asked about, as a person writes it.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use super::name::{NamedEnd, addresses_of, is_name};
use super::named_protocol::NamedProtocol;
use super::packet_error::PacketError;
use super::packet_target::{PacketEnd, PacketTarget};
use crate::Plan;
use denizen_model::{Family, Protocol, family_of};

/// The first packet of a connection, or a ping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstPacket {
    pub source: IpAddr,
    /// Its source port, if it is given. Only the choice of an endpoint may depend on it.
    pub source_port: Option<NonZeroU16>,
    /// The interface that it comes in through; `None` if it is not given.
    pub interface: Option<String>,
    pub destination: IpAddr,
    /// Its protocol, and destination port if the protocol has ports.
    pub transport: PacketTarget,
}

impl FirstPacket {
    /// From `ADDR[:PORT][@INTERFACE]` and `ADDR:PORT[/PROTO]`, TCP where no protocol is named; or
    /// `ADDR/icmp` or `ADDR/icmpv6` for a ping.
    pub fn parse(from: &str, to: &str) -> Result<Self, PacketError> {
        let bad_from = || PacketError::From(from.to_owned());
        let (address, interface) = match from.split_once('@') {
            Some((_, "")) => return Err(bad_from()),
            Some((address, interface)) => (address, Some(interface.to_owned())),
            None => (from, None),
        };
        let (source, source_port) = Self::parse_source(address).ok_or_else(bad_from)?;
        let (destination, transport) = Self::parse_end(to)?;
        if family_of(source) != family_of(destination) {
            return Err(PacketError::Families(source, destination));
        }
        Ok(Self { source, source_port, interface, destination, transport })
    }

    /// As [`FirstPacket::parse`]. `from` may also be a pod of this node,
    /// `NAMESPACE/POD[@INTERFACE]`, and `to` a service or such a pod,
    /// `NAMESPACE/NAME[:PORT][/PROTO]`; a service's port by name or number; a ping has none. If the
    /// names stand for several addresses, the first pair of one family is taken.
    pub fn resolve(plan: &Plan, from: &str, to: &str) -> Result<Self, PacketError> {
        let (sender, interface) = match from.split_once('@') {
            Some((sender, interface)) => (sender, Some(interface)),
            None => (from, None),
        };
        let named_sender = is_name(sender);
        let destination = NamedEnd::parse(to);
        if !named_sender && destination.is_none() {
            return Self::parse(from, to);
        }
        let mut source_port = None;
        let sources = match named_sender {
            true => addresses_of(plan, sender).ok_or_else(|| PacketError::NoPod(sender.into()))?,
            false => {
                let sender = Self::parse_source(sender);
                let (source, port) = sender.ok_or_else(|| PacketError::From(from.to_owned()))?;
                source_port = port;
                vec![source]
            }
        };
        let ends = match destination {
            Some(named) => named.ends(plan).map_err(|error| error.of(to))?,
            None => vec![Self::parse_end(to)?],
        };
        let pairs = ends.iter().flat_map(|end| sources.iter().map(move |source| (*source, *end)));
        let same = |(source, end): &(IpAddr, PacketEnd)| family_of(*source) == family_of(end.0);
        match pairs.clone().find(same).ok_or_else(|| pairs.clone().next()) {
            Ok((source, (destination, transport))) => {
                let interface = interface.map(str::to_owned);
                Ok(Self { source, source_port, interface, destination, transport })
            }
            Err(Some((source, end))) => Err(PacketError::Families(source, end.0)),
            Err(None) => Err(PacketError::NoDestination(to.to_owned())),
        }
    }

    /// As [`FirstPacket::parse`] takes it: the source, and the interface if one is named.
    pub fn source_text(&self) -> String {
        let source = match self.source_port {
            Some(port) => SocketAddr::new(self.source, port.get()).to_string(),
            None => self.source.to_string(),
        };
        match &self.interface {
            Some(interface) => format!("{source}@{interface}"),
            None => source,
        }
    }

    /// The source of [`Self::parse`], without the interface.
    pub(super) fn parse_source(text: &str) -> Option<(IpAddr, Option<NonZeroU16>)> {
        let alone = || text.parse().ok().map(|ip: IpAddr| (ip.to_canonical(), None));
        let with_port = || {
            let end: SocketAddr = text.parse().ok()?;
            Some((end.ip().to_canonical(), Some(NonZeroU16::new(end.port())?)))
        };
        alone().or_else(with_port)
    }

    /// The destination of [`Self::parse`].
    pub(super) fn parse_end(to: &str) -> Result<PacketEnd, PacketError> {
        let (end, kind) = match to.rsplit_once('/') {
            Some((end, kind)) => (end, NamedProtocol::parse(kind)),
            None => (to, Some(NamedProtocol::Ports(Protocol::Tcp))),
        };
        kind.and_then(|kind| kind.end(end)).ok_or_else(|| PacketError::To(to.to_owned()))
    }

    /// Address, port and protocol, as [`Self::parse`] takes them.
    pub fn destination_text(&self) -> String {
        let destination = self.destination;
        match (self.transport, family_of(destination)) {
            (PacketTarget::Port(protocol, port), _) => {
                format!("{}/{protocol}", SocketAddr::new(destination, port.get()))
            }
            (PacketTarget::Echo, Family::V4) => format!("{destination}/icmp"),
            (PacketTarget::Echo, Family::V6) => format!("{destination}/icmpv6"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_or_named() {
        let port = |protocol, port| PacketTarget::Port(protocol, NonZeroU16::new(port).unwrap());
        let bad_to = |to: &str| Err(PacketError::To(to.into()));
        let bad_from = |from: &str| Err(PacketError::From(from.into()));
        let cases = [
            ("an address alone", "10.0.0.1", "10.96.0.1:443", Ok((None, port(Protocol::Tcp, 443)))),
            (
                "an interface",
                "10.0.0.1@cni0",
                "10.96.0.1:53/udp",
                Ok((Some("cni0"), port(Protocol::Udp, 53))),
            ),
            (
                "IPv6",
                "fd00::1@veth1",
                "[fd00::2]:80/SCTP",
                Ok((Some("veth1"), port(Protocol::Sctp, 80))),
            ),
            ("a ping", "10.0.0.1", "10.96.0.1/icmp", Ok((None, PacketTarget::Echo))),
            ("IPv6's", "fd00::1@veth1", "fd00::2/ICMPv6", Ok((Some("veth1"), PacketTarget::Echo))),
            ("a ping to a port", "10.0.0.1", "10.0.0.2:80/icmp", bad_to("10.0.0.2:80/icmp")),
            ("the other family's", "fd00::1", "fd00::2/icmp", bad_to("fd00::2/icmp")),
            ("no port", "10.0.0.1", "10.96.0.1", bad_to("10.96.0.1")),
            ("port 0", "10.0.0.1", "10.96.0.1:0", bad_to("10.96.0.1:0")),
            ("no such protocol", "10.0.0.1", "10.96.0.1:1/x", bad_to("10.96.0.1:1/x")),
            (
                "a source port",
                "10.0.0.1:4000",
                "10.96.0.1:443",
                Ok((None, port(Protocol::Tcp, 443))),
            ),
            (
                "IPv6's",
                "[fd00::1]:4000@veth1",
                "[fd00::2]:80",
                Ok((Some("veth1"), port(Protocol::Tcp, 80))),
            ),
            ("source port 0", "10.0.0.1:0", "10.96.0.1:1", bad_from("10.0.0.1:0")),
            ("empty interface", "10.0.0.1@", "10.96.0.1:1", bad_from("10.0.0.1@")),
            ("a name", "web", "10.96.0.1:1", bad_from("web")),
        ];
        for (name, from, to, expected) in cases {
            let read = FirstPacket::parse(from, to).map(|p| (p.interface, p.transport));
            let source = FirstPacket::parse(from, to).ok().and_then(|packet| packet.source_port);
            assert_eq!(source.is_some(), read.is_ok() && from.contains(":4000"), "{name}");
            assert_eq!(read, expected.map(|(i, p)| (i.map(str::to_owned), p)), "{name}");
        }
        let families =
            |to| matches!(FirstPacket::parse("10.0.0.1", to), Err(PacketError::Families(..)));
        assert!(families("[fd00::1]:1") && families("fd00::1/icmpv6"));
        assert_eq!(
            FirstPacket::parse("::ffff:10.0.0.1", "[::ffff:10.96.0.1]:80"),
            FirstPacket::parse("10.0.0.1", "10.96.0.1:80"),
            "packets have no IPv4-mapped addresses"
        );
    }
}
