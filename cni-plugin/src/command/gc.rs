//! GC: forgets what the runtime no longer knows.

use std::collections::BTreeSet;

use denizen_shared::state::{Attachment, AttachmentId, State};

use super::{LOCK_WAIT, existing};
use crate::config::Config;
use crate::error::CniError;

/// Removes the records of the configuration's own network that are not among `valid`.
pub(crate) fn gc(config: &Config<'_>, valid: Vec<AttachmentId>) -> Result<(), CniError> {
    let valid: BTreeSet<AttachmentId> = valid.into_iter().collect();
    let is_gone = |id: &AttachmentId, record: &Attachment| {
        record.network == config.network && !valid.contains(id)
    };
    let Some(run_dir) = existing(&config.run_dir)? else {
        return Ok(());
    };
    // Looked at first without the lock: where nothing is gone, nobody is waited for and nothing has
    // to be writable.
    let has_any = |state: State| state.attachments.iter().any(|(id, record)| is_gone(id, record));
    if run_dir.read()?.is_some_and(has_any) {
        run_dir.update(LOCK_WAIT, |state| {
            state.attachments.retain(|id, record| !is_gone(id, record))
        })?;
    }
    Ok(())
}
