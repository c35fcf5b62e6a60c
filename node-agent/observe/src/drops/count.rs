//! How many packets the agent's rules dropped and refused, by reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use denizen_netlink::NetlinkError;
use denizen_nft::{Decision, Kernel, RuleView, TableFamily};
use serde::{Deserialize, Serialize};

use crate::trace::{KUBE, comment_words, is_agents};

/// Packets dropped and refused since the rules were made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DropCounts {
    pub drops: Vec<DropCount>,
    /// Which packets are not counted, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_counted: Option<String>,
}

/// Whether a packet was dropped silently or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DropVerdict {
    Dropped,
    /// It was dropped, and its sender got an answer.
    Refused,
}

impl fmt::Display for DropVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dropped => "dropped",
            Self::Refused => "refused",
        })
    }
}

/// The packets dropped or refused for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropCount {
    /// `<family> <table>` of the rule.
    pub table: String,
    /// Whether the packets were dropped or refused.
    pub verdict: DropVerdict,
    pub reason: String,
    pub packets: u64,
}

/// The text about services if their rules are not in a table of nf_tables.
const LEGACY: &str = "what the rules of services refuse: they are in ip_tables \
                      (--iptables-variant legacy), and `iptables -nvL` has their counters";

/// What rules have in common whose counters are added up. Ordered as the counts are shown.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct DropKey {
    table: String,
    verdict: DropVerdict,
    reason: String,
}

/// Reads the counters of every table in which the agent has rules. With iptables, its chains are in
/// tables that others made.
pub fn count(kernel: &mut Kernel, is_iptables: bool) -> Result<DropCounts, NetlinkError> {
    let is_counted = |table: &str, chain: &str| {
        is_agents(table, chain) && (is_iptables || !chain.starts_with(KUBE))
    };
    let mut has_kube = false;
    let tables = kernel.chains(None, |chain| {
        let (family, table, name) = (chain.family()?, chain.table()?, chain.name()?);
        has_kube |= name.starts_with(KUBE);
        is_counted(table, name).then(|| (family, table.to_owned()))
    })?;
    let tables: BTreeSet<(TableFamily, String)> = tables.into_iter().collect();
    let mut counts: BTreeMap<DropKey, u64> = BTreeMap::new();
    for (family, table) in tables {
        let counted = kernel.rules(family, &table, None, |rule| {
            let verdict = verdict_of(&rule)
                .filter(|_| rule.chain().is_some_and(|chain| is_counted(&table, chain)))?;
            Some((verdict, reason_of(&rule), rule.packets()))
        })?;
        for (verdict, reason, packets) in counted {
            let key = DropKey { table: format!("{family} {table}"), verdict, reason };
            *counts.entry(key).or_default() += packets;
        }
    }
    let row = |(DropKey { table, verdict, reason }, packets)| DropCount {
        table,
        verdict,
        reason,
        packets,
    };
    Ok(DropCounts {
        drops: counts.into_iter().map(row).collect(),
        not_counted: (is_iptables && !has_kube).then(|| LEGACY.to_owned()),
    })
}

fn verdict_of(rule: &RuleView<'_>) -> Option<DropVerdict> {
    rule.expressions().find_map(|expression| {
        match (expression.name(), expression.xtables_target(), expression.decision()) {
            ("reject", _, _) | (_, Some("REJECT"), _) => Some(DropVerdict::Refused),
            (_, _, Some(Decision::Drop)) => Some(DropVerdict::Dropped),
            (_, _, Some(_) | None) => None,
        }
    })
}

fn reason_of(rule: &RuleView<'_>) -> String {
    let comment = rule.comment().or_else(|| rule.xtables_comment());
    comment.map(comment_words).unwrap_or_else(|| rule.text())
}

impl fmt::Display for DropCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.drops.iter().filter(|count| count.packets > 0);
        for DropCount { table, verdict, reason, packets } in counted.clone() {
            writeln!(f, "{packets} {verdict}: {reason} ({table})")?;
        }
        if counted.count() == 0 {
            writeln!(f, "nothing was dropped or refused")?;
        }
        match &self.not_counted {
            Some(what) => writeln!(f, "not counted: {what}"),
            None => Ok(()),
        }
    }
}
