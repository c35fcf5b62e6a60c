//! Removes what this backend, or kube-proxy, left.

use super::edit::Edit;
use super::ipset::Sets;
use super::name::Table;
use super::save::CANARY;
use super::tools::{IptablesError, Tools, Variant};
use crate::model::Family;
use denizen_netlink::NetlinkError;

/// Whose chains go. Their names are the same; denizen's have its words in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Denizen's.
    Denizens,
    /// kube-proxy's, its canaries included. Where denizen has taken them over they are denizen's.
    KubeProxys,
}

/// Removes rules of both variants (kube-proxy's of its iptables and ipvs modes), and then the sets that no rule names
/// any more; how many chains there were.
///
/// # Errors
/// The first program's that failed; what could be removed is.
pub fn cleanup(whose: Whose) -> Result<usize, IptablesError> {
    let removed = remove_from(&[Variant::Nft, Variant::Legacy], whose)?;
    let mut sets = sets()?;
    match whose {
        Whose::Denizens => sets.destroy()?,
        Whose::KubeProxys => drop(sets.destroy_named("KUBE-")?),
    }
    Ok(removed)
}

/// Removes denizen's rules from the tables of the variant that is not `used`; how many chains there were. The sets
/// are the same.
///
/// # Errors
/// As [`cleanup`].
pub fn cleanup_other_than(used: Variant) -> Result<usize, IptablesError> {
    let other = match used {
        Variant::Legacy => Variant::Nft,
        Variant::Nft => Variant::Legacy,
    };
    remove_from(&[other], Whose::Denizens)
}

fn remove_from(variants: &[Variant], whose: Whose) -> Result<usize, IptablesError> {
    let mut removed = 0;
    let mut result = Ok(());
    for tools in variants.iter().copied().filter_map(Tools::of) {
        for family in Family::BOTH {
            match remove(&tools, family, whose) {
                Ok(chains) => removed += chains,
                Err(error) => result = result.and(Err(error)),
            }
        }
    }
    result.map(|()| removed)
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

/// Whether this backend was here: its sets are made before its first rule, and removed after its last.
pub fn was_here() -> bool {
    Sets::open().is_ok_and(|mut sets| sets.exist())
}

fn sets() -> Result<Sets, IptablesError> {
    Sets::open().map_err(|source: NetlinkError| IptablesError::Set {
        set: "of this node's pods",
        source,
    })
}
