//! What a ruleset consists of.

use std::collections::BTreeMap;

use super::value::{Atom, Key, NftType, Pattern};

/// A whole ruleset.
#[derive(Debug, Default)]
pub struct Ruleset {
    pub tables: Vec<Table>,
}

#[derive(Debug)]
pub struct Table {
    pub family: String,
    pub sets: BTreeMap<String, Set>,
    pub chains: BTreeMap<String, ReadChain>,
}

/// A set, or a map.
#[derive(Debug)]
pub struct Set {
    pub key: Vec<NftType>,
    /// The types of a map's values; empty for a set.
    pub data: Vec<NftType>,
    /// Elements that are one value each.
    pub exact: BTreeMap<Key, Option<Datum>>,
    /// Elements with a range in them.
    pub ranged: Vec<(Vec<Pattern>, Option<Datum>)>,
    /// Whether packets fill the set.
    pub dynamic: bool,
}

/// A map's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Datum {
    Verdict(Verdict),
    Atoms(Key),
}

#[derive(Debug)]
pub struct ReadChain {
    pub base: Option<Base>,
    pub rules: Vec<Vec<Statement>>,
}

/// Where a base chain is hooked. Its policy is accept: the reader knows no other.
#[derive(Debug)]
pub struct Base {
    pub nat: bool,
    pub hook: String,
    pub priority: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    Reject,
    Return,
    Jump(String),
    Goto(String),
}

#[derive(Debug)]
pub enum Statement {
    Match {
        left: Expr,
        negated: bool,
        right: RightSide,
    },
    VerdictMap {
        key: Expr,
        map: String,
    },
    Verdict(Verdict),
    Counter,
    /// Sets a field of the packet's metadata.
    Set {
        field: Field,
        value: Expr,
    },
    /// Adds or replaces an element of a dynamic map.
    Update {
        map: String,
        key: Expr,
        data: Expr,
    },
    Delete {
        map: String,
        key: Expr,
    },
    /// Matches while this key's packets are within the limit.
    Limit {
        set: String,
        key: Expr,
    },
    /// Counts packets of this key, while the set has room.
    Count {
        set: String,
        key: Expr,
    },
    Dnat {
        to: Expr,
    },
    Masquerade,
}

/// What the left side of a match is compared with.
#[derive(Debug)]
pub enum RightSide {
    Pattern(Pattern),
    Set(String),
    /// Matches if one of these bits is set: the meaning of a bit mask without an operator.
    Bits(u128),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expr {
    Field(Field),
    And(Box<Expr>, u128),
    Or(Box<Expr>, u128),
    Concat(Vec<Expr>),
    Map(Box<Expr>, String),
    /// A random number below this.
    Random(u128),
    Constant(Atom),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Source(Version),
    Destination(Version),
    Protocol,
    /// Bytes 2 and 3 of the transport header, of any protocol: the reader does not check which.
    Port,
    /// Byte 13 of the transport header, of any protocol.
    TcpFlags,
    /// nft adds a guard: only ICMPv6 has it.
    Icmpv6Type,
    /// The address that a neighbour advertisement announces. Rules match the type first.
    NeighbourTarget,
    HopLimit,
    /// The packet's length in bytes.
    Length,
    EtherSource,
    EtherDestination,
    /// The EtherType in the frame's own header.
    FrameType,
    /// nft adds a guard: only ARP has it.
    ArpSenderEther,
    /// nft adds the same guard.
    ArpSender,
    InputInterface,
    OutputInterface,
    EtherType,
    PacketType,
    Mark,
    Priority,
    ConntrackState,
    ConntrackStatus,
    ConntrackMark,
    /// The source of the connection's first packet.
    CtOriginalSource(Version),
    /// The source of the connection's replies.
    CtReplySource(Version),
    /// What `fib` says of the destination: its type on this node.
    DestinationType,
}

/// The IP version of an address field. Where a table sees both versions, nft adds a guard: the rule
/// does not match packets of the other version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V4,
    V6,
}

impl Field {
    /// Of what type its values are.
    pub fn kind(self) -> NftType {
        match self {
            Self::Source(version)
            | Self::Destination(version)
            | Self::CtOriginalSource(version)
            | Self::CtReplySource(version) => match version {
                Version::V4 => NftType::Ipv4,
                Version::V6 => NftType::Ipv6,
            },
            Self::ArpSender => NftType::Ipv4,
            Self::EtherSource | Self::EtherDestination | Self::ArpSenderEther => NftType::Ether,
            Self::NeighbourTarget | Self::HopLimit | Self::Length => NftType::Integer,
            Self::Protocol => NftType::Protocol,
            Self::Port => NftType::Port,
            Self::TcpFlags => NftType::Integer,
            Self::Icmpv6Type => NftType::Icmpv6Type,
            Self::InputInterface | Self::OutputInterface => NftType::Interface,
            Self::EtherType | Self::FrameType => NftType::EtherType,
            Self::PacketType => NftType::PacketType,
            Self::Mark | Self::ConntrackMark => NftType::Mark,
            Self::Priority => NftType::Class,
            Self::ConntrackState => NftType::State,
            Self::ConntrackStatus => NftType::Status,
            Self::DestinationType => NftType::RouteType,
        }
    }
}

impl Expr {
    /// Of what types its parts are; for a map, those of its key.
    pub fn kinds(&self) -> Vec<NftType> {
        match self {
            Self::Field(field) => vec![field.kind()],
            Self::And(of, _) | Self::Or(of, _) | Self::Map(of, _) => of.kinds(),
            Self::Concat(parts) => parts.iter().flat_map(Self::kinds).collect(),
            Self::Random(_) | Self::Constant(_) => vec![NftType::Integer],
        }
    }
}
