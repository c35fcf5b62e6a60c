//! The bridge's table without the IP tables: for a backend that reads what it tells by other means
//! than nf_tables.

use super::error::NftablesError;
use super::name::TableFamily;
use super::sync::{Nftables, NoKernel};
use denizen_nft::Kernel;

impl Nftables {
    /// Opens nf_tables in this thread's network namespace for the bridge's table alone. Nothing is
    /// read or written yet; and until it is told a detector that knows ports, it is not wanted.
    ///
    /// # Errors
    /// [`NftablesError::Driver`] when there is no netlink to be had.
    pub fn open_bridge() -> Result<Self, NftablesError> {
        let table_family = TableFamily::Bridge;
        let opened = Kernel::open();
        let kernel = opened.map_err(NftablesError::netlink(table_family, "open netlink"))?;
        Ok(Self::of(kernel, &[table_family]))
    }
}

impl Nftables<NoKernel> {
    /// As [`Self::offline`], for the bridge's table alone.
    pub fn offline_bridge() -> Self {
        Self::of(NoKernel, &[TableFamily::Bridge])
    }
}
