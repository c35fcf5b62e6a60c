//! Finding pods that were attached without denizen while the agent runs: ADDs go by the list of
//! plugins that they began with, so while denizen is being installed, or whenever another owner
//! rewrites that list, some go past it.
//!
//! libcni writes the result of an ADD into its cache after the last plugin has ended, and denizen's
//! record is written before that. So a cached result without a record, whose link is there, is an
//! ADD that went past the plugin. As long as a link that looks like a pod's has no record, every
//! result that comes is read at once; all of them are read again with a back-off, since a cache
//! need not be one that can be watched.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::watch as latest;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};

use super::adopt::{self, Search};
use super::cache::{self, LeftOut};
use super::missing::{Missing, Unrecorded};
use super::{Config, Shown};
use crate::describe::describe;
use crate::source::Outlet;
use crate::source::state_file::Seen;
use crate::source::watch::{FolderWatch, Hints};

/// After a change so long is waited for what belongs to it: a link, its record and its cached
/// result come one after the other.
const PAUSE: Duration = Duration::from_millis(100);

/// All cached results are read so long after an interface without a record came, then after twice
/// this, and so on.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// After a look the next one waits so many times as long as it took: very many pods must not keep a
/// processor busy.
const REST: u32 = 4;

/// Finds such pods until nobody listens to `outlet` any more; shows in `unrecorded` the interfaces
/// that remain without a record, and the cached results that cannot be used.
pub async fn find(
    config: Config,
    mut shown: Shown,
    unrecorded: latest::Sender<Unrecorded>,
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
        // A lost file is written anew first.
        if links.is_empty() || shown.state_file.borrow().is_lost {
            continue;
        }
        let now = Instant::now();
        if finder.missing.listed(&links, now) {
            (finder.backoff, finder.all_due) = (SHORTEST, now + SHORTEST);
        }
        let problem = finder.look(now, &mut shown.state_file).await.err();
        if outlet.report(problem.iter().cloned().collect())
            && let Some(error) = &problem
        {
            warn!(error, "pods attached without denizen cannot be adopted");
        }
        finder.show(&unrecorded);
    }
}

struct Finder {
    config: Config,
    cache: CacheWatch,
    missing: Missing,
    pause: Duration,
    /// When all cached results are read, if an interface has no record then.
    all_due: Instant,
    backoff: Duration,
    /// All cached results were read once.
    has_read_all: bool,
    /// Cached results that cannot be used, and why.
    left_out: BTreeMap<PathBuf, String>,
    /// Interfaces that were logged as without a record.
    named: BTreeSet<String>,
}

impl Finder {
    fn new(config: Config) -> Self {
        Self {
            cache: CacheWatch::open(config.cni_cache.clone()),
            missing: Missing::new(config.not_pods.clone()),
            config,
            pause: PAUSE,
            all_due: Instant::now(),
            backoff: SHORTEST,
            has_read_all: false,
            left_out: BTreeMap::new(),
            named: BTreeSet::new(),
        }
    }

    /// When to look again though nothing has changed.
    fn due(&self) -> Instant {
        let now = Instant::now();
        let look = (!self.missing.is_empty()).then_some(self.all_due);
        let due = look.into_iter().chain(self.missing.next_for_long(now)).min();
        due.unwrap_or(now + LONGEST)
    }

    /// Waits for `what`, and sees every record meanwhile: of one that came and went, the pod is
    /// being deleted.
    async fn during<T>(
        &mut self,
        state_file: &mut latest::Receiver<Seen>,
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

    /// Reads what the cache tells of interfaces without a record.
    async fn look(
        &mut self,
        now: Instant,
        state_file: &mut latest::Receiver<Seen>,
    ) -> Result<(), String> {
        self.pause = PAUSE;
        let hints = self.cache.take();
        if self.missing.is_empty() && self.has_read_all {
            return Ok(());
        }
        let reads_all = hints.overflow || self.all_due <= now || !self.has_read_all;
        if reads_all {
            self.has_read_all = true;
            self.cache.renew();
        } else if hints.names.is_empty() {
            return Ok(());
        }
        let config = self.config.clone();
        let search =
            Search { results: (!reads_all).then_some(hints.names), links: self.missing.links() };
        let search = spawn_blocking(move || adopt::adopt_late(&config, &search));
        let result = self.during(state_file, search).await;
        let took = now.elapsed();
        debug!(elapsed = ?took, reads_all, "looked for pods attached without denizen");
        self.pause = PAUSE.max(took * REST);
        if reads_all {
            self.all_due = Instant::now() + self.backoff.max(took * REST);
            self.backoff = (self.backoff * 2).min(LONGEST);
        }
        let left_out = result.map_err(|error| describe(&error))?;
        self.leave_out(left_out.map_err(|error| describe(&error))?, reads_all);
        Ok(())
    }

    /// Remembers which cached results cannot be used, `all` of them or some more, and logs each
    /// once.
    fn leave_out(&mut self, left_out: Vec<LeftOut>, all: bool) {
        let before = self.left_out.clone();
        if all {
            self.left_out.clear();
        }
        self.left_out.extend(left_out);
        for (path, why) in self.left_out.iter().filter(|(path, _)| !before.contains_key(*path)) {
            warn!(path = %path.display(), why, "this cached CNI result is left out");
        }
    }

    /// Shows the interfaces that have had no record for long, and logs each once.
    fn show(&mut self, unrecorded: &latest::Sender<Unrecorded>) {
        let names = self.missing.for_long(Instant::now());
        self.named.retain(|name| names.contains(name));
        for interface in &names {
            if self.named.insert(interface.clone()) {
                warn!(interface, "it looks like a pod's and has no record");
            }
        }
        let results = self.left_out.iter();
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

/// Watches the folders of the cache, of which none need be there yet.
struct CacheWatch {
    folder: Option<PathBuf>,
    watches: Vec<FolderWatch>,
    hints: Hints,
}

impl CacheWatch {
    fn open(folder: Option<PathBuf>) -> Self {
        let mut watch = Self { folder, watches: Vec::new(), hints: Hints::default() };
        watch.renew();
        watch
    }

    /// Watches the folders that are there now. What changed until now must be looked for.
    fn renew(&mut self) {
        let folders = self.folder.iter().flat_map(|folder| cache::folders(folder));
        // Where a folder cannot be watched, the looks at all results do.
        self.watches = folders.filter_map(|folder| FolderWatch::open(&folder).ok()).collect();
    }

    /// Waits until something in one of them changed.
    async fn changed(&mut self) {
        if self.watches.is_empty() {
            return std::future::pending().await;
        }
        let one = |watch| {
            Box::pin(async move {
                let mut hints = Hints::default();
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

    fn add(&mut self, hints: Hints) {
        // A folder of results that was made or removed: in it, everything is new.
        let is_folder = |name: &OsString| name == "results" || name == "cache";
        self.hints.overflow |= hints.overflow || hints.gone || hints.names.iter().any(is_folder);
        self.hints.names.extend(hints.names);
    }

    /// What changed since this was called last.
    fn take(&mut self) -> Hints {
        let mut more = Hints::default();
        for watch in &self.watches {
            self.hints.overflow |= watch.drain(&mut more).is_err();
        }
        self.add(more);
        std::mem::take(&mut self.hints)
    }
}
