//! Removes the records of pods whose link is gone. After a crash of the runtime nobody calls DEL,
//! and some runtimes DEL with a list of plugins from before denizen was installed.
//!
//! A record is removed only if its link is missing from a full list of links *that begins after the
//! record was read*, or belongs to another pod there. So a record that is made or changed meanwhile
//! is safe, whatever the list contains.

use std::collections::HashMap;
use std::path::Path;

use denizen_state::{Attachment, AttachmentId, RunDir, State, StateError};
use tokio::task::spawn_blocking;
use tracing::warn;

use super::LOCK_WAIT;
use super::links::{LinkError, LinksByIndex};
use super::pod_ends::{PodEnds, superseded};
use crate::node::{self, Link};

/// Removes every record whose link is gone, or is another pod's by now. `known`, the last published
/// links, only decides whether to check. It is empty until the links were listed once, and then
/// nothing is removed.
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
    if candidates(&state, known).is_empty() {
        return Ok(());
    }
    let candidates = candidates(&state, &node::links().await?);
    if candidates.is_empty() {
        return Ok(());
    }
    let path = run_dir.to_owned();
    spawn_blocking(move || {
        let lost = lost(candidates);
        if lost.is_empty() { Ok(()) } else { remove(&path, &lost) }
    })
    .await??;
    Ok(())
}

/// A record whose link may be gone.
#[derive(Debug)]
struct PruneCandidate {
    read: Attachment,
    /// The record with the link that now has its index, and shares only the name or only the MAC
    /// address; `None` if the record's link is gone for sure.
    matched_in_part: Option<Attachment>,
}

/// The records whose link is not in `links`, or may have been replaced by another link.
fn candidates(state: &State, links: &[Link]) -> HashMap<AttachmentId, PruneCandidate> {
    let links = LinksByIndex::of(links);
    let superseded = superseded(state, &links);
    let of = |(id, read): (&AttachmentId, &Attachment)| {
        let matched = links.moved(read);
        let is_gone = links.lacks(read) || superseded.contains(id);
        let differs = |now: &Attachment| now.host_interface != read.host_interface;
        if !is_gone && !matched.as_ref().is_some_and(differs) {
            return None;
        }
        let matched_in_part = matched.filter(|_| !is_gone);
        Some((id.clone(), PruneCandidate { read: read.clone(), matched_in_part }))
    };
    state.attachments.iter().filter_map(of).collect()
}

/// The candidates whose link is gone, or leads to another pod.
fn lost(candidates: HashMap<AttachmentId, PruneCandidate>) -> HashMap<AttachmentId, Attachment> {
    let mut ends = PodEnds::open();
    let mut is_gone = |candidate: &PruneCandidate| {
        candidate
            .matched_in_part
            .as_ref()
            .is_none_or(|now| ends.lead_elsewhere(&candidate.read, now))
    };
    let lost = candidates.into_iter().filter(|(_, candidate)| is_gone(candidate));
    lost.map(|(id, candidate)| (id, candidate.read)).collect()
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
    use denizen_state::Epoch;

    use super::super::links::record;
    use super::*;
    use crate::node::LinkKind;

    #[test]
    fn only_records_that_are_unchanged_since_the_read_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let dir = RunDir::create(&path).unwrap();
        let (mut gone, mut added_again) = (record(Some(("a", 5, ""))), record(Some(("b", 6, ""))));
        (gone.if_name, added_again.if_name) = ("gone".to_owned(), "again".to_owned());
        dir.put(LOCK_WAIT, &gone).unwrap();
        dir.put(LOCK_WAIT, &added_again).unwrap();
        let lost = lost(candidates(&dir.read().unwrap().unwrap(), &[]));
        added_again.host_interface.as_mut().unwrap().index = 60;
        dir.put(LOCK_WAIT, &added_again).unwrap();
        remove(&path, &lost).unwrap();
        let left = dir.read().unwrap().unwrap().attachments;
        assert_eq!(left.into_values().collect::<Vec<_>>(), [added_again]);
    }

    #[test]
    fn of_two_records_of_one_veth_the_newer_stays() {
        let mut state = State::empty(Epoch("e".to_owned()));
        let mut put = |name: &str, link: (&str, u32, &str), added_at: &str| {
            let mut record = record(Some(link));
            (record.if_name, record.added_at) = (name.to_owned(), added_at.to_owned());
            state.attachments.insert(record.id(), record);
        };
        put("old", ("cali1", 7, "ee"), "2026-11-29T08:00:00.1Z");
        put("new", ("cali1", 7, "ee"), "2026-11-29T08:00:00.2Z");
        put("port", ("uplink", 8, "ee"), "2026-11-29T08:00:00Z");
        put("shared", ("uplink", 8, "ee"), "2026-11-29T09:00:00Z");
        put("renamed", ("cali3", 9, "ee"), "2026-11-29T08:00:00Z");
        let link = |index, name: &str, kind| Link {
            index,
            name: name.into(),
            mac: "ee".to_owned(),
            kind,
            master: None,
        };
        let links = [
            link(7, "cali1", LinkKind::VethToOtherNetns),
            link(8, "uplink", LinkKind::Other),
            link(9, "cali4", LinkKind::VethToOtherNetns),
        ];
        let mut found: Vec<_> = candidates(&state, &links).into_values().collect();
        found.sort_by(|one, other| one.read.if_name.cmp(&other.read.if_name));
        let found = found
            .iter()
            .map(|candidate| (&*candidate.read.if_name, candidate.matched_in_part.is_some()));
        assert_eq!(found.collect::<Vec<_>>(), [("old", false), ("renamed", true)]);
    }
}
