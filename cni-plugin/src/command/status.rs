//! STATUS: whether an ADD would succeed now.

use denizen_state::run_dir::SOCKET;
use denizen_state::{RunDir, StateError};

use super::LOCK_WAIT;
use crate::config::{Config, OnTimeout};
use crate::error::CniError;
use crate::wait::is_listened_to;

/// Fails with the reason why an ADD would fail.
pub(crate) fn status(config: &Config<'_>) -> Result<(), CniError> {
    let run_dir = ready(config).map_err(|error| {
        CniError::NotAvailable(format!(
            "no pod can be recorded: {}",
            CniError::from(error).in_full()
        ))
    })?;
    let needs_agent =
        config.wait_for_agent.as_ref().is_some_and(|wait| wait.on_timeout == OnTimeout::Fail);
    if needs_agent && !is_listened_to(&run_dir) {
        let socket = run_dir.path().join(SOCKET);
        return Err(CniError::NotAvailable(format!(
            "no agent listens at {}, and waitForAgent.onTimeout is \"fail\"",
            socket.display()
        )));
    }
    Ok(())
}

fn ready(config: &Config<'_>) -> Result<RunDir, StateError> {
    let run_dir = RunDir::create(&config.run_dir)?;
    run_dir.rehearse(LOCK_WAIT)?;
    Ok(run_dir)
}
