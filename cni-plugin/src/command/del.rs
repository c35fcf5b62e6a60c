//! DEL: forgets an attachment.

use super::remove;
use crate::config::Config;
use crate::environment::Named;
use crate::error::CniError;

/// Removes the record of `call`. There may be none any more, or never have been one.
pub(crate) fn del(call: &Named, config: &Config<'_>) -> Result<(), CniError> {
    let gone = call.id();
    remove(&config.run_dir, |id, _| *id == gone)
}
