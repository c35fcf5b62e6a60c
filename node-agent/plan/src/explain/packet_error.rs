//! Questions about packets that have no answer.

use std::net::IpAddr;

use thiserror::Error;

/// What is wrong with the question.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PacketError {
    /// `--from` is not `ADDR[:PORT][@INTERFACE]`.
    #[error(
        "--from {0:?}: expected an address, perhaps with a port, or a pod of this node, and \
         perhaps an interface: 10.1.2.3@cni0, 10.1.2.3:40000, default/web-0"
    )]
    From(String),
    /// `--to` is neither `ADDR:PORT[/PROTO]` nor `ADDR/icmp` or `ADDR/icmpv6`.
    #[error(
        "--to {0:?}: expected an address and a port, and perhaps a protocol, or a service, or what \
         is pinged: 10.96.0.1:443/tcp, [fd00::1]:53/udp, default/web:http, 10.1.2.3/icmp, \
         fd00::1/icmpv6"
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
    /// Source and destination are of different families.
    #[error("{0} cannot send to {1}: one is IPv4, the other IPv6")]
    Families(IpAddr, IpAddr),
}
