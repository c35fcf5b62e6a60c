//! Fields: what a rule can read of a packet, and what keys and data of sets are made of.

mod text;

pub(crate) use self::text::{bit_names, write_value};

use crate::user_data::{expression, numbers};
use denizen_packet::Family;

/// A value that the kernel reads, or draws, for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// The Ethernet address that a frame comes from.
    EtherSource,
    /// The Ethernet address that a frame is for.
    EtherDestination,
    /// The EtherType in the frame's own header: of a tagged frame, the tag's.
    FrameType,
    /// The source address.
    Source(Family),
    /// The destination address.
    Destination(Family),
    /// The Ethernet address that an ARP message says its sender has. A rule that reads it matches
    /// ARP alone.
    ArpSenderEther,
    /// The IPv4 address that an ARP message says its sender has. A rule that reads it matches ARP
    /// alone.
    ArpSender,
    /// The IPv4 address that an ARP message asks for. For tables of ARP alone.
    ArpTarget,
    /// The transport protocol's number (`meta l4proto`).
    Protocol,
    /// The transport protocol's destination port.
    DestinationPort,
    /// The byte at this place of the transport header.
    TransportByte(u8),
    /// The type of an ICMPv6 message. A rule that reads it matches ICMPv6 alone.
    Icmpv6Type,
    /// The address that a neighbour solicitation asks for, or an advertisement announces (RFC 4861,
    /// 4.3 and 4.4). nft 1.0.6 has no name for it, so a set's type is the raw payload,
    /// `@th,64,128`. A rule must compare the type of the message first.
    NeighbourTarget,
    /// IPv6's hop limit. A rule that reads it matches IPv6 alone.
    HopLimit,
    /// How long the packet is, in bytes, from the header of its network protocol on.
    Length,
    /// The name of the input interface.
    InputInterface,
    /// The name of the output interface.
    OutputInterface,
    /// The kind of the input interface, as `ip link` names it.
    InputKind,
    /// The EtherType of what a frame carries.
    EtherType,
    /// The family of the packet that a table of both versions sees
    /// ([`TableFamily::number`](crate::TableFamily::number)).
    IpFamily,
    /// The user who opened the socket that sends the packet, by its number in the user namespace
    /// that owns the network namespace. A packet that no process's socket sends does not match.
    SocketUser,
    /// The same of the user's group.
    SocketGroup,
    /// To whom a frame is addressed ([`Self::UNICAST`] and so on).
    PacketType,
    /// The packet's mark (`meta mark`).
    Mark,
    /// The packet's priority (`meta priority`).
    Priority,
    /// The state of the packet in its connection (`NF_CT_STATE_BIT`).
    ConnectionState,
    /// The connection's status (`enum ip_conntrack_status`).
    ConnectionStatus,
    /// The connection's mark (`ct mark`).
    ConnectionMark,
    /// The address from which the connection was begun.
    OriginalSource(Family),
    /// The address from which the connection's answers come.
    AnswerSource(Family),
    /// What the routes say of the destination address (`fib daddr type`). In kernels without
    /// `nft_fib`, there is no such field.
    DestinationType,
    /// A random number below this one.
    Random(u32),
}

/// Whether numbers lie in registers as the host, or as the network, writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    Host,
    Network,
}

/// How the kernel loads a field: the expression, and what it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// `enum nft_meta_keys`.
    Meta(u32),
    /// `enum nft_ct_keys`, and the direction (`enum ip_conntrack_dir`) of what depends on it.
    Connection(u32, Option<u8>),
    /// `enum nft_payload_bases`, and the offset behind it.
    Payload(u32, u32),
    /// `NFTA_FIB_RESULT` and `NFTA_FIB_FLAGS`.
    Route(u32, u32),
    /// `NFT_NG_RANDOM` below this number.
    Random(u32),
}

/// `enum nft_payload_bases`.
const LINK_HEADER: u32 = 0;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

/// `IP_CT_DIR_ORIGINAL` and `IP_CT_DIR_REPLY`.
const ORIGINAL: Option<u8> = Some(0);
const REPLY: Option<u8> = Some(1);

/// `NFT_FIB_RESULT_ADDRTYPE`.
const ADDRESS_TYPE: u32 = 3;
/// `NFTA_FIB_F_DADDR`.
const OF_DESTINATION: u32 = 1 << 1;

impl Field {
    /// [`Self::PacketType`] of a frame for this machine. A frame that a bridge forwards from port
    /// to port has a fourth type: it is for another machine.
    pub const UNICAST: u8 = 0;
    /// [`Self::PacketType`] of a frame for all stations.
    pub const BROADCAST: u8 = 1;
    /// [`Self::PacketType`] of a frame for a group of stations.
    pub const MULTICAST: u8 = 2;

    /// [`Self::DestinationType`] of an address of this machine (`RTN_LOCAL`).
    pub const LOCAL: u32 = 2;

    /// [`Self::EtherType`] of frames that carry ARP.
    pub(crate) const ARP: u16 = 0x0806;

    /// The same field in packets of this version, if the field is an IP address. Other fields stay.
    pub fn in_version(mut self, version: Family) -> Self {
        if let Self::Source(of)
        | Self::Destination(of)
        | Self::OriginalSource(of)
        | Self::AnswerSource(of) = &mut self
        {
            *of = version;
        }
        self
    }

    /// The length of its value in bytes.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Source(version)
            | Self::Destination(version)
            | Self::OriginalSource(version)
            | Self::AnswerSource(version) => version.address_len(),
            Self::NeighbourTarget => Family::V6.address_len(),
            Self::Protocol
            | Self::TransportByte(_)
            | Self::Icmpv6Type
            | Self::HopLimit
            | Self::PacketType
            | Self::IpFamily => 1,
            Self::DestinationPort | Self::EtherType | Self::FrameType => 2,
            Self::EtherSource | Self::EtherDestination | Self::ArpSenderEther => 6,
            Self::InputInterface | Self::OutputInterface | Self::InputKind => 16,
            Self::ArpSender
            | Self::ArpTarget
            | Self::Length
            | Self::Mark
            | Self::Priority
            | Self::SocketUser
            | Self::SocketGroup
            | Self::ConnectionState
            | Self::ConnectionStatus
            | Self::ConnectionMark
            | Self::DestinationType
            | Self::Random(_) => 4,
        }
    }

    /// The bytes of a number as a value of the field.
    pub(crate) fn number(self, number: u32) -> Vec<u8> {
        match self.size() {
            1 => vec![number as u8],
            // In network order.
            2 => (number as u16).to_be_bytes().into(),
            _ => number.to_ne_bytes().into(),
        }
    }

    /// How many 32-bit registers its value takes.
    pub(crate) fn words(self) -> u32 {
        self.size().div_ceil(4) as u32
    }

    /// The version of the address, if the field is an address of an IP packet or of a connection.
    pub(crate) fn address(self) -> Option<Family> {
        match self {
            Self::Source(version)
            | Self::Destination(version)
            | Self::OriginalSource(version)
            | Self::AnswerSource(version) => Some(version),
            Self::EtherSource
            | Self::EtherDestination
            | Self::FrameType
            | Self::ArpSenderEther
            | Self::ArpSender
            | Self::ArpTarget
            | Self::Protocol
            | Self::DestinationPort
            | Self::TransportByte(_)
            | Self::Icmpv6Type
            | Self::NeighbourTarget
            | Self::HopLimit
            | Self::Length
            | Self::InputInterface
            | Self::OutputInterface
            | Self::InputKind
            | Self::EtherType
            | Self::IpFamily
            | Self::SocketUser
            | Self::SocketGroup
            | Self::PacketType
            | Self::Mark
            | Self::Priority
            | Self::ConnectionState
            | Self::ConnectionStatus
            | Self::ConnectionMark
            | Self::DestinationType
            | Self::Random(_) => None,
        }
    }

    pub(crate) fn load(self) -> Load {
        match self {
            Self::Source(Family::V4) => Load::Payload(NETWORK_HEADER, 12),
            Self::Source(Family::V6) => Load::Payload(NETWORK_HEADER, 8),
            Self::Destination(Family::V4) => Load::Payload(NETWORK_HEADER, 16),
            Self::Destination(Family::V6) => Load::Payload(NETWORK_HEADER, 24),
            Self::EtherDestination => Load::Payload(LINK_HEADER, 0),
            Self::EtherSource => Load::Payload(LINK_HEADER, 6),
            Self::FrameType => Load::Payload(LINK_HEADER, 12),
            Self::HopLimit => Load::Payload(NETWORK_HEADER, 7),
            // Behind the fixed part of the header, and an Ethernet address.
            Self::ArpSenderEther => Load::Payload(NETWORK_HEADER, 8),
            Self::ArpSender => Load::Payload(NETWORK_HEADER, 14),
            Self::ArpTarget => Load::Payload(NETWORK_HEADER, 24),
            Self::DestinationPort => Load::Payload(TRANSPORT_HEADER, 2),
            Self::TransportByte(at) => Load::Payload(TRANSPORT_HEADER, u32::from(at)),
            Self::Icmpv6Type => Load::Payload(TRANSPORT_HEADER, 0),
            Self::NeighbourTarget => Load::Payload(TRANSPORT_HEADER, 8),
            Self::Length => Load::Meta(0),
            Self::EtherType => Load::Meta(1),
            Self::Priority => Load::Meta(2),
            Self::Mark => Load::Meta(3),
            Self::InputInterface => Load::Meta(6),
            Self::OutputInterface => Load::Meta(7),
            Self::SocketUser => Load::Meta(10),
            Self::SocketGroup => Load::Meta(11),
            Self::IpFamily => Load::Meta(15),
            Self::Protocol => Load::Meta(16),
            Self::PacketType => Load::Meta(19),
            Self::InputKind => Load::Meta(26),
            Self::ConnectionState => Load::Connection(0, None),
            Self::ConnectionStatus => Load::Connection(2, None),
            Self::ConnectionMark => Load::Connection(3, None),
            Self::OriginalSource(Family::V4) => Load::Connection(19, ORIGINAL),
            Self::OriginalSource(Family::V6) => Load::Connection(21, ORIGINAL),
            Self::AnswerSource(Family::V4) => Load::Connection(19, REPLY),
            Self::AnswerSource(Family::V6) => Load::Connection(21, REPLY),
            Self::DestinationType => Load::Route(ADDRESS_TYPE, OF_DESTINATION),
            Self::Random(below) => Load::Random(below),
        }
    }

    pub(crate) fn byte_order(self) -> ByteOrder {
        match self {
            Self::EtherSource
            | Self::EtherDestination
            | Self::FrameType
            | Self::Source(_)
            | Self::Destination(_)
            | Self::OriginalSource(_)
            | Self::AnswerSource(_)
            | Self::ArpSenderEther
            | Self::ArpSender
            | Self::ArpTarget
            | Self::Protocol
            | Self::DestinationPort
            | Self::TransportByte(_)
            | Self::Icmpv6Type
            | Self::NeighbourTarget
            | Self::HopLimit
            | Self::EtherType => ByteOrder::Network,
            Self::Length
            | Self::InputInterface
            | Self::OutputInterface
            | Self::InputKind
            | Self::PacketType
            | Self::IpFamily
            | Self::SocketUser
            | Self::SocketGroup
            | Self::Mark
            | Self::Priority
            | Self::ConnectionState
            | Self::ConnectionStatus
            | Self::ConnectionMark
            | Self::DestinationType
            | Self::Random(_) => ByteOrder::Host,
        }
    }

    /// nft's number for the type of its values (`enum datatypes` in nft's datatype.h), by which
    /// `nft list` knows how to print them, and the type's name.
    pub(crate) fn data_type(self) -> (u32, &'static str) {
        match self {
            Self::IpFamily => (1, "nf_proto"),
            Self::TransportByte(_)
            | Self::NeighbourTarget
            | Self::HopLimit
            | Self::Length
            | Self::Random(_) => (4, "integer"),
            Self::Source(Family::V4) | Self::Destination(Family::V4) => (7, "ipv4_addr"),
            Self::ArpSender | Self::ArpTarget => (7, "ipv4_addr"),
            Self::OriginalSource(Family::V4) | Self::AnswerSource(Family::V4) => (7, "ipv4_addr"),
            Self::OriginalSource(Family::V6) | Self::AnswerSource(Family::V6) => (8, "ipv6_addr"),
            Self::Source(Family::V6) | Self::Destination(Family::V6) => (8, "ipv6_addr"),
            Self::EtherSource | Self::EtherDestination | Self::ArpSenderEther => (9, "ether_addr"),
            Self::EtherType | Self::FrameType => (10, "ether_type"),
            Self::Protocol => (12, "inet_proto"),
            Self::DestinationPort => (13, "inet_service"),
            Self::Mark | Self::ConnectionMark => (19, "mark"),
            Self::Priority => (23, "classid"),
            Self::SocketUser => (24, "uid"),
            Self::SocketGroup => (25, "gid"),
            Self::ConnectionState => (26, "ct_state"),
            Self::ConnectionStatus => (28, "ct_status"),
            Self::Icmpv6Type => (29, "icmpv6_type"),
            Self::PacketType => (31, "pkt_type"),
            Self::DestinationType => (38, "fib_addrtype"),
            Self::InputInterface | Self::OutputInterface | Self::InputKind => (41, "ifname"),
        }
    }

    /// nft's description of it (`NFTNL_UDATA_SET_KEY_TYPEOF`): the kind (`enum expr_types`), and
    /// what identifies it.
    pub(crate) fn description(self) -> Vec<u8> {
        const PAYLOAD: u32 = 7;
        const META: u32 = 9;
        const CONNECTION: u32 = 12;
        const NUMGEN: u32 = 23;
        const FIB: u32 = 26;
        const NO_DIRECTION: u32 = u32::MAX;
        // Payload: nft's number of the header (`enum proto_desc_id`), and of the field in it.
        let payload = |header, field| expression(PAYLOAD, &numbers(&[header, field]));
        match (self, self.load()) {
            // nft 1.0.6 has no name for this field, but describes it by base, offset and length in
            // bits.
            (Self::NeighbourTarget, _) => {
                expression(PAYLOAD, &numbers(&[0, 0, TRANSPORT_HEADER + 1, 64, 128]))
            }
            (Self::EtherDestination, _) => payload(17, 1),
            (Self::EtherSource, _) => payload(17, 2),
            (Self::FrameType, _) => payload(17, 3),
            (Self::HopLimit, _) => payload(13, 7),
            (Self::ArpSenderEther, _) => payload(15, 6),
            (Self::Source(Family::V4), _) => payload(12, 11),
            (Self::Destination(Family::V4), _) => payload(12, 12),
            (Self::Source(Family::V6), _) => payload(13, 8),
            (Self::Destination(Family::V6), _) => payload(13, 9),
            (Self::Icmpv6Type, _) => payload(14, 1),
            (Self::ArpSender, _) => payload(15, 8),
            (Self::ArpTarget, _) => payload(15, 9),
            (_, Load::Payload(..)) => payload(11, 2),
            (_, Load::Meta(key)) => expression(META, &numbers(&[key])),
            (_, Load::Connection(key, direction)) => {
                let direction = direction.map_or(NO_DIRECTION, u32::from);
                expression(CONNECTION, &numbers(&[key, direction]))
            }
            (_, Load::Route(result, flags)) => expression(FIB, &numbers(&[result, flags])),
            (_, Load::Random(below)) => expression(NUMGEN, &numbers(&[1, below, 0])),
        }
    }
}
