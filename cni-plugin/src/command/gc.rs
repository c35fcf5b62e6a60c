//! GC: removes the records that the runtime no longer knows.

use denizen_state::{Attachment, AttachmentId, State};

use super::{LOCK_WAIT, existing};
use crate::config::PluginConfig;
use crate::error::CniError;

/// Removes the records of the configuration's network that are not in `valid`.
pub(crate) fn gc(config: &PluginConfig<'_>, mut valid: Vec<AttachmentId>) -> Result<(), CniError> {
    valid.sort_unstable();
    let is_gone = |id: &AttachmentId, record: &Attachment| {
        record.network == config.network && valid.binary_search(id).is_err()
    };
    let Some(run_dir) = existing(&config.run_dir)? else {
        return Ok(());
    };
    // Checked first without the lock: if nothing is gone, this neither waits nor needs write
    // permission.
    let has_any = |state: State| state.attachments.iter().any(|(id, record)| is_gone(id, record));
    if run_dir.read()?.is_some_and(has_any) {
        run_dir.update(LOCK_WAIT, |state| {
            state.attachments.retain(|id, record| !is_gone(id, record))
        })?;
    }
    Ok(())
}
