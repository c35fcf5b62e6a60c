//! DEL: removes an attachment's record.

use super::{LOCK_WAIT, existing};
use crate::config::Config;
use crate::environment::Named;
use crate::error::CniError;

/// Removes the record of `call`, if there is one.
pub(crate) fn del(call: &Named, config: &Config<'_>) -> Result<(), CniError> {
    if let Some(run_dir) = existing(&config.run_dir)? {
        run_dir.remove(LOCK_WAIT, &call.id())?;
    }
    Ok(())
}
