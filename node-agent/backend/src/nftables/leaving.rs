//! Reduces the tables of the backend ipvs after a change to another backend, while addresses of
//! virtual servers are still routed to this node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::name::{ChainName, ServiceSet, ServiceTable};
use super::program::only_old_connections;
use super::rule::SetStatements;
use super::table::cluster_ip;
use denizen_model::Family;
use denizen_nft::{Element, Kernel, NftError, Schema};

/// Makes the IP tables choose no service any more, and refuse new connections to these addresses.
/// Connections that IPVS carries go on. The table of a family without such an address stays as it
/// is.
///
/// # Errors
/// The kernel's.
pub fn only_refuse(kernel: &mut Kernel, addresses: &BTreeSet<IpAddr>) -> Result<(), NftError> {
    for table_family in [Family::V4, Family::V6].map(ServiceTable::Ip) {
        let own = addresses.iter().filter(|ip| table_family.holds(**ip));
        let own: Vec<Element> = own.map(|ip| cluster_ip(*ip)).collect();
        if !own.is_empty() {
            only_refuse_in(kernel, table_family, own)?;
        }
    }
    Ok(())
}

/// In two steps. During the first commit, packets that the table has sent to IPVS are still on
/// their way. They are dropped, not refused: the client sends them again, to the backend that
/// serves by then.
fn only_refuse_in(
    kernel: &mut Kernel,
    table_family: ServiceTable,
    addresses: Vec<Element>,
) -> Result<(), NftError> {
    let declared = ServiceSet::ClusterIps.declared(table_family);
    let schema = Schema { sets: vec![declared], ..table_family.schema() };
    let seen = kernel.observe(&schema)?;
    if seen.owner().is_some() {
        return Ok(());
    }
    let sets = SetStatements(table_family);
    let drops = only_old_connections(sets, true);
    let refuses = only_old_connections(sets, false);
    if seen.has_set(&schema.sets[0]) {
        let emptied = [ChainName::Prerouting, ChainName::Output, ChainName::Input];
        let emptied: [Arc<str>; 3] = emptied.map(|chain| chain.to_string().into());
        let delta = seen.difference(addresses.into_iter(), |_| true);
        kernel.write(schema.family, |batch| {
            let full = emptied.iter().filter(|name| seen.has_rules(name));
            full.for_each(|name| batch.flush_chain(schema.name, name));
            batch.add_chains(schema.name, std::slice::from_ref(&drops));
            delta.write(batch, &schema);
        })?;
    } else {
        kernel.write(schema.family, |batch| {
            batch.replace_table(seen.is_there(), &schema, std::slice::from_ref(&drops));
            batch.add_elements(&schema, &addresses);
        })?;
    }
    kernel.write(schema.family, |batch| batch.replace_rules(schema.name, &[refuses]))
}
