//! The folder: which files exist, which have changed, and which events follow.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use denizen_state::regular;

use super::file;
use super::index::{FileName, ManifestIndex, ObjectDifference};
use super::problem::{FileProblem, FileProblems, ProblemKind};
use super::{ManifestsConfig, ManifestsError};
use crate::Features;
use denizen_model::Event;
use denizen_object::{DecodedObject, Decoder, ObjectKey};

/// Which files to parse again even if their metadata is unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reread {
    /// These, since inotify reported them. A file can be written twice within one tick of the file
    /// system's clock, with the same length.
    Touched(BTreeSet<OsString>),
    Everywhere,
}

impl Reread {
    fn at(&self, name: &OsStr) -> bool {
        match self {
            Self::Touched(names) => names.contains(name),
            Self::Everywhere => true,
        }
    }
}

/// A folder of manifests, and what was sent about it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    features: Features,
    decoder: Decoder,
    files: BTreeMap<FileName, FileState>,
    index: ManifestIndex,
    duplicates: BTreeMap<ObjectKey, Vec<FileProblem>>,
}

#[derive(Debug, Default)]
struct FileState {
    /// `None` if it must be read again in any case.
    stamp: Option<Stamp>,
    keys: Vec<ObjectKey>,
    problems: FileProblems,
}

/// Metadata that changes when a file is written.
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

/// Size limit of a file in bytes, more than the objects of the largest clusters take.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Maximum number of duplicate objects that are named. If a large file exists twice, a person wants
/// to know that, not every object in it.
const MAX_DUPLICATES: usize = 100;

/// The events of one pass over changed files: for each object, that of the first file by name.
type PassEvents = HashMap<ObjectKey, Box<(FileName, Event)>>;

impl Folder {
    /// A folder of which nothing has been read.
    pub(super) fn new(config: &ManifestsConfig) -> Self {
        Self {
            path: config.folder.clone(),
            features: config.features,
            decoder: config.features.decoder(config.node_name.as_str().into()),
            files: BTreeMap::new(),
            index: ManifestIndex::default(),
            duplicates: BTreeMap::new(),
        }
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let files = self.files.values().flat_map(|known| known.problems.lines());
        let duplicates = self.duplicates.values().flatten().map(ToString::to_string);
        files.chain(duplicates).collect()
    }

    /// Reads the folder and returns what differs from what was sent, as one change.
    pub(super) fn scan(&mut self, look: &Reread) -> Result<Vec<Event>, ManifestsError> {
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
        // If an object's winning file is gone, another file wins, which may not have changed: it is
        // read in a second pass. A third is needed only if files change all the time, and then
        // there is another hint anyway.
        for _pass in 0..2 {
            let mut fresh = PassEvents::new();
            for (name, stamp) in std::mem::take(&mut changed) {
                self.read(&name, stamp, &mut fresh, &mut touched);
            }
            let again = self.push_changes(std::mem::take(&mut touched), fresh, &mut events);
            if again.is_empty() {
                break;
            }
            let found = self.listed()?;
            changed = found.into_iter().filter(|(name, _)| again.contains(name)).collect();
        }
        Ok(events)
    }

    /// The manifest files in the folder. Links are followed.
    fn listed(&self) -> Result<BTreeMap<FileName, Stamp>, ManifestsError> {
        let failed = |source| ManifestsError::Folder { path: self.path.clone(), source };
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if name.to_str().and_then(file::format_of).is_none() {
                continue;
            }
            // A file that vanishes meanwhile, or a link to nothing, is skipped. Something that is
            // neither a file nor a folder is reported when it is read.
            if let Ok(metadata) = fs::metadata(entry.path())
                && !metadata.is_dir()
            {
                found.insert(name.as_os_str().into(), Stamp::of(&metadata));
            }
        }
        Ok(found)
    }

    fn forget(&mut self, name: &FileName, touched: &mut Vec<ObjectKey>) {
        let known = self.files.remove(name).unwrap_or_default();
        for key in known.keys {
            self.index.disclaim(&key, name);
            touched.push(key);
        }
    }

    fn read(
        &mut self,
        name: &FileName,
        stamp: Stamp,
        fresh: &mut PassEvents,
        touched: &mut Vec<ObjectKey>,
    ) {
        let shown = name.to_string_lossy();
        let Some(format) = file::format_of(&shown) else {
            return;
        };
        let text = match regular::read_to_string(&self.path.join(&**name), MAX_FILE_BYTES) {
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
        let mut sink = |DecodedObject { key, digest, event, .. }: DecodedObject| {
            self.index.claim(key.clone(), name, digest);
            if self.index.sent(&key) != Some(digest) {
                let entry = || Box::new((name.clone(), event));
                fresh.entry(key.clone()).or_insert_with(entry);
            }
            touched.push(key.clone());
            keys.push(key);
        };
        let problems = match text {
            Ok(text) => {
                file::read(&shown, format, &text, self.features, &mut self.decoder, &mut sink)
            }
            Err(error) => FileProblems::of_file(&shown, error),
        };
        problems.trace_new(&before.problems);
        keys.shrink_to_fit();
        let stamp = Some(stamp);
        self.files.insert(name.clone(), FileState { stamp, keys, problems });
    }

    /// A file cannot be read: its last known objects stay, and every scan tries again.
    fn unreadable(&mut self, name: &FileName, error: &io::Error) {
        let problems =
            FileProblems::of_file(&name.to_string_lossy(), format!("cannot be read: {error}"));
        let known = self.files.entry(name.clone()).or_default();
        problems.trace_new(&known.problems);
        known.problems = problems;
        known.stamp = None;
    }

    /// Adds to `events` what changed about the objects `touched`. Returns the files that must be
    /// read to know the rest.
    fn push_changes(
        &mut self,
        touched: Vec<ObjectKey>,
        mut fresh: PassEvents,
        events: &mut Vec<Event>,
    ) -> BTreeSet<FileName> {
        let mut again = BTreeSet::new();
        events.reserve(fresh.len());
        for key in touched {
            self.note_duplicates(&key);
            match self.index.difference(&key) {
                ObjectDifference::Nothing => {}
                ObjectDifference::Gone => {
                    self.index.record_sent(&key, None);
                    events.push(key.gone());
                }
                ObjectDifference::CopyOf(file, digest) => match fresh.remove(&key) {
                    Some(first) if first.0 == file => {
                        let (_, event) = *first;
                        // An object that was never sent needs no event that it is gone.
                        if self.index.sent(&key).is_some() || event != key.gone() {
                            events.push(event);
                        }
                        self.index.record_sent(&key, Some(digest));
                    }
                    Some(_) | None => {
                        again.insert(file);
                    }
                },
            }
        }
        again
    }

    /// The files whose copy of the object loses to another file's.
    fn losers(&self, key: &ObjectKey) -> Vec<FileProblem> {
        let mut files = self.index.files(key).map(|file| file.to_string_lossy().into_owned());
        let winner = files.next().unwrap_or_default();
        let what = ProblemKind::Duplicate { object: key.to_string(), winner };
        files.map(|file| FileProblem { file, place: None, what: what.clone() }).collect()
    }

    fn note_duplicates(&mut self, key: &ObjectKey) {
        let losers =
            if self.index.files(key).nth(1).is_some() { self.losers(key) } else { Vec::new() };
        if losers.is_empty() {
            self.duplicates.remove(key);
        } else if self.duplicates.get(key) != Some(&losers)
            && (self.duplicates.len() < MAX_DUPLICATES || self.duplicates.contains_key(key))
        {
            losers.iter().for_each(FileProblem::trace);
            self.duplicates.insert(key.clone(), losers);
        }
    }
}
