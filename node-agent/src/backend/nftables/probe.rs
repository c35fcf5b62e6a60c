//! Whether this kernel can do what the rules need.

use nix::errno::Errno;

use super::kernel::{Kernel, NftablesError};
use super::message::What;
use super::name::{Class, Group, Layer};
use super::program::{Shape, class_chains};
use super::table::Table;
use super::write::replace_structure;
use crate::model::{Family, Protocol};
use crate::netlink::NetlinkError;
use crate::plan::NodeSide;

/// Finds out by a batch that makes everything and then fails on purpose, so that nothing of it stays.
///
/// # Errors
/// What the kernel refused, or cannot be asked.
pub fn probe() -> Result<(), NftablesError> {
    for layer in Family::BOTH.map(Layer::Ip) {
        let mut kernel = Kernel::open().map_err(|source| NftablesError::Netlink {
            layer,
            doing: "open",
            source,
        })?;
        // Where there is a table already, the kernel took it.
        if !kernel.observe(layer)?.table {
            attempt(&mut kernel, layer)?;
        }
    }
    Ok(())
}

fn attempt(kernel: &mut Kernel, layer: Layer) -> Result<(), NftablesError> {
    let class = |affinity| Class {
        group: Group::Service,
        protocol: Protocol::Tcp,
        size: 2,
        affinity,
    };
    let mut chains = Table::new(layer, Shape::default()).chains();
    chains.extend(
        [None, Some(300)]
            .into_iter()
            .flat_map(|affinity| class_chains(class(affinity), &NodeSide::default())),
    );
    let mut batch = kernel.batch(layer, None);
    replace_structure(&mut batch, false, layer, &chains);
    batch.delete_table();
    // There is none any more: this one is refused, and with it all.
    batch.delete_table();
    match kernel.commit(layer, batch) {
        Err(NftablesError::Refused {
            what,
            source: NetlinkError::Refused(refusal),
            ..
        }) if refusal.errno == Errno::ENOENT && what == What::Table.to_string() => Ok(()),
        done => done,
    }
}
