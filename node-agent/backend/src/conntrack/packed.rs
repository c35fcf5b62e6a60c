//! Entries in a quarter of the memory: a policy may forbid every connection of a node at once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::entry::{Entry, Transport};

/// An [`Entry`] that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PackedEntry(Packed);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Packed {
    V4(Fields<Ipv4Addr>),
    /// Else every IPv4 entry would be as large.
    V6(Box<Fields<Ipv6Addr>>),
}

/// Source, destination, source and destination of answers.
type Ends<A> = [(A, u16); 4];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Fields<A> {
    id: u32,
    ends: Ends<A>,
    transport: Transport,
    is_forbidden: bool,
    is_mid_stream: bool,
    is_unanswered_syn: bool,
}

impl From<&Entry> for PackedEntry {
    fn from(entry: &Entry) -> Self {
        let Entry { source, destination, reply_source, reply_destination, .. } = *entry;
        let ends = [source, destination, reply_source, reply_destination];
        let ports = ends.map(|end| end.port());
        Self(match ends.map(|end| end.ip()) {
            [IpAddr::V4(a), IpAddr::V4(b), IpAddr::V4(c), IpAddr::V4(d)] => {
                Packed::V4(Fields::new(entry, [a, b, c, d], ports))
            }
            // An entry has one family.
            ips => {
                let ips = ips.map(|ip| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                });
                Packed::V6(Box::new(Fields::new(entry, ips, ports)))
            }
        })
    }
}

impl<A: Copy + Into<IpAddr>> Fields<A> {
    fn new(entry: &Entry, ips: [A; 4], ports: [u16; 4]) -> Self {
        let Entry { id, transport, is_forbidden, is_mid_stream, is_unanswered_syn, .. } = *entry;
        let [a, b, c, d] = [0, 1, 2, 3].map(|end| (ips[end], ports[end]));
        let ends = [a, b, c, d];
        Self { id, ends, transport, is_forbidden, is_mid_stream, is_unanswered_syn }
    }

    fn entry(&self) -> Entry {
        let Self { id, ends, transport, is_forbidden, is_mid_stream, is_unanswered_syn } = *self;
        let ends = ends.map(|(ip, port)| SocketAddr::new(ip.into(), port));
        let [source, destination, reply_source, reply_destination] = ends;
        Entry {
            id,
            transport,
            source,
            destination,
            reply_source,
            reply_destination,
            is_forbidden,
            is_mid_stream,
            is_unanswered_syn,
        }
    }
}

impl PackedEntry {
    /// What was packed.
    pub fn entry(&self) -> Entry {
        match &self.0 {
            Packed::V4(fields) => fields.entry(),
            Packed::V6(fields) => fields.entry(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use denizen_model::Protocol;

    #[test]
    fn an_entry_comes_back_as_it_was_packed() {
        let v4 = ["10.1.0.2:40000", "10.96.0.1:80", "10.1.0.3:8080", "192.0.2.1:1024"];
        let v6 = ["[fd00::2]:40000", "[fd00:96::1]:80", "[fd00::3]:8080", "[2001:db8::1]:1024"];
        let transports = [
            Transport::Named(Protocol::Tcp),
            Transport::Icmp { id: 7, kind: 8, code: 0 },
            Transport::Other { number: 47, keys: [1, 2] },
        ];
        for (ends, transport) in [v4, v6].iter().flat_map(|ends| transports.map(|it| (ends, it))) {
            let [source, destination, reply_source, reply_destination] =
                ends.map(|end| end.parse().unwrap());
            for (is_forbidden, is_mid_stream) in [(true, false), (false, true)] {
                let entry = Entry {
                    id: 0x1234_5678,
                    transport,
                    source,
                    destination,
                    reply_source,
                    reply_destination,
                    is_forbidden,
                    is_mid_stream,
                    is_unanswered_syn: is_mid_stream,
                };
                assert_eq!(PackedEntry::from(&entry).entry(), entry);
            }
        }
    }

    #[test]
    fn an_ipv4_entry_takes_a_quarter() {
        let (packed, whole) = (size_of::<PackedEntry>(), size_of::<Entry>());
        assert!(packed <= 40 && packed * 3 < whole, "{packed} of {whole} bytes");
    }
}
