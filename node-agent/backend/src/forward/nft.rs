//! The chains of other nf_tables tables (iptables-nft's among them), through netlink.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::chain::{Act, Chains, Rule, filter};
use super::own::{Language, comment, rules};
use super::{Chain, OWN, Passing};
use crate::firewall;
use crate::nftables::TABLE;
use denizen_netlink::NetlinkError;
use denizen_nft::{
    At, ChainView, Decision, ExpressionView, Kernel, NftError, RuleView, TableFamily,
};
use denizen_plan::MarkBit;

/// A base chain of somebody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    family: TableFamily,
    table: Arc<str>,
    chain: Arc<str>,
    passing: Passing,
    policy_drops: bool,
}

/// Every such chain, with the fate of packets that its rules do not expect.
///
/// # Errors
/// [`NetlinkError`].
pub fn read(kernel: &mut Kernel) -> Result<Vec<(Place, Chain)>, NetlinkError> {
    let mut found = Vec::new();
    for place in places(kernel)? {
        let chains = reachable(kernel, &place)?;
        let own = chains.get(&*place.chain).into_iter().flatten();
        let chain = Chain {
            what: format!("table {} {}, chain {}", place.family, place.table, place.chain),
            passing: place.passing,
            default_fate: filter(&chains, &place.chain, place.policy_drops),
            own: own.filter_map(|rule| rule.own).collect(),
        };
        found.push((place, chain));
    }
    Ok(found)
}

fn places(kernel: &mut Kernel) -> Result<Vec<Place>, NetlinkError> {
    let asleep: Vec<(TableFamily, String)> = kernel.tables(|table| {
        let of = table.family().zip(table.name().map(str::to_owned));
        of.filter(|_| table.is_dormant())
    })?;
    let mut found = kernel.chains(None, place)?;
    found.retain(|place| {
        !asleep.iter().any(|(family, table)| *family == place.family && **table == *place.table)
    });
    Ok(found)
}

fn place(chain: ChainView<'_>) -> Option<Place> {
    let family = chain.family().filter(|family| match family {
        TableFamily::Ip | TableFamily::Ip6 | TableFamily::Inet => true,
        TableFamily::Arp | TableFamily::Bridge => false,
    })?;
    let place = Place {
        family,
        table: chain.table()?.into(),
        chain: chain.name()?.into(),
        passing: Passing::ALL.into_iter().find(|passing| chain.is_at(passing.hook()))?,
        policy_drops: chain.drops_by_policy(),
    };
    // No one calls our own table foreign.
    let is_own = [TABLE, firewall::TABLE].contains(&&*place.table);
    (!is_own).then_some(place)
}

/// The rules of a base chain and of every chain that it may lead to.
fn reachable(kernel: &mut Kernel, place: &Place) -> Result<Chains, NetlinkError> {
    let mut chains = BTreeMap::new();
    let mut due = vec![place.chain.to_string()];
    while let Some(name) = due.pop() {
        if chains.contains_key(&name) {
            continue;
        }
        let rules = kernel.rules(place.family, &place.table, Some(&name), |it| Some(rule(it)))?;
        for rule in &rules {
            if let Act::Jump(to) | Act::Goto(to) = &rule.act {
                due.push(to.clone());
            }
        }
        chains.insert(name, rules);
    }
    Ok(chains)
}

fn rule(seen: RuleView<'_>) -> Rule {
    // These load or change values, count or log; all others ask something.
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
    let mut found = Rule { conditional: false, act: Act::Nothing, own: None };
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

/// What an expression does, if it decides.
fn act(expression: &ExpressionView<'_>) -> Option<Act> {
    match expression.xtables_target() {
        Some("REJECT") => return Some(Act::Drop),
        Some("LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS") => return None,
        Some(_) | None => {}
    }
    Some(match expression.decision()? {
        Decision::Continue => Act::Nothing,
        Decision::Accept => Act::Accept,
        Decision::Drop => Act::Drop,
        Decision::Return => Act::Return,
        Decision::Jump(to) => Act::Jump(to.to_owned()),
        Decision::Goto(to) => Act::Goto(to.to_owned()),
        Decision::Other => Act::Unknown,
    })
}

/// Removes these rules of ours from a chain and, with `admitted`, puts ours first in it.
///
/// # Errors
/// [`NftError`].
pub fn write(
    kernel: &mut Kernel,
    place: &Place,
    own: &[u64],
    admitted: Option<MarkBit>,
) -> Result<(), NftError> {
    let Place { family, table, chain, passing, .. } = place;
    let language = match (&**table, &**chain, family) {
        ("filter", "FORWARD" | "INPUT", TableFamily::Ip | TableFamily::Ip6) => Language::Xtables,
        _ => Language::Nft,
    };
    kernel.write(*family, |batch| {
        own.iter().for_each(|handle| batch.delete_rule(table, chain, *handle));
        // Each is put before what is there.
        for rule in
            admitted.iter().flat_map(|bit| rules(language, *passing, *bit).into_iter().rev())
        {
            batch.add_rule(table, chain, &rule, &comment(&rule), At::Start);
        }
    })
}
