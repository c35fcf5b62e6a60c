//! Whether this kernel can do what the rules need.

use nix::errno::Errno;

use super::kernel::{Kernel, NftablesError};
use super::message::What;
use super::name::{Class, Group, Layer};
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
    Family::BOTH.map(Layer::Ip).into_iter().try_for_each(ask)
}

/// Whether it can have the bridge's table, which tells the ports of bridges.
///
/// # Errors
/// As [`probe`].
pub fn probe_ports() -> Result<(), NftablesError> {
    ask(Layer::Bridge)
}

/// Finds out by a batch that makes everything and then fails on purpose, so that nothing of it
/// stays.
fn ask(layer: Layer) -> Result<(), NftablesError> {
    let mut kernel =
        Kernel::open().map_err(|source| NftablesError::Netlink { layer, doing: "open", source })?;
    let seen = kernel.observe(layer)?;
    match seen.owner {
        Some(owner) => Err(NftablesError::Owned { layer, owner }),
        // The kernel took it.
        None if seen.table => Ok(()),
        None => attempt(&mut kernel, layer),
    }
}

/// The chains that need most of the kernel.
fn chains(layer: Layer) -> Vec<Chain> {
    let class =
        |affinity| Class { group: Group::Service, protocol: Protocol::Tcp, size: 2, affinity };
    let shape = Shape {
        detector: match layer {
            Layer::Ip(_) => Detector::PodState,
            Layer::Bridge => Detector::PodPort,
        },
        ..Shape::default()
    };
    let mut chains = Table::new(layer, shape).chains();
    if let Layer::Ip(_) = layer {
        let classes = [None, Some(300)].into_iter();
        chains.extend(
            classes.flat_map(|affinity| class_chains(class(affinity), &NodeSide::default())),
        );
    }
    chains
}

fn attempt(kernel: &mut Kernel, layer: Layer) -> Result<(), NftablesError> {
    let mut batch = kernel.batch(layer, None);
    replace_structure(&mut batch, false, layer, &chains(layer));
    batch.delete_table();
    // There is none any more: this one is refused, and with it all.
    batch.delete_table();
    match kernel.commit(layer, batch) {
        Err(NftablesError::Refused { what, source: NetlinkError::Refused(refusal), .. })
            if refusal.errno == Errno::ENOENT && what == What::Table.to_string() =>
        {
            Ok(())
        }
        done => done,
    }
}
