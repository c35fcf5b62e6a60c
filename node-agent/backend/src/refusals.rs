//! The flows whose packets rules dropped or refused within the last 15 minutes, as the kernel notes
//! them.
//!
//! Before a rule that drops or refuses, another rule notes the packet's flow in a set of the kernel
//! ([`note`]), so that the flow is known before anybody asks. An element counts the flow's packets
//! and expires 15 minutes after the first one, and a set has room for [`FLOWS`] elements. So
//! nothing has to be cleaned up, and the memory is bounded whatever is sent. When a set is full,
//! the kernel goes on with the rule that drops. Nothing is ever decided by these sets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::firewall;
use crate::nftables;
use crate::why::Why;
use denizen_model::{Family, Protocol};
use denizen_netlink::NetlinkError;
use denizen_nft::{
    CountedElement, Field, Kernel, Key, Operation, Statement, TableFamily, Update, read_address,
};
use denizen_plan::Direction;

/// How many flows one set notes.
pub const FLOWS: u32 = 4096;

/// For how long a flow is noted, in seconds.
pub const NOTED_FOR: u32 = 15 * 60;

/// The fields of a flow: all except the source port. The numbers come first: nft cannot list a rule
/// that adds to a set whose key begins with an IPv6 address.
pub const FLOW: &[Field] = &[
    Field::Protocol,
    Field::DestinationPort,
    Field::Source(Family::V4),
    Field::Destination(Family::V4),
];

/// Why a flow's packets were dropped or refused, as far as flows are noted. Each reason has a set,
/// in the tables of both IP versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RefusalReason {
    /// No policy permits them.
    NoPolicy(Direction),
    /// The service has no endpoint: refused.
    NoEndpoints,
    /// Policy Local, and no endpoint is on this node.
    NoLocalEndpoints,
    /// `loadBalancerSourceRanges` do not have the source.
    SourceRanges,
}

/// A flow whose packets were dropped or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedFlow {
    pub family: Family,
    pub reason: RefusalReason,
    /// The number of the protocol.
    pub protocol: u8,
    pub source: IpAddr,
    /// As the rule saw it: the frontend, if a service's rule refused. A protocol without ports has
    /// port 0.
    pub destination: SocketAddr,
    pub packets: u64,
    /// The time since its first packet.
    pub age: Duration,
}

impl RefusalReason {
    pub const ALL: [Self; 5] = [
        Self::NoPolicy(Direction::Ingress),
        Self::NoPolicy(Direction::Egress),
        Self::NoEndpoints,
        Self::NoLocalEndpoints,
        Self::SourceRanges,
    ];

    /// The set's name in the kernel.
    pub const fn set(self) -> &'static str {
        match self {
            Self::NoPolicy(Direction::Ingress) => "ingress-refusals",
            Self::NoPolicy(Direction::Egress) => "egress-refusals",
            Self::NoEndpoints => "refused-no-endpoints",
            Self::NoLocalEndpoints => "dropped-no-local-endpoints",
            Self::SourceRanges => "dropped-source-ranges",
        }
    }

    /// The name of the tables that have the set.
    pub fn table(self) -> &'static str {
        match self {
            Self::NoPolicy(_) => firewall::TABLE,
            Self::NoEndpoints | Self::NoLocalEndpoints | Self::SourceRanges => nftables::TABLE,
        }
    }

    /// The comment of the rule that drops.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoPolicy(direction) => firewall::refused_text(direction),
            Self::NoEndpoints => Why::Refuse.text(),
            Self::NoLocalEndpoints => Why::NoLocalEndpoint.text(),
            Self::SourceRanges => Why::MayNotEnter.text(),
        }
    }

    /// Whether the sender gets an answer.
    pub fn is_answered(self) -> bool {
        match self {
            Self::NoEndpoints => true,
            Self::NoPolicy(_) | Self::NoLocalEndpoints | Self::SourceRanges => false,
        }
    }
}

/// Notes the packet's flow in a set, and counts the packet there; on with the next rule if the set
/// is full, so this should be the rule's last statement. `with_port`: the packet's protocol has
/// ports.
pub fn note(set: &'static str, version: Family, with_port: bool) -> Statement {
    let bits = |field: &Field| (*field == Field::DestinationPort && !with_port).then_some(0);
    let key = FLOW.iter().map(|field| (field.in_version(version), bits(field)));
    Statement::Update(Update {
        set,
        key: key.collect(),
        operation: Operation::Count { seconds: NOTED_FOR, is_renewed: false },
        data: None,
    })
}

/// The statements of the rules that note packets of all protocols, a list for each rule. Protocols
/// without ports need a rule of their own, so that their first bytes are not taken for a port.
pub fn note_all(set: &'static str, version: Family) -> Vec<Vec<Statement>> {
    let number = |protocol: Protocol| Key::EMPTY.byte(protocol.number());
    let is = |protocol| Statement::Equals(Field::Protocol, number(protocol));
    let with_port = |protocol| vec![is(protocol), note(set, version, true)];
    let others =
        Protocol::ALL.map(|protocol| Statement::NotEquals(Field::Protocol, number(protocol)));
    let others = others.into_iter().chain([note(set, version, false)]).collect();
    Protocol::ALL.map(with_port).into_iter().chain([others]).collect()
}

/// Reads what the kernel has noted for these reasons, in no order.
///
/// # Errors
///
/// [`NetlinkError`]; a missing table or set is not an error.
pub fn read(
    kernel: &mut Kernel,
    reasons: impl IntoIterator<Item = RefusalReason>,
) -> Result<Vec<RefusedFlow>, NetlinkError> {
    let mut flows = Vec::new();
    for reason in reasons {
        for family in Family::BOTH {
            let of_table = TableFamily::from(family);
            let elements = kernel.counted_elements(of_table, reason.table(), reason.set())?;
            flows.extend(of_set(reason, family, &elements));
        }
    }
    Ok(flows)
}

/// The flows in a set's elements, each once.
fn of_set(
    reason: RefusalReason,
    family: Family,
    elements: &[CountedElement],
) -> impl Iterator<Item = RefusedFlow> {
    let by_key: BTreeMap<Key, &CountedElement> =
        elements.iter().map(|element| (element.key, element)).collect();
    by_key.into_values().filter_map(move |element| of_element(reason, family, element))
}

fn of_element(
    reason: RefusalReason,
    family: Family,
    element: &CountedElement,
) -> Option<RefusedFlow> {
    // The key of `FLOW`: each field is padded to whole 32-bit words.
    let bytes = element.key.as_bytes();
    let (protocol, port, addresses) = (bytes.first()?, bytes.get(4..6)?, bytes.get(8..)?);
    let source = read_address(family, addresses)?;
    let destination = read_address(family, addresses.get(family.address_len()..)?)?;
    let port = u16::from_be_bytes(*port.first_chunk()?);
    Some(RefusedFlow {
        family,
        reason,
        protocol: *protocol,
        source,
        destination: SocketAddr::new(destination, port),
        packets: element.packets,
        age: Duration::from_secs(NOTED_FOR.into()).saturating_sub(element.expires_in),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(key: Key, packets: u64, left: u64) -> CountedElement {
        CountedElement { key, packets, expires_in: Duration::from_secs(left) }
    }

    #[test]
    fn elements_are_read_as_flows() {
        let ends: [IpAddr; 2] = ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()];
        let key = |protocol, port| Key::EMPTY.byte(protocol).port(port);
        let of_v6 = |key: Key| key.address(ends[0]).address(ends[1]);
        let elements = [
            element(of_v6(key(6, 443)), 3, 700),
            // A dump may have an element twice while packets add others.
            element(of_v6(key(6, 443)), 4, 700),
            element(of_v6(key(58, 0)), 1, 900),
            // No key of this family.
            element(key(6, 80).address("10.0.0.1".parse().unwrap()), 1, 1),
        ];
        let reason = RefusalReason::NoPolicy(Direction::Egress);
        let flows: Vec<_> = of_set(reason, Family::V6, &elements).collect();
        let flow = |protocol, port, packets, seconds| RefusedFlow {
            family: Family::V6,
            reason,
            protocol,
            source: ends[0],
            destination: SocketAddr::new(ends[1], port),
            packets,
            age: Duration::from_secs(seconds),
        };
        assert_eq!(flows, [flow(6, 443, 4, 200), flow(58, 0, 1, 0)]);
    }

    #[test]
    fn every_reason_has_a_set_and_a_text_of_its_own() {
        for at in 0..RefusalReason::ALL.len() {
            let reason = RefusalReason::ALL[at];
            for other in &RefusalReason::ALL[..at] {
                assert!(reason.set() != other.set() && reason.text() != other.text());
            }
        }
    }
}
