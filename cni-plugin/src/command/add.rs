//! ADD: records an attachment.

use std::net::IpAddr;
use std::time::SystemTime;

use denizen_state::firewall::is_off;
use denizen_state::redirect::{Redirect, RedirectBackend};
use denizen_state::socket::WaitFor;
use denizen_state::{Attachment, RunDir, State};
use serde_json::Map;

use super::{LOCK_WAIT, ObservedAttachment, asked_host_ports, existing, of_others, report};
use crate::config::{ANNOTATIONS, OnTimeout, PluginConfig, WaitForAgent};
use crate::environment::Attach;
use crate::error::{CniError, in_full};
use crate::kernel::{Pending, PendingError};
use crate::prev_result::PrevResult;
use crate::redirect::{Location, OnFailure, RedirectConfig, conflict, install, remove_obsolete};
use crate::time::rfc3339;
use crate::wait::{Waited, wait};

/// Redirects the pod's TCP if it should be, records the attachment of `call`, in place of a record
/// with the same id, and returns the previous plugin's result unchanged. If it fails, it undoes
/// what it did. The redirection comes first, so a recorded pod is already redirected.
pub(crate) fn add(
    call: &Attach,
    config: &PluginConfig<'_>,
    prev_result: PrevResult,
    now: SystemTime,
) -> Result<String, CniError> {
    let result = config.prev_result()?;
    let host_ports = asked_host_ports(call, config)?;
    let redirect = redirect_of(call, config)?;
    let seen = ObservedAttachment::of(call, &prev_result)?;
    let location = Location::of(&seen.netns, &call.named.if_name);
    let earlier = || earlier(call, config);
    let (installed, redirect) = match redirect {
        Some((entry, redirect)) => {
            let gateways = &prev_result.gateways;
            match install(&location, redirect, entry.verify, gateways, earlier) {
                Ok(installed) => {
                    let redirect = installed.redirect().clone();
                    (Some(installed), Some(redirect))
                }
                Err(error) => {
                    not_redirected(entry, error)?;
                    // The pod has the rules that it had before: those of an earlier ADD, if any.
                    (None, earlier())
                }
            }
        }
        None => (None, None),
    };
    let mut record = Attachment {
        container_id: call.named.container_id.clone(),
        if_name: call.named.if_name.clone(),
        network: config.network.clone(),
        pod: call.pod.clone(),
        netns: Some(call.netns.display().to_string()),
        host_interface: seen.attached.host_interface,
        l3_interface: seen.attached.l3_interface,
        bridge: seen.attached.bridge,
        ips: prev_result.ips,
        mac: seen.attached.mac.or(prev_result.mac),
        host_ports,
        host_ports_adopted: false,
        further_interfaces: Vec::new(),
        added_at: rfc3339(now),
        adopted: false,
        redirect,
        obsolete_redirects: Vec::new(),
        unknown: Map::new(),
    };
    record.further_interfaces =
        seen.further.into_iter().map(|further| further.beside(&record)).collect();
    match (recorded(config, &record, &location), installed) {
        (Ok(()), _) => Ok(result.get().to_owned()),
        (Err(error), Some(installed)) => Err(installed.undo(&location, earlier().as_ref(), error)),
        (Err(error), None) => Err(error),
    }
}

/// What of the pod of `call` is to be redirected, if anything, and the entry that says so.
fn redirect_of<'a>(
    call: &Attach,
    config: &'a PluginConfig<'_>,
) -> Result<Option<(&'a RedirectConfig, Redirect)>, CniError> {
    let (Some(entry), Some(pod)) = (&config.redirect, &call.pod) else {
        return Ok(None);
    };
    let Some(annotations) = &config.annotations else {
        let message = format!(
            "the runtime passes no annotations of pods, which redirect needs: {ANNOTATIONS:?} must \
             be true in the entry's \"capabilities\", and the runtime be containerd \
             1.5, CRI-O 1.29 or newer"
        );
        return match entry.without_annotations {
            OnFailure::Fail => Err(CniError::InvalidConfig(message)),
            OnFailure::Proceed => {
                report(format_args!(
                    "{message}; the pod starts without (redirect.withoutAnnotations is \"proceed\")"
                ));
                Ok(None)
            }
        };
    };
    let decided = entry.decide(pod, annotations, &call.named.if_name)?;
    match decided.as_ref().and_then(|redirect| conflict_of(redirect, call, config)) {
        Some(why) => Err(CniError::InvalidConfig(why.to_owned())),
        None => Ok(decided.map(|redirect| (entry, redirect))),
    }
}

/// Why `redirect` does not fit what the pod's other attachments have.
fn conflict_of(
    redirect: &Redirect,
    call: &Attach,
    config: &PluginConfig<'_>,
) -> Option<&'static str> {
    match redirect.backend {
        RedirectBackend::Nftables => None,
        RedirectBackend::Iptables => {
            let (state, netns) = (recorded_state(config)?, call.netns.display().to_string());
            conflict(redirect, &of_others(&state, Some(&netns), &call.named.id()))
        }
    }
}

/// The state file. If it cannot be read, no ADD can have written to it.
fn recorded_state(config: &PluginConfig<'_>) -> Option<State> {
    existing(&config.run_dir).ok()??.read().ok()?
}

/// What an earlier ADD of `call` has programmed in the pod, according to the record.
fn earlier(call: &Attach, config: &PluginConfig<'_>) -> Option<Redirect> {
    let record = recorded_state(config)?.attachments.remove(&call.named.id())?;
    (record.netns == Some(call.netns.display().to_string())).then_some(record.redirect)?
}

/// Succeeds if the pod may start although it cannot be redirected; otherwise returns `error`.
fn not_redirected(entry: &RedirectConfig, error: CniError) -> Result<(), CniError> {
    match entry.on_error {
        OnFailure::Fail => Err(error),
        OnFailure::Proceed => {
            let message = error.in_full();
            report(format_args!(
                "{message}; the pod starts without (redirect.onError is \"proceed\")"
            ));
            Ok(())
        }
    }
}

/// Writes `record`, waits for the agent as configured, and removes the rules at `location` that
/// only earlier ADDs needed. If that fails, there is no record.
fn recorded(
    config: &PluginConfig<'_>,
    record: &Attachment,
    location: &Location<'_>,
) -> Result<(), CniError> {
    let run_dir = RunDir::create(&config.run_dir)?;
    let (replaced, epoch, generation) = run_dir.put(LOCK_WAIT, record)?;
    let record = match &replaced {
        Some(before) => &record.clone().in_place_of(before),
        None => record,
    };
    let ask = WaitFor { wait_for: record.id(), epoch, generation, removed: false, asked_at: None };
    let waited = match &config.wait_for_agent {
        Some(how) => wait_for_agent(&run_dir, &ask, how, &record.all_ips().collect::<Vec<_>>()),
        None => Ok(()),
    };
    // This comes last, since it cannot be undone. Until then the record names these rules.
    waited
        .and_then(|()| remove_all_obsolete(&run_dir, record, location))
        .map_err(|error| undo(&run_dir, record, replaced, error))
}

/// Removes all rules of earlier ADDs that `record` names, and then clears their names in the
/// record.
fn remove_all_obsolete(
    run_dir: &RunDir,
    record: &Attachment,
    location: &Location<'_>,
) -> Result<(), CniError> {
    if record.obsolete_redirects.is_empty() {
        return Ok(());
    }
    let (id, state) = (record.id(), run_dir.read()?);
    let mut kept = Vec::from_iter(&record.redirect);
    kept.extend(state.iter().flat_map(|state| of_others(state, record.netns.as_deref(), &id)));
    for earlier in &record.obsolete_redirects {
        remove_obsolete(location, earlier, &kept)?;
    }
    let named = run_dir.update(LOCK_WAIT, |state| {
        let same = state.attachments.get_mut(&id).filter(|attachment| *attachment == record);
        same.map(|attachment| attachment.obsolete_redirects.clear())
    });
    if let Err(error) = named {
        // The rules are gone even if the record still names them; the next ADD tries again.
        let error = CniError::from(error).in_full();
        report(format_args!("the record still names rules that are removed: {error}"));
    }
    Ok(())
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
            report(format_args!(
                "{message}; the pod starts anyway (waitForAgent.onTimeout is \"proceed\")"
            ));
            Ok(())
        }
        OnTimeout::Fail => Err(CniError::TryAgainLater(message)),
        OnTimeout::Isolate if is_off(run_dir.path()) => {
            report(format_args!(
                "{message}; the pod starts anyway (no NetworkPolicy is enforced on this node)"
            ));
            Ok(())
        }
        OnTimeout::Isolate => {
            // Isolated even if an agent listens: the agent may have hung before it read the record.
            isolate(addresses).map_err(|error| {
                let also = in_full(&error);
                CniError::TryAgainLater(format!("{message}; and it cannot be isolated: {also}"))
            })?;
            report(format_args!(
                "{message}; the pod starts isolated (waitForAgent.onTimeout is \"isolate\")"
            ));
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
