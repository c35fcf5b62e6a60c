//! The folder: which files there are, which have changed, and what is to be told about them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use denizen_shared::regular;

use super::ManifestsError;
use super::file;
use super::index::{Difference, FileName, Index};
use super::problem::{Problem, Problems, What};
use crate::model::Event;
use crate::source::object::{Key, Said};

/// Which files to parse again although they look as they did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Look {
    /// These: something happened to them. A file can be written twice within one tick of the clock
    /// that stamps it, and be as long as before.
    Touched(BTreeSet<OsString>),
    /// Every one.
    Everywhere,
}

impl Look {
    fn at(&self, name: &OsStr) -> bool {
        match self {
            Self::Touched(names) => names.contains(name),
            Self::Everywhere => true,
        }
    }
}

/// A folder of manifests, and what was told about it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    node_name: String,
    files: BTreeMap<FileName, Known>,
    index: Index,
    duplicates: BTreeMap<Key, Vec<Problem>>,
}

/// What is known of one file.
#[derive(Debug, Default)]
struct Known {
    /// `None` when it has to be read again in any case.
    stamp: Option<Stamp>,
    keys: Vec<Key>,
    problems: Problems,
}

/// Tells a file's content from an earlier one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// More than the objects of the largest clusters take, in bytes.
const LONGEST: u64 = 256 << 20;

/// The most objects in several files that are named: of two copies of a large file a person wants
/// to know that they are two, not all that is in them.
const MAX_DUPLICATES: usize = 100;

/// The events of one pass over changed files: for each object those of the first file by name.
type Fresh = HashMap<Key, Box<(FileName, Event)>>;

impl Folder {
    /// Nothing is read yet.
    pub(super) fn new(path: PathBuf, node_name: String) -> Self {
        Self {
            path,
            node_name,
            files: BTreeMap::new(),
            index: Index::default(),
            duplicates: BTreeMap::new(),
        }
    }

    /// Everything in it that is not used, and why.
    pub(super) fn problems(&self) -> Vec<String> {
        let files = self.files.values().flat_map(|known| known.problems.lines());
        let duplicates = self.duplicates.values().flatten().map(ToString::to_string);
        files.chain(duplicates).collect()
    }

    /// Looks at the folder and returns what is different from what was told, as one change.
    pub(super) fn scan(&mut self, look: &Look) -> Result<Vec<Event>, ManifestsError> {
        let found = self.listed()?;
        let gone: Vec<FileName> =
            self.files.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
        let mut changed: Vec<(FileName, Stamp)> = found
            .into_iter()
            .filter(|(name, stamp)| {
                look.at(name)
                    || self.files.get(name).is_none_or(|known| known.stamp != Some(*stamp))
            })
            .collect();
        let mut touched = Vec::new();
        for name in gone {
            self.forget(&name, &mut touched);
        }
        let mut events = Vec::new();
        // Where a file that has not changed is right about an object now, because the one that was
        // has gone, it is read in a second pass. A third is needed only if files change all the
        // time, and then a hint is under way as well.
        for _pass in 0..2 {
            let mut fresh = Fresh::new();
            for (name, stamp) in std::mem::take(&mut changed) {
                self.read(&name, stamp, &mut fresh, &mut touched);
            }
            let again = self.settle(std::mem::take(&mut touched), fresh, &mut events);
            if again.is_empty() {
                break;
            }
            let found = self.listed()?;
            changed = found.into_iter().filter(|(name, _)| again.contains(name)).collect();
        }
        Ok(events)
    }

    /// The manifests in the folder, links followed.
    fn listed(&self) -> Result<BTreeMap<FileName, Stamp>, ManifestsError> {
        let failed = |source| ManifestsError::Folder { path: self.path.clone(), source };
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if name.to_str().and_then(file::format_of).is_none() {
                continue;
            }
            // One that vanishes meanwhile, or a link to nothing, is not there. What is neither a
            // file nor a folder is named when it is to be read.
            if let Ok(metadata) = fs::metadata(entry.path())
                && !metadata.is_dir()
            {
                found.insert(name.as_os_str().into(), Stamp::of(&metadata));
            }
        }
        Ok(found)
    }

    /// Forgets a file and all that it said.
    fn forget(&mut self, name: &FileName, touched: &mut Vec<Key>) {
        let known = self.files.remove(name).unwrap_or_default();
        for key in known.keys {
            self.index.disclaim(&key, name);
            touched.push(key);
        }
    }

    /// Reads a file anew.
    fn read(&mut self, name: &FileName, stamp: Stamp, fresh: &mut Fresh, touched: &mut Vec<Key>) {
        let shown = name.to_string_lossy();
        let Some(format) = file::format_of(&shown) else {
            return;
        };
        let text = match regular::read_to_string(&self.path.join(&**name), LONGEST) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == ErrorKind::NotFound => return self.forget(name, touched),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                Err("not text in UTF-8".to_owned())
            }
            Err(error) => return self.unreadable(name, &error),
        };
        let before = self.files.remove(name).unwrap_or_default();
        for key in before.keys {
            self.index.disclaim(&key, name);
            touched.push(key);
        }
        let mut keys = Vec::new();
        let mut sink = |Said { key, digest, event, .. }: Said| {
            self.index.claim(key.clone(), name, digest);
            if self.index.told(&key) != Some(digest) {
                let said = || Box::new((name.clone(), event));
                fresh.entry(key.clone()).or_insert_with(said);
            }
            touched.push(key.clone());
            keys.push(key);
        };
        let problems = match text {
            Ok(text) => file::read(&shown, format, &text, &self.node_name, &mut sink),
            Err(error) => Problems::of_file(&shown, error),
        };
        problems.trace_new(&before.problems);
        keys.shrink_to_fit();
        let stamp = Some(stamp);
        self.files.insert(name.clone(), Known { stamp, keys, problems });
    }

    /// What a file said that cannot be read now stays, and it is tried again at every scan.
    fn unreadable(&mut self, name: &FileName, error: &io::Error) {
        let problems =
            Problems::of_file(&name.to_string_lossy(), format!("cannot be read: {error}"));
        let known = self.files.entry(name.clone()).or_default();
        problems.trace_new(&known.problems);
        known.problems = problems;
        known.stamp = None;
    }

    /// Adds to `events` what is different now about the objects `touched`. Returns the files that
    /// would have to be read to know the rest.
    fn settle(
        &mut self,
        touched: Vec<Key>,
        mut fresh: Fresh,
        events: &mut Vec<Event>,
    ) -> BTreeSet<FileName> {
        let mut again = BTreeSet::new();
        events.reserve(fresh.len());
        for key in touched {
            self.note_duplicates(&key);
            match self.index.difference(&key) {
                Difference::Nothing => {}
                Difference::Gone => {
                    self.index.settle(&key, None);
                    events.push(key.gone());
                }
                Difference::Says(file, digest) => match fresh.remove(&key) {
                    Some(said) if said.0 == file => {
                        let (_, event) = *said;
                        // Nobody has to be told that something unknown is not there.
                        if self.index.told(&key).is_some() || event != key.gone() {
                            events.push(event);
                        }
                        self.index.settle(&key, Some(digest));
                    }
                    Some(_) | None => {
                        again.insert(file);
                    }
                },
            }
        }
        again
    }

    /// The files that have an object which another has as well, and is right about.
    fn losers(&self, key: &Key) -> Vec<Problem> {
        let mut files = self.index.files(key).map(|file| file.to_string_lossy().into_owned());
        let winner = files.next().unwrap_or_default();
        let what = What::Duplicate { object: key.to_string(), winner };
        files.map(|file| Problem { file, place: None, what: what.clone() }).collect()
    }

    fn note_duplicates(&mut self, key: &Key) {
        let losers =
            if self.index.files(key).nth(1).is_some() { self.losers(key) } else { Vec::new() };
        if losers.is_empty() {
            self.duplicates.remove(key);
        } else if self.duplicates.get(key) != Some(&losers)
            && (self.duplicates.len() < MAX_DUPLICATES || self.duplicates.contains_key(key))
        {
            losers.iter().for_each(Problem::trace);
            self.duplicates.insert(key.clone(), losers);
        }
    }
}
