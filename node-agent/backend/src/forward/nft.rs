//! The chains of other programs' tables in nf_tables (iptables-nft's among them), through netlink.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::chain::{Chains, Rule, RuleEffect, filter};
use super::own::{Language, comment, rules};
use super::{Chain, OWN, Passing};
use crate::firewall;
use crate::nftables::TABLE;
use denizen_netlink::NetlinkError;
use denizen_nft::{
    ChainView, Decision, ExpressionView, Kernel, NftError, RulePosition, RuleView, TableFamily,
};
use denizen_plan::MarkBit;

/// Another program's base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignChain {
    family: TableFamily,
    table: Arc<str>,
    chain: Arc<str>,
    passing: Passing,
    policy_drops: bool,
}

/// Other programs' base chains, each with the fate of packets that its rules do not expect.
///
/// # Errors
/// [`NetlinkError`].
pub fn read(kernel: &mut Kernel) -> Result<Vec<(ForeignChain, Chain)>, NetlinkError> {
    let mut found = Vec::new();
    for base_chain in base_chains(kernel)? {
        let chains = reachable(kernel, &base_chain)?;
        let own = chains.get(&*base_chain.chain).into_iter().flatten();
        let chain = Chain {
            what: format!(
                "table {} {}, chain {}",
                base_chain.family, base_chain.table, base_chain.chain
            ),
            passing: base_chain.passing,
            default_fate: filter(&chains, &base_chain.chain, base_chain.policy_drops),
            own: own.filter_map(|rule| rule.own).collect(),
        };
        found.push((base_chain, chain));
    }
    Ok(found)
}

fn base_chains(kernel: &mut Kernel) -> Result<Vec<ForeignChain>, NetlinkError> {
    let asleep: Vec<(TableFamily, String)> = kernel.tables(|table| {
        let of = table.family().zip(table.name().map(str::to_owned));
        of.filter(|_| table.is_dormant())
    })?;
    let mut found = kernel.chains(None, base_chain)?;
    found.retain(|base_chain| {
        !asleep
            .iter()
            .any(|(family, table)| *family == base_chain.family && **table == *base_chain.table)
    });
    Ok(found)
}

fn base_chain(chain: ChainView<'_>) -> Option<ForeignChain> {
    let family = chain.family().filter(|family| match family {
        TableFamily::Ip | TableFamily::Ip6 | TableFamily::Inet => true,
        TableFamily::Arp | TableFamily::Bridge => false,
    })?;
    let base_chain = ForeignChain {
        family,
        table: chain.table()?.into(),
        chain: chain.name()?.into(),
        passing: Passing::ALL.into_iter().find(|passing| chain.is_at(passing.hook()))?,
        policy_drops: chain.drops_by_policy(),
    };
    // Our own tables do not count.
    let is_own = [TABLE, firewall::TABLE].contains(&&*base_chain.table);
    (!is_own).then_some(base_chain)
}

/// The rules of a base chain and of every chain that it may lead to.
fn reachable(kernel: &mut Kernel, base_chain: &ForeignChain) -> Result<Chains, NetlinkError> {
    let mut chains = BTreeMap::new();
    let mut due = vec![base_chain.chain.to_string()];
    while let Some(name) = due.pop() {
        if chains.contains_key(&name) {
            continue;
        }
        let rules = kernel
            .rules(base_chain.family, &base_chain.table, Some(&name), |seen| Some(rule(seen)))?;
        for rule in &rules {
            if let RuleEffect::Jump(to) | RuleEffect::Goto(to) = &rule.act {
                due.push(to.clone());
            }
        }
        chains.insert(name, rules);
    }
    Ok(chains)
}

fn rule(seen: RuleView<'_>) -> Rule {
    // These expressions load or change values, count, log or decide. All others match only some
    // packets.
    const ASK_NOTHING: [&str; 14] = [
        "counter",
        "log",
        "immediate",
        "reject",
        "target",
        "objref",
        "notrack",
        "meta",
        "payload",
        "ct",
        "bitwise",
        "byteorder",
        "numgen",
        "hash",
    ];
    let mut found = Rule { conditional: false, act: RuleEffect::Nothing, own: None };
    for expression in seen.expressions() {
        found.conditional |= !ASK_NOTHING.contains(&expression.name());
        if let Some(act) = act(&expression) {
            found.act = act;
        }
    }
    let ours = seen.comment().is_some_and(|text| text.starts_with(OWN));
    found.own = seen.handle().filter(|_| ours);
    found
}

/// The verdict of an expression, if it has one.
fn act(expression: &ExpressionView<'_>) -> Option<RuleEffect> {
    match expression.xtables_target() {
        Some("REJECT") => return Some(RuleEffect::Drop),
        Some("LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS") => return None,
        Some(_) | None => {}
    }
    Some(match expression.decision()? {
        Decision::Continue => RuleEffect::Nothing,
        Decision::Accept => RuleEffect::Accept,
        Decision::Drop => RuleEffect::Drop,
        Decision::Return => RuleEffect::Return,
        Decision::Jump(to) => RuleEffect::Jump(to.to_owned()),
        Decision::Goto(to) => RuleEffect::Goto(to.to_owned()),
        Decision::Other => RuleEffect::Unknown,
    })
}

/// Removes our rules with these handles (`own`) from a chain and, with `admitted`, inserts our
/// rules at its top.
///
/// # Errors
/// [`NftError`].
pub fn write(
    kernel: &mut Kernel,
    base_chain: &ForeignChain,
    own: &[u64],
    admitted: Option<MarkBit>,
) -> Result<(), NftError> {
    let ForeignChain { family, table, chain, passing, .. } = base_chain;
    let language = match (&**table, &**chain, family) {
        ("filter", "FORWARD" | "INPUT", TableFamily::Ip | TableFamily::Ip6) => Language::Xtables,
        _ => Language::Nft,
    };
    kernel.write(*family, |batch| {
        own.iter().for_each(|handle| batch.delete_rule(table, chain, *handle));
        // Each is inserted at the top, so the last one first.
        for rule in
            admitted.iter().flat_map(|bit| rules(language, *passing, *bit).into_iter().rev())
        {
            batch.add_rule(table, chain, &rule, &comment(&rule), RulePosition::Start);
        }
    })
}
