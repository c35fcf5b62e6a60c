//! The addresses of pods that the firewall isolates until it has decided about them.

use std::net::IpAddr;

use denizen_netlink::NetlinkError;
use denizen_nft::{
    DataType, Element, Field, Kernel, Key, NftError, Schema, Set, SetId, TableFamily, Value,
};
use denizen_packet::{Family, family_of};
use denizen_state::firewall::{PENDING, TABLE};
use nix::errno::Errno;
use thiserror::Error;

/// Why addresses could not be isolated.
#[derive(Debug, Error)]
pub(crate) enum PendingError {
    #[error("nf_tables cannot be reached")]
    Netlink(#[from] NetlinkError),
    #[error("the firewall's tables ({TABLE}) are not there: no agent with the firewall on has run")]
    NoTable,
    #[error(transparent)]
    Refused(NftError),
}

/// The firewall's sets of pending addresses, in this thread's network namespace.
pub(crate) struct Pending(Kernel);

impl Pending {
    pub(crate) fn open() -> Result<Self, PendingError> {
        Ok(Self(Kernel::open()?))
    }

    /// Whether the firewall's tables exist.
    pub(crate) fn is_there(&mut self) -> Result<bool, PendingError> {
        let has_set = |family| matches!(family, TableFamily::Ip | TableFamily::Ip6);
        let families = self.0.tables(|table| {
            table.family().filter(|family| table.name() == Some(TABLE) && has_set(*family))
        })?;
        Ok(!families.is_empty())
    }

    /// Adds all of these addresses, or none.
    pub(crate) fn add(&mut self, addresses: &[IpAddr]) -> Result<(), PendingError> {
        let mut batch = self.0.batch(TableFamily::Ip, None);
        for address in addresses {
            let schema = schema(family_of(*address));
            let key = Key::EMPTY.address(*address);
            let element = Element { set: SetId(0), key, value: Value::Member, comment: None };
            batch.about(schema.family);
            batch.add_elements(&schema, &[element]);
        }
        self.0.commit(batch).map_err(|error| match error.errno() {
            Some(Errno::ENOENT) => PendingError::NoTable,
            Some(_) | None => PendingError::Refused(error),
        })
    }
}

/// The part of the firewall's table that the plugin uses: the set of pending addresses.
fn schema(version: Family) -> Schema {
    let pending = Set {
        id: SetId(0),
        name: PENDING,
        comment: "",
        key: vec![Field::Source(version)],
        is_ranged: false,
        data: DataType::None,
        max_dynamic_elements: None,
    };
    Schema { family: version.into(), name: TABLE, comment: "", sets: vec![pending] }
}
