//! Removes a service proxy's chains from the nft variant's tables, through netlink.
//!
//! iptables' programs need `CAP_NET_RAW` to read a rule that names a set, so an agent that programs
//! nftables could not read what the iptables backend left. nf_tables itself needs `CAP_NET_ADMIN`
//! alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::owner::{CANARY, Owner};
use crate::iptables::{MARK_MASQ, OWNER, is_a_proxys};
use denizen_iptables::{IptablesError, Table};
use denizen_model::Family;
use denizen_netlink::NetlinkError;
use denizen_nft::{ChainView, Kernel, NftError, TableFamily};

/// Tables that a service proxy's chains may be in. The last one has only kube-proxy's canary.
const TABLES: [&str; 4] = ["filter", "nat", "security", "mangle"];

/// The most attempts: another program may change the ruleset between the read and the batch.
const TRIES: usize = 20;

/// A chain: its table and its name.
type ChainKey = (Arc<str>, Arc<str>);

/// Removes the chains of both families, and the rules of other chains that lead to them. Returns
/// how many chains there were. Each family's chains are removed by one batch, which the kernel
/// rejects if anybody has changed the ruleset since they were read.
///
/// # Errors
/// [`IptablesError::Netlink`]; the other family's are removed all the same.
pub fn remove(owner: Owner) -> Result<usize, IptablesError> {
    let removed = Family::BOTH.map(|family| remove_of(family, owner));
    removed.into_iter().sum()
}

/// Whether chains of this owner are there.
///
/// # Errors
/// [`NetlinkError`].
pub fn has_chains(owner: Owner) -> Result<bool, NetlinkError> {
    let mut kernel = Kernel::open()?;
    for family in Family::BOTH {
        if !chains_of(&mut kernel, family, owner)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn remove_of(family: Family, owner: Owner) -> Result<usize, IptablesError> {
    let mut result = attempt(family, owner);
    for _ in 1..TRIES {
        if !matches!(result, Err(NftError::Raced { .. })) {
            break;
        }
        result = attempt(family, owner);
    }
    result.map_err(|source| IptablesError::Netlink {
        what: format!("remove a service proxy's chains from iptables-nft's {family} tables"),
        source,
    })
}

fn attempt(family: Family, owner: Owner) -> Result<usize, NftError> {
    let number = TableFamily::from(family);
    let unread =
        |source| NftError::Netlink { family: number, doing: "read iptables-nft's", source };
    let mut kernel = Kernel::open().map_err(unread)?;
    let generation = kernel.generation().map_err(unread)?;
    let chains = chains_of(&mut kernel, family, owner).map_err(unread)?;
    let jumps = jumps_to(&mut kernel, family, &chains).map_err(unread)?;
    let mut batch = kernel.batch(number, Some(generation));
    for ((table, chain), handle) in &jumps {
        batch.delete_rule(table, chain, *handle);
    }
    for table in tables_of(&chains) {
        let of_table = chains.iter().filter(|(of, _)| *of == table);
        let names: Vec<Arc<str>> = of_table.map(|(_, name)| name.clone()).collect();
        batch.delete_chains(&table, &names);
    }
    kernel.commit(batch).map(|()| chains.len())
}

fn tables_of(chains: &BTreeSet<ChainKey>) -> BTreeSet<Arc<str>> {
    chains.iter().map(|(table, _)| table.clone()).collect()
}

/// The chains of this owner.
fn chains_of(
    kernel: &mut Kernel,
    family: Family,
    owner: Owner,
) -> Result<BTreeSet<ChainKey>, NetlinkError> {
    let candidates = kernel.chains(Some(family.into()), candidate)?;
    let mut chains: BTreeSet<ChainKey> = candidates.into_iter().collect();
    let services = Owner::ours_if(is_ours(kernel, family, &chains)?);
    chains.retain(|(table, name)| Owner::of(table, name, services) == owner);
    Ok(chains)
}

/// A chain, if it may be a service proxy's. Base chains are left out: service proxies make none
/// here, and no rule can lead to one.
fn candidate(chain: ChainView<'_>) -> Option<ChainKey> {
    let (table, name) = chain.table().zip(chain.name())?;
    let is_a_proxys = Table::named(table).is_some_and(|table| is_a_proxys(table, name));
    let is_candidate = TABLES.contains(&table) && (is_a_proxys || name == CANARY);
    (is_candidate && !chain.is_base()).then(|| (table.into(), name.into()))
}

/// Whether services' chains are denizen's: kube-proxy writes the rule of KUBE-MARK-MASQ without a
/// comment.
fn is_ours(
    kernel: &mut Kernel,
    family: Family,
    chains: &BTreeSet<ChainKey>,
) -> Result<bool, NetlinkError> {
    let (table, chain) = (Table::Nat.to_string(), MARK_MASQ.to_string());
    if !chains.contains(&(table.as_str().into(), chain.as_str().into())) {
        return Ok(false);
    }
    let marks = kernel.rules(family.into(), &table, Some(&chain), |rule| {
        rule.xtables_comment()?.starts_with(OWNER).then_some(())
    })?;
    Ok(!marks.is_empty())
}

/// The rules of other chains that lead to one of these chains: the chain that each rule is in, and
/// its handle.
fn jumps_to(
    kernel: &mut Kernel,
    family: Family,
    chains: &BTreeSet<ChainKey>,
) -> Result<Vec<(ChainKey, u64)>, NetlinkError> {
    let mut jumps = Vec::new();
    for table in tables_of(chains) {
        let goes = |chain: &str| chains.contains(&(table.clone(), chain.into()));
        jumps.extend(kernel.rules(family.into(), &table, None, |rule| {
            rule.leads_to().filter(|chain| goes(chain))?;
            let within = rule.chain().filter(|chain| !goes(chain))?;
            Some(((table.clone(), within.into()), rule.handle()?))
        })?);
    }
    Ok(jumps)
}
