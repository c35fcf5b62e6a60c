//! Checks whether this kernel can do what the rules need.

use super::name::{Class, Group, ServiceTable};
use super::program::class_chains;
use super::table::Table;
use super::table_config::TableConfig;
use denizen_model::{Family, Protocol};
use denizen_nft::{Chain, Content, Keeper, Kernel, NftError};
use denizen_plan::{LocalTest, NodeSide};

/// Whether the kernel accepts the IP tables.
///
/// # Errors
/// The kernel rejects a table, or cannot be asked.
pub fn probe() -> Result<(), NftError> {
    Family::BOTH.map(ServiceTable::Ip).into_iter().try_for_each(ask)
}

/// Whether the kernel accepts the bridge's table.
///
/// # Errors
/// As [`probe`].
pub fn probe_ports() -> Result<(), NftError> {
    ask(ServiceTable::Bridge)
}

/// Whether the kernel accepts the table of ARP, which the backend ipvs also needs
/// (`CONFIG_NF_TABLES_ARP`).
///
/// # Errors
/// As [`probe`].
pub fn probe_arp() -> Result<(), NftError> {
    ask(ServiceTable::Arp)
}

fn ask(table_family: ServiceTable) -> Result<(), NftError> {
    let mut kernel = Kernel::open().map_err(NftError::Open)?;
    Keeper::probe(&mut kernel, &table_family.schema(), &chains(table_family))
}

/// The chains that use the newest features of the kernel.
fn chains(table_family: ServiceTable) -> Vec<Chain> {
    let class =
        |affinity| Class { group: Group::Service, protocol: Protocol::Tcp, size: 2, affinity };
    let config = TableConfig {
        local: vec![match table_family {
            ServiceTable::Ip(_) | ServiceTable::Arp => LocalTest::Pod,
            ServiceTable::Bridge => LocalTest::PodAtItsPort,
        }],
        ..TableConfig::default()
    };
    let mut chains = Table::new(table_family, config).chains();
    if let ServiceTable::Ip(_) = table_family {
        let classes = [None, Some(300)].into_iter();
        chains.extend(classes.flat_map(|affinity| {
            class_chains(table_family, class(affinity), &NodeSide::default())
        }));
    }
    chains
}
