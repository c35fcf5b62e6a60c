//! Adopts the pods that a runtime attached without denizen, and rebuilds the state file after it
//! was lost.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;

use denizen_cni::{Adopter, AdoptionRequest, NotAdopted};
use denizen_state::{Attachment, AttachmentId, RunDir, State, StateError};
use tracing::{debug, info, warn};

use super::cache::{self, CachedAdd, UnusableResult};
use super::called::has_called;
use super::{AttachmentsConfig, LOCK_WAIT};
use denizen_text::describe;

/// Key in the state file for the time of its rebuild.
const REBUILT_AT: &str = "rebuiltAt";

/// Records every pod of this node that has no record yet, if the runtime's cache has it and the
/// kernel confirms it. An invalid file is set aside first, and rebuilt. Blocks.
///
/// # Errors
/// [`StateError`]; the file is unchanged then.
pub fn adopt_pods(config: &AttachmentsConfig) -> Result<(), StateError> {
    let dir = RunDir::open(&config.run_dir)?;
    let state = match dir.read() {
        Err(StateError::Unreadable { .. }) => return rebuild(config, None),
        other => other?,
    };
    let recorded = state.map(|state| state.attachments).unwrap_or_default();
    add_macs(&dir, &recorded)?;
    adopt_host_ports(config, None)?.iter().for_each(warn_of);
    let found = remembered(config, |_| true, |id| recorded.contains_key(id));
    found.unusable.iter().for_each(warn_of);
    if !found.records.is_empty() {
        insert_in(&dir, found.records)?;
    }
    Ok(())
}

/// Adds the MAC addresses of pods to records of an older plugin, which left them out.
fn add_macs(dir: &RunDir, recorded: &BTreeMap<AttachmentId, Attachment>) -> Result<(), StateError> {
    let lacking = || recorded.iter().filter(|(_, record)| record.mac.is_none());
    if lacking().next().is_none() {
        return Ok(());
    }
    let mut macs = BTreeMap::new();
    match Adopter::open() {
        Ok(mut kernel) => {
            for (id, record) in lacking() {
                match kernel.mac(record) {
                    Ok(Some(mac)) => drop(macs.insert(id.clone(), (record, mac))),
                    Ok(None) => {}
                    Err(error) => {
                        debug!(attachment = id.0, %error, "cannot ask for its MAC address")
                    }
                }
            }
        }
        Err(error) => debug!(%error, "cannot ask for the MAC addresses of pods"),
    }
    if macs.is_empty() {
        return Ok(());
    }
    info!(records = macs.len(), "MAC addresses added to records of an older plugin");
    let update = |state: &mut State| {
        for (id, (record, mac)) in macs {
            if let Some(same) = state.attachments.get_mut(&id).filter(|same| *same == record) {
                same.mac = Some(mac);
            }
        }
    };
    dir.update(LOCK_WAIT, update).map(drop)
}

/// Adds the host ports in the runtime's cache to records without host ports: these ADDs did not ask
/// denizen for them, and another plugin served them until now. `names`: read only these cached
/// results; `None`: all. Returns the cached results that cannot be used. Blocks.
///
/// # Errors
/// [`StateError`]; the file is unchanged then.
pub(super) fn adopt_host_ports(
    config: &AttachmentsConfig,
    names: Option<&BTreeSet<OsString>>,
) -> Result<Vec<UnusableResult>, StateError> {
    let Some(folder) = config.cni_cache.as_ref().filter(|_| config.host_ports) else {
        return Ok(Vec::new());
    };
    let dir = RunDir::open(&config.run_dir)?;
    let recorded = dir.read()?.map(|state| state.attachments).unwrap_or_default();
    let without = recorded.values().filter(|record| record.host_ports.is_empty());
    let ends: HashSet<String> = without.map(cache::name_end).collect();
    let is_named = |name: &OsStr| names.is_none_or(|names| names.contains(name));
    let (entries, mut unusable) =
        cache::entries(folder, |name| is_named(name) && cache::has_end(name, &ends));
    let mut ports = BTreeMap::new();
    for CachedAdd { path, container_id, if_name, host_ports, .. } in entries {
        match host_ports {
            Ok(none) if none.is_empty() => {}
            Ok(found) => drop(ports.insert(AttachmentId::new(&container_id, &if_name), found)),
            Err(why) => unusable.push(UnusableResult::for_good(path, why)),
        }
    }
    if ports.is_empty() {
        return Ok(unusable);
    }
    let update = |state: &mut State| {
        for (id, ports) in ports {
            let record = state.attachments.get_mut(&id);
            if let Some(record) = record.filter(|record| record.host_ports.is_empty()) {
                info!(attachment = id.0, ports = ports.len(), "adopted a pod's host ports");
                (record.host_ports, record.host_ports_adopted) = (ports, true);
            }
        }
    };
    dir.update(LOCK_WAIT, update)?;
    Ok(unusable)
}

/// What to search for while the agent runs.
#[derive(Debug)]
pub(super) struct AdoptionSearch {
    /// The names of the cached results to read; `None` for all of them.
    pub(super) results: Option<BTreeSet<OsString>>,
    /// The indices of links without a record: only pods with one of these are adopted.
    pub(super) links: HashSet<u32>,
}

/// Records the pods behind `search`'s links that the runtime's cache has and the kernel confirms.
/// Returns the cached results that cannot be used. Blocks.
///
/// # Errors
/// [`StateError`]; the file is unchanged then.
pub(super) fn adopt_late(
    config: &AttachmentsConfig,
    search: &AdoptionSearch,
) -> Result<Vec<UnusableResult>, StateError> {
    let dir = RunDir::open(&config.run_dir)?;
    let recorded = dir.read()?.map(|state| state.attachments).unwrap_or_default();
    let ends: HashSet<String> = recorded.values().map(cache::name_end).collect();
    let is_asked = |name: &OsStr| search.results.as_ref().is_none_or(|names| names.contains(name));
    let is_wanted = |name: &OsStr| is_asked(name) && !cache::has_end(name, &ends);
    let mut found = remembered(config, is_wanted, |id| recorded.contains_key(id));
    found.records.retain(|_, record| {
        let link = record.host_interface.as_ref();
        link.is_some_and(|link| search.links.contains(&link.index))
    });
    if !found.records.is_empty() {
        insert_in(&dir, found.records)?;
    }
    Ok(found.unusable)
}

fn insert_in(dir: &RunDir, records: BTreeMap<AttachmentId, Attachment>) -> Result<(), StateError> {
    for (id, record) in &records {
        let link = record.host_interface.as_ref().map(|link| &link.name);
        info!(attachment = id.0, ?link, "adopted a pod that was attached without denizen");
    }
    dir.update(LOCK_WAIT, |state| insert(state, records)).map(drop)
}

/// A result that the runtime is still writing is not an error: [`super::find()`] reads it again.
fn warn_of(UnusableResult { path, why, is_being_written }: &UnusableResult) {
    if !is_being_written {
        warn!(path = %path.display(), why, "cached cni result left out");
    }
}

/// Rebuilds the state file: from its `last` content, if that is known, and from the runtime's
/// cache. Pruning removes records whose link is gone. An invalid file is set aside; a file that is
/// valid by now is left alone. Blocks.
pub fn rebuild(config: &AttachmentsConfig, last: Option<&State>) -> Result<(), StateError> {
    let dir = RunDir::open(&config.run_dir)?;
    if let Some(aside) = dir.set_aside(LOCK_WAIT, &now("%Y%m%dT%H%M%SZ"))? {
        warn!(moved_to = %aside.display(), "invalid state file moved away");
    }
    let was_called = last.is_some_and(|state| state.plugin_was_called || has_called(state));
    let mut records = last.map(|state| state.attachments.clone()).unwrap_or_default();
    let found = remembered(config, |_| true, |id| records.contains_key(id));
    found.unusable.iter().for_each(warn_of);
    records.extend(found.records);
    let ((anew, count), ..) = dir.update(LOCK_WAIT, |state| {
        // Generation 0 is never written: it means that there was no file.
        let anew = state.generation.0 == 0;
        if anew {
            state.unknown.insert(REBUILT_AT.to_owned(), now("%FT%TZ").into());
        }
        insert(state, records);
        state.plugin_was_called |= was_called;
        (anew, state.attachments.len())
    })?;
    if anew {
        warn!(records = count, "state file rebuilt");
    }
    Ok(())
}

/// Adds those of `records` whose id has none yet.
fn insert(state: &mut State, records: BTreeMap<AttachmentId, Attachment>) {
    for (id, record) in records {
        state.attachments.entry(id).or_insert(record);
    }
}

/// The pods that can be adopted, and the cached results that cannot be used.
#[derive(Default)]
struct Adoptable {
    records: BTreeMap<AttachmentId, Attachment>,
    unusable: Vec<UnusableResult>,
}

/// The pods in cached files whose name `is_wanted`, if the kernel confirms them and they are not
/// `known` already.
fn remembered(
    config: &AttachmentsConfig,
    is_wanted: impl Fn(&OsStr) -> bool,
    known: impl Fn(&AttachmentId) -> bool,
) -> Adoptable {
    let Some(folder) = &config.cni_cache else {
        return Adoptable::default();
    };
    let (mut entries, mut unusable) = cache::entries(folder, is_wanted);
    // The newest wins if two claim one link: interface names are used again, and old files stay
    // after a crash.
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.written));
    let (mut records, mut links) = (BTreeMap::new(), HashSet::new());
    let mut adopter = Adopter::open();
    for entry in entries {
        let id = AttachmentId::new(&entry.container_id, &entry.if_name);
        if known(&id) || records.contains_key(&id) {
            continue;
        }
        match confirmed(&mut adopter, &entry, config.host_ports) {
            Ok(Some(record)) => {
                if links.insert(record.host_interface.as_ref().map(|link| link.index)) {
                    records.insert(id, record);
                } else {
                    debug!(attachment = id.0, "a newer attachment has its link");
                }
            }
            Ok(None) => {}
            Err(why) => unusable.push(UnusableResult::for_good(entry.path, why)),
        }
    }
    Adoptable { records, unusable }
}

/// The record for `entry`; `None` if the kernel contradicts it.
fn confirmed(
    adopter: &mut io::Result<Adopter>,
    entry: &CachedAdd,
    with_host_ports: bool,
) -> Result<Option<Attachment>, String> {
    // A pod whose host ports cannot be read is recorded as a local pod all the same.
    let host_ports = entry.host_ports.clone().unwrap_or_else(|why| {
        warn!(path = %entry.path.display(), why, "host ports of an adopted pod left out");
        Vec::new()
    });
    let adopter = adopter.as_mut().map_err(|error| error.to_string())?;
    let added_at = jiff::Timestamp::try_from(entry.written).unwrap_or_default();
    let record = adopter.adopt(&AdoptionRequest {
        container_id: &entry.container_id,
        if_name: &entry.if_name,
        network: &entry.network,
        netns: entry.netns.as_deref(),
        args: &entry.args,
        host_ports: host_ports.into_iter().filter(|_| with_host_ports).collect(),
        result: &entry.result,
        added_at: added_at.strftime("%FT%TZ").to_string(),
    });
    match record {
        Ok(record) => Ok(Some(record)),
        Err(NotAdopted::ContradictedByKernel(why)) => {
            debug!(path = %entry.path.display(), why, "not adopted");
            Ok(None)
        }
        Err(error) => Err(describe(&error)),
    }
}

fn now(format: &str) -> String {
    jiff::Timestamp::now().strftime(format).to_string()
}
