//! Fields and their values as nft writes them.

use std::fmt;

use super::Field;
use crate::bytes::read_address;
use crate::family::TableFamily;
use denizen_packet::Family;

/// Writes a field's value as nft does. An incomplete value is written as a question mark.
pub(crate) fn write_value(field: Field, f: &mut fmt::Formatter<'_>, value: &[u8]) -> fmt::Result {
    let number = || value.first_chunk().copied().map(u32::from_ne_bytes);
    let short = || value.first_chunk().copied().map(u16::from_be_bytes);
    match field {
        Field::Source(version)
        | Field::Destination(version)
        | Field::OriginalSource(version)
        | Field::AnswerSource(version) => or_unknown(f, read_address(version, value)),
        Field::EtherSource | Field::EtherDestination | Field::ArpSenderEther => {
            let bytes = value.first_chunk::<6>();
            let text = bytes.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
            or_unknown(f, text)
        }
        Field::NeighbourTarget => {
            let target = value.first_chunk().copied().map(u128::from_be_bytes);
            or_unknown(f, target.map(|target| format!("{target:#034x}")))
        }
        Field::ArpSender | Field::ArpTarget => or_unknown(f, read_address(Family::V4, value)),
        Field::Protocol => match value.first() {
            Some(6) => f.write_str("tcp"),
            Some(17) => f.write_str("udp"),
            Some(132) => f.write_str("sctp"),
            number => or_unknown(f, number),
        },
        Field::DestinationPort => or_unknown(f, short()),
        Field::TransportByte(_) | Field::Icmpv6Type | Field::HopLimit => {
            or_unknown(f, value.first())
        }
        Field::PacketType => match value.first() {
            Some(&Field::UNICAST) => f.write_str("host"),
            Some(&Field::BROADCAST) => f.write_str("broadcast"),
            Some(&Field::MULTICAST) => f.write_str("multicast"),
            number => or_unknown(f, number),
        },
        Field::IpFamily => {
            let is =
                |version: &Family| Some(&TableFamily::from(*version).number()) == value.first();
            let version = Family::BOTH.into_iter().find(is);
            or_unknown(f, version.map(|version| version.to_string().to_lowercase()))
        }
        Field::EtherType | Field::FrameType => {
            let is = |version: &Family| Some(version.ether_type()) == short();
            match Family::BOTH.into_iter().find(is) {
                Some(version) => f.write_str(TableFamily::from(version).name()),
                None if short() == Some(Field::ARP) => f.write_str("arp"),
                None => or_unknown(f, short().map(|number| format!("{number:#06x}"))),
            }
        }
        Field::InputInterface | Field::OutputInterface | Field::InputKind => {
            let name: Vec<u8> = value.iter().copied().take_while(|byte| *byte != 0).collect();
            write!(f, "\"{}\"", String::from_utf8_lossy(&name))
        }
        Field::Mark | Field::ConnectionMark => {
            or_unknown(f, number().map(|mark| format!("{mark:#010x}")))
        }
        // A traffic class, in two halves.
        Field::Priority => or_unknown(
            f,
            number().map(|class| format!("{:04x}:{:04x}", class >> 16, class & 0xffff)),
        ),
        Field::ConnectionState | Field::ConnectionStatus => {
            or_unknown(f, number().map(|bits| bit_names(field, bits).unwrap_or_default()))
        }
        Field::DestinationType => match number() {
            Some(Field::LOCAL) => f.write_str("local"),
            number => or_unknown(f, number),
        },
        Field::Length | Field::SocketUser | Field::SocketGroup | Field::Random(_) => {
            or_unknown(f, number())
        }
    }
}

/// The names of bits, if the field's bits have names.
pub(crate) fn bit_names(field: Field, bits: u32) -> Option<String> {
    // Only the bits that Denizen compares.
    let names: &[(u32, &str)] = match field {
        Field::ConnectionState => &[(1 << 1, "established"), (1 << 2, "related"), (1 << 3, "new")],
        Field::ConnectionStatus => {
            &[(1 << 1, "seen-reply"), (1 << 3, "confirmed"), (1 << 5, "dnat")]
        }
        Field::EtherSource
        | Field::EtherDestination
        | Field::FrameType
        | Field::Source(_)
        | Field::Destination(_)
        | Field::OriginalSource(_)
        | Field::AnswerSource(_)
        | Field::ArpSenderEther
        | Field::NeighbourTarget
        | Field::HopLimit
        | Field::Length
        | Field::ArpSender
        | Field::ArpTarget
        | Field::Protocol
        | Field::DestinationPort
        | Field::TransportByte(_)
        | Field::Icmpv6Type
        | Field::InputInterface
        | Field::OutputInterface
        | Field::InputKind
        | Field::EtherType
        | Field::IpFamily
        | Field::SocketUser
        | Field::SocketGroup
        | Field::PacketType
        | Field::Mark
        | Field::Priority
        | Field::ConnectionMark
        | Field::DestinationType
        | Field::Random(_) => return None,
    };
    let known = names.iter().filter(|(bit, _)| bits & bit != 0);
    let rest = names.iter().fold(bits, |rest, (bit, _)| rest & !bit);
    let rest = (rest != 0).then(|| format!("{rest:#x}"));
    let names = known.map(|(_, name)| (*name).to_owned()).chain(rest);
    Some(names.collect::<Vec<_>>().join(","))
}

fn or_unknown(f: &mut fmt::Formatter<'_>, value: Option<impl fmt::Display>) -> fmt::Result {
    match value {
        Some(value) => write!(f, "{value}"),
        None => f.write_str("?"),
    }
}

impl fmt::Display for Field {
    /// As nft writes the expression that reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EtherSource => f.write_str("ether saddr"),
            Self::EtherDestination => f.write_str("ether daddr"),
            Self::FrameType => f.write_str("ether type"),
            Self::ArpSenderEther => f.write_str("arp saddr ether"),
            Self::NeighbourTarget => f.write_str("@th,64,128"),
            Self::HopLimit => f.write_str("ip6 hoplimit"),
            Self::Length => f.write_str("meta length"),
            Self::Source(version) => write!(f, "{} saddr", TableFamily::from(*version).name()),
            Self::Destination(version) => write!(f, "{} daddr", TableFamily::from(*version).name()),
            Self::ArpSender => f.write_str("arp saddr ip"),
            Self::ArpTarget => f.write_str("arp daddr ip"),
            Self::Protocol => f.write_str("meta l4proto"),
            Self::DestinationPort => f.write_str("th dport"),
            Self::TransportByte(at) => write!(f, "@th,{},8", u32::from(*at) * 8),
            Self::Icmpv6Type => f.write_str("icmpv6 type"),
            Self::InputInterface => f.write_str("iifname"),
            Self::OutputInterface => f.write_str("oifname"),
            Self::InputKind => f.write_str("meta iifkind"),
            Self::EtherType => f.write_str("meta protocol"),
            Self::IpFamily => f.write_str("meta nfproto"),
            Self::SocketUser => f.write_str("meta skuid"),
            Self::SocketGroup => f.write_str("meta skgid"),
            Self::PacketType => f.write_str("meta pkttype"),
            Self::Mark => f.write_str("meta mark"),
            Self::Priority => f.write_str("meta priority"),
            Self::ConnectionState => f.write_str("ct state"),
            Self::ConnectionStatus => f.write_str("ct status"),
            Self::ConnectionMark => f.write_str("ct mark"),
            Self::OriginalSource(version) => {
                write!(f, "ct original {} saddr", TableFamily::from(*version).name())
            }
            Self::AnswerSource(version) => {
                write!(f, "ct reply {} saddr", TableFamily::from(*version).name())
            }
            Self::DestinationType => f.write_str("fib daddr type"),
            Self::Random(below) => write!(f, "numgen random mod {below}"),
        }
    }
}
