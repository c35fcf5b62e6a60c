//! The folder of CNI configurations: finds the active one, and changes it so that a valid one is
//! active at every instant.
//!
//! Runtimes use the lexically first file that ends in `.conflist`, `.conf` or `.json` (libcni's
//! `ConfFiles`, containerd's `loadFromConfDir`). A lone `.conf` is not changed: a
//! `10-x-and-denizen.conflist`, which sorts before `10-x.conf`, is created beside it, and removed
//! at the end. Behind Multus, the configuration that it delegates to is the active one.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use denizen_state::regular;
use serde_json::Value;
use thiserror::Error;

use super::conflist::{Conflist, Unusable, wrapped};
use super::{multus, own_entry, portmap};

/// The file extensions that runtimes read.
const ENDINGS: [&str; 3] = ["conflist", "conf", "json"];

/// How the file name of a list of a lone plugin and denizen ends.
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
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// There is no usable configuration.
    #[error("there is no usable CNI configuration in {}", .0.display())]
    Nothing(PathBuf),
    /// A program keeps denizen in it.
    #[error(
        "install-cni still runs, and would put denizen back into {}: stop it, and run \
         this again",
        .0.display()
    )]
    Kept(PathBuf),
    /// A program removes denizen from it.
    #[error("denizen is being removed from {}", .0.display())]
    Removing(PathBuf),
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
pub struct ConfigReport {
    /// Files that were written, created or removed.
    pub changed: Vec<PathBuf>,
    /// Files that were not changed, and why.
    pub unusable: Vec<(PathBuf, String)>,
}

/// The configuration that runtimes use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Active {
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
    let files = in_order_of_use(candidates(folder, &mut ConfigReport::default())?);
    let first = files.into_iter().find_map(Candidate::active);
    first.ok_or_else(|| FolderError::Nothing(folder.to_owned()))
}

/// Adds `entry`, denizen's plugin entry, at the end of the active configuration in `folder`, and of
/// Multus's copy of it.
///
/// # Errors
/// [`FolderError`]; the folder is still valid.
pub fn insert(folder: &Path, entry: &Value) -> Result<ConfigReport, FolderError> {
    let mut report = ConfigReport::default();
    let candidates = in_order_of_use(candidates(folder, &mut report)?);
    let (lone_lists, owned): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|file| file.is_list_of_lone_plugin());
    let (of_multus, owned): (Vec<_>, Vec<_>) =
        owned.into_iter().partition(|file| multus::is_multus(&file.text));
    let active = first_usable(&owned, entry, &mut report);
    let target = active.as_ref().map(|(file, _)| file.target());
    if let (Some((active, Some(text))), Some(target)) = (&active, &target)
        && replace(target, active.text_of(target).as_deref(), text)?
    {
        report.changed.push(target.clone());
    }
    // After the active file: Multus may copy that meanwhile.
    let delegates = multus_delegates(&of_multus, entry, &mut report)?;
    let is_used = |list: &&Candidate| is_named_by_multus(list, &of_multus);
    if !lone_lists.iter().any(|list| is_used(&list)) {
        report
            .unusable
            .extend(of_multus.iter().filter_map(|file| bypass_reason(file, active.as_ref()?.0)));
    }
    if target.is_none() && !delegates && lone_lists.is_empty() {
        return Err(FolderError::Nothing(folder.to_owned()));
    }
    // A list for a lone plugin that is no longer active would hide the active configuration. If
    // that plugin's file was removed, its list is the only one left.
    let is_stale = |list: &&Candidate| match &target {
        Some(target) => list.path != *target,
        None => delegates && multus::is_multus(&list.text),
    };
    for stale in lone_lists.iter().filter(|list| is_stale(list) && !is_used(list)) {
        remove(&stale.path)?;
        report.changed.push(stale.path.clone());
    }
    Ok(report)
}

/// The first file that `entry` can be added to, and the new content of its target; `None` for the
/// content if the target needs no change.
fn first_usable<'a>(
    files: &'a [Candidate],
    entry: &Value,
    report: &mut ConfigReport,
) -> Option<(&'a Candidate, Option<String>)> {
    for file in files {
        match file.with(entry) {
            Ok(wanted) => {
                let list = Conflist::parse(&file.text).ok().filter(|_| portmap::replaces(entry));
                let obstacle = list.as_ref().and_then(portmap::obstacle);
                report.unusable.extend(obstacle.map(|why| (file.path.clone(), why)));
                return Some((file, wanted));
            }
            Err(error) => report.unusable.push((file.path.clone(), error.to_string())),
        }
    }
    None
}

/// Adds `entry` to Multus's copies of the pods' network. Returns whether there is a copy.
fn multus_delegates(
    of_multus: &[Candidate],
    entry: &Value,
    report: &mut ConfigReport,
) -> Result<bool, FolderError> {
    let mut delegates = false;
    for file in of_multus {
        match multus::with(&file.text, entry) {
            Ok(None) => {}
            Ok(Some(text)) => {
                replace(&file.path, Some(&file.text), &text)?;
                report.changed.push(file.path.clone());
            }
            Err(error) => {
                report.unusable.push((file.path.clone(), error.to_string()));
                continue;
            }
        }
        delegates |= multus::delegate(&file.text).is_some();
    }
    Ok(delegates)
}

/// Why runtimes do not call denizen through the file `multus`, although `active` names denizen:
/// Multus uses another file.
fn bypass_reason(multus: &Candidate, active: &Candidate) -> Option<(PathBuf, String)> {
    let named = multus::network_file(&multus.text)?;
    let target = active.target();
    if file_name(&target) == named {
        return None;
    }
    let why = match file_name(&active.path) == named {
        true => {
            format!(
                "Multus calls what {named} says: restart Multus, to take {}",
                file_name(&target)
            )
        }
        false => format!("Multus delegates to {named}: put denizen into that"),
    };
    Some((multus.path.clone(), why))
}

/// Whether a configuration of Multus among `files` names this file: Multus then reads it at each
/// call.
fn is_named_by_multus(file: &Candidate, files: &[Candidate]) -> bool {
    let mut named = files.iter().filter_map(|other| multus::network_file(&other.text));
    named.any(|named| named == file_name(&file.path))
}

fn file_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// The files that may be active. If Multus is first: its own files and those that it may delegate
/// to, with Multus's files and the file that Multus names at the front.
fn in_order_of_use(mut files: Vec<Candidate>) -> Vec<Candidate> {
    let first = files.iter().find(|file| file.is_valid());
    let Some(multus) = first.filter(|file| multus::is_multus(&file.text)) else {
        files.retain(|file| !multus::is_multus(&file.text));
        return files;
    };
    let named = multus::network_file(&multus.text);
    files.retain(|file| !multus::ignores(&file.path));
    let is_named = |file: &Candidate| {
        let names = [file_name(&file.path), file_name(&file.target())].map(Cow::into_owned);
        named.as_ref().is_some_and(|named| names.contains(named))
    };
    files.sort_by_key(|file| !multus::is_multus(&file.text) && !is_named(file));
    files
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
pub fn remove_denizen(folder: &Path) -> Result<ConfigReport, FolderError> {
    let mut report = ConfigReport::default();
    let candidates = candidates(folder, &mut report)?;
    if candidates.is_empty() {
        // The runtime's folder is another one: denizen would stay there.
        return Err(FolderError::Nothing(folder.to_owned()));
    }
    for file in &candidates {
        if file.is_list_of_lone_plugin()
            && !is_named_by_multus(file, &candidates)
            && candidates
                .iter()
                .any(|other| other.target() == file.path && !other.is_list_of_lone_plugin())
        {
            remove(&file.path)?;
            report.changed.push(file.path.clone());
            continue;
        }
        let without = match (multus::is_multus(&file.text), file.is_list()) {
            (true, _) => multus::without(&file.text),
            (false, true) => Conflist::parse(&file.text).and_then(|list| own_entry::without(&list)),
            (false, false) => continue,
        };
        match without {
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
    fn is_valid(&self) -> bool {
        match self.is_list() {
            true => Conflist::parse(&self.text).is_ok(),
            false => wrapped(&self.text, &Value::Null).is_ok(),
        }
    }

    fn is_list(&self) -> bool {
        self.path.extension().is_some_and(|ending| ending == "conflist")
    }

    fn active(self) -> Option<Active> {
        let (plugins, entry) = match self.is_list() {
            _ if multus::is_multus(&self.text) => multus::delegate(&self.text)?,
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

    fn is_list_of_lone_plugin(&self) -> bool {
        let is_named_so = self.path.as_os_str().to_string_lossy().ends_with(WRAPPED);
        is_named_so && Conflist::parse(&self.text).is_ok_and(|list| list.is_pair())
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
            return Ok(own_entry::with(&Conflist::parse(&self.text)?, entry));
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
fn candidates(folder: &Path, report: &mut ConfigReport) -> Result<Vec<Candidate>, FolderError> {
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
