//! Searches for stale and forbidden conntrack entries after a change, and deletes or marks them.
//!
//! Reading a hundred thousand entries takes longer than the loop may pause, so another thread reads
//! and changes them. The loop decides what is done to the entries, piece by piece, from its current
//! state.

#![expect(clippy::disallowed_methods, reason = "searches are scheduled")]

mod search;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::iter;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info};

use self::search::{Finished, MANY, Treated, search};
use crate::memory::trim;
use denizen_conntrack::Conntrack;
use denizen_observe::status::LastSync;
use denizen_observe::status::metrics::LikeKubeProxy;
use denizen_packet::{PackedFlow, TrackedFlow, Treatment};
use denizen_plan::conntrack::{CandidateTracker, StaleCandidates, StaleFilter};
use denizen_plan::{FrontendKey, MarkBit, Plan, PlanChanges, Planner};
use denizen_text::describe;

/// How long a stale entry stays, so that answers to earlier requests can arrive: without the entry
/// an answer does not reach the client, and the endpoint may be draining, not dead.
const ANSWERED: Duration = Duration::from_millis(150);
/// The time between the first and the second search: while the new rules were committed, a packet
/// may have been on its way through the old ones, and its entry appears afterwards.
const SECOND_SEARCH: Duration = Duration::from_secs(1);
/// The pause after a failed search.
const RETRY: Duration = Duration::from_secs(5);
/// The minimum pause after a search. A stream of changes must not keep a processor busy, so the
/// reader pauses for as long as the search took. A change is thus searched for within 200 ms,
/// however many follow it. Unanswered SYNs may wait longer: [`SYNS_REST`].
const SHORTEST_REST: Duration = Duration::from_millis(50);
/// The minimum pause before a search for nothing but unanswered SYNs. A client repeats a SYN after
/// a second at the earliest, and the kernel walks its whole table for each search: 10 ms even if
/// that is empty.
const SYNS_REST: Duration = Duration::from_millis(500);
/// The maximum pause.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Pieces that may wait for the loop before the reader waits.
const PIECES: usize = 4;

/// Notes what changes may have made stale, and schedules the searches for it.
pub struct Flush {
    tracker: CandidateTracker,
    /// `None` while a search runs.
    conntrack: Option<Conntrack>,
    /// Changes to search for, oldest first.
    first_searches: VecDeque<PendingSearch>,
    /// Second searches, and when they are due.
    second_searches: VecDeque<(Instant, StaleCandidates)>,
    search: Option<Search>,
    /// Stale entries that were left to the next search, since answers may be on their way, and when
    /// they were first found stale.
    waiting: HashMap<TrackedFlow, Instant>,
    /// The forbidden connections, as the last search left them. Connections that are permitted
    /// again are found here, not in the kernel's table. Empty while a search runs, which then holds
    /// them.
    forbidden: HashSet<PackedFlow>,
    /// A sync that is reported once no entry waits that was found stale before this time.
    unreported_sync: Option<(Instant, LastSync)>,
    /// When the pause after the last search ends.
    next_search_after: Instant,
    /// When the pause before a search for nothing but unanswered SYNs ends.
    next_syn_search_after: Instant,
    last_sync: Option<LastSync>,
    flushed: u64,
    problem: Option<String>,
    metrics: LikeKubeProxy,
}

/// The state of the searches, for `status`.
pub struct FlushReport {
    /// The last sync whose stale entries are gone.
    pub last_sync: Option<LastSync>,
    /// Stale entries that were deleted.
    pub flushed: u64,
    /// A search for stale entries is due or runs.
    pub is_flushing: bool,
    pub problem: Option<String>,
}

/// A search that has not begun, for what one programmed change made stale.
struct PendingSearch {
    /// When the search is due, unless the reader still pauses.
    due: Instant,
    /// The entries that the change may have made stale.
    candidates: StaleCandidates,
    /// Whether only unanswered SYNs are searched for.
    are_syns: bool,
    /// The sync to report after the search.
    sync: Option<LastSync>,
}

/// A running search.
struct Search {
    candidates: StaleCandidates,
    /// Whether this is the first search after a change.
    first: bool,
    /// The sync to report after this search.
    sync: Option<LastSync>,
    begun: Instant,
    entries: mpsc::Receiver<Vec<TrackedFlow>>,
    decided: Vec<(PackedFlow, Treatment)>,
    /// As [`Flush::waiting`].
    waiting: HashMap<TrackedFlow, Instant>,
    /// The channel to the reader for the decisions, used when all entries were read.
    decisions: Option<oneshot::Sender<Vec<(PackedFlow, Treatment)>>>,
    reader: JoinHandle<Finished>,
}

/// The next step of the loop.
pub enum Step {
    /// A search is due.
    Due,
    /// Entries were read.
    Entries(Vec<TrackedFlow>),
    /// All entries were read.
    AllRead,
    /// The reader has carried out the decisions.
    Done(Result<Finished, JoinError>),
}

impl Flush {
    /// Opens netlink to conntrack. There is nothing to search for yet.
    ///
    /// # Errors
    /// When netlink cannot be opened.
    pub fn open(metrics: LikeKubeProxy) -> anyhow::Result<Self> {
        let conntrack = Conntrack::open(MarkBit::FORBIDDEN.mask())
            .context("cannot open netlink to conntrack")?;
        Ok(Self {
            tracker: CandidateTracker::default(),
            conntrack: Some(conntrack),
            first_searches: VecDeque::new(),
            second_searches: VecDeque::new(),
            search: None,
            waiting: HashMap::new(),
            forbidden: HashSet::new(),
            unreported_sync: None,
            next_search_after: Instant::now(),
            next_syn_search_after: Instant::now(),
            last_sync: None,
            flushed: 0,
            problem: None,
            metrics,
        })
    }

    /// The candidates whose first search is not over.
    pub fn unsearched(&self) -> impl Iterator<Item = &StaleCandidates> {
        let searching = self.search.as_ref().filter(|search| search.first);
        let first = self.first_searches.iter().map(|pending| &pending.candidates);
        iter::once(self.tracker.candidates())
            .chain(first)
            .chain(searching.map(|search| &search.candidates))
    }

    /// For `status`.
    pub fn report(&self) -> FlushReport {
        FlushReport {
            last_sync: self.last_sync.clone(),
            flushed: self.flushed,
            is_flushing: self.is_searching() || !self.first_searches.is_empty(),
            problem: self.problem.clone(),
        }
    }

    /// Whether the first search after a change runs.
    fn is_searching(&self) -> bool {
        self.search.as_ref().is_some_and(|search| search.first)
    }

    /// Notes what changes of the plan may make stale.
    pub fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        self.tracker.update(plan, changes);
    }

    /// Notes frontends whose flows may be stale although the plan says nothing of it.
    pub fn add_frontends(&mut self, keys: Vec<FrontendKey>) {
        self.tracker.add_frontends(keys);
    }

    /// Schedules a search after a sync. The sync is reported once the entries that it made stale
    /// are gone.
    pub fn synced(&mut self, sync: LastSync, plan: &Plan) {
        let mut candidates = self.tracker.take(plan);
        if self.forbidden.is_empty() && self.search.is_none() {
            candidates.forget_relaxed();
        }
        // No pause for answers: a DEL waits until connections of a departed pod, and of its host
        // ports, are gone, and no client waits for their answers. Packets of connections that are
        // permitted again were dropped until now, so no answers are on their way.
        let is_urgent = candidates.has_departed()
            || candidates.has_former_host_ports()
            || candidates.parts().is_empty();
        let pause = if is_urgent { Duration::ZERO } else { ANSWERED };
        let due = Instant::now() + pause;
        if let Some(marked) = candidates.take_marked_before() {
            self.second_searches.push_front((due, marked));
        }
        let are_syns = candidates.are_syns() && !is_urgent;
        self.first_searches.push_back(PendingSearch {
            due,
            candidates,
            are_syns,
            sync: Some(sync),
        });
        self.report_syncs();
    }

    /// Schedules the deletion of all connections at the addresses of pods that do not run yet.
    /// Another pod may have prepared them, from an address that nobody had: it was on both ends.
    pub fn clear_for(&mut self, addresses: BTreeSet<IpAddr>) {
        let candidates = StaleCandidates::before_pods(addresses);
        if !candidates.is_empty() {
            self.first_searches.push_back(PendingSearch {
                due: Instant::now(),
                candidates,
                are_syns: false,
                sync: None,
            });
        }
    }

    fn report_syncs(&mut self) {
        while !self.is_searching()
            && let Some(pending) =
                self.first_searches.pop_front_if(|pending| pending.candidates.is_empty())
        {
            self.report_sync(pending.sync);
        }
        // If entries cannot be flushed, syncs are reported without waiting.
        if self.problem.is_some() {
            let waiting =
                self.first_searches.iter_mut().filter_map(|pending| pending.sync.take()).last();
            self.report_sync(waiting);
        }
    }

    fn report_sync(&mut self, sync: Option<LastSync>) {
        self.last_sync = sync.or_else(|| self.last_sync.take());
    }

    /// Waits for the next step. It can be cancelled without losing anything.
    pub async fn due(&mut self) -> Step {
        match &mut self.search {
            Some(search) if search.decisions.is_some() => match search.entries.recv().await {
                Some(entries) => Step::Entries(entries),
                None => Step::AllRead,
            },
            Some(search) => Step::Done((&mut search.reader).await),
            None => match self.next_search() {
                Some(due) => {
                    sleep_until(due).await;
                    Step::Due
                }
                None => std::future::pending().await,
            },
        }
    }

    fn next_search(&self) -> Option<Instant> {
        // `None` for good if the reader's thread panicked: see `end`.
        self.conntrack.as_ref()?;
        // If a first search is pending, it serves as the second one for earlier changes too.
        let first = self.first_searches.front().map(|pending| pending.due);
        let second = self.second_searches.front().map(|(due, _)| *due);
        let are_syns = !self.first_searches.is_empty()
            && self.first_searches.iter().all(|pending| pending.are_syns);
        let not_before = if are_syns { self.next_syn_search_after } else { self.next_search_after };
        first.or(second).map(|due| due.max(not_before))
    }

    /// Executes a step. `awaited`: the addresses of pods whose ADDs wait. If a search has ended,
    /// returns the addresses of departed pods whose connections it searched for.
    pub fn step(
        &mut self,
        step: Step,
        planner: &Planner,
        awaited: &HashSet<IpAddr>,
    ) -> Vec<IpAddr> {
        match (step, &mut self.search) {
            (Step::Due, _) => self.begin(),
            (Step::Entries(entries), Some(search)) => {
                let now = Instant::now();
                // An entry that a later change concerns, too, may again have answers on their way.
                // That change's own search will find it.
                let later = |entry: &TrackedFlow| {
                    self.first_searches.iter().any(|pending| pending.candidates.concern(entry))
                };
                let mut filter = StaleFilter::new(&search.candidates, planner, awaited);
                for entry in entries {
                    let Some(treatment) = filter.treatment(&entry) else { continue };
                    let since = self.waiting.get(&entry).copied().unwrap_or(now);
                    // A new pod with a departed pod's address waits until these entries are gone.
                    let may_wait = treatment.deletes() && !search.candidates.is_departed(&entry);
                    if may_wait && now < since + ANSWERED && later(&entry) {
                        search.waiting.insert(entry, since);
                    } else {
                        search.decided.push(((&entry).into(), treatment));
                    }
                }
            }
            (Step::AllRead, Some(search)) => {
                if let Some(decisions) = search.decisions.take() {
                    // A reader that has failed receives nothing.
                    let _ = decisions.send(std::mem::take(&mut search.decided));
                }
            }
            (Step::Done(done), _) => return self.end(done),
            (Step::Entries(_) | Step::AllRead, None) => {}
        }
        Vec::new()
    }

    fn begin(&mut self) {
        let Some(conntrack) = self.conntrack.take() else {
            return;
        };
        let now = Instant::now();
        let (mut candidates, mut sync) = (StaleCandidates::default(), None);
        while let Some(pending) = self.first_searches.pop_front_if(|pending| pending.due <= now) {
            candidates.absorb(pending.candidates);
            sync = pending.sync.or(sync);
        }
        let first = !candidates.is_empty();
        let second = first.then(|| (now + SECOND_SEARCH, candidates.for_second_search()));
        let second = second.filter(|(_, candidates)| !candidates.is_empty());
        // One search for all second searches that are due soon.
        while let Some((_, due)) =
            self.second_searches.pop_front_if(|(due, _)| *due <= now + ANSWERED)
        {
            candidates.absorb(due);
        }
        self.second_searches.extend(second);
        let (read, entries) = mpsc::channel(PIECES);
        let (decisions, decided) = oneshot::channel();
        let wanted = candidates.clone();
        let forbidden = std::mem::take(&mut self.forbidden);
        self.search = Some(Search {
            candidates,
            first,
            sync,
            begun: now,
            entries,
            decided: Vec::new(),
            waiting: HashMap::new(),
            decisions: Some(decisions),
            reader: spawn_blocking(move || search(&wanted, conntrack, forbidden, read, decided)),
        });
    }

    fn end(&mut self, done: Result<Finished, JoinError>) -> Vec<IpAddr> {
        let Some(search) = self.search.take() else { return Vec::new() };
        let departed = search.candidates.departed().collect();
        let took = search.begun.elapsed();
        self.waiting.retain(|entry, _| !search.candidates.concern(entry));
        self.waiting.extend(search.waiting);
        let now = Instant::now();
        self.next_search_after = now + took.clamp(SHORTEST_REST, LONGEST_REST);
        self.next_syn_search_after = self.next_search_after.max(now + SYNS_REST);
        let (treated, problem) = match done {
            Ok(finished_search) => {
                self.conntrack = Some(finished_search.conntrack);
                self.forbidden = finished_search.forbidden;
                (finished_search.treated, finished_search.error.map(|error| describe(&error)))
            }
            Err(error) => {
                let problem = format!("conntrack: stale flows can no longer be flushed: {error}");
                (Treated::default(), Some(problem))
            }
        };
        let Treated { deleted, forbidden, permitted } = treated;
        self.metrics.searched(took.as_secs_f64(), deleted);
        let deleted: usize = deleted.iter().sum();
        self.flushed += deleted as u64;
        if deleted > 0 {
            info!(entries = deleted, elapsed = ?took, "stale flows flushed");
        } else {
            debug!(elapsed = ?took, "no stale flows");
        }
        if deleted + forbidden + permitted >= MANY {
            trim();
        }
        if forbidden + permitted > 0 {
            info!(forbidden, permitted, elapsed = ?took, "policies changed connections");
        }
        if problem.is_some() {
            self.next_search_after = Instant::now() + RETRY;
            self.first_searches.push_front(PendingSearch {
                due: self.next_search_after,
                candidates: search.candidates,
                are_syns: false,
                sync: None,
            });
        }
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.problem) {
            error!(error = problem, "cannot flush all stale flows");
        }
        self.problem = problem;
        let finished = self.finished(search.sync);
        self.report_sync(finished);
        self.report_syncs();
        departed
    }

    /// Called when a search has ended. Returns the sync that can be reported: no entry that it made
    /// stale is waiting any more.
    fn finished(&mut self, sync: Option<LastSync>) -> Option<LastSync> {
        let Some(oldest) = self.waiting.values().min() else {
            let unreported = self.unreported_sync.take();
            return sync.or(unreported.map(|(_, sync)| sync));
        };
        let reported = self.unreported_sync.take_if(|(by, _)| *by < *oldest);
        self.unreported_sync =
            self.unreported_sync.take().or(sync.map(|sync| (Instant::now(), sync)));
        reported.map(|(_, sync)| sync)
    }
}
