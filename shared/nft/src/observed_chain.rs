//! Chains and their rules, as the kernel has them.

use denizen_netlink::Attributes;

use crate::batch::ACCEPT;
use crate::chain::Chain;
use crate::expression::{self, Expression};
use crate::family::TableFamily;
use crate::rule::Rule;
use crate::rule_id::RuleId;
use crate::user_data::comment_in;

/// What calls a base chain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObservedHook {
    kind: String,
    hook: u32,
    priority: i32,
    policy: u32,
}

impl ObservedHook {
    /// From the attributes of a NFT_MSG_NEWCHAIN; `None` if it is not a base chain.
    pub fn read(attributes: Attributes<'_>) -> Option<Self> {
        let hook = attributes.nested(4);
        let base_chain = hook.find_u32(1).zip(hook.find_u32(2));
        base_chain.map(|(hook, priority)| Self {
            kind: attributes.find_str(7).unwrap_or_default().to_owned(),
            hook,
            priority: priority as i32,
            policy: attributes.find_u32(5).unwrap_or_default(),
        })
    }
}

/// A chain as the kernel has it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedChain {
    /// What calls it, if it is a base chain.
    pub hook: Option<ObservedHook>,
    /// Its rules, in order.
    pub rules: Vec<ObservedRule>,
    /// The handle of each rule, by which it is removed.
    pub handles: Vec<u64>,
}

/// A rule as the kernel has it: its id, and what it does. The text after the id is not compared.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObservedRule {
    id: Option<RuleId>,
    expressions: Vec<Expression>,
}

impl ObservedRule {
    /// From the attributes of a NFT_MSG_NEWRULE.
    pub fn read(attributes: Attributes<'_>) -> Self {
        Self {
            id: attributes.find(7).and_then(comment_in).and_then(RuleId::read),
            expressions: expression::observed(attributes.nested(4)),
        }
    }
}

/// The chain that the kernel would report for a desired chain.
pub(crate) fn wanted_chain(family: TableFamily, chain: &Chain) -> ObservedChain {
    let rule = |rule: &Rule| ObservedRule {
        id: Some(rule.id(family)),
        expressions: expression::wanted(family, rule),
    };
    ObservedChain {
        hook: chain.base.map(|base| ObservedHook {
            kind: base.kind.as_str().to_owned(),
            hook: base.hook.number(),
            priority: base.priority,
            policy: ACCEPT,
        }),
        rules: chain.rules.iter().map(rule).collect(),
        handles: Vec::new(),
    }
}
