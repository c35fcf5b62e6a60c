//! Remembers that the runtime has called the plugin: the records that show it are removed with
//! their pods.

use std::path::Path;

use denizen_state::{RunDir, State, StateError};
use tokio::task::spawn_blocking;

use super::LOCK_WAIT;
use super::links::LinkError;
use crate::state_file::LastState;

/// Notes in the state file that the runtime calls the plugin, as soon as a record comes from an
/// ADD.
///
/// # Errors
/// [`LinkError`]; the file is unchanged then.
pub(super) async fn remember(run_dir: &Path, seen: &LastState) -> Result<(), LinkError> {
    let is_new = |state: &State| !state.plugin_was_called && has_called(state);
    if seen.is_lost || !seen.last.as_deref().is_some_and(is_new) {
        return Ok(());
    }
    let path = run_dir.to_owned();
    spawn_blocking(move || note(&path)).await??;
    Ok(())
}

/// Whether a record comes from an ADD: it was not adopted.
pub(super) fn has_called(state: &State) -> bool {
    state.attachments.values().any(|record| !record.adopted)
}

/// If the file was lost meanwhile, nothing is noted: a new file with this note alone would look
/// like a node without pods.
fn note(run_dir: &Path) -> Result<(), StateError> {
    let note = |state: &mut State| state.plugin_was_called |= has_called(state);
    RunDir::open(run_dir)?.update(LOCK_WAIT, note).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::links::record;
    use super::*;

    #[test]
    fn it_is_noted_beside_a_record_of_an_add_and_makes_no_file() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let dir = RunDir::create(&path).unwrap();
        note(&path).unwrap();
        assert_eq!(dir.read().unwrap(), None);
        for (adopted, expected) in [(true, false), (false, true)] {
            let record = denizen_state::Attachment { adopted, ..record(None) };
            dir.update(LOCK_WAIT, |state| state.attachments.insert(record.id(), record)).unwrap();
            note(&path).unwrap();
            assert_eq!(dir.read().unwrap().unwrap().plugin_was_called, expected);
        }
        // The note stays when the record is removed, whatever writes the file.
        dir.remove(LOCK_WAIT, &record(None).id()).unwrap();
        dir.put(LOCK_WAIT, &record(Some(("veth", 7, "")))).unwrap();
        assert!(dir.read().unwrap().unwrap().plugin_was_called);
    }
}
