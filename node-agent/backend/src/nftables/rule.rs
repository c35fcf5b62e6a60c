//! Chains and rules with a reason, and the statements that these rules consist of.

use ipnetwork::IpNetwork;

use super::name::{COUNTED, ChainName, ServiceSet, ServiceTable};
use crate::refusals;
use crate::why::Why;
use denizen_model::{Family, Protocol, family_of};
use denizen_nft::{
    Assigned, BaseChain, Chain, Field, Key, Limit, Lookup, Operation, Reject, Rule, Set, Statement,
    Update, Variable, Verdict,
};
use denizen_plan::MarkBit;

/// Session affinity keeps its numbers in a packet's priority for a moment. They have these two
/// bits; traffic classes of operators and of the kernel do not.
pub const SCRATCH_BITS: u32 = 0xc000_0000;
/// See [`SCRATCH_BITS`].
pub const SCRATCH: u32 = 0x4000_0000;
/// The bits of a number that name the endpoint; the others name its service port.
pub const ENDPOINT_BITS: u32 = (1 << 14) - 1;

/// A counter of connections is removed after this many seconds without one: the service may be
/// gone.
const COUNTED_FOR: u32 = 24 * 60 * 60;

/// The bits of a packet's priority that name the service port.
const SERVICE_PORT: (Field, Option<u32>) = (Field::Priority, Some(!ENDPOINT_BITS));

// enum ip_conntrack_status
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_CONFIRMED: u32 = 1 << 3;
const IPS_DST_NAT: u32 = 1 << 5;

/// The only constructor of rules: no rule without a reason.
pub fn rule(why: Why, statements: impl IntoIterator<Item = Statement>) -> Rule {
    Rule { statements: statements.into_iter().collect(), why: why.text() }
}

/// A chain that others jump or go to.
pub fn chain(name: ChainName, why: Why, rules: Vec<Rule>) -> Chain {
    Chain { name: name.to_string().into(), base: None, why: why.text(), rules }
}

/// A base chain.
pub fn base(name: ChainName, base_chain: BaseChain, why: Why, rules: Vec<Rule>) -> Chain {
    Chain { base: Some(base_chain), ..chain(name, why, rules) }
}

pub fn back() -> Statement {
    Statement::Verdict(Verdict::Return)
}

pub fn jump(chain: ChainName) -> Statement {
    Statement::Verdict(Verdict::Jump(chain.to_string().into()))
}

pub fn goto(chain: ChainName) -> Statement {
    Statement::Verdict(Verdict::Goto(chain.to_string().into()))
}

pub fn dropped() -> [Statement; 2] {
    [Statement::Counter, Statement::Verdict(Verdict::Drop)]
}

pub fn refused(answer: Reject) -> [Statement; 2] {
    [Statement::Counter, Statement::Reject(answer)]
}

pub fn is_over(protocol: Protocol) -> Statement {
    Statement::Equals(Field::Protocol, Key::EMPTY.byte(protocol.number()))
}

pub fn comes_in_by(interface: &str) -> Statement {
    Statement::Equals(Field::InputInterface, Key::EMPTY.interface(interface))
}

/// Matches the input interface's kind, as `ip link` names it.
pub fn comes_in_by_kind(kind: &str) -> Statement {
    Statement::Equals(Field::InputKind, Key::EMPTY.interface(kind))
}

pub fn comes_from(range: IpNetwork) -> Statement {
    within(Field::Source, range)
}

/// Matches packets to an address that is the node's own, by a link or by a route.
pub fn goes_to_this_node() -> Statement {
    Statement::Equals(Field::DestinationType, Key::EMPTY.number(Field::LOCAL))
}

pub fn goes_to(range: IpNetwork) -> Statement {
    within(Field::Destination, range)
}

fn within(field: impl Fn(Family) -> Field, range: IpNetwork) -> Statement {
    Statement::Within(field(family_of(range.ip())), range.network(), range.prefix())
}

/// Matches the first packet of a connection.
pub fn is_first_packet() -> Statement {
    has_none(Field::ConnectionStatus, IPS_CONFIRMED)
}

pub fn is_later_packet() -> Statement {
    has_any(Field::ConnectionStatus, IPS_CONFIRMED)
}

/// Matches packets of a connection that has not been answered yet.
pub fn is_unanswered() -> Statement {
    has_none(Field::ConnectionStatus, IPS_SEEN_REPLY)
}

/// Matches packets of a connection whose destination was translated.
pub fn is_translated() -> Statement {
    has_any(Field::ConnectionStatus, IPS_DST_NAT)
}

pub fn is_marked(bit: MarkBit) -> Statement {
    let mask = bit.mask();
    Statement::Bits { field: Field::Mark, mask, equal: true, value: mask }
}

pub fn mark(bit: MarkBit) -> Statement {
    Statement::Assign(Variable::Mark, Assigned::Or(bit.mask()))
}

pub fn unmark(bit: MarkBit) -> Statement {
    Statement::Assign(Variable::Mark, Assigned::And(!bit.mask()))
}

/// Sets this bit of the connection's mark and keeps the others.
pub fn mark_connection(bit: MarkBit) -> Statement {
    Statement::Assign(Variable::ConnectionMark, Assigned::Or(bit.mask()))
}

/// Matches if the packet's priority holds the number of an endpoint, not only of a service port.
pub fn is_recalled() -> Statement {
    has_any(Field::Priority, ENDPOINT_BITS)
}

/// Matches if the packet's priority holds one of our numbers.
pub fn is_scratched() -> Statement {
    Statement::Bits { field: Field::Priority, mask: SCRATCH_BITS, equal: true, value: SCRATCH }
}

/// Puts a number into the packet's priority.
pub fn prioritize(number: u32) -> [Statement; 2] {
    [Assigned::Zero, Assigned::Or(number)].map(|to| Statement::Assign(Variable::Priority, to))
}

pub fn clear_scratch() -> Statement {
    Statement::Assign(Variable::Priority, Assigned::Zero)
}

/// Keeps only the service port's bits of the number in the packet's priority.
pub fn keep_service_port() -> Statement {
    Statement::Assign(Variable::Priority, Assigned::And(!ENDPOINT_BITS))
}

/// Takes one from the budget of the service port in the packet's priority, and keeps that budget
/// for this many seconds; on with the next rule if none is left.
pub fn spend(limit: Limit, seconds: u32) -> Statement {
    Statement::Update(Update {
        set: ServiceSet::AffinityBudget.as_str(),
        key: vec![SERVICE_PORT],
        operation: Operation::Update { seconds, limit: Some(limit) },
        data: None,
    })
}

fn has_any(field: Field, mask: u32) -> Statement {
    Statement::Bits { field, mask, equal: false, value: 0 }
}

fn has_none(field: Field, mask: u32) -> Statement {
    Statement::Bits { field, mask, equal: true, value: 0 }
}

/// Statements about the sets of one table.
#[derive(Debug, Clone, Copy)]
pub struct SetStatements(pub ServiceTable);

impl SetStatements {
    fn set(self, set: ServiceSet) -> Set {
        set.declared(self.0)
    }

    /// Matches packets whose values are in the set.
    pub fn is_in(self, set: ServiceSet) -> Statement {
        Statement::In(self.set(set).lookup())
    }

    /// Matches packets whose source has a prefix of this length in the set.
    pub fn has_prefix(self, set: ServiceSet, length: u8) -> Statement {
        let source = Field::Source(set.family(self.0));
        Statement::In(self.set(set).lookup().prefix(source, length))
    }

    /// Matches packets whose values are not in the set. Not for the bridge's table, where it would
    /// match every frame that is not IP.
    pub fn is_not_in(self, set: ServiceSet) -> Statement {
        Statement::NotIn(self.set(set).lookup())
    }

    /// Matches packets of a connection whose answers come from an address in this set, whose key is
    /// declared with the destination.
    pub fn is_answered_from(self, set: ServiceSet) -> Statement {
        let source = Field::AnswerSource(set.family(self.0));
        Statement::In(self.set(set).lookup_of(vec![source]))
    }

    /// Goes to the chain in the map; on with the next rule if the map has no such key.
    pub fn go_where(self, map: ServiceSet) -> Statement {
        Statement::VerdictMap(self.set(map).lookup())
    }

    /// Translates to the endpoint in a slot drawn among this many; on with the next rule if the
    /// slot is empty.
    pub fn translate(self, endpoints: ServiceSet, slots: u32) -> Statement {
        Statement::Dnat(endpoints.family(self.0), self.set(endpoints).draw(slots))
    }

    /// Translates to the endpoint whose number is in the packet's priority; on with the next rule
    /// if it is gone.
    pub fn translate_to_number(self, endpoints: ServiceSet) -> Statement {
        Statement::Dnat(endpoints.family(self.0), self.set(endpoints).lookup())
    }

    /// Draws a slot among this many, and puts the number of the endpoint in it into the packet's
    /// priority; on with the next rule if the slot is empty.
    pub fn draw(self, numbers: ServiceSet, slots: u32) -> Statement {
        prioritized(self.set(numbers).draw(slots))
    }

    /// Puts the number of the endpoint that the client got last, as this map has it, into the
    /// packet's priority; on with the next rule if the map does not have the client.
    pub fn recall(self, map: ServiceSet) -> Statement {
        prioritized(self.set(map).lookup())
    }

    /// Remembers in a map, for this many seconds, that the client gets the endpoint in the packet's
    /// priority; on with the next rule if the map is full.
    pub fn remember(self, map: ServiceSet, seconds: u32) -> Statement {
        self.client(map, Operation::Update { seconds, limit: None })
    }

    /// Forgets the endpoint that the client got last, as this map has it.
    pub fn forget(self, map: ServiceSet) -> Statement {
        self.client(map, Operation::Delete)
    }

    /// Notes the packet's flow in a set of flows, and counts the packet there; on with the next
    /// rule if the set is full.
    pub fn note(self, set: ServiceSet) -> Statement {
        refusals::note(set.as_str(), set.family(self.0), true)
    }

    /// Counts the packet, which begins a connection, by what it is addressed to.
    pub fn count_connection(self) -> Statement {
        let set = ServiceSet::ServiceConnections;
        let key = COUNTED.iter().map(|field| (field.in_version(set.family(self.0)), None));
        Statement::Update(Update {
            set: set.as_str(),
            key: key.collect(),
            operation: Operation::Count { seconds: COUNTED_FOR, is_renewed: true },
            data: None,
        })
    }

    /// Changes the client's entry in a map of clients: service port and client → the number in the
    /// packet's priority.
    fn client(self, map: ServiceSet, operation: Operation) -> Statement {
        let source = Field::Source(map.family(self.0));
        Statement::Update(Update {
            set: map.as_str(),
            key: vec![SERVICE_PORT, (source, None)],
            operation,
            data: Some(Field::Priority),
        })
    }
}

fn prioritized(found: Lookup) -> Statement {
    Statement::Assign(Variable::Priority, Assigned::Found(found))
}
