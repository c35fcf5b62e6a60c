//! Removes the records of pods whose link is gone. After a crash of the runtime nobody calls DEL,
//! and some runtimes DEL with a list of plugins from before denizen was installed.
//!
//! A record is removed only if its link is missing from a full list of links *that begins after the
//! record was read*, or belongs to another pod there. So a record that is made or changed meanwhile
//! is safe, whatever the list contains.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use denizen_state::{Attachment, AttachmentId, RunDir, State, StateError};
use tokio::task::spawn_blocking;
use tracing::warn;

use super::LOCK_WAIT;
use super::links::{LinkError, LinksByIndex};
use super::pod_ends::{LinkEnd, PodEnds, shared, superseded};
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
    doubt: Doubt,
}

/// Why a record's link may be gone.
#[derive(Debug)]
enum Doubt {
    /// It is gone for sure.
    Gone,
    /// The link that now has its index shares only the name or only the MAC address: the record
    /// with that link.
    MatchedInPart(Attachment),
    /// Other records have the same link, of this index: the record as the link is now.
    Shared(u32, Attachment),
}

/// The records whose link is not in `links`, or may be another pod's.
fn candidates(state: &State, links: &[Link]) -> HashMap<AttachmentId, PruneCandidate> {
    let links = LinksByIndex::of(links);
    let shared = shared(state, &links);
    let doubt = |read: &Attachment| {
        let index = read.host_interface.as_ref()?.index;
        let now = links.moved(read);
        let differs = |now: &Attachment| now.host_interface != read.host_interface;
        match links.lacks(read) {
            true => Some(Doubt::Gone),
            false if shared.contains(&index) => {
                Some(Doubt::Shared(index, now.unwrap_or_else(|| read.clone())))
            }
            false => now.filter(differs).map(Doubt::MatchedInPart),
        }
    };
    let all = state.attachments.iter();
    all.filter_map(|(id, read)| {
        Some((id.clone(), PruneCandidate { doubt: doubt(read)?, read: read.clone() }))
    })
    .collect()
}

/// The candidates whose link is gone, or leads to another pod.
fn lost(candidates: HashMap<AttachmentId, PruneCandidate>) -> HashMap<AttachmentId, Attachment> {
    let mut ends = PodEnds::open();
    let mut lost = HashMap::new();
    let mut shared: BTreeMap<u32, Vec<(LinkEnd, AttachmentId, Attachment)>> = BTreeMap::new();
    for (id, PruneCandidate { read, doubt }) in candidates {
        match doubt {
            Doubt::MatchedInPart(now) if !ends.lead_elsewhere(&read, &now) => {}
            Doubt::Gone | Doubt::MatchedInPart(_) => {
                lost.insert(id, read);
            }
            Doubt::Shared(index, now) => {
                shared.entry(index).or_default().push((ends.end_of(&now), id, read));
            }
        }
    }
    for records in shared.into_values() {
        let known: Vec<_> = records.iter().map(|(end, _, read)| (*end, read)).collect();
        let must_go = superseded(&known);
        let records = records.into_iter().zip(must_go).filter(|(_, must_go)| *must_go);
        lost.extend(records.map(|((_, id, read), _)| (id, read)));
    }
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

    /// A state of records with these names, links and times.
    fn state(records: &[(&str, (&str, u32, &str), &str)]) -> State {
        let mut state = State::empty(Epoch("e".to_owned()));
        for (name, link, added_at) in records {
            let mut record = record(Some(*link));
            (record.if_name, record.added_at) = ((*name).to_owned(), (*added_at).to_owned());
            state.attachments.insert(record.id(), record);
        }
        state
    }

    #[test]
    fn records_of_one_veth_are_in_doubt() {
        let state = state(&[
            ("old", ("cali1", 7, "ee"), "2026-11-29T08:00:00.1Z"),
            ("new", ("cali1", 7, "ee"), "2026-11-29T08:00:00.2Z"),
            ("gone", ("cali0", 7, "aa"), "2026-11-29T08:00:00Z"),
            ("port", ("uplink", 8, "ee"), "2026-11-29T08:00:00Z"),
            ("on the port", ("uplink", 8, "ee"), "2026-11-29T09:00:00Z"),
            ("renamed", ("cali3", 9, "ee"), "2026-11-29T08:00:00Z"),
            ("alone", ("cali5", 10, "ee"), "2026-11-29T08:00:00Z"),
            ("predecessor", ("cali6", 10, "aa"), "2026-11-29T09:00:00Z"),
        ]);
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
            link(10, "cali5", LinkKind::VethToOtherNetns),
        ];
        let found = candidates(&state, &links).into_values();
        let mut found: Vec<_> = found
            .map(|candidate| {
                let doubt = match candidate.doubt {
                    Doubt::Gone => "gone",
                    Doubt::MatchedInPart(_) => "in part",
                    Doubt::Shared(..) => "shared",
                };
                (candidate.read.if_name, doubt)
            })
            .collect();
        found.sort();
        let expected = [
            ("gone", "gone"),
            ("new", "shared"),
            ("old", "shared"),
            ("predecessor", "gone"),
            ("renamed", "in part"),
        ];
        assert_eq!(found, expected.map(|(name, doubt)| (name.to_owned(), doubt)));
    }

    /// A clock may be set back between two ADDs.
    #[test]
    fn of_records_of_one_veth_the_kernel_decides_and_then_the_time() {
        use LinkEnd::{ItsPod, OtherPod, Unknown};
        let (old, new) = ("2026-11-29T08:00:00.1Z", "2026-11-29T08:00:00.2Z");
        type VethCase<'a> = (&'a str, &'a [(LinkEnd, &'a str)], &'a [bool]);
        let cases: [VethCase<'_>; 8] = [
            ("unknown: the newer stays", &[(Unknown, old), (Unknown, new)], &[true, false]),
            ("a clock set back", &[(Unknown, old), (OtherPod, new)], &[false, true]),
            ("the namespace is known", &[(ItsPod, old), (Unknown, new)], &[false, true]),
            ("nobody's: the newer stays", &[(OtherPod, old), (OtherPod, new)], &[true, false]),
            ("of one pod", &[(ItsPod, old), (ItsPod, new)], &[true, false]),
            ("at the same time", &[(Unknown, new), (Unknown, new)], &[false, false]),
            ("no time", &[(Unknown, ""), (Unknown, new)], &[false, false]),
            (
                "three",
                &[(Unknown, old), (Unknown, new), (OtherPod, "2027-01-01T00:00:00Z")],
                &[true, false, true],
            ),
        ];
        for (name, records, expected) in cases {
            let made: Vec<_> = records
                .iter()
                .map(|(end, added_at)| {
                    let mut record = record(Some(("cali1", 7, "ee")));
                    record.added_at = (*added_at).to_owned();
                    (*end, record)
                })
                .collect();
            let records: Vec<_> = made.iter().map(|(end, record)| (*end, record)).collect();
            assert_eq!(superseded(&records), expected, "{name}");
        }
    }
}
