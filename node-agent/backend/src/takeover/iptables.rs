//! Removes the iptables chains and sets that a service proxy left: our iptables backend, or
//! kube-proxy.

use super::iptables_nft;
use super::owner::{CANARY, Owner};
use crate::iptables::{SCHEMA, SETS, is_a_proxys, is_ours};
use denizen_iptables::{
    ChainId, Delta, IptablesError, Programs, Schema, Sets, Table, Variant, legacy_tables,
};
use denizen_model::Family;
use denizen_netlink::NetlinkError;

/// The chains that may be left: a service proxy's, and kube-proxy's canaries.
static LEFT: Schema =
    Schema { owns: |table, name| is_a_proxys(table, name) || name == CANARY, ..SCHEMA };

/// Removes rules of both variants (kube-proxy's of its iptables and ipvs modes), and then the sets
/// that no rule names any more. Returns how many chains there were.
///
/// # Errors
/// The first error; everything that can be removed is. The sets stay then: they show that something
/// is left.
pub fn cleanup(owner: Owner) -> Result<usize, IptablesError> {
    let (nft, legacy) = (iptables_nft::remove(owner), remove_legacy(owner));
    let removed = nft? + legacy?;
    let mut sets = sets()?;
    match owner {
        Owner::Denizen => sets.destroy()?,
        Owner::KubeProxy => drop(sets.destroy_named("KUBE-")?),
    }
    Ok(removed)
}

/// Removes denizen's rules from the tables of the variant that is not `used`. Returns how many
/// chains there were. The sets stay: both variants use the same ones.
///
/// # Errors
/// As [`cleanup`].
pub fn cleanup_other_than(used: Variant) -> Result<usize, IptablesError> {
    match used {
        Variant::Legacy => iptables_nft::remove(Owner::Denizen),
        Variant::Nft => remove_legacy(Owner::Denizen),
    }
}

/// Legacy tables cannot be read or changed through netlink. If there are any, iptables' programs
/// read and write them, and need `CAP_NET_RAW`.
fn remove_legacy(owner: Owner) -> Result<usize, IptablesError> {
    let of_family = |family| {
        let there = legacy_tables(family);
        let is_there = |table: &str| there.iter().any(|name| name == table);
        let with_canary = owner == Owner::KubeProxy && is_there("mangle");
        match with_canary || Table::ALL.iter().any(|table| is_there(table.as_str())) {
            true => remove(&Programs::installed(Variant::Legacy)?, family, owner),
            false => Ok(0),
        }
    };
    Family::BOTH.map(of_family).into_iter().sum()
}

/// Whether chains of this owner are in the tables of legacy iptables. A missing table is not read:
/// that would create it.
///
/// # Errors
/// [`IptablesError`] if there are such tables, and they cannot be read.
pub fn has_legacy_chains(owner: Owner) -> Result<bool, IptablesError> {
    for family in Family::BOTH {
        let there = legacy_tables(family);
        if !Table::ALL.iter().any(|table| there.iter().any(|name| name == table.as_str())) {
            continue;
        }
        let seen = Programs::installed(Variant::Legacy)?.save(family, &Table::ALL, &LEFT)?;
        let services = Owner::ours_if(is_ours(&seen));
        let is_its = |(table, name): &ChainId| Owner::of(table.as_str(), name, services) == owner;
        if seen.chains().any(|(id, _)| is_its(id)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn remove(programs: &Programs, family: Family, owner: Owner) -> Result<usize, IptablesError> {
    let seen = programs.save(family, &Table::ALL, &LEFT)?;
    let services = Owner::ours_if(is_ours(&seen));
    let mut delta =
        Delta::removal(&seen, |(table, name)| Owner::of(table.as_str(), name, services) == owner);
    let removed = delta.chains();
    let egress = delta.take_optional();
    let transactions = delta.transactions(&LEFT, usize::MAX).into_iter();
    let egress = (!egress.is_empty()).then_some((Table::Security, egress));
    for (table, delta) in transactions.chain(egress) {
        programs.restore(family, &delta.input(table))?;
    }
    if owner == Owner::KubeProxy && programs.has_chain(family, "mangle", CANARY)? {
        let input = format!("*mangle\n:{CANARY} - [0:0]\n-X {CANARY}\nCOMMIT\n");
        programs.restore(family, &input)?;
    }
    Ok(removed)
}

/// Whether the iptables backend left something: its sets are created before its first rule, and
/// removed after its last. If somebody removed the sets by hand, the nft variant's chains may still
/// be there.
pub fn was_here() -> bool {
    Sets::open(&SETS).is_ok_and(|mut sets| sets.exist())
        || iptables_nft::has_chains(Owner::Denizen).unwrap_or(false)
}

fn sets() -> Result<Sets, IptablesError> {
    Sets::open(&SETS)
        .map_err(|source: NetlinkError| IptablesError::Set { set: "of this node's pods", source })
}
