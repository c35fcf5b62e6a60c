//! What a rule asks of a packet, or does.

use std::net::IpAddr;
use std::sync::Arc;

use crate::bytes::Key;
use crate::family::TableFamily;
use crate::field::Field;
use crate::lookup::Lookup;
use denizen_packet::Family;

/// What a rule asks of a packet, or does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// Asks whether the field has this value.
    Equals(Field, Key),
    /// Asks whether the field has another value.
    NotEquals(Field, Key),
    /// Asks whether the field, a number in network order, lies between these two or is one of them.
    Between(Field, Key, Key),
    /// Asks whether the field, an interface's name, begins with this text.
    BeginsWith(Field, Arc<str>),
    /// Asks whether the field, an address, is in the range of this address and prefix length.
    Within(Field, IpAddr, u8),
    /// Asks whether these bits of the field, a number, have this value, or have not.
    Bits {
        /// The field whose bits are compared.
        field: Field,
        /// The bits that are compared.
        mask: u32,
        /// Whether they should have the value.
        equal: bool,
        /// What those bits are compared with.
        value: u32,
    },
    /// Asks whether the packet's values are in the set.
    In(Lookup),
    /// Asks whether the packet's values are not in the set. Not for a bridge's table: there it
    /// would match every frame that carries something else.
    NotIn(Lookup),
    /// Asks, in the way of xtables, whether a packet matches. For chains that iptables made:
    /// iptables refuses to show or change a table with other expressions.
    Xtables {
        /// The xtables match's name.
        name: &'static str,
        /// The revision of the match's data.
        revision: u32,
        /// The match's data, in its binary structure.
        info: Vec<u8>,
    },
    /// Changes a field.
    Assign(Variable, Assigned),
    /// Executes the verdict that the map has for the key; on with the next rule if the map has no
    /// such key.
    VerdictMap(Lookup),
    /// Translates the destination to the address and port that the map has for the key; on with the
    /// next rule if the map has no such key.
    Dnat(Family, Lookup),
    /// Changes an element of a set or map that packets fill; on with the next rule if the set or
    /// map is full.
    Update(Update),
    /// Replaces the source by the address of the interface that the packet leaves by, with a random
    /// port.
    Masquerade,
    /// Translates the destination to this port of the machine itself, at an address of the
    /// interface that the packet came in by; for a packet that the machine sends, at the loopback
    /// address.
    Redirect(u16),
    /// Counts packets and bytes.
    Counter,
    /// Asks whether the rate of packets is within this limit.
    Limit(Limit),
    /// From here on, the kernel reports what happens to the packet ([`Tracer`](crate::Tracer)).
    Trace,
    /// Drops the packet, and answers its sender with a TCP reset or an ICMP error.
    Reject(Reject),
    /// Decides what happens to the packet.
    Verdict(Verdict),
}

impl Statement {
    /// Asks whether a frame carries a packet of this version.
    pub fn carries(version: Family) -> Self {
        Self::Equals(Field::EtherType, Key::EMPTY.port(version.ether_type()))
    }

    /// Asks whether a packet is of this version, in a table of both versions.
    pub fn is_of(version: Family) -> Self {
        Self::Equals(Field::IpFamily, Key::EMPTY.byte(TableFamily::from(version).number()))
    }

    /// Asks whether a frame carries an ARP message.
    pub fn carries_arp() -> Self {
        Self::Equals(Field::EtherType, Key::EMPTY.port(Field::ARP))
    }
}

/// A field that rules can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variable {
    /// The packet's mark.
    Mark,
    /// The packet's priority.
    Priority,
    /// The connection's mark.
    ConnectionMark,
}

impl From<Variable> for Field {
    fn from(variable: Variable) -> Self {
        match variable {
            Variable::Mark => Self::Mark,
            Variable::Priority => Self::Priority,
            Variable::ConnectionMark => Self::ConnectionMark,
        }
    }
}

/// The new value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assigned {
    /// The value 0.
    Zero,
    /// The old value with only these bits kept.
    And(u32),
    /// The old value with these bits set.
    Or(u32),
    /// What the map has for the key; on with the next rule if the map has no such key.
    Found(Lookup),
}

/// A change of an element of a set or map that packets fill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The name of the set or map that packets fill.
    pub set: &'static str,
    /// The fields that make the key; for each, a mask of the bits that count, unless all do.
    pub key: Vec<(Field, Option<u32>)>,
    /// What happens to the element.
    pub operation: Operation,
    /// In a map: the field whose value the key then leads to.
    pub data: Option<Field>,
}

/// What is done to an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The element is made, or its timeout begins anew.
    Update {
        /// The element's timeout in seconds.
        seconds: u32,
        /// How many packets it lets through; on with the next rule when there were more.
        limit: Option<Limit>,
    },
    /// The element is made if it is not there, and counts the packet; on with the next rule if the
    /// set is full.
    Count {
        /// The element's timeout in seconds.
        seconds: u32,
        /// Whether each packet begins the timeout anew. Otherwise the element is removed when the
        /// first timeout ends, however many packets it counts.
        is_renewed: bool,
    },
    /// The element is removed.
    Delete,
}

/// A token bucket: how many packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// How many packets pass at once, after a time without packets.
    pub burst: u32,
    /// Tokens that are added in an hour.
    pub hourly: u32,
}

/// How a packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// With a TCP reset.
    TcpReset,
    /// With an ICMP error: port unreachable.
    PortUnreachable,
}

/// What happens to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The packet passes this base chain.
    Accept,
    /// It is dropped.
    Drop,
    /// On with the rules behind the jump that led here.
    Return,
    /// To a chain, and back when it returns.
    Jump(Arc<str>),
    /// To a chain, not to come back.
    Goto(Arc<str>),
}
