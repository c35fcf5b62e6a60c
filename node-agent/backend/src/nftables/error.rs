//! Errors of programming tables.

use thiserror::Error;

use super::name::ServiceTable;
use denizen_netlink::NetlinkError;
use denizen_nft::NftError;

/// Why a table could not be programmed.
#[derive(Debug, Error)]
pub enum NftablesError {
    /// It cannot be read or written.
    #[error(transparent)]
    Driver(#[from] NftError),
    /// An older version's table exists, and services are not known yet: replacing it would remove
    /// them.
    #[error(
        "nf_tables, {table_family} table: the table of an older version stays until all services are known"
    )]
    OlderTable {
        /// The table's family.
        table_family: ServiceTable,
    },
    /// Only its owner process may change it, and the kernel removes it with that process
    /// (`NFT_TABLE_F_OWNER`).
    #[error(
        "nf_tables, {table_family} table: it is owned by another process (netlink portid {owner})"
    )]
    Owned {
        /// The table's family.
        table_family: ServiceTable,
        /// The owner's portid: most often its process id.
        owner: u32,
    },
    /// Everything except these was programmed.
    #[error("nf_tables, {table_family} table: the kernel refused {}", names.join("; "))]
    Parts {
        /// The table's family.
        table_family: ServiceTable,
        /// What was refused, and why.
        names: Vec<String>,
    },
}

impl NftablesError {
    /// Netlink failed.
    pub fn netlink(
        table_family: ServiceTable,
        doing: &'static str,
    ) -> impl FnOnce(NetlinkError) -> Self {
        let family = table_family.lowered();
        move |source| Self::Driver(NftError::Netlink { family, doing, source })
    }
}
