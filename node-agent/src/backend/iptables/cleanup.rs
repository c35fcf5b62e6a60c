//! Removes what this backend, or kube-proxy, left.

use super::edit::Edit;
use super::ipset::Sets;
use super::name::{Table, Whose};
use super::removal;
use super::save::CANARY;
use super::tools::{IptablesError, Tools, Variant, legacy_tables};
use crate::model::Family;
use denizen_netlink::NetlinkError;

/// Removes rules of both variants (kube-proxy's of its iptables and ipvs modes), and then the sets
/// that no rule names any more; how many chains there were.
///
/// # Errors
/// The first that could not be removed; what could be is. The sets stay then: they tell
/// that there is more.
pub fn cleanup(whose: Whose) -> Result<usize, IptablesError> {
    let (nft, legacy) = (removal::remove(whose), remove_legacy(whose));
    let removed = nft? + legacy?;
    let mut sets = sets()?;
    match whose {
        Whose::Denizens => sets.destroy()?,
        Whose::KubeProxys => drop(sets.destroy_named("KUBE-")?),
    }
    Ok(removed)
}

/// Removes denizen's rules from the tables of the variant that is not `used`; how many chains there
/// were. The sets are the same.
///
/// # Errors
/// As [`cleanup`].
pub fn cleanup_other_than(used: Variant) -> Result<usize, IptablesError> {
    match used {
        Variant::Legacy => removal::remove(Whose::Denizens),
        Variant::Nft => remove_legacy(Whose::Denizens),
    }
}

/// Legacy tables have no netlink: iptables' programs read and write them, where there are any, and
/// need `CAP_NET_RAW`.
fn remove_legacy(whose: Whose) -> Result<usize, IptablesError> {
    let of_family = |family| {
        let there = legacy_tables(family);
        let is_there = |table: &str| there.iter().any(|name| name == table);
        let with_canary = whose == Whose::KubeProxys && is_there("mangle");
        match with_canary || Table::ALL.iter().any(|table| is_there(&table.to_string())) {
            true => remove(&Tools::installed(Variant::Legacy)?, family, whose),
            false => Ok(0),
        }
    };
    Family::BOTH.map(of_family).into_iter().sum()
}

fn remove(tools: &Tools, family: Family, whose: Whose) -> Result<usize, IptablesError> {
    let seen = tools.save(family, &Table::ALL)?;
    let mut edit = Edit::default();
    // The names of services' chains are the same; egress masquerade is nobody's but denizen's.
    edit.remove(&seen, |table| {
        let is_denizens = seen.is_ours || table == Table::Security;
        is_denizens == (whose == Whose::Denizens)
    });
    let with_canaries = whose == Whose::KubeProxys;
    if with_canaries {
        edit.remove_canaries(&seen);
    }
    for input in [edit.input(), edit.egress_input()] {
        if !input.is_empty() {
            tools.restore(family, &input)?;
        }
    }
    if with_canaries && tools.has_chain(family, "mangle", CANARY)? {
        let input = format!("*mangle\n:{CANARY} - [0:0]\n-X {CANARY}\nCOMMIT\n");
        tools.restore(family, &input)?;
    }
    Ok(edit.chains())
}

/// Whether this backend was here: its sets are made before its first rule, and removed after its
/// last. Whoever removed the sets by hand may have left the nft variant's chains.
pub fn was_here() -> bool {
    Sets::open().is_ok_and(|mut sets| sets.exist()) || removal::is_there()
}

fn sets() -> Result<Sets, IptablesError> {
    Sets::open()
        .map_err(|source: NetlinkError| IptablesError::Set { set: "of this node's pods", source })
}
