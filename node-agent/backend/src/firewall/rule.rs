//! Rules with a reason, and the statements that several of them consist of.

use std::net::Ipv6Addr;
use std::sync::Arc;

use super::drop_reason::DropReason;
use super::number;
use denizen_model::Family;
use denizen_nft::{
    Assigned, BaseChain, Chain, ChainKind, Field, Hook, Key, Rule, Statement, Variable, Verdict,
};

pub fn rule(why: &'static str, statements: impl IntoIterator<Item = Statement>) -> Rule {
    Rule { statements: statements.into_iter().collect(), why }
}

pub fn to(verdict: Verdict) -> Statement {
    Statement::Verdict(verdict)
}

pub fn dropped(reason: DropReason, matches: Vec<Statement>) -> Rule {
    let drop = [Statement::Counter, to(Verdict::Drop)];
    rule(reason.text(), matches.into_iter().chain(drop))
}

pub fn base(name: &str, hook: Hook, priority: i32, why: &'static str, rules: Vec<Rule>) -> Chain {
    Chain {
        name: name.into(),
        base: Some(BaseChain { kind: ChainKind::Filter, hook, priority }),
        why,
        rules,
    }
}

pub fn chain(name: Arc<str>, why: &'static str, rules: Vec<Rule>) -> Chain {
    Chain { name, base: None, why, rules }
}

/// Matches if any of these bits is set.
pub fn has_any(field: Field, mask: u32) -> Statement {
    Statement::Bits { field, mask, equal: false, value: 0 }
}

/// Matches a number from `first` to `last`, both included.
pub fn types(field: Field, first: u8, last: u8) -> Statement {
    let kind = |number| Key::EMPTY.byte(number);
    match first == last {
        true => Statement::Equals(field, kind(first)),
        false => Statement::Between(field, kind(first), kind(last)),
    }
}

/// Matches the unspecified IPv6 address as source.
pub fn is_unspecified() -> Statement {
    let unspecified = Key::EMPTY.address(Ipv6Addr::UNSPECIFIED.into());
    Statement::Equals(Field::Source(Family::V6), unspecified)
}

/// Replaces the number in the packet's priority.
pub fn becomes(number: u32) -> [Statement; 2] {
    [Assigned::Zero, Assigned::Or(number)].map(|to| Statement::Assign(Variable::Priority, to))
}

/// Matches if the number in the packet's priority stands for the port set that permits everything.
pub fn is_everything() -> Statement {
    let (mask, value) = (u32::MAX, number::ALL);
    Statement::Bits { field: Field::Priority, mask, equal: true, value }
}
