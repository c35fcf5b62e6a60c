//! Removing the records of pods whose link is gone: after a crash of the runtime nobody calls DEL, and some runtimes DEL
//! by a list of plugins that is older than denizen's place in it.
//!
//! A record is removed only when a full list of links *that was begun after the record was read* lacks its link. So a
//! record that is made meanwhile is safe, whatever the list says, and so is one that somebody has changed since.

use std::collections::HashMap;
use std::path::Path;

use denizen_shared::error::StateError;
use denizen_shared::state::{Attachment, AttachmentId, State};
use denizen_shared::store::RunDir;
use thiserror::Error;
use tokio::task::{JoinError, spawn_blocking};
use tracing::warn;

use super::LOCK_WAIT;
use crate::source::node::{self, Link, NodeError};

/// Why records of pods that are gone could not be removed.
#[derive(Debug, Error)]
pub enum PruneError {
    /// The state file cannot be read or changed.
    #[error("cannot remove records of pods that are gone")]
    State(#[from] StateError),
    /// The links cannot be listed.
    #[error("cannot tell which records' links are gone")]
    Links(#[from] NodeError),
    /// A bug.
    #[error("the thread that changes the state file ended")]
    Thread(#[from] JoinError),
}

/// Removes every record whose link is gone. `known`, the links as they were told last, decides only whether there is
/// reason to look; while they were never listed, it is empty and nothing is done.
///
/// # Errors
/// [`PruneError`]; the file is as it was then. A file that cannot be read is no error here: whoever reads it says so.
pub async fn prune(run_dir: &Path, known: &[Link]) -> Result<(), PruneError> {
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
    let now = Links::of(&now);
    lost.retain(|_, record| now.lacks(record));
    if lost.is_empty() {
        return Ok(());
    }
    let path = run_dir.to_owned();
    spawn_blocking(move || remove(&path, &lost)).await??;
    Ok(())
}

/// The records whose link is not among `links`.
fn lost(state: State, links: &[Link]) -> HashMap<AttachmentId, Attachment> {
    let links = Links::of(links);
    let mut lost: HashMap<_, _> = state.attachments.into_iter().collect();
    lost.retain(|_, record| links.lacks(record));
    lost
}

/// Removes those of `lost` that are still as they were.
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
            pod, link, "its link is gone and nobody called DEL: record removed"
        );
    }
    Ok(())
}

/// Links by index.
struct Links<'a>(HashMap<u32, &'a Link>);

impl<'a> Links<'a> {
    fn of(links: &'a [Link]) -> Self {
        Self(links.iter().map(|link| (link.index, link)).collect())
    }

    /// Whether the link of `record` is gone. One that has another name *or* another address now is still there: links
    /// are renamed, and a host's udev gives a new one a new address. Only where both differ is it another link
    /// that was given a freed index. A record without a link has none to lose.
    fn lacks(&self, record: &Attachment) -> bool {
        let Some(was) = &record.host_interface else {
            return false;
        };
        match self.0.get(&was.index) {
            None => true,
            Some(is) => *is.name != *was.name && is.mac != was.mac,
        }
    }
}

#[cfg(test)]
mod tests {
    use denizen_shared::state::HostInterface;
    use serde_json::{from_value, json};

    use super::*;

    fn record(link: Option<(&str, u32, &str)>) -> Attachment {
        let mut record: Attachment = from_value(json!({
            "containerId": "c", "ifName": "eth0", "network": "pods", "pod": null, "netns": null,
            "hostInterface": null, "bridge": null, "ips": ["10.0.0.2"], "addedAt": "2026-11-20T12:00:00Z",
        }))
        .unwrap();
        record.host_interface = link.map(|(name, index, mac)| HostInterface {
            name: name.to_owned(),
            index,
            mac: mac.to_owned(),
            unknown: Default::default(),
        });
        record
    }

    #[test]
    fn a_link_is_gone_when_nothing_of_it_is_left() {
        let (mac, other) = ("0a:00:00:00:00:01", "0a:00:00:00:00:02");
        let links = [(7, "veth1", mac), (8, "lo", "")].map(|(index, name, mac)| Link {
            index,
            name: name.into(),
            mac: mac.to_owned(),
        });
        let cases = [
            ("as it was", Some(("veth1", 7, mac)), false),
            ("renamed", Some(("veth0", 7, mac)), false),
            ("another address", Some(("veth1", 7, other)), false),
            ("no such index", Some(("veth1", 9, mac)), true),
            ("its index is another link's", Some(("veth0", 7, other)), true),
            ("no interface on this node", None, false),
        ];
        for (name, link, gone) in cases {
            assert_eq!(Links::of(&links).lacks(&record(link)), gone, "{name}");
        }
    }

    #[test]
    fn only_records_that_are_as_they_were_read_are_removed() {
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
