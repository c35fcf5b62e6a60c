use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use tempfile::TempDir;

use nix::sys::stat::Mode;

use super::*;
use crate::fuzzing;
use crate::run_dir::LOCK_FILE;
use crate::state::{Attachment, AttachmentId};
use crate::successor::NEXT_FILE;

const WAIT: Duration = Duration::from_secs(5);

/// A run directory on a tmpfs, as on a real node.
fn run_dir() -> (TempDir, RunDir) {
    let parent = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = RunDir::create(&parent.path().join("denizen")).unwrap();
    (parent, dir)
}

fn attachment(container: &str) -> Attachment {
    Attachment { container_id: container.to_owned(), ..fuzzing::record() }
}

fn add(dir: &RunDir, container: &str) -> (Epoch, Generation) {
    let record = attachment(container);
    let ((), epoch, generation) = dir
        .update(WAIT, |state| {
            state.attachments.insert(record.id(), record);
        })
        .unwrap();
    (epoch, generation)
}

#[test]
fn the_generation_rises_only_with_changes() {
    let (_parent, dir) = run_dir();
    assert_eq!(dir.read().unwrap(), None);
    let (_, _, generation) = dir.update(WAIT, |_| ()).unwrap();
    assert_eq!((generation, dir.read().unwrap()), (Generation(0), None), "no change makes no file");

    let (epoch, generation) = add(&dir, "a");
    assert_eq!(generation, Generation(1));
    assert_eq!(add(&dir, "a"), (epoch.clone(), Generation(1)), "the same record again");
    assert_eq!(add(&dir, "b"), (epoch.clone(), Generation(2)));
    let (gone, _, generation) = dir
        .update(WAIT, |state| state.attachments.remove(&AttachmentId::new("a", "eth0")))
        .unwrap();
    assert_eq!((gone, generation), (Some(attachment("a")), Generation(3)));

    let state = dir.read().unwrap().unwrap();
    assert_eq!((state.epoch, state.generation), (epoch, Generation(3)));
    assert_eq!(state.attachments.into_values().collect::<Vec<_>>(), [attachment("b")]);
}

#[test]
fn the_successor_of_a_lost_file_has_another_epoch() {
    let (_parent, dir) = run_dir();
    let (first, _) = add(&dir, "a");
    fs::remove_file(dir.path().join(STATE_FILE)).unwrap();
    let (second, generation) = add(&dir, "a");
    assert_ne!(first, second);
    assert_eq!(generation, Generation(1));
}

#[test]
fn directory_and_files_are_for_root_alone() {
    let (_parent, dir) = run_dir();
    add(&dir, "a");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(dir.path()), 0o700);
    for file in [STATE_FILE, LOCK_FILE] {
        assert_eq!(mode(&dir.path().join(file)), 0o600, "{file}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left there");
}

#[test]
fn an_existing_directory_is_not_changed() {
    let parent = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = parent.path().join("made-by-kubelet");
    fs::create_dir(&path).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for given in [0o755, 0o711, 0o700] {
        fs::set_permissions(&path, Permissions::from_mode(given)).unwrap();
        let dir = RunDir::create(&path).unwrap();
        add(&dir, "a");
        assert_eq!(mode(&path), given);
        for file in [STATE_FILE, LOCK_FILE] {
            assert_eq!(mode(&path.join(file)), 0o600, "{file} in a directory of {given:o}");
        }
    }
}

#[test]
fn the_root_of_the_file_system_is_no_run_directory() {
    for path in ["/", "//", "/."] {
        let error = RunDir::open(Path::new(path)).unwrap_err();
        assert!(matches!(error, StateError::NotOurs { .. }), "{path}: {error:?}");
        assert!(error.to_string().contains("/run/denizen"), "{path}: {error}");
    }
}

#[test]
fn a_file_too_large_to_read_is_not_written() {
    let (_parent, dir) = run_dir();
    let (_, before) = add(&dir, "a");
    let text = vec![b' '; MAX_STATE_SIZE as usize + 1];
    let error = dir.replace(|out| out.write_all(&text)).unwrap_err();
    let StateError::Io { path, source, .. } = &error else { panic!("{error:?}") };
    assert!(path.ends_with(STATE_FILE), "{error}");
    assert!(source.to_string().contains("larger than 67108864 bytes"), "{source}");
    let state = dir.read().unwrap().unwrap();
    assert_eq!((state.generation, state.attachments.len()), (before, 1));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left beside");
}

#[test]
fn an_untrusted_directory_is_not_opened() {
    let parent = tempfile::tempdir_in("/dev/shm").unwrap();
    let (dir, link) = (parent.path().join("dir"), parent.path().join("link"));
    assert!(matches!(RunDir::open(&dir), Err(StateError::NoRunDir { .. })));
    fs::create_dir(&dir).unwrap();
    symlink(&dir, &link).unwrap();
    let slashed = PathBuf::from(format!("{}/", link.display()));
    for path in [&link, &slashed] {
        assert!(
            matches!(RunDir::create(path), Err(StateError::NotOurs { .. })),
            "{}",
            path.display()
        );
    }
    for mode in [0o770, 0o707, 0o1777] {
        fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        let error = RunDir::create(&dir).unwrap_err();
        assert!(matches!(error, StateError::NotOurs { .. }), "{mode:o}: {error:?}");
        let found = format!("owner 0, mode {mode:04o}); it must be root's, mode 0700 or 0755");
        for word in [dir.to_str().unwrap(), &found] {
            assert!(error.to_string().contains(word), "{mode:o}: {error}");
        }
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o7777, mode);
    }
    fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
    RunDir::open(&dir).unwrap();
    chown(&dir, Some(65_534), None).unwrap();
    assert!(matches!(RunDir::open(&dir), Err(StateError::NotOurs { .. })), "somebody else's");
    assert!(matches!(RunDir::open(Path::new("/dev/null")), Err(StateError::NotOurs { .. })));
}

/// Something untrusted in place of a file.
type Plant = fn(&Path);

#[test]
fn an_untrusted_file_is_neither_read_nor_written() {
    let plants: [(&str, Plant); 5] = [
        ("a link", |path| {
            let target = path.with_extension("target");
            fs::rename(path, &target).unwrap();
            symlink(&target, path).unwrap();
        }),
        ("somebody else's", |path| chown(path, Some(65_534), None).unwrap()),
        ("writable by all", |path| {
            fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap()
        }),
        ("a directory", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("a named pipe", |path| {
            fs::remove_file(path).unwrap();
            nix::unistd::mkfifo(path, Mode::S_IRUSR).unwrap();
        }),
    ];
    for file in [STATE_FILE, LOCK_FILE] {
        for (name, plant) in plants {
            let (_parent, dir) = run_dir();
            add(&dir, "a");
            plant(&dir.path().join(file));
            let error = dir.update(WAIT, |state| state.attachments.clear()).unwrap_err();
            // Opening a directory for writing fails before the check.
            let refused = matches!(error, StateError::NotOurs { .. } | StateError::Io { .. });
            assert!(refused, "{file}, {name}: {error:?}");
            assert!(error.to_string().contains(file), "{file}, {name}: {error}");
        }
    }
}

#[test]
fn a_link_in_place_of_the_next_file_is_replaced_and_not_followed() {
    let (parent, dir) = run_dir();
    let victim = parent.path().join("victim");
    fs::File::create(&victim).unwrap();
    symlink(&victim, dir.path().join(NEXT_FILE)).unwrap();
    add(&dir, "a");
    assert_eq!(fs::metadata(&victim).unwrap().len(), 0);
    assert_eq!(dir.read().unwrap().unwrap().attachments.len(), 1);
}

#[test]
fn an_unreadable_file_is_never_overwritten_and_can_be_set_aside() {
    let (_parent, dir) = run_dir();
    let (epoch, _) = add(&dir, "a");
    assert_eq!(dir.set_aside(WAIT, "1").unwrap(), None, "a readable file stays");

    let path = dir.path().join(STATE_FILE);
    File::options().write(true).open(&path).unwrap().set_len(40).unwrap();
    let error = dir.update(WAIT, |state| state.attachments.clear()).unwrap_err();
    assert!(matches!(error, StateError::Unreadable { .. }), "{error:?}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 40);

    let aside = dir.set_aside(WAIT, "20261120T120000Z").unwrap().unwrap();
    assert_eq!(aside, dir.path().join("pods.json.bad-20261120T120000Z"));
    assert_eq!(fs::metadata(aside).unwrap().len(), 40);
    assert_ne!(add(&dir, "b").0, epoch);
}

#[test]
fn a_held_lock_costs_at_most_the_wait() {
    let (_parent, dir) = run_dir();
    let held = dir.lock(WAIT).unwrap();
    let wait = Duration::from_millis(30);
    let error = dir.update(wait, |_| ()).unwrap_err();
    assert!(matches!(error, StateError::Locked { waited, .. } if waited == wait), "{error:?}");
    drop(held);
    dir.update(Duration::ZERO, |_| ()).unwrap();
}

#[test]
fn a_lock_file_that_was_removed_under_a_writer_excludes_nobody_for_long() {
    let (_parent, dir) = run_dir();
    let held = dir.lock(WAIT).unwrap();
    fs::remove_file(dir.path().join(LOCK_FILE)).unwrap();
    let successor = dir.lock(WAIT).unwrap();
    assert!(dir.update(Duration::ZERO, |_| ()).is_err());
    drop(successor);
    dir.update(Duration::ZERO, |_| ()).unwrap();
    drop(held);
}
