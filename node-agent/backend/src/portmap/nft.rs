//! portmap's rules in nf_tables: those of iptables' nft variant, and the table of its own that
//! newer releases can make.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{CONTAINER_CHAIN, ENTRY, PortmapError, container_in};
use denizen_model::Family;
use denizen_netlink::NetlinkError;
use denizen_nft::{Kernel, NftError, RuleView, TableFamily};

/// The table that iptables' nft variant has.
const NAT: &str = "nat";
/// The table of portmap's own backend for nftables.
const OWN: &str = "cni_hostport";

/// The most attempts: another program may change the ruleset between the read and the batch.
const TRIES: usize = 20;

/// One rule for a container.
#[derive(Debug)]
struct NftRule {
    container: Arc<str>,
    chain: Arc<str>,
    handle: u64,
    /// The container's own chain.
    leads_to: Option<Arc<str>>,
}

/// The containers that there are rules for.
pub fn containers() -> Result<BTreeSet<Arc<str>>, PortmapError> {
    let mut kernel = Kernel::open()?;
    let mut found = BTreeSet::new();
    for (family, table) in tables(&mut kernel)? {
        let rules = rules(&mut kernel, family, table)?;
        found.extend(rules.into_iter().map(|rule| rule.container));
    }
    Ok(found)
}

/// Removes the rules and the chains of containers that are gone. Each table is changed by one
/// batch, which the kernel rejects if anybody has changed the ruleset since the table was read.
pub fn remove(is_gone: &dyn Fn(&str) -> bool) -> Result<(), PortmapError> {
    let mut result = attempt(is_gone);
    for _ in 1..TRIES {
        if !matches!(result, Err(PortmapError::Refused(NftError::Raced { .. }))) {
            break;
        }
        result = attempt(is_gone);
    }
    result
}

fn attempt(is_gone: &dyn Fn(&str) -> bool) -> Result<(), PortmapError> {
    let mut kernel = Kernel::open()?;
    for (family, table) in tables(&mut kernel)? {
        let generation = kernel.generation()?;
        let mut gone = rules(&mut kernel, family, table)?;
        gone.retain(|rule| is_gone(&rule.container));
        if gone.is_empty() {
            continue;
        }
        let mut batch = kernel.batch(family, Some(generation));
        for rule in &gone {
            batch.delete_rule(table, &rule.chain, rule.handle);
        }
        let chains: BTreeSet<Arc<str>> =
            gone.into_iter().filter_map(|rule| rule.leads_to).collect();
        batch.delete_chains(table, &Vec::from_iter(chains));
        kernel.commit(batch)?;
    }
    Ok(())
}

fn tables(kernel: &mut Kernel) -> Result<Vec<(TableFamily, &'static str)>, NetlinkError> {
    let wanted = Family::BOTH.map(TableFamily::from);
    kernel.tables(|table| {
        let family = table.family().filter(|family| wanted.contains(family))?;
        let name = [NAT, OWN].into_iter().find(|name| table.name() == Some(name))?;
        Some((family, name))
    })
}

fn rules(
    kernel: &mut Kernel,
    family: TableFamily,
    table: &'static str,
) -> Result<Vec<NftRule>, NetlinkError> {
    let (chain, read): (_, fn(RuleView<'_>) -> Option<NftRule>) = match table {
        OWN => (None, of_own),
        _ => (Some(ENTRY), of_iptables),
    };
    kernel.rules(family, table, chain, read)
}

fn of_iptables(rule: RuleView<'_>) -> Option<NftRule> {
    let chain = rule.chain().filter(|chain| *chain == ENTRY)?.into();
    let leads_to = rule.leads_to().filter(|chain| chain.starts_with(CONTAINER_CHAIN))?;
    let container = container_in(rule.xtables_comment()?)?.into();
    Some(NftRule { container, chain, handle: rule.handle()?, leads_to: Some(leads_to.into()) })
}

fn of_own(rule: RuleView<'_>) -> Option<NftRule> {
    let (chain, container) = (rule.chain()?.into(), rule.comment()?.into());
    Some(NftRule { container, chain, handle: rule.handle()?, leads_to: None })
}
