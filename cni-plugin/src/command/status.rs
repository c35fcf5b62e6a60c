//! STATUS: whether an ADD would succeed now.

use denizen_state::firewall::is_off;
use denizen_state::run_dir::SOCKET;
use denizen_state::{RunDir, StateError};

use super::LOCK_WAIT;
use crate::config::{OnTimeout, PluginConfig};
use crate::error::{CniError, in_full};
use crate::kernel::{Pending, PendingError};
use crate::wait::is_listened_to;

/// Fails with the reason why an ADD would fail.
pub(crate) fn status(config: &PluginConfig<'_>) -> Result<(), CniError> {
    let run_dir = ready(config).map_err(|error| {
        CniError::NotAvailable(format!(
            "no pod can be recorded: {}",
            CniError::from(error).in_full()
        ))
    })?;
    let Some(how) = &config.wait_for_agent else {
        return Ok(());
    };
    if is_listened_to(&run_dir) {
        return Ok(());
    }
    let but = match how.on_timeout {
        OnTimeout::Proceed => return Ok(()),
        OnTimeout::Fail => "waitForAgent.onTimeout is \"fail\"".to_owned(),
        OnTimeout::Isolate if is_off(run_dir.path()) => return Ok(()),
        OnTimeout::Isolate => match isolation() {
            Ok(()) => return Ok(()),
            Err(error) => format!("no pod can be isolated: {}", in_full(&error)),
        },
    };
    let socket = run_dir.path().join(SOCKET);
    Err(CniError::NotAvailable(format!("no agent listens at {}, and {but}", socket.display())))
}

/// Whether the plugin can isolate a pod itself.
fn isolation() -> Result<(), PendingError> {
    if Pending::open()?.is_there()? { Ok(()) } else { Err(PendingError::NoTable) }
}

fn ready(config: &PluginConfig<'_>) -> Result<RunDir, StateError> {
    let run_dir = RunDir::create(&config.run_dir)?;
    run_dir.rehearse(LOCK_WAIT)?;
    Ok(run_dir)
}
