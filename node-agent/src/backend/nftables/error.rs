//! Why the kernel's tables are not as they should be.

use thiserror::Error;

use super::name::TableFamily;
use denizen_netlink::NetlinkError;
use denizen_nft::NftError;

/// Why the kernel's table is not as it should be.
#[derive(Debug, Error)]
pub enum NftablesError {
    /// It cannot be read or written.
    #[error(transparent)]
    Driver(#[from] NftError),
    /// An older version's table is there, and services are not known yet: replacing it would take
    /// them away.
    #[error(
        "nf_tables, {table_family} table: the table of an older version stays until all services are known"
    )]
    OlderTable {
        /// Whose table.
        table_family: TableFamily,
    },
    /// The kernel lets nobody but its owner change it, and removes it with that process
    /// (`NFT_TABLE_F_OWNER`).
    #[error(
        "nf_tables, {table_family} table: it is owned by another process (netlink portid {owner})"
    )]
    Owned {
        /// Whose table.
        table_family: TableFamily,
        /// The owner's portid: most often its process id.
        owner: u32,
    },
    /// Everything was programmed but these.
    #[error("nf_tables, {table_family} table: the kernel refused {}", names.join("; "))]
    Parts {
        /// Whose table.
        table_family: TableFamily,
        /// What was refused, and why.
        names: Vec<String>,
    },
}

impl NftablesError {
    /// Netlink failed us.
    pub fn netlink(
        table_family: TableFamily,
        doing: &'static str,
    ) -> impl FnOnce(NetlinkError) -> Self {
        let family = table_family.lowered();
        move |source| Self::Driver(NftError::Netlink { family, doing, source })
    }
}
