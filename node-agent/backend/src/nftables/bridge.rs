//! The bridge's table without the IP tables, for a backend whose IP rules are not in nf_tables.

use super::error::NftablesError;
use super::name::ServiceTable;
use super::sync::{Nftables, NoKernel};
use denizen_nft::Kernel;

impl Nftables {
    /// Opens nf_tables in this thread's network namespace for the bridge's table alone. Nothing is
    /// read or written yet. The table is not wanted before an update with a detector that needs
    /// ports.
    ///
    /// # Errors
    /// [`NftablesError::Driver`] when there is no netlink to be had.
    pub fn open_bridge() -> Result<Self, NftablesError> {
        let table_family = ServiceTable::Bridge;
        let opened = Kernel::open();
        let kernel = opened.map_err(NftablesError::netlink(table_family, "open netlink"))?;
        Ok(Self::of(kernel, &[table_family]))
    }
}

impl Nftables<NoKernel> {
    /// As [`Self::offline`], for the bridge's table alone.
    pub fn offline_bridge() -> Self {
        Self::of(NoKernel, &[ServiceTable::Bridge])
    }
}
