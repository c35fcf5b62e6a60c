//! DEL: removes an attachment's record.

use std::time::Duration;

use denizen_state::socket::WaitFor;

use super::{LOCK_WAIT, existing, report};
use crate::config::PluginConfig;
use crate::environment::AttachmentName;
use crate::error::CniError;
use crate::wait::{Waited, wait_if_listened_to};

/// The longest that a DEL waits for the kernel to be programmed without the pod.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Removes the record of `call`, if there is one. With `waitForAgent` and an agent that listens, it
/// returns when the kernel is programmed without the pod: a plugin before this one in the chain is
/// called next, and may give the pod's addresses to another pod.
pub(crate) fn del(call: &AttachmentName, config: &PluginConfig<'_>) -> Result<(), CniError> {
    let Some(run_dir) = existing(&config.run_dir)? else {
        return Ok(());
    };
    let removed = run_dir.remove(LOCK_WAIT, &call.id())?;
    if let (Some((epoch, generation)), Some(how)) = (removed, &config.wait_for_agent) {
        let ask = WaitFor { wait_for: call.id(), epoch, generation, removed: true, asked_at: None };
        let waited = wait_if_listened_to(&run_dir, &ask, how.timeout.min(LONGEST_WAIT));
        if let Some(Waited::Not(why)) = waited {
            report(format_args!(
                "{} is removed, but may still be programmed: {why}",
                ask.wait_for.0
            ));
        }
    }
    Ok(())
}
