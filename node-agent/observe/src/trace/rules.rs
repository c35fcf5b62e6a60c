//! The rules and chains that the kernel's messages name.

use std::collections::{HashMap, HashSet};

use denizen_nft::{
    ChainView, Hook, Kernel, RuleId, RuleView, TableFamily, TraceEvent, TraceMessage,
};

use denizen_backend::firewall;
use denizen_backend::{host_ports, nftables};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedRule {
    /// What it matches and does.
    pub text: String,
    /// The rule's comment; for a rule of the agent, the reason for the rule.
    pub comment: Option<String>,
    /// Whether the rule answers the packets that it drops.
    pub refuses: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ChainKey {
    family: TableFamily,
    table: String,
    chain: String,
}

/// Rules and chains, read when a message first names them.
#[derive(Debug, Default)]
pub struct TracedRules {
    rules: HashMap<(ChainKey, u64), TracedRule>,
    hooks: HashMap<ChainKey, Hook>,
}

/// The agent's own chains in the tables of iptables.
pub const KUBE: &str = "KUBE-";

/// Whether the agent programs this chain.
pub fn is_agents(table: &str, chain: &str) -> bool {
    [nftables::TABLE, firewall::TABLE, host_ports::TABLE].contains(&table)
        || chain.starts_with(KUBE)
}

/// A rule's comment for a person: without the rule id, which the agent puts before its comments.
pub fn comment_words(comment: &str) -> String {
    match (RuleId::read(comment), comment.split_once(' ')) {
        (Some(_), Some((_, why))) => why.to_owned(),
        _ => comment.to_owned(),
    }
}

impl TracedRules {
    /// Reads which hook calls each base chain.
    pub fn read_hooks(&mut self, kernel: &mut Kernel) -> Result<(), denizen_netlink::NetlinkError> {
        self.hooks = kernel.chains(None, |chain| hook_of(&chain))?.into_iter().collect();
        Ok(())
    }

    /// Whether any table has a chain of this name.
    pub fn has_chain(&self, kernel: &mut Kernel, name: &str) -> bool {
        let found = kernel.chains(None, |chain| (chain.name() == Some(name)).then_some(()));
        found.is_ok_and(|found| !found.is_empty())
    }

    /// Reads the rules that these messages name, if they still exist.
    pub fn learn(&mut self, kernel: &mut Kernel, messages: &[TraceMessage]) {
        let is_new = |message: &&TraceMessage| {
            matches!(message.event, TraceEvent::Rule { .. }) && self.of(message).is_none()
        };
        let chains: HashSet<ChainKey> = messages.iter().filter(is_new).filter_map(key).collect();
        for key in chains {
            let ChainKey { family, table, chain } = &key;
            let rules = kernel.rules(*family, table, Some(chain), |rule| {
                (rule.chain() == Some(chain)).then(|| (rule.handle(), TracedRule::of(&rule)))
            });
            for (handle, rule) in rules.unwrap_or_default() {
                self.rules.extend(handle.map(|handle| ((key.clone(), handle), rule)));
            }
        }
    }

    /// The rule of a message; `None` if it is about no rule, or the rule is gone.
    pub fn of(&self, message: &TraceMessage) -> Option<&TracedRule> {
        match message.event {
            TraceEvent::Rule { handle, .. } => self.rules.get(&(key(message)?, handle)),
            TraceEvent::NoRule | TraceEvent::Return | TraceEvent::Policy(_) => None,
        }
    }

    /// The hook that calls the message's chain, if it is a base chain.
    pub fn hook(&self, message: &TraceMessage) -> Option<Hook> {
        self.hooks.get(&key(message)?).copied()
    }
}

fn key(message: &TraceMessage) -> Option<ChainKey> {
    let (table, chain) = (message.table.clone(), message.chain.clone());
    Some(ChainKey { family: message.family?, table, chain })
}

fn hook_of(chain: &ChainView<'_>) -> Option<(ChainKey, Hook)> {
    let hook = Hook::ALL.into_iter().find(|hook| chain.is_at(*hook))?;
    let (table, name) = (chain.table()?.to_owned(), chain.name()?.to_owned());
    Some((ChainKey { family: chain.family()?, table, chain: name }, hook))
}

impl TracedRule {
    fn of(rule: &RuleView<'_>) -> Self {
        let comment = rule.comment().or_else(|| rule.xtables_comment());
        let refuses = rule.expressions().any(|expression| {
            expression.name() == "reject" || expression.xtables_target() == Some("REJECT")
        });
        Self { text: rule.text(), comment: comment.map(comment_words), refuses }
    }
}
