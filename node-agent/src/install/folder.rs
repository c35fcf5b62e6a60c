//! The folder of CNI configurations: finds the active one, and changes it so that a valid one is
//! active at every instant.
//!
//! Runtimes use the lexically first file that ends in `.conflist`, `.conf` or `.json` (libcni's
//! `ConfFiles`, containerd's `loadFromConfDir`). A lone `.conf` is not changed: a
//! `10-x-and-denizen.conflist`, which sorts before `10-x.conf`, is created beside it, and removed
//! at the end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use denizen_state::regular;
use serde_json::Value;
use thiserror::Error;

use super::conflist::{Conflist, Unusable, wrapped};

/// The file extensions that runtimes read.
const ENDINGS: [&str; 3] = ["conflist", "conf", "json"];

/// The end of the file name of a list of a lone plugin and denizen.
const WRAPPED: &str = "-and-denizen.conflist";

/// Suffix of the temporary file with the new content. Runtimes do not read files with it.
const NEXT: &str = ".denizen-next";

/// Size limit in bytes, far more than any configuration has; containerd refuses larger ones.
const LARGEST: u64 = 2 << 20;

/// Why the folder cannot be changed.
#[derive(Debug, Error)]
pub enum FolderError {
    /// The folder or a file in it cannot be read or written.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The failed operation.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// There is no usable configuration yet.
    #[error("there is no usable CNI configuration in {}", .0.display())]
    Nothing(PathBuf),
    /// Another program wrote a file at the same time.
    #[error("{} was changed by another program meanwhile", .0.display())]
    Overtaken(PathBuf),
}

/// A file that runtimes read, with its content.
#[derive(Debug)]
struct Candidate {
    path: PathBuf,
    text: String,
}

/// What was changed, and what could not be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Files that were written, created or removed.
    pub changed: Vec<PathBuf>,
    /// Files that were not changed, and why.
    pub unusable: Vec<(PathBuf, String)>,
}

/// The configuration that runtimes use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Active {
    /// Its file.
    pub path: PathBuf,
    /// The types of its plugins, in their order.
    pub plugins: Vec<String>,
    /// Denizen's entry, if it has one.
    pub entry: Option<Value>,
}

/// The active configuration in `folder`: the first that is valid, and that denizen can be chained
/// in.
///
/// # Errors
/// [`FolderError`].
pub fn active(folder: &Path) -> Result<Active, FolderError> {
    let files = candidates(folder, &mut Report::default())?;
    let first = files.into_iter().find_map(Candidate::active);
    first.ok_or_else(|| FolderError::Nothing(folder.to_owned()))
}

/// Adds `entry`, denizen's plugin entry, at the end of the active configuration in `folder`.
///
/// # Errors
/// [`FolderError`]; the folder is still valid.
pub fn insert(folder: &Path, entry: &Value) -> Result<Report, FolderError> {
    let mut report = Report::default();
    let candidates = candidates(folder, &mut report)?;
    let (wraps, owned): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|file| file.is_wrap());
    let mut active = None;
    for file in &owned {
        match file.with(entry) {
            Ok(wanted) => {
                active = Some((file, wanted));
                break;
            }
            Err(error) => report.unusable.push((file.path.clone(), error.to_string())),
        }
    }
    let Some((active, wanted)) = active else {
        return match wraps.is_empty() {
            true => Err(FolderError::Nothing(folder.to_owned())),
            // The wrapped configuration was removed; the list with denizen is the only one left.
            false => Ok(report),
        };
    };
    let target = active.target();
    if let Some(text) = wanted
        && replace(&target, active.text_of(&target).as_deref(), &text)?
    {
        report.changed.push(target.clone());
    }
    // A list for a lone plugin that is no longer active would hide the active configuration.
    for stale in wraps.iter().filter(|wrap| wrap.path != target) {
        remove(&stale.path)?;
        report.changed.push(stale.path.clone());
    }
    Ok(report)
}

/// Creates a file with this text; readers see all of it or none. Returns whether it was created.
///
/// # Errors
/// [`FolderError`].
pub fn create(path: &Path, text: &str) -> Result<bool, FolderError> {
    replace(path, None, text)
}

/// Removes denizen from every configuration in `folder`.
///
/// # Errors
/// [`FolderError`]; the folder is still valid.
pub fn take_out(folder: &Path) -> Result<Report, FolderError> {
    let mut report = Report::default();
    let candidates = candidates(folder, &mut report)?;
    for file in &candidates {
        if file.is_wrap()
            && candidates.iter().any(|other| other.target() == file.path && !other.is_wrap())
        {
            remove(&file.path)?;
            report.changed.push(file.path.clone());
            continue;
        }
        if !file.is_list() {
            continue;
        }
        match Conflist::parse(&file.text).and_then(|list| list.without()) {
            Ok(None) => {}
            Ok(Some(text)) => {
                replace(&file.path, Some(&file.text), &text)?;
                report.changed.push(file.path.clone());
            }
            Err(error) => report.unusable.push((file.path.clone(), error.to_string())),
        }
    }
    Ok(report)
}

impl Candidate {
    fn is_list(&self) -> bool {
        self.path.extension().is_some_and(|ending| ending == "conflist")
    }

    fn active(self) -> Option<Active> {
        let (plugins, entry) = match self.is_list() {
            true => {
                let list = Conflist::parse(&self.text).ok()?;
                (list.kinds(), list.entry())
            }
            false => {
                let list = wrapped(&self.text, &Value::Null).ok()?;
                let alone: Value = serde_json::from_str(&list).ok()?;
                (vec![alone["plugins"][0]["type"].as_str()?.to_owned()], None)
            }
        };
        Some(Active { path: self.path, plugins, entry })
    }

    fn is_wrap(&self) -> bool {
        let is_named_so = self.path.as_os_str().to_string_lossy().ends_with(WRAPPED);
        is_named_so
            && Conflist::parse(&self.text).is_ok_and(|list| list.ends_with_ours() == (2, true))
    }

    /// The file of the list with denizen: this file, or for a lone plugin the one beside it.
    fn target(&self) -> PathBuf {
        if self.is_list() {
            return self.path.clone();
        }
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!("{stem}{WRAPPED}"))
    }

    /// The new content of the target; `None` if it needs no change.
    fn with(&self, entry: &Value) -> Result<Option<String>, Unusable> {
        if self.is_list() {
            return Ok(Conflist::parse(&self.text)?.with(entry));
        }
        let list = wrapped(&self.text, entry)?;
        let is_so = read(&self.target()).is_ok_and(|text| text == list);
        Ok((!is_so).then_some(list))
    }

    /// The current content of `target`, if it can be read.
    fn text_of(&self, target: &Path) -> Option<String> {
        if *target == self.path { Some(self.text.clone()) } else { read(target).ok() }
    }
}

/// The files that runtimes read, in their order. Unreadable files are reported.
fn candidates(folder: &Path, report: &mut Report) -> Result<Vec<Candidate>, FolderError> {
    let entries = fs::read_dir(folder).map_err(failed("list", folder))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        path.extension().is_some_and(|end| ENDINGS.iter().any(|known| end == *known))
    });
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        match read(&path) {
            Ok(text) => files.push(Candidate { path, text }),
            // It is a folder, or gone by now.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::IsADirectory | io::ErrorKind::NotFound
                ) => {}
            Err(error) => report.unusable.push((path, error.to_string())),
        }
    }
    Ok(files)
}

fn read(path: &Path) -> io::Result<String> {
    regular::read_to_string(path, LARGEST)
}

/// Replaces the content `before` of `path` (`None`: no file) by `text`. Returns whether it did.
/// Owner and mode stay, and a link keeps its target.
fn replace(path: &Path, before: Option<&str>, text: &str) -> Result<bool, FolderError> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut next = path.clone().into_os_string();
    next.push(NEXT);
    let next = PathBuf::from(next);
    write_next(&next, fs::metadata(&path).ok(), text).map_err(failed("write", &next))?;
    // Not atomic with the rename, but the gap is short, and a later write is noticed as a change.
    if read(&path).ok().as_deref() != before {
        remove(&next)?;
        return Err(FolderError::Overtaken(path));
    }
    fs::rename(&next, &path).map_err(failed("rename", &next))?;
    sync(&path)?;
    Ok(true)
}

fn write_next(next: &Path, like: Option<fs::Metadata>, text: &str) -> io::Result<()> {
    let _ = fs::remove_file(next);
    let mode = like.as_ref().map_or(0o600, |like| like.mode() & 0o777);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(next)?;
    if let Some(like) = like {
        // Keep owner and group if that is permitted, as it is for root.
        let _ = fchown(&file, Some(like.uid()), Some(like.gid()));
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn remove(path: &Path) -> Result<(), FolderError> {
    fs::remove_file(path).map_err(failed("remove", path))?;
    sync(path)
}

/// Makes the change durable.
fn sync(path: &Path) -> Result<(), FolderError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let folder = File::open(folder).and_then(|folder| folder.sync_all());
    folder.map_err(failed("sync the folder of", path))
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FolderError + 'a {
    move |source| FolderError::Io { doing, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
