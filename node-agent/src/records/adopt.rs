//! Taking over the pods that a runtime attached without denizen, and writing the state file anew when it was lost.

use std::collections::BTreeMap;

use denizen_cni::{NotAdopted, Remembered, adopt};
use denizen_shared::error::StateError;
use denizen_shared::state::{Attachment, AttachmentId, State};
use denizen_shared::store::RunDir;
use tracing::{debug, info, warn};

use super::cache::{self, Entry};
use super::{Config, LOCK_WAIT};
use crate::describe::describe;

/// Key of the state file that says when it was written anew.
const REBUILT_AT: &str = "rebuiltAt";

/// Records every pod of this node that is not recorded yet, and that a runtime remembers and the kernel confirms. A file
/// that cannot be understood is set aside first, and begun anew. Blocks.
///
/// # Errors
/// [`StateError`]; the file is as it was then.
pub fn adopt_pods(config: &Config) -> Result<(), StateError> {
    let dir = RunDir::open(&config.run_dir)?;
    let state = match dir.read() {
        Err(StateError::Unreadable { .. }) => return rebuild(config, None),
        other => other?,
    };
    let recorded = state.map(|state| state.attachments).unwrap_or_default();
    let found = remembered(config, |id| recorded.contains_key(id));
    if !found.is_empty() {
        dir.update(LOCK_WAIT, |state| insert(state, found))?;
    }
    Ok(())
}

/// Writes the state file anew: what it said `last`, where that is known, and what runtimes remember; the links decide what
/// of it is still so. A file that cannot be understood is set aside; one that can be, by now, is left alone. Blocks.
///
/// # Errors
/// [`StateError`].
pub fn rebuild(config: &Config, last: Option<&State>) -> Result<(), StateError> {
    let dir = RunDir::open(&config.run_dir)?;
    if let Some(aside) = dir.set_aside(LOCK_WAIT, &now("%Y%m%dT%H%M%SZ"))? {
        warn!(moved_to = %aside.display(), "the state file could not be understood and was moved away");
    }
    let mut records = last.map(|state| state.attachments.clone()).unwrap_or_default();
    records.extend(remembered(config, |id| records.contains_key(id)));
    let ((anew, count), ..) = dir.update(LOCK_WAIT, |state| {
        // No file was ever written with this generation: there is none.
        let anew = state.generation.0 == 0;
        if anew {
            state.unknown.insert(REBUILT_AT.to_owned(), now("%FT%TZ").into());
        }
        insert(state, records);
        (anew, state.attachments.len())
    })?;
    if anew {
        warn!(records = count, "the state file was written anew");
    }
    Ok(())
}

/// Puts `records` in where there is none of their name.
fn insert(state: &mut State, records: BTreeMap<AttachmentId, Attachment>) {
    for (id, record) in records {
        state.attachments.entry(id).or_insert(record);
    }
}

/// What runtimes remember and the kernel confirms, but for what is `known` already.
fn remembered(config: &Config, known: impl Fn(&AttachmentId) -> bool) -> BTreeMap<AttachmentId, Attachment> {
    let Some(folder) = &config.cni_cache else {
        return BTreeMap::new();
    };
    let (mut entries, bad) = cache::entries(folder);
    for (path, why) in bad {
        warn!(path = %path.display(), why, "this cached CNI result is left out");
    }
    // The newest decides where two claim one link: a name is used again, and old files stay after a crash.
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.written));
    let (mut records, mut links) = (BTreeMap::new(), Vec::new());
    for entry in entries {
        let id = AttachmentId::new(&entry.container_id, &entry.if_name);
        if known(&id) || records.contains_key(&id) {
            continue;
        }
        let Some(record) = confirmed(&entry) else { continue };
        let link = record.host_interface.as_ref().map(|link| link.index);
        if links.contains(&link) {
            debug!(attachment = id.0, "a newer attachment has its link");
            continue;
        }
        links.push(link);
        info!(attachment = id.0, path = %entry.path.display(), "adopted: attached without denizen");
        records.insert(id, record);
    }
    records
}

fn confirmed(entry: &Entry) -> Option<Attachment> {
    let added_at = jiff::Timestamp::try_from(entry.written).unwrap_or_default();
    let record = adopt(&Remembered {
        container_id: &entry.container_id,
        if_name: &entry.if_name,
        network: &entry.network,
        netns: entry.netns.as_deref(),
        args: &entry.args,
        result: &entry.result,
        added_at: added_at.strftime("%FT%TZ").to_string(),
    });
    let path = entry.path.display();
    match record {
        Ok(record) => return Some(record),
        Err(NotAdopted::NotSo(why)) => debug!(%path, why, "not adopted"),
        Err(error) => warn!(%path, error = describe(&error), "this cached CNI result is left out"),
    }
    None
}

fn now(format: &str) -> String {
    jiff::Timestamp::now().strftime(format).to_string()
}
