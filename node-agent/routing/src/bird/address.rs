//! The address of a peer.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::Deserialize;

use denizen_model::{Family, family_of};

/// The longest name of an interface (`IFNAMSIZ`), in bytes.
const LONGEST_INTERFACE: usize = 15;

/// `ADDRESS`, or `ADDRESS%INTERFACE` for a link-local one, which means nothing without its
/// interface (RFC 4007).
///
/// Invariant: it is an address that a host can have, in a form that BIRD can read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct PeerAddress {
    ip: IpAddr,
    interface: Option<String>,
}

impl PeerAddress {
    /// Without the interface.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The interface that a link-local address is on.
    pub fn interface(&self) -> Option<&str> {
        self.interface.as_deref()
    }

    pub fn family(&self) -> Family {
        family_of(self.ip)
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) => write!(f, "{}%{interface}", self.ip),
            None => self.ip.fmt(f),
        }
    }
}

impl TryFrom<String> for PeerAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, interface) = match text.split_once('%') {
            Some((address, interface)) => (address, Some(interface)),
            None => (text, None),
        };
        let ip: IpAddr = address
            .parse()
            .map_err(|_| format!("{text:?} is no address such as 192.0.2.1 or fe80::1%eth0"))?;
        if !is_of_a_host(ip) {
            return Err(format!("{ip} is no router's"));
        }
        match interface {
            None if is_link_local(ip) => {
                return Err(format!("{ip} is link-local: add its interface, as in {ip}%eth0"));
            }
            Some(_) if !is_link_local(ip) => {
                return Err(format!("{text}: only a link-local address has an interface"));
            }
            Some(name) if !is_interface(name) => {
                return Err(format!("{text}: no interface can have the name {name:?}"));
            }
            Some(_) | None => {}
        }
        Ok(Self { ip, interface: interface.map(str::to_owned) })
    }
}

/// Whether a session with this address is possible.
pub(super) fn is_of_a_host(address: IpAddr) -> bool {
    let is_nobodys = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.to_ipv4_mapped().is_some(),
    };
    !is_nobodys && !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
}

/// Whether it is an IPv6 address of one link alone.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Whether the kernel permits the name, and BIRD can quote it.
fn is_interface(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"/:".contains(&byte);
    (1..=LONGEST_INTERFACE).contains(&name.len()) && name.bytes().all(is_plain)
}
