//! A TCP SYN with any source address.

use std::net::SocketAddrV4;

/// TCP's IP protocol number.
const TCP: u8 = 6;
const HEADERS: usize = 40;

/// An IPv4 packet with a SYN, IP header included: for a raw socket of `IPPROTO_RAW`. The kernel
/// fills in the IP header's checksum; TCP's must be right, since connection tracking ignores a
/// packet with a wrong one.
pub fn forged_syn(source: SocketAddrV4, destination: SocketAddrV4) -> [u8; HEADERS] {
    let mut packet = [0; HEADERS];
    let (ip, tcp) = packet.split_at_mut(20);
    // Version and length of the header.
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(HEADERS as u16).to_be_bytes());
    // Time to live.
    ip[8] = 64;
    ip[9] = TCP;
    ip[12..16].copy_from_slice(&source.ip().octets());
    ip[16..20].copy_from_slice(&destination.ip().octets());
    tcp[0..2].copy_from_slice(&source.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&destination.port().to_be_bytes());
    // Length of the header, SYN, and a window.
    tcp[12] = 5 << 4;
    tcp[13] = 0x02;
    tcp[14..16].copy_from_slice(&65_535_u16.to_be_bytes());
    let pseudo = u32::from(TCP) + tcp.len() as u32;
    let sum = words(&ip[12..20]) + words(tcp) + pseudo;
    tcp[16..18].copy_from_slice(&(!folded(sum)).to_be_bytes());
    packet
}

fn words(bytes: &[u8]) -> u32 {
    let pairs = bytes.chunks_exact(2);
    pairs.map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum()
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071: with the checksum in its place, the sum of everything is all ones.
    #[test]
    fn the_checksum_is_right() {
        let packet =
            forged_syn("11.0.0.1:4000".parse().unwrap(), "172.30.0.10:80".parse().unwrap());
        let sum = words(&packet[12..20]) + words(&packet[20..]) + u32::from(TCP) + 20;
        assert_eq!(folded(sum), 0xffff);
    }
}
