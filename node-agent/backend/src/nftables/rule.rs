//! Typed rules, of the few kinds that the program uses.
//!
//! `statement` translates them for the driver.

use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::name::{ChainName, SetName};
use crate::why::Why;
use denizen_model::{Family, Protocol};
use denizen_nft::BaseChain;
use denizen_plan::MarkBit;

/// Session affinity keeps its numbers in a packet's priority for a moment. They have these two
/// bits; traffic classes of operators and of the kernel do not.
pub const SCRATCH_BITS: u32 = 0xc000_0000;
/// See [`SCRATCH_BITS`].
pub const SCRATCH: u32 = 0x4000_0000;
/// The bits of a number that name the endpoint; the others name its service port.
pub const ENDPOINT_BITS: u32 = (1 << 14) - 1;

/// A test of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Match {
    /// The set has the packet's values of its key.
    In(SetName),
    /// The set does not have them. Not for the bridge's table, where it would match every frame
    /// that carries something else.
    NotIn(SetName),
    /// The transport protocol.
    Protocol(Protocol),
    /// The input interface's name.
    InputInterface(Arc<str>),
    /// The input interface's kind, as `ip link` names it.
    InputKind(&'static str),
    /// The frame carries a packet of this family. A bridge's rule whose set has an address in its
    /// key tests this by itself.
    Carries(Family),
    /// The prefix of the input interface's name.
    InputPrefix(Arc<str>),
    /// The source address.
    Source(IpNetwork),
    /// The destination address.
    Destination(IpNetwork),
    /// This is the first packet of a connection.
    FirstPacket,
    /// Its connection has not been answered yet.
    Unanswered,
    /// It is not the first packet of its connection.
    LaterPacket,
    /// The connection's answers come from an address in this set, whose key is the destination.
    AnsweredFrom(SetName),
    /// The connection's destination was translated.
    Translated,
    /// This bit of the mark is set.
    Marked(MarkBit),
    /// The packet's priority holds the number of an endpoint, not only of a service port.
    Recalled,
    /// The packet's priority holds one of our numbers.
    Scratched,
}

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// On with the rules behind the jump that led here.
    Return,
    /// To a chain, and back when it returns.
    Jump(ChainName),
    /// To a chain, not to come back.
    Goto(ChainName),
    /// To the chain in the map; on with the next rule if the map has no such key.
    Lookup(SetName),
    /// To the endpoint in a slot drawn among this many; on with the next rule if the slot is empty.
    Translate {
        /// Where the endpoints are.
        endpoints: SetName,
        /// Slots to draw from.
        slots: u32,
    },
    /// Draws a slot among this many, and puts the number of the endpoint in it into the packet's
    /// priority; on with the next rule if the slot is empty.
    Draw {
        /// Where the numbers are.
        numbers: SetName,
        /// Slots to draw from.
        slots: u32,
    },
    /// Keeps only the service port's bits of the number in the packet's priority.
    KeepServicePort,
    /// Puts the number of the endpoint that the client got last, as this map has it, into the
    /// packet's priority; on with the next rule if the map does not have the client.
    Recall(SetName),
    /// Remembers in a map, for this many seconds, that the client gets the endpoint in the packet's
    /// priority; on with the next rule if the map is full.
    Remember {
        /// The map.
        map: SetName,
        /// How long.
        seconds: u32,
    },
    /// Takes one from the budget of the service port; on with the next rule if none is left.
    Spend(Budget),
    /// Forgets the endpoint that the client got last, as this map has it.
    Forget(SetName),
    /// To the endpoint in the packet's priority; on with the next rule if it is gone.
    TranslateToNumber(SetName),
    /// Clears the packet's priority.
    ClearScratch,
    /// Sets this bit of the mark and keeps the others.
    Mark(MarkBit),
    /// Clears this bit of the mark and keeps the others.
    Unmark(MarkBit),
    /// Sets this bit of the connection's mark and keeps the others.
    Admit(MarkBit),
    /// Replaces the source by the address of the interface that it leaves by, with a random port,
    /// since two clients may use the same one.
    Masquerade,
    /// Counts.
    Count,
    /// Drops.
    Drop,
    /// Answers with a TCP reset.
    Reset,
    /// Answers that the port is unreachable.
    Unreachable,
}

/// A rule, and why it is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Why.
    pub why: Why,
    /// All must hold.
    pub matches: Vec<Match>,
    /// Done in this order.
    pub actions: Vec<Action>,
}

/// The budget of each service port for new clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// The burst: at once, after a time without any.
    pub burst: u32,
    /// Per hour.
    pub hourly: u32,
    /// After this time without a new client the budget is whole again, and need not be kept.
    pub seconds: u32,
}

impl Rule {
    /// The only constructor: no rule without a reason.
    pub fn new(
        why: Why,
        matches: impl IntoIterator<Item = Match>,
        actions: impl IntoIterator<Item = Action>,
    ) -> Self {
        Self { why, matches: matches.into_iter().collect(), actions: actions.into_iter().collect() }
    }
}

/// A chain of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: ChainName,
    /// Its hook; `None` for a chain that others jump or go to.
    pub base_chain: Option<BaseChain>,
    /// What it is for.
    pub why: Why,
    /// Its rules.
    pub rules: Vec<Rule>,
}

/// A chain that others jump or go to.
pub fn chain(name: ChainName, why: Why, rules: Vec<Rule>) -> Chain {
    Chain { name, base_chain: None, why, rules }
}

/// A base chain.
pub fn base(name: ChainName, base_chain: BaseChain, why: Why, rules: Vec<Rule>) -> Chain {
    Chain { name, base_chain: Some(base_chain), why, rules }
}
