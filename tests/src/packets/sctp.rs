//! Just enough of SCTP to be load-balanced: an INIT chunk and its INIT ACK over raw sockets, since
//! the test machines' kernel has no SCTP sockets. The answer travels in the INIT ACK's state
//! cookie.

use std::net::IpAddr;

/// SCTP's IP protocol number.
pub const PROTOCOL: i32 = 132;

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const STATE_COOKIE: u16 = 7;
const COMMON_HEADER: usize = 12;
const INIT_CHUNK: usize = 20;

/// An INIT or INIT ACK, as received.
#[derive(Debug, PartialEq, Eq)]
pub struct SctpPacket {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// The verification tag that the peer's answer must have; otherwise connection tracking calls
    /// it invalid.
    pub initiate_tag: u32,
    /// The text in the state cookie; `None` for an INIT.
    pub cookie: Option<String>,
}

/// An INIT from one port to another.
pub fn init(source_port: u16, destination_port: u16, initiate_tag: u32) -> Vec<u8> {
    packet(source_port, destination_port, 0, INIT, initiate_tag, &[])
}

/// The INIT ACK that answers `to` and carries `text`.
pub fn init_ack(to: &SctpPacket, text: &str) -> Vec<u8> {
    let length = u16::try_from(4 + text.len()).expect("a cookie of one line");
    let mut cookie = [STATE_COOKIE.to_be_bytes(), length.to_be_bytes()].concat();
    cookie.extend_from_slice(text.as_bytes());
    cookie.resize(cookie.len().next_multiple_of(4), 0);
    packet(to.destination_port, to.source_port, to.initiate_tag, INIT_ACK, 1, &cookie)
}

/// Reads what a raw socket of `local`'s family received; `None` unless it is an INIT or INIT ACK.
pub fn parse(local: IpAddr, received: &[u8]) -> Option<SctpPacket> {
    // A raw IPv4 socket is handed the IP header too, a raw IPv6 socket is not.
    let skip = if local.is_ipv4() { usize::from(received.first()? & 0x0f) * 4 } else { 0 };
    let sctp = received.get(skip..)?;
    let chunk = sctp.get(COMMON_HEADER..)?;
    let kind = *chunk.first()?;
    if kind != INIT && kind != INIT_ACK {
        return None;
    }
    let parameter = chunk.get(INIT_CHUNK..)?;
    let cookie = (kind == INIT_ACK).then(|| {
        let length = usize::from(be16(parameter, 2)?);
        String::from_utf8(parameter.get(4..length)?.to_vec()).ok()
    });
    Some(SctpPacket {
        source_port: be16(sctp, 0)?,
        destination_port: be16(sctp, 2)?,
        initiate_tag: u32::from_be_bytes(chunk.get(4..8)?.try_into().ok()?),
        cookie: cookie.flatten(),
    })
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn packet(
    from: u16,
    to: u16,
    verification_tag: u32,
    kind: u8,
    initiate_tag: u32,
    rest: &[u8],
) -> Vec<u8> {
    let length = u16::try_from(INIT_CHUNK + rest.len()).expect("one small chunk");
    let mut bytes = Vec::with_capacity(COMMON_HEADER + INIT_CHUNK + rest.len());
    bytes.extend(from.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes.extend(verification_tag.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend([kind, 0]);
    bytes.extend(length.to_be_bytes());
    bytes.extend(initiate_tag.to_be_bytes());
    bytes.extend(65536_u32.to_be_bytes());
    bytes.extend(1_u16.to_be_bytes());
    bytes.extend(1_u16.to_be_bytes());
    bytes.extend(1_u32.to_be_bytes());
    bytes.extend_from_slice(rest);
    let checksum = crc32c(&bytes);
    bytes[8..COMMON_HEADER].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Connection tracking calls a packet with a wrong checksum invalid and does not translate it.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (POLYNOMIAL * (crc & 1)))
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn checksum_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
    }

    #[test]
    fn an_answer_carries_its_text() {
        let local = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let asked = parse(local, &init(1000, 53, 77)).expect("an INIT");
        assert_eq!(
            asked,
            SctpPacket { source_port: 1000, destination_port: 53, initiate_tag: 77, cookie: None }
        );
        let answer = parse(local, &init_ack(&asked, "hello")).expect("an INIT ACK");
        assert_eq!((answer.source_port, answer.destination_port), (53, 1000));
        assert_eq!(answer.cookie.as_deref(), Some("hello"));
    }
}
