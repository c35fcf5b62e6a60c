//! ADD: records an attachment.

use std::net::IpAddr;
use std::time::SystemTime;

use denizen_state::firewall::is_off;
use denizen_state::socket::WaitFor;
use denizen_state::{Attachment, RunDir};
use serde_json::Map;

use super::{LOCK_WAIT, Seen};
use crate::config::{Config, OnTimeout, WaitForAgent};
use crate::environment::Attach;
use crate::error::{CniError, in_full};
use crate::kernel::{Pending, PendingError};
use crate::prev_result::PrevResult;
use crate::time::rfc3339;
use crate::wait::{Waited, wait};

/// Records the attachment of `call`, in place of one with the same id, and returns the previous
/// plugin's result unchanged. If it fails, it undoes its record.
pub(crate) fn add(
    call: &Attach,
    config: &Config<'_>,
    prev_result: PrevResult,
    now: SystemTime,
) -> Result<String, CniError> {
    let result = config.prev_result()?;
    let seen = Seen::of(call, &prev_result)?;
    let record = Attachment {
        container_id: call.named.container_id.clone(),
        if_name: call.named.if_name.clone(),
        network: config.network.clone(),
        pod: call.pod.clone(),
        netns: Some(call.netns.display().to_string()),
        host_interface: seen.attached.host_interface,
        l3_interface: seen.attached.l3_interface,
        bridge: seen.attached.bridge,
        ips: prev_result.ips,
        added_at: rfc3339(now),
        adopted: false,
        unknown: Map::new(),
    };
    let run_dir = RunDir::create(&config.run_dir)?;
    let (replaced, epoch, generation) = run_dir.put(LOCK_WAIT, &record)?;
    if let Some(how) = &config.wait_for_agent {
        let ask = WaitFor { wait_for: record.id(), epoch, generation, removed: false };
        wait_for_agent(&run_dir, &ask, how, &record.ips)
            .map_err(|error| undo(&run_dir, &record, replaced, error))?;
    }
    Ok(result.get().to_owned())
}

fn wait_for_agent(
    run_dir: &RunDir,
    ask: &WaitFor,
    how: &WaitForAgent,
    addresses: &[IpAddr],
) -> Result<(), CniError> {
    let why = match wait(run_dir, ask, how.timeout) {
        Waited::Programmed => return Ok(()),
        Waited::Not(why) => why,
    };
    let message = format!("the agent has not programmed {}: {why}", ask.wait_for.0);
    match how.on_timeout {
        OnTimeout::Proceed => {
            eprintln!(
                "denizen: {message}; the pod starts anyway (waitForAgent.onTimeout is \"proceed\")"
            );
            Ok(())
        }
        OnTimeout::Fail => Err(CniError::TryAgainLater(message)),
        OnTimeout::Isolate if is_off(run_dir.path()) => {
            eprintln!(
                "denizen: {message}; the pod starts anyway (no NetworkPolicy is enforced on this node)"
            );
            Ok(())
        }
        OnTimeout::Isolate => {
            // Also if an agent listens: it may hang since before it read the record.
            isolate(addresses).map_err(|error| {
                let also = in_full(&error);
                CniError::TryAgainLater(format!("{message}; and it cannot be isolated: {also}"))
            })?;
            eprintln!(
                "denizen: {message}; the pod starts isolated (waitForAgent.onTimeout is \"isolate\")"
            );
            Ok(())
        }
    }
}

/// Drops all packets from and to these addresses, until an agent decides about them.
fn isolate(addresses: &[IpAddr]) -> Result<(), PendingError> {
    Pending::open()?.add(addresses)
}

/// Removes `record`, or restores what it had `replaced`, unless another process has changed it
/// since. Returns `error`, with any failure of the undo.
fn undo(
    run_dir: &RunDir,
    record: &Attachment,
    replaced: Option<Attachment>,
    error: CniError,
) -> CniError {
    let id = record.id();
    let undone = run_dir.update(LOCK_WAIT, |state| {
        if state.attachments.get(&id) == Some(record) {
            match replaced {
                Some(before) => state.attachments.insert(id.clone(), before),
                None => state.attachments.remove(&id),
            };
        }
    });
    match undone {
        Ok(_) => error,
        Err(also) => {
            let also = CniError::from(also).in_full();
            CniError::TryAgainLater(format!("{error}; and its record could not be removed: {also}"))
        }
    }
}
