//! Finds pods that were attached without denizen while the agent runs. An ADD uses the list of
//! plugins that it began with. So while denizen is being installed, or when another owner rewrites
//! that list, some ADDs bypass it.
//!
//! libcni writes the result of an ADD into its cache after the last plugin has ended, and denizen
//! writes its record before that. So a cached result whose link exists but has no record is an ADD
//! that bypassed the plugin. While a link that looks like a pod's has no record, every new result
//! is read at once. In addition all results are read again with a back-off, since inotify may not
//! work on the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::watch as latest;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};

use super::adopt::{self, AdoptionSearch};
use super::cache::{self, UnusableResult};
use super::missing::{Missing, Unrecorded};
use super::selection::{RedirectSelection, Selected};
use super::{AttachmentsConfig, PublishedAttachments};
use crate::Outlet;
use crate::state_file::LastState;
use crate::watch::{FolderHints, FolderWatch};
use denizen_text::describe;

/// After a change, the wait for related changes: a link, its record and its cached result appear
/// one after the other.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// After an interface without a record appears, all cached results are read after this time, then
/// after twice this time, and so on.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// After a search, the pause before the next one is this many times as long as the search took: a
/// node with very many pods does not keep a processor busy.
const PAUSE_FACTOR: u32 = 4;

/// What [`find()`] publishes.
#[derive(Debug)]
pub struct FindingSenders {
    /// The interfaces that remain without a record, and the cached results that cannot be used.
    pub unrecorded: latest::Sender<Unrecorded>,
    /// The attachments that the plugin would redirect now.
    pub selected: latest::Sender<Selected>,
}

/// Finds pods whose ADD bypassed the plugin, and the pods that the plugin's `redirect` selects,
/// until `outlet` is closed.
pub async fn find(
    config: AttachmentsConfig,
    mut shown: PublishedAttachments,
    findings: FindingSenders,
    outlet: Outlet,
) {
    let mut finder = Finder::new(config);
    loop {
        let due = finder.due();
        tokio::select! {
            () = outlet.closed() => return,
            _ = shown.links.changed() => {}
            _ = shown.state_file.changed() => {}
            () = finder.cache.changed() => {}
            () = sleep_until(due) => {}
        }
        tokio::select! {
            () = outlet.closed() => return,
            () = finder.during(&mut shown.state_file, sleep(finder.pause)) => {}
        }
        let links = shown.links.borrow_and_update().clone();
        // A lost state file is rebuilt first.
        if links.is_empty() || shown.state_file.borrow().is_lost {
            continue;
        }
        let now = Instant::now();
        if finder.missing.listed(&links, now) {
            (finder.backoff, finder.all_due) = (MIN_BACKOFF, now + MIN_BACKOFF);
        }
        let hints = finder.cache.take();
        let names = finder.cache.named(&hints);
        finder.select(names.clone(), &mut shown.state_file).await;
        finder.publish_selected(&findings.selected);
        let ports = finder.adopt_host_ports(names, &mut shown.state_file).await.err();
        let search = finder.search(now, hints, &mut shown.state_file).await.err();
        let problem = search.or(ports);
        if outlet.report(problem.iter().cloned().collect())
            && let Some(error) = &problem
        {
            warn!(error, "cannot adopt pods that were attached without denizen");
        }
        finder.publish(&findings.unrecorded);
    }
}

struct Finder {
    config: AttachmentsConfig,
    cache: CacheWatch,
    missing: Missing,
    /// `None` if the whole cache must be read for it.
    selection: Option<RedirectSelection>,
    pause: Duration,
    /// If an interface has no record at this time, all cached results are read; otherwise only the
    /// unusable ones are read again.
    all_due: Instant,
    backoff: Duration,
    /// Whether all cached results were read once.
    has_read_all: bool,
    /// Cached results that cannot be used, and why.
    unusable: BTreeMap<PathBuf, String>,
    /// Cached results that the runtime is just writing, …
    partial: BTreeSet<PathBuf>,
    /// … and when they are read again, if nothing hints at them before.
    partial_due: Instant,
    /// Interfaces without a record that were logged already.
    named: BTreeSet<String>,
}

impl Finder {
    fn new(config: AttachmentsConfig) -> Self {
        Self {
            cache: CacheWatch::open(config.cni_cache.clone()),
            missing: Missing::new(config.not_pods.clone()),
            selection: None,
            config,
            pause: SETTLE_TIME,
            all_due: Instant::now(),
            backoff: MIN_BACKOFF,
            has_read_all: false,
            unusable: BTreeMap::new(),
            partial: BTreeSet::new(),
            partial_due: Instant::now(),
            named: BTreeSet::new(),
        }
    }

    /// When to search again even if nothing changes.
    fn due(&self) -> Instant {
        let now = Instant::now();
        let searches = !self.missing.is_empty() || !self.unusable.is_empty();
        let again = (!self.partial.is_empty()).then_some(self.partial_due);
        let search = searches.then_some(self.all_due).into_iter().chain(again);
        let due = search.chain(self.missing.next_for_long(now)).min();
        due.unwrap_or(now + MAX_BACKOFF)
    }

    /// Waits for `what`, and meanwhile notes every record: a pod whose record came and went is
    /// being deleted.
    async fn during<T>(
        &mut self,
        state_file: &mut latest::Receiver<LastState>,
        what: impl Future<Output = T>,
    ) -> T {
        let mut what = pin!(what);
        loop {
            self.missing.recorded(state_file.borrow_and_update().last.as_deref());
            tokio::select! {
                done = &mut what => return done,
                Ok(()) = state_file.changed() => {}
            }
        }
    }

    /// Reads the results of these names (`None`: all) to know which pods the plugin's `redirect`
    /// selects.
    async fn select(
        &mut self,
        names: Option<BTreeSet<OsString>>,
        state_file: &mut latest::Receiver<LastState>,
    ) {
        let Some(folder) = self.config.cni_cache.clone() else { return };
        if names.is_none() {
            self.selection = None;
        }
        let names = names.filter(|_| self.selection.is_some());
        if names.as_ref().is_some_and(BTreeSet::is_empty) {
            return;
        }
        let mut selection = self.selection.take().unwrap_or_default();
        let read = spawn_blocking(move || {
            selection.read(&folder, names.as_ref());
            selection
        });
        // If the read panicked, the whole cache is read at the next change.
        self.selection = self.during(state_file, read).await.ok();
    }

    /// Adds the host ports in the results of these names to records of ADDs that did not ask for
    /// them; `None`: in all of them.
    async fn adopt_host_ports(
        &mut self,
        names: Option<BTreeSet<OsString>>,
        state_file: &mut latest::Receiver<LastState>,
    ) -> Result<(), String> {
        if !self.config.host_ports || names.as_ref().is_some_and(BTreeSet::is_empty) {
            return Ok(());
        }
        let config = self.config.clone();
        let adopt = spawn_blocking(move || adopt::adopt_host_ports(&config, names.as_ref()));
        let result = self.during(state_file, adopt).await.map_err(|error| describe(&error))?;
        for UnusableResult { path, .. } in result.map_err(|error| describe(&error))? {
            // The result is read again, and reported if it stays unusable.
            self.partial.insert(path);
        }
        Ok(())
    }

    /// Searches the cache for interfaces without a record, and checks whether unusable results can
    /// be used by now, or are gone.
    async fn search(
        &mut self,
        now: Instant,
        hints: FolderHints,
        state_file: &mut latest::Receiver<LastState>,
    ) -> Result<(), String> {
        self.pause = SETTLE_TIME;
        let is_due = hints.overflow || self.all_due <= now || !self.has_read_all;
        let reads_all = is_due && (!self.missing.is_empty() || !self.has_read_all);
        let names = self.names(hints.names, is_due, now);
        if reads_all {
            self.has_read_all = true;
            self.cache.renew();
        } else if names.is_empty() {
            return Ok(());
        }
        let config = self.config.clone();
        let results = (!reads_all).then_some(names);
        let search = AdoptionSearch { results: results.clone(), links: self.missing.links() };
        let search = spawn_blocking(move || adopt::adopt_late(&config, &search));
        let result = self.during(state_file, search).await;
        let took = now.elapsed();
        debug!(elapsed = ?took, reads_all, "searched for pods attached without denizen");
        self.pause = SETTLE_TIME.max(took * PAUSE_FACTOR);
        if is_due {
            self.all_due = Instant::now() + self.backoff.max(took * PAUSE_FACTOR);
            self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        }
        let unusable = result.map_err(|error| describe(&error))?;
        self.note_unusable(unusable.map_err(|error| describe(&error))?, results.as_ref());
        Ok(())
    }

    /// The names of the results to read, unless all are read. Of the `changed` ones, all if an
    /// interface has no record, else those that were unusable or incomplete; and those whose next
    /// attempt is due.
    fn names(
        &self,
        mut changed: BTreeSet<OsString>,
        is_due: bool,
        now: Instant,
    ) -> BTreeSet<OsString> {
        let unusable = names_of(self.unusable.keys());
        let partial = names_of(&self.partial);
        if self.missing.is_empty() {
            changed.retain(|name| unusable.contains(name) || partial.contains(name));
        }
        if is_due {
            changed.extend(unusable);
        }
        if self.partial_due <= now {
            changed.extend(partial);
        }
        changed
    }

    /// Remembers which of the results that were `read` cannot be used, and logs each once; `None`:
    /// all were read.
    fn note_unusable(&mut self, unusable: Vec<UnusableResult>, read: Option<&BTreeSet<OsString>>) {
        let before = self.unusable.clone();
        let was_read = |path: &Path| {
            read.is_none_or(|names| path.file_name().is_some_and(|name| names.contains(name)))
        };
        self.unusable.retain(|path, _| !was_read(path));
        self.partial.retain(|path| !was_read(path));
        for UnusableResult { path, why, is_being_written } in unusable {
            if is_being_written {
                self.partial.insert(path);
            } else {
                self.unusable.insert(path, why);
            }
        }
        self.partial_due = Instant::now() + MIN_BACKOFF;
        for (path, why) in self.unusable.iter().filter(|(path, _)| !before.contains_key(*path)) {
            warn!(path = %path.display(), why, "cached cni result left out");
        }
    }

    /// Publishes the attachments that the plugin's `redirect` selects.
    fn publish_selected(&self, selected: &latest::Sender<Selected>) {
        let Some(selection) = &self.selection else { return };
        let now = selection.attachments();
        selected.send_if_modified(|shown| {
            let differs = *shown != now;
            *shown = now;
            differs
        });
    }

    /// Publishes the interfaces that have had no record for long, and logs each once.
    fn publish(&mut self, unrecorded: &latest::Sender<Unrecorded>) {
        let names = self.missing.for_long(Instant::now());
        self.named.retain(|name| names.contains(name));
        for interface in &names {
            if self.named.insert(interface.clone()) {
                warn!(interface, "interface looks like a pod's and has no record");
            }
        }
        let results = self.unusable.iter();
        let now = Unrecorded {
            interfaces: names,
            results: results
                .map(|(path, why)| {
                    format!("the cached CNI result {} is left out: {why}", path.display())
                })
                .collect(),
        };
        unrecorded.send_if_modified(|shown| {
            let differs = *shown != now;
            *shown = now;
            differs
        });
    }
}

fn names_of<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> BTreeSet<OsString> {
    paths.into_iter().filter_map(|path| path.file_name().map(OsStr::to_owned)).collect()
}

/// Watches the folders of the cache. None of them needs to exist yet.
struct CacheWatch {
    folder: Option<PathBuf>,
    watches: Vec<FolderWatch>,
    hints: FolderHints,
}

impl CacheWatch {
    fn open(folder: Option<PathBuf>) -> Self {
        let mut watch = Self { folder, watches: Vec::new(), hints: FolderHints::default() };
        watch.renew();
        watch
    }

    /// Watches the folders that exist now. The caller must search for earlier changes.
    fn renew(&mut self) {
        let folders = self.folder.iter().flat_map(|folder| cache::folders(folder));
        // If a folder cannot be watched, the periodic reads of all results find its changes.
        self.watches = folders.filter_map(|folder| FolderWatch::open(&folder).ok()).collect();
    }

    /// Waits until something in one of the folders changes.
    async fn changed(&mut self) {
        if self.watches.is_empty() {
            return std::future::pending().await;
        }
        let one = |watch| {
            Box::pin(async move {
                let mut hints = FolderHints::default();
                FolderWatch::changed(watch, &mut hints).await.map(|()| hints)
            })
        };
        let (changed, ..) = select_all(self.watches.iter().map(one)).await;
        match changed {
            Ok(hints) => self.add(hints),
            Err(_) => {
                self.watches.clear();
                self.hints.overflow = true;
            }
        }
    }

    fn add(&mut self, hints: FolderHints) {
        // A folder of results was created or removed: all of its content is new.
        let is_folder = |name: &OsString| name == "results" || name == "cache";
        self.hints.overflow |= hints.overflow || hints.gone || hints.names.iter().any(is_folder);
        self.hints.names.extend(hints.names);
    }

    /// What changed since the last call; everything, if folders are watched only from now on.
    fn take(&mut self) -> FolderHints {
        let mut more = FolderHints::default();
        for watch in &self.watches {
            self.hints.overflow |= watch.drain(&mut more).is_err();
        }
        self.add(more);
        let mut hints = std::mem::take(&mut self.hints);
        if hints.overflow || self.watches.is_empty() {
            self.renew();
            hints.overflow |= !self.watches.is_empty();
        }
        hints
    }

    /// The names of the results that may have changed; `None` if any may have.
    fn named(&self, hints: &FolderHints) -> Option<BTreeSet<OsString>> {
        let is_watched = !self.watches.is_empty();
        (is_watched && !hints.overflow).then(|| hints.names.clone())
    }
}
