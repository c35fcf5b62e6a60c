//! A rule's expressions, in a normal form: those that were sent equal those that the kernel
//! returns.
//!
//! The kernel returns more than it was given: counters have counted, the range of a NAT expression
//! has its last address and port too, and attributes that were not set are zero. A rule's id in its
//! comment does not replace this comparison: a program that replaces the rule can keep the comment.

use std::collections::BTreeMap;

use denizen_netlink::{Attributes, Writer};

use crate::encode;
use crate::family::TableFamily;
use crate::rule::Rule;

/// An expression: its name, and its attributes that are not zero.
pub(crate) type Expression = (String, BTreeMap<u16, Vec<u8>>);

/// A rule's expressions as the kernel should give them back.
pub(crate) fn wanted(family: TableFamily, rule: &Rule) -> Vec<Expression> {
    let mut list = Writer::default();
    encode::statements(&mut list, family, &rule.statements);
    observed(Attributes::new(list.bytes()))
}

/// The expressions in a list of them (`NFTA_RULE_EXPRESSIONS`).
pub(crate) fn observed(list: Attributes<'_>) -> Vec<Expression> {
    list.map(|(_, expression)| normalized(Attributes::new(expression))).collect()
}

fn normalized(expression: Attributes<'_>) -> Expression {
    let name = expression.find_str(1).unwrap_or_default();
    let values = expression.nested(2).map(|(kind, value)| (kind, value_of(name, kind, value)));
    let mut values: BTreeMap<u16, Vec<u8>> = values.collect();
    match name {
        "counter" => values.clear(),
        "nat" => normalize_range(&mut values, &[(3, 4), (5, 6)], 7),
        "redir" => normalize_range(&mut values, &[(1, 2)], 3),
        // A reset has no code.
        "reject" if values.get(&1).is_some_and(|kind| **kind == NFT_REJECT_TCP_RST) => {
            drop(values.remove(&2))
        }
        _ => {}
    }
    values.retain(|_, value| value.iter().any(|byte| *byte != 0));
    (name.to_owned(), values)
}

/// In network order.
const NFT_REJECT_TCP_RST: [u8; 4] = [0, 0, 0, 1];

/// Data is a value or a verdict (`NFTA_DATA_*`), and lies in an attribute of its own.
fn value_of(expression: &str, kind: u16, value: &[u8]) -> Vec<u8> {
    match (expression, kind) {
        ("immediate", 2) | ("cmp", 3) | ("bitwise", 4 | 5 | 7) => {
            let data = Attributes::new(value);
            let verdict = data.nested(2);
            [data.find(1), verdict.find(1), verdict.find(2)]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .concat()
        }
        // The expression of which each element of the set has its own copy.
        ("dynset", 7) => {
            let (name, values) = normalized(Attributes::new(value));
            let values =
                values.into_iter().map(|(kind, value)| [&kind.to_ne_bytes()[..], &value].concat());
            [name.into_bytes(), values.flatten().collect()].concat()
        }
        _ => value.to_vec(),
    }
}

/// If only the registers of the first address and port are given, the kernel returns them as those
/// of the last too. And the kernel sets `NF_NAT_RANGE_MAP_IPS` and `NF_NAT_RANGE_PROTO_SPECIFIED`
/// by itself.
fn normalize_range(values: &mut BTreeMap<u16, Vec<u8>>, registers: &[(u16, u16)], flags: u16) {
    const SET_BY_KERNEL: u8 = 0b11;
    for (first, last) in registers {
        if let Some(register) = values.get(first).cloned() {
            values.entry(*last).or_insert(register);
        }
    }
    if let Some(lowest) = values.get_mut(&flags).and_then(|flags| flags.last_mut()) {
        *lowest &= !SET_BY_KERNEL;
    }
}
