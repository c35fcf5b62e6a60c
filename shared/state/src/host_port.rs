//! The host ports of a pod: which of the node's ports lead to which of the pod's ports, as the
//! runtime passed them at ADD.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One host port of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPort {
    /// The node's address at which the port is requested; `None`: at every address of
    /// [`Self::family`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// Without [`Self::ip`]: the family of the node's addresses; `None`: both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<HostPortFamily>,
    /// The transport protocol.
    pub protocol: HostPortProtocol,
    /// The port at the node's address.
    pub port: NonZeroU16,
    /// The port at the pod's address (`containerPort`).
    pub pod_port: NonZeroU16,
    /// Fields that a newer program wrote.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// A family of addresses, written as its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum HostPortFamily {
    /// The `hostIP` is `0.0.0.0`.
    Ipv4,
    /// The `hostIP` is `::`.
    Ipv6,
}

impl HostPortFamily {
    /// Whether `ip` is of this family.
    pub fn has(self, ip: IpAddr) -> bool {
        ip.is_ipv4() == (self == HostPortFamily::Ipv4)
    }
}

impl From<HostPortFamily> for u8 {
    fn from(family: HostPortFamily) -> u8 {
        match family {
            HostPortFamily::Ipv4 => 4,
            HostPortFamily::Ipv6 => 6,
        }
    }
}

impl TryFrom<u8> for HostPortFamily {
    type Error = String;

    fn try_from(number: u8) -> Result<HostPortFamily, String> {
        match number {
            4 => Ok(HostPortFamily::Ipv4),
            6 => Ok(HostPortFamily::Ipv6),
            _ => Err(format!("there is no IPv{number}")),
        }
    }
}

/// The protocol of a host port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostPortProtocol {
    /// TCP, the default.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl HostPortProtocol {
    /// The protocol called `name`, in any case.
    pub fn named(name: &str) -> Option<HostPortProtocol> {
        let all = [HostPortProtocol::Tcp, HostPortProtocol::Udp, HostPortProtocol::Sctp];
        all.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(name))
    }

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            HostPortProtocol::Tcp => "tcp",
            HostPortProtocol::Udp => "udp",
            HostPortProtocol::Sctp => "sctp",
        }
    }
}

impl fmt::Display for HostPort {
    /// As in `192.168.0.2:8080/tcp`, or `*:8080/tcp`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (port, protocol) = (self.port, self.protocol.name());
        match (self.ip, self.family) {
            (Some(IpAddr::V4(ip)), _) => write!(f, "{ip}:{port}/{protocol}"),
            (Some(IpAddr::V6(ip)), _) => write!(f, "[{ip}]:{port}/{protocol}"),
            (None, Some(HostPortFamily::Ipv4)) => write!(f, "0.0.0.0:{port}/{protocol}"),
            (None, Some(HostPortFamily::Ipv6)) => write!(f, "[::]:{port}/{protocol}"),
            (None, None) => write!(f, "*:{port}/{protocol}"),
        }
    }
}
