//! The packet that is asked about, as a person writes it.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use thiserror::Error;

use crate::model::{Protocol, family_of};

/// The first packet of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its source.
    pub source: IpAddr,
    /// The interface that it comes in through; `None` when that is not said.
    pub interface: Option<String>,
    /// Its destination.
    pub destination: IpAddr,
    /// Its destination port.
    pub port: NonZeroU16,
    /// Its protocol.
    pub protocol: Protocol,
}

/// What is wrong with the words.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PacketError {
    /// `--from` is not `ADDR[@INTERFACE]`.
    #[error(
        "--from {0:?}: expected an address, or a pod of this node, and perhaps an interface: 10.1.2.3@cni0, default/web-0"
    )]
    From(String),
    /// `--to` is not `ADDR:PORT[/PROTO]`.
    #[error(
        "--to {0:?}: expected an address and a port, and perhaps a protocol, or a service: 10.96.0.1:443/tcp, [fd00::1]:53/udp, default/web:http"
    )]
    To(String),
    /// No pod of this node has the name.
    #[error("no pod of this node is called {0}")]
    NoPod(String),
    /// No service or pod of this node has the name, or not this port.
    #[error("--to {0:?}: no service has this name and port, and no pod of this node this name")]
    NoDestination(String),
    /// A service has several ports.
    #[error("--to {0:?}: name one of the service's ports: {1}")]
    WhichPort(String, String),
    /// The two are of different families.
    #[error("{0} cannot send to {1}: one is IPv4, the other IPv6")]
    Families(IpAddr, IpAddr),
}

impl Packet {
    /// From `ADDR[@INTERFACE]` and `ADDR:PORT[/PROTO]`; TCP where no protocol is named.
    ///
    /// # Errors
    /// [`PacketError`].
    pub fn parse(from: &str, to: &str) -> Result<Self, PacketError> {
        let bad_from = || PacketError::From(from.to_owned());
        let bad_to = || PacketError::To(to.to_owned());
        let (address, interface) = match from.split_once('@') {
            Some((_, "")) => return Err(bad_from()),
            Some((address, interface)) => (address, Some(interface.to_owned())),
            None => (from, None),
        };
        let source: IpAddr = address.parse().map_err(|_| bad_from())?;
        let source = source.to_canonical();
        let (address, protocol) = match to.rsplit_once('/') {
            Some((address, protocol)) => (address, Protocol::parse(protocol).ok_or_else(bad_to)?),
            None => (to, Protocol::Tcp),
        };
        let to: SocketAddr = address.parse().map_err(|_| bad_to())?;
        let port = NonZeroU16::new(to.port()).ok_or_else(bad_to)?;
        let destination = to.ip().to_canonical();
        if family_of(source) != family_of(destination) {
            return Err(PacketError::Families(source, destination));
        }
        Ok(Self { source, interface, destination, port, protocol })
    }

    /// Address, port and protocol.
    pub fn destination_text(&self) -> String {
        format!("{}/{}", SocketAddr::new(self.destination, self.port.get()), self.protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_or_named() {
        let cases = [
            ("an address alone", "10.0.0.1", "10.96.0.1:443", Ok((None, Protocol::Tcp))),
            (
                "an interface",
                "10.0.0.1@cni0",
                "10.96.0.1:53/udp",
                Ok((Some("cni0"), Protocol::Udp)),
            ),
            ("IPv6", "fd00::1@veth1", "[fd00::2]:80/SCTP", Ok((Some("veth1"), Protocol::Sctp))),
            ("no port", "10.0.0.1", "10.96.0.1", Err(PacketError::To("10.96.0.1".into()))),
            ("port 0", "10.0.0.1", "10.96.0.1:0", Err(PacketError::To("10.96.0.1:0".into()))),
            (
                "no such protocol",
                "10.0.0.1",
                "10.96.0.1:1/x",
                Err(PacketError::To("10.96.0.1:1/x".into())),
            ),
            (
                "empty interface",
                "10.0.0.1@",
                "10.96.0.1:1",
                Err(PacketError::From("10.0.0.1@".into())),
            ),
            ("a name", "web", "10.96.0.1:1", Err(PacketError::From("web".into()))),
        ];
        for (name, from, to, expected) in cases {
            let read = Packet::parse(from, to).map(|p| (p.interface, p.protocol));
            assert_eq!(read, expected.map(|(i, p)| (i.map(str::to_owned), p)), "{name}");
        }
        assert!(matches!(Packet::parse("10.0.0.1", "[fd00::1]:1"), Err(PacketError::Families(..))));
        assert_eq!(
            Packet::parse("::ffff:10.0.0.1", "[::ffff:10.96.0.1]:80"),
            Packet::parse("10.0.0.1", "10.96.0.1:80"),
            "packets have no IPv4-mapped addresses"
        );
    }
}
