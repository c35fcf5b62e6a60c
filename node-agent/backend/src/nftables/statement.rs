//! Rules as the driver's statements.

use super::name::{ChainName, ServiceTable, SetName};
use super::rule::{Action, Budget, Chain, ENDPOINT_BITS, Match, Rule, SCRATCH, SCRATCH_BITS};
use denizen_model::{Family, family_of};
use denizen_nft::{
    Assigned, Field, Key, Limit, Operation, Reject, Set, Statement, Update, Variable, Verdict,
};
use ipnetwork::IpNetwork;

impl Chain {
    /// As the driver has it.
    pub fn lowered(&self, table_family: ServiceTable) -> denizen_nft::Chain {
        denizen_nft::Chain {
            name: self.name.to_string().into(),
            base: self.base_chain,
            why: self.why.text(),
            rules: self.rules.iter().map(|rule| rule.lowered(table_family)).collect(),
        }
    }
}

impl Rule {
    /// As the driver has it.
    pub fn lowered(&self, table_family: ServiceTable) -> denizen_nft::Rule {
        let out = Statements { table_family };
        let matches = self.matches.iter().map(|wanted| out.wanted(wanted));
        let actions = self.actions.iter().map(|action| out.action(*action));
        denizen_nft::Rule { statements: matches.chain(actions).collect(), why: self.why.text() }
    }
}

// enum ip_conntrack_status
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_CONFIRMED: u32 = 1 << 3;
const IPS_DST_NAT: u32 = 1 << 5;

struct Statements {
    table_family: ServiceTable,
}

impl Statements {
    fn set(&self, set: SetName) -> Set {
        set.declared(self.table_family)
    }

    fn wanted(&self, wanted: &Match) -> Statement {
        let named = |name: &str| Key::EMPTY.interface(name);
        let bits = |field, mask, equal, value| Statement::Bits { field, mask, equal, value };
        match wanted {
            Match::In(set) => Statement::In(self.set(*set).lookup()),
            Match::NotIn(set) => Statement::NotIn(self.set(*set).lookup()),
            Match::Protocol(protocol) => {
                Statement::Equals(Field::Protocol, Key::EMPTY.byte(protocol.number()))
            }
            Match::InputInterface(name) => Statement::Equals(Field::InputInterface, named(name)),
            Match::InputKind(kind) => Statement::Equals(Field::InputKind, named(kind)),
            Match::Carries(family) => Statement::carries(*family),
            Match::InputPrefix(prefix) => {
                Statement::BeginsWith(Field::InputInterface, prefix.clone())
            }
            Match::Source(range) => within(Field::Source, *range),
            Match::Destination(range) => within(Field::Destination, *range),
            Match::FirstPacket => bits(Field::ConnectionStatus, IPS_CONFIRMED, true, 0),
            Match::Unanswered => bits(Field::ConnectionStatus, IPS_SEEN_REPLY, true, 0),
            Match::LaterPacket => bits(Field::ConnectionStatus, IPS_CONFIRMED, false, 0),
            Match::AnsweredFrom(set) => {
                let source = Field::AnswerSource(set.family(self.table_family));
                Statement::In(self.set(*set).lookup_of(vec![source]))
            }
            Match::Translated => bits(Field::ConnectionStatus, IPS_DST_NAT, false, 0),
            Match::Marked(bit) => bits(Field::Mark, bit.mask(), true, bit.mask()),
            Match::Recalled => bits(Field::Priority, ENDPOINT_BITS, false, 0),
            Match::Scratched => bits(Field::Priority, SCRATCH_BITS, true, SCRATCH),
        }
    }

    fn action(&self, action: Action) -> Statement {
        use Variable::{ConnectionMark, Mark, Priority};
        let to = |chain: ChainName| chain.to_string().into();
        match action {
            Action::Return => Statement::Verdict(Verdict::Return),
            Action::Jump(chain) => Statement::Verdict(Verdict::Jump(to(chain))),
            Action::Goto(chain) => Statement::Verdict(Verdict::Goto(to(chain))),
            Action::Drop => Statement::Verdict(Verdict::Drop),
            Action::Lookup(map) => Statement::GoWhere(self.set(map).lookup()),
            Action::Translate { endpoints, slots } => {
                self.translate(endpoints, self.set(endpoints).draw(slots))
            }
            Action::TranslateToNumber(endpoints) => {
                self.translate(endpoints, self.set(endpoints).lookup())
            }
            Action::Draw { numbers, slots } => {
                Statement::Assign(Priority, Assigned::Found(self.set(numbers).draw(slots)))
            }
            Action::KeepServicePort => Statement::Assign(Priority, Assigned::And(!ENDPOINT_BITS)),
            Action::Recall(map) => {
                Statement::Assign(Priority, Assigned::Found(self.set(map).lookup()))
            }
            Action::Remember { map, seconds } => {
                self.client(map, Operation::Update { seconds, limit: None })
            }
            Action::Forget(map) => self.client(map, Operation::Delete),
            Action::Spend(budget) => spend(budget),
            Action::ClearScratch => Statement::Assign(Priority, Assigned::Zero),
            Action::Mark(bit) => Statement::Assign(Mark, Assigned::Or(bit.mask())),
            Action::Unmark(bit) => Statement::Assign(Mark, Assigned::And(!bit.mask())),
            Action::Admit(bit) => Statement::Assign(ConnectionMark, Assigned::Or(bit.mask())),
            Action::Masquerade => Statement::Masquerade,
            Action::Count => Statement::Counter,
            Action::Reset => Statement::Reject(Reject::TcpReset),
            Action::Unreachable => Statement::Reject(Reject::PortUnreachable),
        }
    }

    fn translate(&self, endpoints: SetName, lookup: denizen_nft::Lookup) -> Statement {
        Statement::Dnat(endpoints.family(self.table_family), lookup)
    }

    /// Changes the client's entry in a map of clients: service port and client → the number in the
    /// packet's priority.
    fn client(&self, map: SetName, operation: Operation) -> Statement {
        let source = Field::Source(map.family(self.table_family));
        Statement::Update(Update {
            set: map.as_str(),
            key: vec![SERVICE_PORT, (source, None)],
            operation,
            data: Some(Field::Priority),
        })
    }
}

/// The bits of a packet's priority that name the service port.
const SERVICE_PORT: (Field, Option<u32>) = (Field::Priority, Some(!ENDPOINT_BITS));

fn spend(Budget { burst, hourly, seconds }: Budget) -> Statement {
    Statement::Update(Update {
        set: SetName::AffinityBudget.as_str(),
        key: vec![SERVICE_PORT],
        operation: Operation::Update { seconds, limit: Some(Limit { burst, hourly }) },
        data: None,
    })
}

fn within(field: impl Fn(Family) -> Field, range: IpNetwork) -> Statement {
    Statement::Within(field(family_of(range.ip())), range.network(), range.prefix())
}
