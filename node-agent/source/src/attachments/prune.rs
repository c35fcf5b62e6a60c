//! Removes the records of pods whose link is gone. After a crash of the runtime nobody calls DEL,
//! and some runtimes DEL with a list of plugins from before denizen was installed.
//!
//! A record is removed only if its link is missing from a full list of links *that begins after the
//! record was read*. So a record that is made or changed meanwhile is safe, whatever the list
//! contains.

use std::collections::HashMap;
use std::path::Path;

use denizen_state::{Attachment, AttachmentId, RunDir, State, StateError};
use tokio::task::spawn_blocking;
use tracing::warn;

use super::LOCK_WAIT;
use super::links::{LinkError, LinksByIndex};
use crate::node::{self, Link};

/// Removes every record whose link is gone. `known`, the last published links, only decides whether
/// to check. It is empty until the links were listed once, and then nothing is removed.
///
/// # Errors
/// [`LinkError`]; the file is unchanged then. An unreadable file is not an error here: the source
/// of the state file reports it.
pub async fn prune(run_dir: &Path, known: &[Link]) -> Result<(), LinkError> {
    if known.is_empty() {
        return Ok(());
    }
    let path = run_dir.to_owned();
    let state = spawn_blocking(move || RunDir::open(&path)?.read()).await?;
    let Ok(Some(state)) = state else { return Ok(()) };
    let mut lost = lost(state, known);
    if lost.is_empty() {
        return Ok(());
    }
    let now = node::links().await?;
    let now = LinksByIndex::of(&now);
    lost.retain(|_, record| now.lacks(record));
    if lost.is_empty() {
        return Ok(());
    }
    let path = run_dir.to_owned();
    spawn_blocking(move || remove(&path, &lost)).await??;
    Ok(())
}

/// The records whose link is not in `links`.
fn lost(state: State, links: &[Link]) -> HashMap<AttachmentId, Attachment> {
    let links = LinksByIndex::of(links);
    let mut lost: HashMap<_, _> = state.attachments.into_iter().collect();
    lost.retain(|_, record| links.lacks(record));
    lost
}

/// Removes the records in `lost` that are unchanged since the read.
fn remove(run_dir: &Path, lost: &HashMap<AttachmentId, Attachment>) -> Result<(), StateError> {
    let (removed, ..) = RunDir::open(run_dir)?.update(LOCK_WAIT, |state| {
        let gone = |id: &_, record: &mut _| lost.get(id) == Some(record);
        state.attachments.extract_if(.., gone).collect::<Vec<_>>()
    })?;
    for (id, record) in removed {
        let pod = record.pod.map(|pod| format!("{}/{}", pod.namespace, pod.name));
        let link = record.host_interface.map(|link| link.name);
        warn!(
            attachment = id.0,
            pod, link, "record removed: its link is gone and nobody called DEL"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::links::record;
    use super::*;

    #[test]
    fn only_records_that_are_unchanged_since_the_read_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let dir = RunDir::create(&path).unwrap();
        let (mut gone, mut added_again) = (record(Some(("a", 5, ""))), record(Some(("b", 6, ""))));
        (gone.if_name, added_again.if_name) = ("gone".to_owned(), "again".to_owned());
        dir.put(LOCK_WAIT, &gone).unwrap();
        dir.put(LOCK_WAIT, &added_again).unwrap();
        let lost = lost(dir.read().unwrap().unwrap(), &[]);
        added_again.host_interface.as_mut().unwrap().index = 60;
        dir.put(LOCK_WAIT, &added_again).unwrap();
        remove(&path, &lost).unwrap();
        let left = dir.read().unwrap().unwrap().attachments;
        assert_eq!(left.into_values().collect::<Vec<_>>(), [added_again]);
    }
}
