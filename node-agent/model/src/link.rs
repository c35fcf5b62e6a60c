//! What the pod firewall needs to know of this node's links.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The link-local IPv6 address that Linux makes of it (EUI-64; RFC 4291, appendix A).
    pub fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0.map(u16::from);
        let first = (a ^ 0x02) << 8 | b;
        Ipv6Addr::new(0xfe80, 0, 0, 0, first, c << 8 | 0xff, 0xfe00 | d, e << 8 | f)
    }
}

impl FromStr for Mac {
    type Err = NotEthernet;

    fn from_str(text: &str) -> Result<Self, NotEthernet> {
        let mut parts = text.split(':').map(|part| u8::from_str_radix(part, 16));
        let mut bytes = [0; 6];
        for byte in &mut bytes {
            *byte = parts.next().and_then(Result::ok).ok_or(NotEthernet)?;
        }
        if parts.next().is_some() { Err(NotEthernet) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.map(|byte| format!("{byte:02x}")).join(":"))
    }
}

/// The text is not an Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotEthernet;

/// How the outer packets of a tunnel are recognised that this node decapsulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tunnel {
    /// At this UDP port: VXLAN, Geneve, Foo-over-UDP and others.
    Udp(u16),
    /// Of this IP protocol: IPIP, GRE and others.
    Protocol(u8),
}

/// This node's links, as far as the pod firewall needs them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeLinks {
    /// The MAC addresses of the node's bridges: bridged pods see the node with these.
    pub bridges: BTreeSet<Mac>,
    /// Veths that are bridge ports and whose other end is an interface of the node itself: the
    /// `bridge` plugin makes such a pair to join the node to a VLAN.
    pub veths: BTreeSet<Arc<str>>,
    pub tunnels: BTreeSet<Tunnel>,
    /// Addresses besides those of its links at which it takes packets: broadcast addresses, the
    /// networks' own (which were broadcast addresses before Linux 5.14), and the anycast addresses
    /// of routers.
    pub also_local: BTreeSet<IpAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_is_read_shown_and_makes_a_link_local_address() {
        let mac: Mac = "02:42:ac:11:00:02".parse().unwrap();
        assert_eq!(mac.to_string(), "02:42:ac:11:00:02");
        assert_eq!(mac.link_local().to_string(), "fe80::42:acff:fe11:2");
        for wrong in ["", "02:42", "02:42:ac:11:00:02:03", "02:42:ac:11:00:zz", "0200::1"] {
            assert_eq!(wrong.parse::<Mac>(), Err(NotEthernet), "{wrong}");
        }
    }
}
