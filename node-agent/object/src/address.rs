//! Addresses and ranges in every notation that the API accepts or once accepted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use denizen_model::canonical_range;

/// Parses an IP address. Leading zeros are ignored (`010.0.0.1` is `10.0.0.1`): objects stored by
/// old API servers have them, and kube-proxy reads them the same way. An IPv4-mapped IPv6 address
/// becomes IPv4.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    parse_written(text).map(|address| address.to_canonical())
}

fn parse_written(text: &str) -> Option<IpAddr> {
    if !text.contains(':') {
        return parse_ipv4(text).map(IpAddr::V4);
    }
    let address: Ipv6Addr = match text.rfind(':') {
        Some(colon) if text.contains('.') => {
            let (head, tail) = text.split_at(colon + 1);
            format!("{head}{}", parse_ipv4(tail)?).parse().ok()?
        }
        Some(_) | None => text.parse().ok()?,
    };
    Some(IpAddr::V6(address))
}

fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = parse_decimal(parts.next()?)?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

/// Digits only: `u8::from_str` would accept a plus sign.
fn parse_decimal(text: &str) -> Option<u8> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Parses a range in CIDR notation. White space around it and leading zeros are ignored; host bits
/// are cleared: `10.1.2.3/8` is `10.0.0.0/8`.
pub fn parse_range(text: &str) -> Option<IpNetwork> {
    let (address, length) = text.trim().split_once('/')?;
    let range = IpNetwork::new(parse_written(address)?, parse_decimal(length)?).ok()?;
    let range = canonical_range(range)?;
    IpNetwork::new(range.network(), range.prefix()).ok()
}

/// Parses an external address of a service or an endpoint's address. The error says why it may not
/// be one.
pub(super) fn usable_address(text: &str) -> Result<IpAddr, &'static str> {
    let address = parse_address(text).ok_or("not an IP address: left out")?;
    special_address(address).map_or(Ok(address), Err)
}

/// Why no service and no endpoint may have this address: it would make a service a way to the node
/// itself or to its link, or it stands for more than one host.
pub(super) fn special_address(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if address.is_unspecified() {
        Some("the unspecified address: left out")
    } else if address.is_loopback() {
        Some("a loopback address: left out")
    } else if link_local {
        Some("a link-local address: left out")
    } else if address.is_multicast() {
        Some("a multicast address: left out")
    } else if address == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Some("the broadcast address: left out")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let cases = [
            ("plain", "10.0.0.1", Some("10.0.0.1")),
            ("leading zeros are decimal", "010.000.0099.001", Some("10.0.99.1")),
            ("not octal", "192.168.099.022", Some("192.168.99.22")),
            ("IPv6", "fd00::1", Some("fd00::1")),
            ("IPv6 in capitals", "FD00::A", Some("fd00::a")),
            ("IPv4-mapped", "::ffff:10.0.0.1", Some("10.0.0.1")),
            ("IPv4-mapped with leading zeros", "::ffff:010.0.0.01", Some("10.0.0.1")),
            ("IPv6 with an IPv4 tail", "64:ff9b::192.0.2.33", Some("64:ff9b::c000:221")),
            ("too large an octet", "10.0.0.256", None),
            ("three octets", "10.0.0", None),
            ("five octets", "10.0.0.1.2", None),
            ("empty octet", "10..0.1", None),
            ("sign", "10.0.0.+1", None),
            ("white space", " 10.0.0.1", None),
            ("zone", "fe80::1%eth0", None),
            ("empty", "", None),
            ("None", "None", None),
            ("a colon alone", ":", None),
            ("colon and dots", ":10.0.0.1", None),
        ];
        for (name, text, expected) in cases {
            let expected = expected.map(|text| text.parse::<IpAddr>().unwrap());
            assert_eq!(parse_address(text), expected, "{name}");
        }
    }

    #[test]
    fn ranges() {
        let cases = [
            ("plain", "203.0.113.0/25", Some("203.0.113.0/25")),
            ("white space", " \t203.0.113.0/25 ", Some("203.0.113.0/25")),
            ("leading zeros", "203.0.113.000/025", Some("203.0.113.0/25")),
            ("host bits", "10.1.2.3/8", Some("10.0.0.0/8")),
            ("everything", "0.0.0.0/0", Some("0.0.0.0/0")),
            ("IPv6", "fd00::1/64", Some("fd00::/64")),
            ("everything in IPv6", "::/0", Some("::/0")),
            ("IPv4-mapped", "::ffff:10.0.0.0/104", Some("10.0.0.0/8")),
            ("IPv4-mapped and wider than IPv4", "::ffff:10.0.0.0/64", None),
            ("no length", "10.0.0.0", None),
            ("too long", "10.0.0.0/33", None),
            ("too long for IPv6", "fd00::/129", None),
            ("negative", "10.0.0.0/-1", None),
            ("not an address", "ten/8", None),
            ("empty", "", None),
        ];
        for (name, text, expected) in cases {
            let expected = expected.map(|text| text.parse::<IpNetwork>().unwrap());
            assert_eq!(parse_range(text), expected, "{name}");
        }
    }

    #[test]
    fn special_addresses() {
        let cases = [
            ("0.0.0.0", true),
            ("::", true),
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("169.254.1.1", true),
            ("fe80::1", true),
            ("224.0.0.5", true),
            ("ff02::1", true),
            ("239.1.1.1", true),
            ("ff0e::1", true),
            ("255.255.255.255", true),
            ("10.0.0.1", false),
            ("fd00::1", false),
        ];
        for (text, special) in cases {
            assert_eq!(special_address(text.parse().unwrap()).is_some(), special, "{text}");
        }
    }
}
