//! Whether this kernel can do what the rules need.

use nix::errno::Errno;

use super::kernel::{Kernel, NftablesError};
use super::message::What;
use super::name::{Class, Group, TableFamily};
use super::program::class_chains;
use super::rule::Chain;
use super::shape::Shape;
use super::table::Table;
use super::write::replace_structure;
use crate::model::{Family, Protocol};
use crate::plan::{Detector, NodeSide};
use denizen_netlink::NetlinkError;

/// Whether it can have the IP tables.
///
/// # Errors
/// What the kernel refused, or cannot be asked.
pub fn probe() -> Result<(), NftablesError> {
    Family::BOTH.map(TableFamily::Ip).into_iter().try_for_each(ask)
}

/// Whether it can have the bridge's table, which tells the ports of bridges.
///
/// # Errors
/// As [`probe`].
pub fn probe_ports() -> Result<(), NftablesError> {
    ask(TableFamily::Bridge)
}

/// Finds out by a batch that makes everything and then fails on purpose, so that nothing of it
/// stays.
fn ask(table_family: TableFamily) -> Result<(), NftablesError> {
    let mut kernel = Kernel::open().map_err(|source| NftablesError::Netlink {
        table_family,
        doing: "open",
        source,
    })?;
    let seen = kernel.observe(table_family)?;
    match seen.owner {
        Some(owner) => Err(NftablesError::Owned { table_family, owner }),
        // The kernel took it.
        None if seen.table => Ok(()),
        None => attempt(&mut kernel, table_family),
    }
}

/// The chains that need most of the kernel.
fn chains(table_family: TableFamily) -> Vec<Chain> {
    let class =
        |affinity| Class { group: Group::Service, protocol: Protocol::Tcp, size: 2, affinity };
    let shape = Shape {
        detector: match table_family {
            TableFamily::Ip(_) => Detector::PodState,
            TableFamily::Bridge => Detector::PodPort,
        },
        ..Shape::default()
    };
    let mut chains = Table::new(table_family, shape).chains();
    if let TableFamily::Ip(_) = table_family {
        let classes = [None, Some(300)].into_iter();
        chains.extend(
            classes.flat_map(|affinity| class_chains(class(affinity), &NodeSide::default())),
        );
    }
    chains
}

fn attempt(kernel: &mut Kernel, table_family: TableFamily) -> Result<(), NftablesError> {
    let mut batch = kernel.batch(table_family, None);
    replace_structure(&mut batch, false, table_family, &chains(table_family));
    batch.delete_table();
    // There is none any more: this one is refused, and with it all.
    batch.delete_table();
    match kernel.commit(table_family, batch) {
        Err(NftablesError::Refused { what, source: NetlinkError::Refused(refusal), .. })
            if refusal.errno == Errno::ENOENT && what == What::Table.to_string() =>
        {
            Ok(())
        }
        done => done,
    }
}
