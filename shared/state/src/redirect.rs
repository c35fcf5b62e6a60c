//! How the plugin redirected a pod's TCP to the pod's own proxy: what it programmed in the pod's
//! network namespace, where no other program looks.

mod rules;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

pub use self::rules::{
    ChainDirection, RedirectProtocol, RedirectRule, RuleAction, RuleCondition, UnmarkedConnection,
};

/// What is redirected in one pod, and what is not.
///
/// The kernel's rules are made from this alone. Lists are in the order in which they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Redirect {
    /// The profile of the conflist's entry.
    pub profile: String,
    /// The proxy's port for what arrives; `None` when what arrives is not redirected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inbound_port: Option<NonZeroU16>,
    /// The proxy's port for what the pod sends; `None` when that is not redirected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbound_port: Option<NonZeroU16>,
    /// The user whose processes are the proxy's, as the pod's user namespace numbers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_uid: Option<u32>,
    /// The group whose processes are the proxy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_gid: Option<u32>,
    /// Ports at which the proxy itself listens: what arrives there is not redirected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub always_skip_inbound_ports: Vec<PortRange>,
    /// Ports to which what arrives is not redirected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip_inbound_ports: Vec<PortRange>,
    /// If not empty, what arrives is redirected at these ports only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only_inbound_ports: Vec<PortRange>,
    /// Sources from which what arrives is not redirected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip_inbound_cidrs: Vec<IpNetwork>,
    /// Ports to which what the pod sends is not redirected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip_outbound_ports: Vec<PortRange>,
    /// Destinations to which what the pod sends is not redirected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip_outbound_cidrs: Vec<IpNetwork>,
    /// Users besides the proxy's whose connections are not redirected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip_outbound_uids: Vec<u32>,
    /// Packets with this mark that the pod sends are not redirected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_mark: Option<PacketMark>,
    /// If this or [`Self::only_outbound_ports`] is not empty, what the pod sends is redirected only
    /// to these destinations and ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only_outbound_cidrs: Vec<IpNetwork>,
    /// See [`Self::only_outbound_cidrs`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only_outbound_ports: Vec<PortRange>,
    /// TCP and UDP to port 53 of the pod's loopback go to this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_port: Option<NonZeroU16>,
    /// What happens to connections from the pod to itself.
    #[serde(default, skip_serializing_if = "Hairpin::is_direct")]
    pub hairpin: Hairpin,
    /// What the rules are made with.
    #[serde(default, skip_serializing_if = "RedirectBackend::is_nftables")]
    pub backend: RedirectBackend,
    /// Whether TCP that conntrack finds invalid is dropped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop_invalid: bool,
    /// The pod's interfaces at which its TCP is redirected.
    pub interfaces: Vec<String>,
    /// Whether IPv6 is not redirected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bypass_ipv6: bool,
    /// The annotation that each value comes from, by the value's name in the conflist. Values that
    /// are missing here come from the conflist or the profile.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Fields that a newer program wrote.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl Redirect {
    /// The rules of one chain, in order. The first one that matches decides.
    pub fn rules(&self, direction: ChainDirection) -> Vec<RedirectRule> {
        rules::rules(self, direction)
    }

    /// Whether programming this removes all rules of `other`, an earlier redirection of the same
    /// attachment.
    pub fn replaces(&self, other: &Redirect) -> bool {
        match (self.backend, other.backend) {
            (RedirectBackend::Nftables, RedirectBackend::Nftables) => true,
            // Each version of IP has its own rules.
            (RedirectBackend::Iptables, RedirectBackend::Iptables) => {
                other.bypass_ipv6 || !self.bypass_ipv6
            }
            (RedirectBackend::Nftables, RedirectBackend::Iptables)
            | (RedirectBackend::Iptables, RedirectBackend::Nftables) => false,
        }
    }
}

/// What programs a pod's rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RedirectBackend {
    /// One table of nf_tables, written by netlink.
    #[default]
    Nftables,
    /// The chains of linkerd-init, by the node's `iptables`.
    Iptables,
}

impl RedirectBackend {
    fn is_nftables(&self) -> bool {
        match self {
            RedirectBackend::Nftables => true,
            RedirectBackend::Iptables => false,
        }
    }
}

/// What happens to connections from the pod to one of its own addresses, which never leave it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hairpin {
    /// They are not redirected: the pod's program gets them without its proxy.
    #[default]
    Direct,
    /// Connections that the proxy makes are redirected to its inbound port, as if they came from
    /// another pod. Other connections are not redirected.
    Inbound,
    /// They are redirected like connections that leave the pod, except those to loopback addresses.
    Outbound,
}

impl Hairpin {
    fn is_direct(&self) -> bool {
        match self {
            Hairpin::Direct => true,
            Hairpin::Inbound | Hairpin::Outbound => false,
        }
    }
}

/// A packet's mark, or some of its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PacketMark {
    /// Invariant: not 0: that is the mark of every packet that nobody marked.
    value: u32,
    /// Invariant: has all bits of the value.
    mask: u32,
}

/// The text is not a [`PacketMark`].
#[derive(Debug, Error)]
#[error("is neither a mark such as 0x539 nor one with its bits such as 0x500/0xf00, or is 0")]
pub struct NotMark;

impl PacketMark {
    /// Those of the mark's bits that are compared.
    pub fn mask(self) -> u32 {
        self.mask
    }

    /// The value that the masked bits have.
    pub fn value(self) -> u32 {
        self.value
    }
}

impl FromStr for PacketMark {
    type Err = NotMark;

    fn from_str(text: &str) -> Result<Self, NotMark> {
        let number = |text: &str| {
            let (digits, radix) = match text.strip_prefix("0x") {
                Some(digits) => (digits, 16),
                None => (text, 10),
            };
            // A sign is no digit of a mark.
            let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            u32::from_str_radix(digits, radix).ok().filter(|_| is_number).ok_or(NotMark)
        };
        let (value, mask) = match text.split_once('/') {
            Some((value, mask)) => (number(value)?, number(mask)?),
            None => (number(text)?, u32::MAX),
        };
        if value != 0 && value & !mask == 0 { Ok(PacketMark { value, mask }) } else { Err(NotMark) }
    }
}

impl TryFrom<String> for PacketMark {
    type Error = NotMark;

    fn try_from(text: String) -> Result<Self, NotMark> {
        text.parse()
    }
}

impl From<PacketMark> for String {
    fn from(mark: PacketMark) -> String {
        mark.to_string()
    }
}

impl fmt::Display for PacketMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mask {
            u32::MAX => write!(f, "{:#x}", self.value),
            mask => write!(f, "{:#x}/{mask:#x}", self.value),
        }
    }
}

/// Ports from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PortRange {
    first: NonZeroU16,
    last: NonZeroU16,
}

/// The text is not a [`PortRange`].
#[derive(Debug, Error)]
#[error("is neither a port from 1 to 65535 nor a range of ports such as 4567-4568")]
pub struct NotPorts;

impl PortRange {
    /// The first port, and the last.
    pub fn bounds(self) -> (u16, u16) {
        (self.first.get(), self.last.get())
    }

    /// Whether both have a port in common.
    pub fn overlaps(self, other: PortRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The range from the lowest port of both to the highest.
    #[must_use]
    pub fn spanning(self, other: PortRange) -> PortRange {
        PortRange { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// Whether this port is in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.first.get()..=self.last.get()).contains(&port)
    }
}

impl From<NonZeroU16> for PortRange {
    fn from(port: NonZeroU16) -> Self {
        PortRange { first: port, last: port }
    }
}

impl FromStr for PortRange {
    type Err = NotPorts;

    fn from_str(text: &str) -> Result<Self, NotPorts> {
        // `parse` would accept a sign.
        let port = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse().map_err(|_| NotPorts),
            false => Err(NotPorts),
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (port(first)?, port(last)?);
        if first <= last { Ok(PortRange { first, last }) } else { Err(NotPorts) }
    }
}

impl TryFrom<String> for PortRange {
    type Error = NotPorts;

    fn try_from(text: String) -> Result<Self, NotPorts> {
        text.parse()
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> String {
        range.to_string()
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_they_are_read() {
        for text in ["1", "65535", "4567-4568", "1-65535"] {
            assert_eq!(text.parse::<PortRange>().unwrap().to_string(), text);
        }
        assert_eq!("80-80".parse::<PortRange>().unwrap().to_string(), "80");
        let wrong =
            ["", "0", "65536", "+80", "-80", "80-", "90-80", "80-90-95", " 80", "http", "0-5"];
        for text in wrong {
            assert!(text.parse::<PortRange>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn marks_are_written_as_they_are_read() {
        for text in ["0x539", "0x500/0xf00", "0xffffffff", "0x1/0x7fffffff"] {
            assert_eq!(text.parse::<PacketMark>().unwrap().to_string(), text);
        }
        assert_eq!("1337".parse::<PacketMark>().unwrap().to_string(), "0x539");
        assert_eq!("0x1/0xffffffff".parse::<PacketMark>().unwrap().to_string(), "0x1");
        let wrong =
            ["", "0", "0x0/0xff", "0x10/0xf", "+1", "0x+1", "0x", "1/", "/1", "0x1ffffffff"];
        for text in wrong {
            assert!(text.parse::<PacketMark>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn another_backend_or_fewer_versions_of_ip_replace_nothing() {
        let of = |backend, bypass_ipv6| Redirect { backend, bypass_ipv6, ..Redirect::default() };
        use RedirectBackend::{Iptables, Nftables};
        let cases = [
            (of(Nftables, true), of(Nftables, false), true),
            (of(Nftables, false), of(Iptables, false), false),
            (of(Iptables, false), of(Nftables, false), false),
            (of(Iptables, false), of(Iptables, true), true),
            (of(Iptables, true), of(Iptables, true), true),
            (of(Iptables, true), of(Iptables, false), false),
        ];
        for (new, old, expected) in cases {
            assert_eq!(new.replaces(&old), expected, "{new:?} {old:?}");
        }
    }

    #[test]
    fn ranges_overlap_at_their_edges() {
        let range = |text: &str| text.parse::<PortRange>().unwrap();
        for (a, b, overlap) in [("1-5", "5-9", true), ("1-5", "6", false), ("1-9", "3", true)] {
            assert_eq!(range(a).overlaps(range(b)), overlap, "{a} {b}");
            assert_eq!(range(b).overlaps(range(a)), overlap, "{b} {a}");
        }
        assert!(range("1-5").contains(5) && !range("1-5").contains(6));
    }
}
