use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::RunDir;
use crate::fuzzing;
use crate::lock::Lock;
use crate::state::Generation;

/// More time than any of this takes.
const WAIT: Duration = Duration::from_secs(30);

fn run_dir() -> (TempDir, RunDir) {
    let parent = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = RunDir::create(&parent.path().join("denizen")).unwrap();
    (parent, dir)
}

fn record(number: usize) -> Attachment {
    Attachment { container_id: format!("c{number}"), ..fuzzing::record() }
}

fn put(number: usize) -> StateChange {
    StateChange::Put(Box::new(record(number)))
}

fn requests(dir: &RunDir) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.path()).unwrap().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.to_string_lossy().contains(PREFIX)).collect()
}

fn wait_for_requests(dir: &RunDir, count: usize) {
    while requests(dir).len() < count {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_holder_of_the_lock_makes_the_changes_of_waiting_writers() {
    const WRITERS: usize = 30;
    let (_parent, dir) = run_dir();
    dir.put(WAIT, &record(1000)).unwrap();
    dir.put(WAIT, &record(1001)).unwrap();
    let held = Lock::take(dir.dir(), dir.path(), WAIT).unwrap();
    let before = std::fs::metadata(dir.path().join("pods.json")).unwrap().ino();
    std::thread::scope(|scope| {
        let puts: Vec<_> = (0..WRITERS)
            .map(|number| {
                let dir = &dir;
                scope.spawn(move || dir.put(WAIT, &record(number)).unwrap())
            })
            .collect();
        let removal = scope.spawn(|| dir.remove(WAIT, &record(1000).id()).unwrap());
        wait_for_requests(&dir, WRITERS + 1);
        assert_eq!(std::fs::metadata(dir.path().join("pods.json")).unwrap().ino(), before);
        // As the holder of the lock does.
        let waiting = WaitingRequests::in_dir(dir.dir(), dir.path());
        assert_eq!(waiting.changes.len(), WRITERS + 1);
        drop(held);
        let generation = Generation(WRITERS as u64 + 3);
        let epoch = dir.read().unwrap().unwrap().epoch;
        for put in puts {
            let (replaced, of, at) = put.join().unwrap();
            assert_eq!((replaced, &of), (None, &epoch));
            assert!(at <= generation, "{at:?}");
        }
        removal.join().unwrap();
    });
    let state = dir.read().unwrap().unwrap();
    assert_eq!(state.generation, Generation(WRITERS as u64 + 3));
    let expected = (0..WRITERS).chain([1001]).map(|number| record(number).id());
    assert_eq!(
        state.attachments.into_keys().collect::<Vec<_>>(),
        std::collections::BTreeSet::from_iter(expected).into_iter().collect::<Vec<_>>()
    );
    assert_eq!(requests(&dir), Vec::<PathBuf>::new());
}

#[test]
fn one_write_makes_all_waiting_changes() {
    let (_parent, dir) = run_dir();
    let requests: Vec<_> = (0..10)
        .map(|number| ChangeRequest::place(dir.dir(), &put(number)).expect("a tmpfs"))
        .collect();
    assert!(requests.iter().all(|request| !request.is_done()));
    let (.., generation) = dir.put(WAIT, &record(10)).unwrap();
    assert_eq!(generation, Generation(11));
    assert!(requests.iter().all(ChangeRequest::is_done));
    assert_eq!(dir.read().unwrap().unwrap().attachments.len(), 11);
}

#[test]
fn the_change_of_a_dead_writer_is_not_made() {
    let (_parent, dir) = run_dir();
    let request = ChangeRequest::place(dir.dir(), &put(1)).expect("a tmpfs");
    // As the kernel does for a process that is killed.
    request.file.unlock().unwrap();
    dir.put(WAIT, &record(2)).unwrap();
    assert_eq!(requests(&dir), Vec::<PathBuf>::new());
    let keys: Vec<_> = dir.read().unwrap().unwrap().attachments.into_keys().collect();
    assert_eq!(keys, [record(2).id()]);
}

#[test]
fn a_writer_that_gives_up_withdraws_its_request() {
    let (_parent, dir) = run_dir();
    let held = Lock::take(dir.dir(), dir.path(), WAIT).unwrap();
    dir.put(Duration::from_millis(20), &record(1)).unwrap_err();
    assert_eq!(requests(&dir), Vec::<PathBuf>::new());
    drop(held);
    dir.put(WAIT, &record(2)).unwrap();
    assert_eq!(dir.read().unwrap().unwrap().attachments.len(), 1);
}

#[test]
fn a_change_that_cannot_be_made_does_not_prevent_others() {
    let (_parent, dir) = run_dir();
    let mut record_at_another_s_place = record(1);
    record_at_another_s_place.network = "n".repeat(MAX_REQUEST_SIZE as usize);
    let large = StateChange::Put(Box::new(record_at_another_s_place));
    assert!(ChangeRequest::place(dir.dir(), &large).is_none(), "it has to try by itself");
    std::fs::File::create(dir.path().join(format!("{PREFIX}nonsense"))).unwrap();
    dir.put(WAIT, &record(2)).unwrap();
    assert_eq!(dir.read().unwrap().unwrap().attachments.len(), 1);
    assert_eq!(requests(&dir), Vec::<PathBuf>::new());
}

#[test]
fn a_removal_waits_for_a_writer_that_may_add_the_record() {
    let (_parent, dir) = run_dir();
    dir.put(WAIT, &record(1)).unwrap();
    // The holder has already read the requests, among them that of record 2, whose writer is killed
    // now.
    let held = Lock::take(dir.dir(), dir.path(), WAIT).unwrap();
    let error = dir.remove(Duration::from_millis(20), &record(2).id()).unwrap_err();
    assert!(error.to_string().contains("is locked"), "{error}");
    drop(held);
    dir.remove(Duration::ZERO, &record(2).id()).unwrap();
}
