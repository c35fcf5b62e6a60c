//! The chains of the tables of IP packets: the same whatever pods and policies there are.

use std::sync::Arc;

use super::schema::SetName;
use crate::plan::{Direction, FirewallPlan, FirewallSettings, MarkBit, ToNode};
use denizen_nft::{
    Assigned, BaseChain, Chain, Field, Hook, IpVersion, Key, Kind, Reject, Rule, Statement,
    Variable, Verdict,
};

/// `raw`: before connection tracking, so that forged packets cost no entry.
const RAW_PRIORITY: i32 = -300;
/// Before `filter` (0). Behind the translation of destinations and before that of sources, so that
/// a policy sees the endpoint and, where this node balances, the true client.
pub(super) const POLICY_PRIORITY: i32 = -5;

/// ESTABLISHED and RELATED (`NF_CT_STATE_BIT`).
const ESTABLISHED: u32 = 0b110;
/// IPPROTO_TCP and IPPROTO_ICMPV6.
const TCP: u8 = 6;
const ICMPV6: u8 = 58;
/// TCP's flags, and FIN among them (RFC 9293).
const TCP_FLAGS: Field = Field::TransportByte(13);
const FIN: u32 = 1;

/// What a rule drops for, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// No policy permits it.
    Refused(Direction),
    /// The pod's policies are not known yet.
    Pending,
    /// It belongs to a connection that was permitted, and is not any more.
    Forbidden,
    /// The source is not the pod's.
    Spoofed,
}

impl DropReason {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Refused(Direction::Ingress),
        Self::Refused(Direction::Egress),
        Self::Pending,
        Self::Forbidden,
        Self::Spoofed,
    ];

    /// Why, beside the rule on the node.
    pub fn text(self) -> &'static str {
        match self {
            Self::Refused(Direction::Ingress) => "no policy permits this to reach the pod",
            Self::Refused(Direction::Egress) => "no policy permits the pod to reach this",
            Self::Pending => "the pod's policies are not known yet",
            Self::Forbidden => "a policy forbids this connection since it was established",
            Self::Spoofed => "a pod's interface sends with no address of the pod",
        }
    }
}

/// The chains. None while no policy exists: rules would only cost time.
pub fn chains(version: IpVersion, plan: &FirewallPlan) -> Vec<Chain> {
    if plan.is_enforced() { all(version, plan.settings()) } else { Vec::new() }
}

/// All chains, in an order in which each is made before it is referred to.
pub fn all(version: IpVersion, settings: FirewallSettings) -> Vec<Chain> {
    let out = Program { version };
    let refused = Direction::BOTH.map(|it| out.refused(it));
    let asked = Direction::BOTH.map(|it| out.policies(it));
    let to_node = match settings.to_node {
        ToNode::Enforce => Some(out.to_node()),
        ToNode::Allow => None,
    };
    let here = match settings.by_ipvs {
        true => out.by_ipvs(to_node).into(),
        false => Vec::from_iter(to_node.map(input)),
    };
    [out.permitted(), out.forbidden()]
        .into_iter()
        .chain(refused)
        .chain(asked)
        .chain([out.spoofed(), out.forward()])
        .chain(here)
        .collect()
}

/// The tables' chains in one IP version.
pub(super) struct Program {
    version: IpVersion,
}

pub(super) fn rule(why: &'static str, statements: impl IntoIterator<Item = Statement>) -> Rule {
    Rule { statements: statements.into_iter().collect(), why }
}

pub(super) fn to(verdict: Verdict) -> Statement {
    Statement::Verdict(verdict)
}

pub(super) fn dropped(reason: DropReason, asked: Vec<Statement>) -> Rule {
    let drop = [Statement::Counter, to(Verdict::Drop)];
    rule(reason.text(), asked.into_iter().chain(drop))
}

pub(super) fn base(
    name: &str,
    hook: Hook,
    priority: i32,
    why: &'static str,
    rules: Vec<Rule>,
) -> Chain {
    Chain {
        name: name.into(),
        base: Some(BaseChain { kind: Kind::Filter, hook, priority }),
        why,
        rules,
    }
}

fn chain(name: Arc<str>, why: &'static str, rules: Vec<Rule>) -> Chain {
    Chain { name, base: None, why, rules }
}

fn input(rules: Vec<Rule>) -> Chain {
    base("input", Hook::Input, POLICY_PRIORITY, "what pods send to their own node", rules)
}

fn refused_chain(direction: Direction) -> Arc<str> {
    format!("{direction}-refused").into()
}

/// Asks whether any of these bits is set.
pub(super) fn has_any(field: Field, mask: u32) -> Statement {
    Statement::Bits { field, mask, equal: false, value: 0 }
}

/// Asks whether a packet is of this protocol.
fn is_icmpv6() -> Statement {
    Statement::Equals(Field::Protocol, Key::EMPTY.byte(ICMPV6))
}

/// Neighbour discovery and multicast listener discovery, without which nothing is reachable: types
/// 130 to 137 (RFC 2710, RFC 4861) and 143 (RFC 3810).
pub(super) fn neighbour_discovery() -> [Rule; 2] {
    let why = "neighbour and listener discovery: nothing is reachable without";
    let kind = |number| Key::EMPTY.byte(number);
    [
        Statement::Between(Field::Icmpv6Type, kind(130), kind(137)),
        Statement::Equals(Field::Icmpv6Type, kind(143)),
    ]
    .map(|is_it| rule(why, [is_it, to(Verdict::Return)]))
}

/// Link-local and unspecified sources of ICMPv6, which every pod uses on its own link.
pub(super) fn link_local() -> [Rule; 2] {
    let why = "neighbour discovery comes from link-local and unspecified addresses";
    [("fe80::", 10), ("::", 128)].map(|(address, prefix)| {
        let address = address.parse().expect("an address");
        let source = Statement::Within(Field::Source(IpVersion::V6), address, prefix);
        rule(why, [is_icmpv6(), source, to(Verdict::Return)])
    })
}

/// What belongs to a connection that is not permitted any more.
pub(super) fn forbidden(asked: Vec<Statement>) -> Rule {
    let goto = to(Verdict::Goto("forbidden".into()));
    rule("connections that are not permitted any more", asked.into_iter().chain([goto]))
}

/// What belongs to a connection that was permitted.
pub(super) fn known() -> Rule {
    let is_known = has_any(Field::ConnectionState, ESTABLISHED);
    let why = "connections that were permitted, and errors about them";
    rule(why, [is_known, to(Verdict::Return)])
}

impl Program {
    fn is_in(&self, set: SetName) -> Statement {
        Statement::In(set.declared(self.version).lookup())
    }

    /// The destination, in a set that is declared with the source.
    fn is_destination_in(&self, set: SetName) -> Statement {
        let destination = Field::Destination(self.version);
        Statement::In(set.declared(self.version).lookup_of(vec![destination]))
    }

    fn neighbour_discovery(&self) -> Vec<Rule> {
        match self.version {
            IpVersion::V4 => Vec::new(),
            IpVersion::V6 => neighbour_discovery().into(),
        }
    }

    /// A pod's packets must have an address of the pod. On bridges, the bridge's table sees to it.
    fn spoofed(&self) -> Chain {
        let foreign = Statement::NotIn(SetName::PodInterfaces.declared(self.version).lookup());
        let mut rules = vec![
            rule("does not come from a pod's interface", [foreign, to(Verdict::Return)]),
            rule("an address of the pod", [self.is_in(SetName::PodAddresses), to(Verdict::Return)]),
        ];
        if self.version == IpVersion::V6 {
            rules.extend(link_local());
        }
        rules.push(dropped(DropReason::Spoofed, Vec::new()));
        base(
            "prerouting",
            Hook::Prerouting,
            RAW_PRIORITY,
            "what arrives from pods' own interfaces, before connections are tracked",
            rules,
        )
    }

    /// What belongs to a connection that was permitted once passes, unless it is forbidden now.
    fn established(&self) -> [Rule; 2] {
        let is_forbidden = has_any(Field::ConnectionMark, MarkBit::FORBIDDEN.mask());
        [forbidden(vec![is_forbidden]), known()]
    }

    /// An end that closes its connection gets a reset. Without it, that end would go on to send what
    /// waits, longer than conntrack remembers a connection that both ends have closed (30 seconds,
    /// `nf_conntrack_tcp_timeout_last_ack`), and that would be taken for a new one.
    fn forbidden(&self) -> Chain {
        let is_tcp = Statement::Equals(Field::Protocol, Key::EMPTY.byte(TCP));
        let reset = [Statement::Counter, Statement::Reject(Reject::TcpReset)];
        let closes = [is_tcp, has_any(TCP_FLAGS, FIN)].into_iter().chain(reset);
        let rules = vec![
            rule(DropReason::Forbidden.text(), closes),
            dropped(DropReason::Forbidden, Vec::new()),
        ];
        chain("forbidden".into(), "what belongs to a connection that a policy forbids", rules)
    }

    /// `return`, never `accept`: what another table drops stays dropped, and a permitted direction
    /// does not permit the other one.
    fn forward(&self) -> Chain {
        let mut rules = Vec::from(self.established());
        rules.extend(self.neighbour_discovery());
        rules.extend(self.judged());
        let why = "what is sent on to pods and from pods; the node itself always reaches its pods";
        base("forward", Hook::Forward, POLICY_PRIORITY, why, rules)
    }

    /// Asks both directions about the first packets of connections.
    pub(super) fn judged(&self) -> [Rule; 5] {
        let jump = |direction: Direction| {
            let why = match direction {
                Direction::Egress => "a policy isolates the sender for egress",
                Direction::Ingress => "a policy isolates the receiver for ingress",
            };
            let chain = Verdict::Jump(direction.to_string().into());
            rule(why, [self.is_in(SetName::Isolated(direction)), to(chain)])
        };
        [
            rule("a pod reaches itself", [self.is_in(SetName::Itself), to(Verdict::Return)]),
            dropped(DropReason::Pending, vec![self.is_in(SetName::Pending)]),
            dropped(DropReason::Pending, vec![self.is_destination_in(SetName::Pending)]),
            jump(Direction::Egress),
            jump(Direction::Ingress),
        ]
    }

    /// The rules about what pods send to their own node.
    fn to_node(&self) -> Vec<Rule> {
        let mut rules = Vec::from(self.established());
        rules.extend(self.neighbour_discovery());
        let jump = to(Verdict::Jump(Direction::Egress.to_string().into()));
        rules.extend([
            dropped(DropReason::Pending, vec![self.is_in(SetName::Pending)]),
            rule(
                "a policy isolates the sender for egress; --policy-to-node enforce",
                [self.is_in(SetName::Isolated(Direction::Egress)), jump],
            ),
        ]);
        rules
    }

    /// Asks for what is permitted to everybody, then for what is permitted to the peer: the number
    /// of its identity travels in the packet's priority.
    fn policies(&self, direction: Direction) -> Chain {
        let clear = Statement::Assign(Variable::Priority, Assigned::Zero);
        let mut rules = vec![rule("0 stands for everybody", [clear])];
        rules.extend(self.permissions(direction));
        rules.push(self.identify(direction, SetName::Blocks, "the peer's ipBlocks"));
        rules.push(self.identify(
            direction,
            SetName::Identities,
            "the peer's pod, whose number covers its ipBlocks too",
        ));
        rules.extend(self.permissions(direction));
        let refused = to(Verdict::Goto(refused_chain(direction)));
        rules.push(rule("nothing permits it", [refused]));
        let why = match direction {
            Direction::Ingress => "what may reach an isolated pod",
            Direction::Egress => "what an isolated pod may reach",
        };
        chain(direction.to_string().into(), why, rules)
    }

    fn permissions(&self, direction: Direction) -> [Rule; 4] {
        let permitted = || to(Verdict::Goto("permitted".into()));
        [
            (SetName::All(direction), "every port"),
            (SetName::Protocols(direction), "every port of the protocol"),
            (SetName::Ports(direction), "this port"),
            (SetName::PortRanges(direction), "a range with this port"),
        ]
        .map(|(set, why)| rule(why, [self.is_in(set), permitted()]))
    }

    fn identify(&self, direction: Direction, map: SetName, why: &'static str) -> Rule {
        let peer = match direction {
            Direction::Ingress => Field::Source(self.version),
            Direction::Egress => Field::Destination(self.version),
        };
        let lookup = map.declared(self.version).lookup_of(vec![peer]);
        rule(why, [Statement::Assign(Variable::Priority, Assigned::Found(lookup))])
    }

    /// Comes back to the rule behind the jump.
    fn permitted(&self) -> Chain {
        let clear = Statement::Assign(Variable::Priority, Assigned::Zero);
        let rules = vec![rule("gives the priority back, which held the peer's number", [clear])];
        chain("permitted".into(), "a policy permits it: on to the other direction", rules)
    }

    fn refused(&self, direction: Direction) -> Chain {
        let rules = vec![dropped(DropReason::Refused(direction), Vec::new())];
        chain(refused_chain(direction), "no policy permits it", rules)
    }
}
