//! portmap's rules in the tables of legacy iptables, which cannot be read or changed through
//! netlink.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{CONTAINER_CHAIN, ENTRY, container_in};
use denizen_iptables::{IptablesError, Programs, Table, Variant, appended, legacy_tables};
use denizen_model::Family;

/// One rule that leads to a container's chain.
#[derive(Debug, PartialEq, Eq)]
pub struct LegacyRule {
    pub container: Arc<str>,
    chain: String,
    /// The rule as iptables-save prints it, without its chain.
    spec: String,
}

/// Whether there is no legacy nat table, or there are programs to read it with.
pub fn is_readable() -> bool {
    let is_used = |family| has_table(family);
    !Family::BOTH.into_iter().any(is_used) || Programs::of(Variant::Legacy).is_some()
}

/// The rules of a family; none if the table does not exist.
pub fn rules(family: Family) -> Result<Vec<LegacyRule>, IptablesError> {
    // Running iptables would create the table.
    if !has_table(family) {
        return Ok(Vec::new());
    }
    let text = Programs::installed(Variant::Legacy)?.saved(family, Table::Nat)?;
    Ok(text.lines().filter_map(rule).collect())
}

fn has_table(family: Family) -> bool {
    legacy_tables(family).iter().any(|name| name == Table::Nat.as_str())
}

pub(super) fn rule(line: &str) -> Option<LegacyRule> {
    let (_, spec) = appended(line).filter(|(chain, _)| *chain == ENTRY)?;
    let (_, chain) = spec.rsplit_once(" -j ")?;
    let chain = Some(chain).filter(|chain| chain.starts_with(CONTAINER_CHAIN))?;
    let (_, comment) = spec.split_once("--comment \"")?;
    let (comment, _) = comment.split_once("\" -")?;
    let comment = comment.replace("\\\"", "\"");
    let container = container_in(&comment)?.into();
    Some(LegacyRule { container, chain: chain.to_owned(), spec: spec.to_owned() })
}

/// Removes the rules and the chains of containers that are gone.
pub fn remove(family: Family, is_gone: &dyn Fn(&str) -> bool) -> Result<(), IptablesError> {
    let gone = rules(family)?.into_iter().filter(|rule| is_gone(&rule.container));
    let input = removal(&gone.collect::<Vec<_>>());
    match input.is_empty() {
        true => Ok(()),
        false => Programs::installed(Variant::Legacy)?.restore(family, &input),
    }
}

/// The input of iptables-restore that removes these rules, and the chains of their containers.
pub(super) fn removal(gone: &[LegacyRule]) -> String {
    if gone.is_empty() {
        return String::new();
    }
    // iptables-restore empties a chain that is declared.
    let chains: BTreeSet<&str> = gone.iter().map(|rule| rule.chain.as_str()).collect();
    let emptied: String = chains.iter().map(|chain| format!(":{chain} - [0:0]\n")).collect();
    let rules: String = gone.iter().map(|rule| format!("-D {ENTRY} {}\n", rule.spec)).collect();
    let deleted: String = chains.iter().map(|chain| format!("-X {chain}\n")).collect();
    format!("*{}\n{emptied}{rules}{deleted}COMMIT\n", Table::Nat)
}
