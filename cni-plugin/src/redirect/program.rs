//! The kernel's rules for a [`Redirect`]. Pure.

use denizen_nft::{BaseChain, Chain, ChainKind, Field, Hook, Key, Rule, Statement, Verdict};
use denizen_packet::{Family, family_of};
use denizen_state::redirect::{
    ChainDirection, PortRange, Redirect, RedirectProtocol, RuleAction, RuleCondition,
};
use nix::libc;

/// Before `dstnat` (-100), at which the rules of containers inside the pod translate.
const PRIORITY: i32 = -110;

/// After conntrack (-200), which marks packets as invalid.
const INVALID_PRIORITY: i32 = -150;

/// The chain that exists only with [`Redirect::drop_invalid`].
pub(super) const INVALID: &str = "invalid";

/// A chain, and the comments of its rules.
pub(super) struct Commented {
    pub(super) chain: Chain,
    pub(super) comments: Vec<String>,
}

/// What the table is for.
pub(super) const COMMENT: &str = "the pod's TCP goes to its proxy; by denizen's CNI plugin";

/// The table's chains.
pub(super) fn chains(redirect: &Redirect) -> Vec<Commented> {
    let mut chains = vec![
        chain(redirect, ChainDirection::Inbound, Hook::Prerouting, "what arrives for the pod"),
        chain(redirect, ChainDirection::Outbound, Hook::Output, "what the pod's processes send"),
    ];
    if redirect.drop_invalid {
        chains.push(invalid());
    }
    chains
}

fn chain(
    redirect: &Redirect,
    direction: ChainDirection,
    hook: Hook,
    why: &'static str,
) -> Commented {
    let (mut rules, mut comments) = (Vec::new(), Vec::new());
    for rule in redirect.rules(direction) {
        let conditions = rule.conditions.iter().map(statement);
        let action = match rule.action {
            RuleAction::Skip => Statement::Verdict(Verdict::Return),
            RuleAction::Redirect(port) => Statement::Redirect(port.get()),
        };
        // The counter counts the first packet of each connection.
        let statements = conditions.chain([Statement::Counter, action]).collect();
        rules.push(Rule { statements, why: rule.why });
        comments.push(rule.comment);
    }
    let base = Some(BaseChain { kind: ChainKind::Nat, hook, priority: PRIORITY });
    let name = direction.to_string().into();
    Commented { chain: Chain { name, base, why, rules }, comments }
}

/// Drops TCP that conntrack finds invalid. Otherwise, if conntrack has lost the translation of a
/// connection, answers come from an address that the client does not know, and the client resets
/// the connection.
fn invalid() -> Commented {
    const INVALID_STATE: u32 = 1;
    let is_invalid = Statement::Bits {
        field: Field::ConnectionState,
        mask: INVALID_STATE,
        equal: false,
        value: 0,
    };
    let drop = Statement::Verdict(Verdict::Drop);
    let why = "denizen/drop-invalid";
    let statements = vec![is(RedirectProtocol::Tcp), is_invalid, Statement::Counter, drop];
    let base =
        BaseChain { kind: ChainKind::Filter, hook: Hook::Prerouting, priority: INVALID_PRIORITY };
    let chain = Chain {
        name: INVALID.into(),
        base: Some(base),
        why: "what conntrack finds invalid",
        rules: vec![Rule { statements, why }],
    };
    Commented { chain, comments: vec![why.to_owned()] }
}

fn statement(condition: &RuleCondition) -> Statement {
    match condition {
        RuleCondition::Ipv6 => Statement::is_of(Family::V6),
        RuleCondition::Protocol(protocol) => is(*protocol),
        RuleCondition::Port(range) => to_ports(*range),
        RuleCondition::From(cidr) => {
            let field = Field::Source(family_of(cidr.ip()));
            Statement::Within(field, cidr.network(), cidr.prefix())
        }
        RuleCondition::To(cidr) => {
            let field = Field::Destination(family_of(cidr.ip()));
            Statement::Within(field, cidr.network(), cidr.prefix())
        }
        RuleCondition::NotTo(address) => {
            let field = Field::Destination(family_of(*address));
            Statement::NotEquals(field, Key::EMPTY.address(*address))
        }
        RuleCondition::Enters(name) => {
            Statement::Equals(Field::InputInterface, Key::EMPTY.interface(name))
        }
        RuleCondition::Leaves(name) => {
            Statement::Equals(Field::OutputInterface, Key::EMPTY.interface(name))
        }
        RuleCondition::User(uid) => Statement::Equals(Field::SocketUser, Key::EMPTY.number(*uid)),
        RuleCondition::Group(gid) => Statement::Equals(Field::SocketGroup, Key::EMPTY.number(*gid)),
        RuleCondition::Mark(mark) => {
            let (mask, value) = (mark.mask(), mark.value());
            Statement::Bits { field: Field::Mark, mask, equal: true, value }
        }
    }
}

fn is(protocol: RedirectProtocol) -> Statement {
    let number = match protocol {
        RedirectProtocol::Tcp => libc::IPPROTO_TCP,
        RedirectProtocol::Udp => libc::IPPROTO_UDP,
    };
    Statement::Equals(Field::Protocol, Key::EMPTY.byte(number as u8))
}

fn to_ports(range: PortRange) -> Statement {
    let (first, last) = range.bounds();
    let (first, last) = (Key::EMPTY.port(first), Key::EMPTY.port(last));
    match first == last {
        true => Statement::Equals(Field::DestinationPort, first),
        false => Statement::Between(Field::DestinationPort, first, last),
    }
}
