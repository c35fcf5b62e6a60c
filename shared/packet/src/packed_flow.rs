//! Tracked flows in a quarter of the memory: a policy may forbid every connection of a node at
//! once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{TrackedFlow, Transport};

/// A [`TrackedFlow`] in less memory, for tables of many.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PackedFlow(Packed);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Packed {
    V4(PackedFields<Ipv4Addr>),
    /// Boxed: otherwise every IPv4 flow would be as large.
    V6(Box<PackedFields<Ipv6Addr>>),
}

/// Source, destination, source and destination of answers.
type Ends<A> = [(A, u16); 4];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PackedFields<A> {
    id: u32,
    ends: Ends<A>,
    transport: Transport,
    is_marked: bool,
    is_mid_stream: bool,
    is_unanswered_syn: bool,
}

impl From<&TrackedFlow> for PackedFlow {
    fn from(flow: &TrackedFlow) -> Self {
        let TrackedFlow { source, destination, reply_source, reply_destination, .. } = *flow;
        let ends = [source, destination, reply_source, reply_destination];
        let ports = ends.map(|end| end.port());
        Self(match ends.map(|end| end.ip()) {
            [IpAddr::V4(a), IpAddr::V4(b), IpAddr::V4(c), IpAddr::V4(d)] => {
                Packed::V4(PackedFields::new(flow, [a, b, c, d], ports))
            }
            // A flow has one family.
            ips => {
                let ips = ips.map(|ip| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                });
                Packed::V6(Box::new(PackedFields::new(flow, ips, ports)))
            }
        })
    }
}

impl<A: Copy + Into<IpAddr>> PackedFields<A> {
    fn new(flow: &TrackedFlow, ips: [A; 4], ports: [u16; 4]) -> Self {
        let TrackedFlow { id, transport, is_marked, is_mid_stream, is_unanswered_syn, .. } = *flow;
        let [a, b, c, d] = [0, 1, 2, 3].map(|end| (ips[end], ports[end]));
        let ends = [a, b, c, d];
        Self { id, ends, transport, is_marked, is_mid_stream, is_unanswered_syn }
    }

    fn flow(&self) -> TrackedFlow {
        let Self { id, ends, transport, is_marked, is_mid_stream, is_unanswered_syn } = *self;
        let ends = ends.map(|(ip, port)| SocketAddr::new(ip.into(), port));
        let [source, destination, reply_source, reply_destination] = ends;
        TrackedFlow {
            id,
            transport,
            source,
            destination,
            reply_source,
            reply_destination,
            is_marked,
            is_mid_stream,
            is_unanswered_syn,
        }
    }
}

impl PackedFlow {
    /// The flow that was packed.
    pub fn flow(&self) -> TrackedFlow {
        match &self.0 {
            Packed::V4(fields) => fields.flow(),
            Packed::V6(fields) => fields.flow(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;

    #[test]
    fn an_entry_comes_back_as_it_was_packed() {
        let v4 = ["10.1.0.2:40000", "10.96.0.1:80", "10.1.0.3:8080", "192.0.2.1:1024"];
        let v6 = ["[fd00::2]:40000", "[fd00:96::1]:80", "[fd00::3]:8080", "[2001:db8::1]:1024"];
        let transports = [
            Transport::Named(Protocol::Tcp),
            Transport::Icmp { id: 7, kind: 8, code: 0 },
            Transport::Other { number: 47, keys: [1, 2] },
        ];
        for (ends, transport) in
            [v4, v6].iter().flat_map(|ends| transports.map(|transport| (ends, transport)))
        {
            let [source, destination, reply_source, reply_destination] =
                ends.map(|end| end.parse().unwrap());
            for (is_marked, is_mid_stream) in [(true, false), (false, true)] {
                let flow = TrackedFlow {
                    id: 0x1234_5678,
                    transport,
                    source,
                    destination,
                    reply_source,
                    reply_destination,
                    is_marked,
                    is_mid_stream,
                    is_unanswered_syn: is_mid_stream,
                };
                assert_eq!(PackedFlow::from(&flow).flow(), flow);
            }
        }
    }

    #[test]
    fn an_ipv4_entry_takes_a_quarter() {
        let (packed, whole) = (size_of::<PackedFlow>(), size_of::<TrackedFlow>());
        assert!(packed <= 40 && packed * 3 < whole, "{packed} of {whole} bytes");
    }
}
