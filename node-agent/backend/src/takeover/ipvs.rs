//! What IPVS carries that is not the backend's: the virtual servers of kube-proxy's ipvs mode,
//! which `cleanup --kube-proxy` removes, and their connections.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::ipvs::Kernel;

/// Why NetworkPolicies cannot be enforced with the ipvs mode of another service proxy: ipvs takes a
/// packet in the input hook, and sends it on through the output hook.
pub const BYPASSES_POLICIES: &str = "ipvs serves services here, and what it forwards does not pass \
                                     the hook where NetworkPolicies are enforced: use another mode \
                                     of the service proxy";

/// How many virtual servers ipvs has, ours and others'.
pub fn all_virtual_servers() -> usize {
    lines("ip_vs", |line| {
        ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|kind| line.starts_with(kind))
    })
}

/// How many virtual servers ipvs has that are not the backend's.
pub fn virtual_servers() -> usize {
    let all = all_virtual_servers();
    // If the backend's virtual servers cannot be recognised, all count.
    let ours = if all > 0 { Kernel::count().unwrap_or(0) } else { 0 };
    all.saturating_sub(ours)
}

/// How many open connections ipvs carries, except those to `kept` virtual servers.
pub fn connections(kept: &BTreeSet<SocketAddr>) -> usize {
    let is_kept = |line: &str| server_of(line).is_some_and(|at| kept.contains(&at));
    lines("ip_vs_conn", |line| line.contains(" ESTABLISHED ") && !is_kept(line))
}

/// The virtual server of a connection, in a line of `/proc/net/ip_vs_conn`: its fourth and fifth
/// words, in hexadecimal digits.
fn server_of(line: &str) -> Option<SocketAddr> {
    let mut words = line.split_whitespace().skip(3);
    let (ip, port) = (words.next()?, words.next()?);
    let ip = match ip.parse() {
        Ok(ip) => IpAddr::V6(ip),
        Err(_) => IpAddr::V4(Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?)),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

fn lines(list: &str, counts: impl Fn(&str) -> bool) -> usize {
    let list = format!("/proc/net/{list}");
    #[expect(clippy::disallowed_methods, reason = "the kernel's own lists of what ipvs has")]
    let list = fs::read_to_string(list).unwrap_or_default();
    list.lines().filter(|line| counts(line)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connections_virtual_server_is_read() {
        let v4 = "TCP C0A80001 9C40 0A60000A 0050 0A010203 1F90 ESTABLISHED     863";
        let v6 = "TCP fd00:0000:0000:0000:0000:0000:0000:0001 9C40 \
                  fd00:0096:0000:0000:0000:0000:0000:000a 01BB \
                  fd00:0001:0000:0000:0000:0000:0000:0002 1F90 ESTABLISHED     863";
        let at = |text: &str| Some(text.parse().expect("an address"));
        assert_eq!(server_of(v4), at("10.96.0.10:80"));
        assert_eq!(server_of(v6), at("[fd00:96::a]:443"));
        assert_eq!(server_of("Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State"), None);
    }
}
