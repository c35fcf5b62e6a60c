//! Follows links that are renamed, or moved from one bridge to another: updates the record, by
//! index and MAC address, and thereby the rules.
//!
//! The published links may be older than a record that a plugin has just written. So they only give
//! the reason to check; what is written comes from a full list *that begins after the record was
//! read*. A link that only got the index of another is not followed: [`super::prune`] removes that
//! record.

use std::path::{Path, PathBuf};
use std::time::Duration;

use denizen_state::{Attachment, AttachmentId, RunDir, State, StateError};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

use super::links::{LinkError, LinksByIndex};
use super::pod_ends::PodEnds;
use super::{LOCK_WAIT, PublishedAttachments};
use crate::Outlet;
use crate::node;
use denizen_text::describe;

/// The pause after a failed attempt.
const RETRY: Duration = Duration::from_secs(1);

/// A record to change.
#[derive(Debug, Clone)]
struct MovedRecord {
    id: AttachmentId,
    /// The record as it was read.
    read: Attachment,
    new: Attachment,
}

/// Updates the records to match their links, until `outlet` is closed.
pub async fn follow(run_dir: PathBuf, mut shown: PublishedAttachments, outlet: Outlet) {
    loop {
        let links = shown.links.borrow_and_update().clone();
        let seen = shown.state_file.borrow_and_update().clone();
        // Both are only hints. A lost file has nothing to change.
        let is_moved = |state: &State| !moved(state, &LinksByIndex::of(&links)).is_empty();
        let is_due = seen.last.as_deref().is_some_and(|state| !seen.is_lost && is_moved(state));
        let result = if is_due { update_records(&run_dir).await } else { Ok(()) };
        let problem = result.err().map(|error| describe(&error));
        if outlet.report(problem.iter().cloned().collect())
            && let Some(error) = &problem
        {
            warn!(error, "cannot follow renamed interfaces of pods");
        }
        tokio::select! {
            () = outlet.closed() => return,
            // If a link was renamed and renamed back while the records were compared, no further
            // change is seen: compare again.
            () = sleep(RETRY), if is_due => {}
            _ = shown.links.changed() => {}
            _ = shown.state_file.changed() => {}
        }
    }
}

async fn update_records(run_dir: &Path) -> Result<(), LinkError> {
    let path = run_dir.to_owned();
    let Some(state) = spawn_blocking(move || RunDir::open(&path)?.read()).await?? else {
        return Ok(());
    };
    let links = node::links().await?;
    let moved = moved(&state, &LinksByIndex::of(&links));
    if moved.is_empty() {
        return Ok(());
    }
    let path = run_dir.to_owned();
    spawn_blocking(move || {
        let mut ends = PodEnds::open();
        let confirm = |MovedRecord { id, read, new }| {
            let new = ends.confirm(&read, new)?;
            Some(MovedRecord { id, read, new })
        };
        let moved: Vec<_> = moved.into_iter().filter_map(confirm).collect();
        if moved.is_empty() { Ok(()) } else { change(&path, moved) }
    })
    .await??;
    Ok(())
}

fn moved(state: &State, links: &LinksByIndex<'_>) -> Vec<MovedRecord> {
    let changed = |(id, read): (&AttachmentId, &Attachment)| {
        Some(MovedRecord { id: id.clone(), read: read.clone(), new: links.moved(read)? })
    };
    state.attachments.iter().filter_map(changed).collect()
}

/// Changes the records that are still as they were read.
fn change(run_dir: &Path, moved: Vec<MovedRecord>) -> Result<(), StateError> {
    let (changed, ..) = RunDir::open(run_dir)?.update(LOCK_WAIT, |state| {
        let mut changed = Vec::new();
        for moved in moved {
            let record = state.attachments.get_mut(&moved.id);
            if let Some(record) = record.filter(|record| **record == moved.read) {
                record.clone_from(&moved.new);
                changed.push(moved);
            }
        }
        changed
    })?;
    for MovedRecord { id, read, new } in changed {
        let name = |record: Attachment| record.host_interface.map(|link| link.name);
        let (from, to) = ((read.bridge.clone(), name(read)), (new.bridge.clone(), name(new)));
        info!(attachment = id.0, ?from, ?to, "record changed: its interface was renamed or moved");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::links::record;
    use super::*;

    #[test]
    fn only_records_that_are_unchanged_since_the_read_are_changed() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let dir = RunDir::create(&path).unwrap();
        let was = record(Some(("old", 7, "")));
        let is = record(Some(("new", 7, "")));
        let moved = vec![MovedRecord { id: was.id(), read: was.clone(), new: is.clone() }];
        for (before, after) in
            [(was, &is), (record(Some(("again", 8, ""))), &record(Some(("again", 8, ""))))]
        {
            dir.put(LOCK_WAIT, &before).unwrap();
            change(&path, moved.clone()).unwrap();
            assert_eq!(dir.read().unwrap().unwrap().attachments[&before.id()], *after);
        }
    }
}
