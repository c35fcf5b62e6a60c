//! The folder of CNI configurations: which one is active, and changing it so that at every instant
//! a valid one is.
//!
//! Runtimes take the lexically first file that ends in `.conflist`, `.conf` or `.json` (libcni's
//! `ConfFiles`, containerd's `loadFromConfDir`). A lone `.conf` stays as it is:
//! `10-x-and-denizen.conflist`, which comes before `10-x.conf`, is put beside it, and taken away
//! again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use denizen_shared::regular;
use serde_json::Value;
use thiserror::Error;

use super::conflist::{Conflist, Unusable, wrapped};

/// What runtimes read.
const ENDINGS: [&str; 3] = ["conflist", "conf", "json"];

/// End of the name of a list that is a lone plugin and denizen.
const WRAPPED: &str = "-and-denizen.conflist";

/// Added to a file's name while its successor is written. No runtime reads a file that ends so.
const NEXT: &str = ".denizen-next";

/// No configuration is nearly as large; containerd refuses larger ones.
const LARGEST: u64 = 2 << 20;

/// Why the folder is not as it should be.
#[derive(Debug, Error)]
pub enum FolderError {
    /// The folder or a file in it cannot be read or written.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Nothing to put denizen in yet.
    #[error("there is no usable CNI configuration in {}", .0.display())]
    Nothing(PathBuf),
    /// Its owner wrote a file at the same moment.
    #[error("{} was written by somebody else meanwhile", .0.display())]
    Overtaken(PathBuf),
}

/// A file that runtimes read, and what is in it.
#[derive(Debug)]
struct Candidate {
    path: PathBuf,
    text: String,
}

/// What was found and done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Files that were written, made or removed.
    pub changed: Vec<PathBuf>,
    /// Files that are left alone, and what is wrong with them.
    pub unusable: Vec<(PathBuf, String)>,
}

/// Puts denizen, as `entry` says, at the end of the active configuration in `folder`.
///
/// # Errors
/// [`FolderError`]; the folder is as valid as it was.
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
            // Whoever owned it took it away, and it is all that there is.
            false => Ok(report),
        };
    };
    let target = active.target();
    if let Some(text) = wanted
        && replace(&target, active.text_of(&target).as_deref(), &text)?
    {
        report.changed.push(target.clone());
    }
    // One whose lone plugin is no longer the active configuration would hide it.
    for stale in wraps.iter().filter(|wrap| wrap.path != target) {
        remove(&stale.path)?;
        report.changed.push(stale.path.clone());
    }
    Ok(report)
}

/// Takes denizen out of every configuration in `folder`.
///
/// # Errors
/// [`FolderError`]; what was done until then is valid.
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

    fn is_wrap(&self) -> bool {
        let is_named_so = self.path.as_os_str().to_string_lossy().ends_with(WRAPPED);
        is_named_so
            && Conflist::parse(&self.text).is_ok_and(|list| list.ends_with_ours() == (2, true))
    }

    /// Where the list with denizen in it is: this file, or for a lone plugin the one beside it.
    fn target(&self) -> PathBuf {
        if self.is_list() {
            return self.path.clone();
        }
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!("{stem}{WRAPPED}"))
    }

    /// What the target should say; `None` when it says so.
    fn with(&self, entry: &Value) -> Result<Option<String>, Unusable> {
        if self.is_list() {
            return Ok(Conflist::parse(&self.text)?.with(entry));
        }
        let list = wrapped(&self.text, entry)?;
        let is_so = read(&self.target()).is_ok_and(|text| text == list);
        Ok((!is_so).then_some(list))
    }

    /// What `target` says now, as far as it is known.
    fn text_of(&self, target: &Path) -> Option<String> {
        if *target == self.path { Some(self.text.clone()) } else { read(target).ok() }
    }
}

/// The files that runtimes read, in their order; what cannot be read is reported.
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
            // A folder, or gone since.
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

/// Puts `text` in the place of `path`, which said `before` (`None`: was not there); whether it did.
/// Owner and mode stay, and a link goes on leading where it led.
fn replace(path: &Path, before: Option<&str>, text: &str) -> Result<bool, FolderError> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut next = path.clone().into_os_string();
    next.push(NEXT);
    let next = PathBuf::from(next);
    write_next(&next, fs::metadata(&path).ok(), text).map_err(failed("write", &next))?;
    // Not atomic with the rename, but the moment is short, and what is written after it is seen as
    // a change.
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
        // As it was, where that is allowed; root may anyway.
        let _ = fchown(&file, Some(like.uid()), Some(like.gid()));
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn remove(path: &Path) -> Result<(), FolderError> {
    fs::remove_file(path).map_err(failed("remove", path))?;
    sync(path)
}

/// A power cut after this leaves the folder as it is now.
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
