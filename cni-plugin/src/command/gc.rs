//! GC: forgets what the runtime no longer knows.

use std::collections::BTreeSet;

use denizen_shared::state::AttachmentId;

use super::remove;
use crate::config::Config;
use crate::error::CniError;

/// Removes the records of the configuration's own network that are not among `valid`.
pub(crate) fn gc(config: &Config<'_>, valid: Vec<AttachmentId>) -> Result<(), CniError> {
    let valid: BTreeSet<AttachmentId> = valid.into_iter().collect();
    remove(&config.run_dir, |id, record| {
        record.network == config.network && !valid.contains(id)
    })
}
