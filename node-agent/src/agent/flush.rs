//! Looks for stale entries of the connection tracking after a change, and has them deleted.
//!
//! Reading a hundred thousand entries takes longer than the loop may stand still, so another thread
//! reads and deletes. What is stale is judged in the loop, piece by piece, by what is known at that
//! moment.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info};

use crate::backend::Backend;
use crate::conntrack::{Conntrack, ConntrackError, Entry, StaleCandidates};
use crate::describe::describe;
use crate::engine::Engine;
use crate::status::LastSync;
use crate::status::metrics::LikeKubeProxy;

/// How long what was asked before a change has to be answered: an answer whose entry is gone finds
/// no way back to the client, and whoever answered may well be draining, not dead.
const ANSWERED: Duration = Duration::from_millis(200);
/// How long after the first look the second comes: a packet may have been on its way through the
/// old rules while the new ones were committed, and its entry is there when it leaves.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// After a look that failed.
const RETRY: Duration = Duration::from_secs(5);
/// A stream of changes must not keep a processor reading: after a look, the reader rests for as
/// long as the look took, and at least so long. So a change is looked after within 250 ms, however
/// many follow it.
const SHORTEST_REST: Duration = Duration::from_millis(50);
/// And no longer than this.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Entries that are judged at once: a fraction of a millisecond's work.
const PIECE: usize = 1024;
/// Pieces that may wait for the loop before the reader waits.
const PIECES: usize = 4;

/// The pace of the looks.
pub struct Flush {
    /// Here while nobody looks.
    conntrack: Option<Conntrack>,
    /// To be looked for, the oldest change first.
    fresh: VecDeque<Fresh>,
    /// To be looked for once more, and when.
    again: VecDeque<(Instant, StaleCandidates)>,
    look: Option<Look>,
    /// Stale entries that were left to the next look, since answers may be on their way, and when
    /// they were first found stale.
    waiting: HashMap<Entry, Instant>,
    /// What was programmed, and told when nothing waits that was found stale by then.
    owed: Option<(Instant, LastSync)>,
    rested: Instant,
    problem: Option<String>,
    metrics: LikeKubeProxy,
}

/// Something that was programmed.
struct Fresh {
    /// When it is time to look, if there was rest enough.
    due: Instant,
    /// What it may have made stale.
    candidates: StaleCandidates,
    /// Not told yet.
    sync: Option<LastSync>,
}

/// A look that is under way.
struct Look {
    candidates: StaleCandidates,
    /// Whether it is the first after a change.
    first: bool,
    /// What was programmed before it.
    sync: Option<LastSync>,
    begun: Instant,
    entries: mpsc::Receiver<Vec<Entry>>,
    stale: Vec<Entry>,
    /// As [`Flush::waiting`].
    waiting: HashMap<Entry, Instant>,
    /// Where the stale ones go when all were read.
    judged: Option<oneshot::Sender<Vec<Entry>>>,
    reader: JoinHandle<Looked>,
}

/// What a look came to.
pub struct Looked {
    conntrack: Conntrack,
    deleted: usize,
    /// The first thing that went wrong; all else was done.
    error: Option<ConntrackError>,
}

/// What came next.
pub enum Step {
    /// It is time to look.
    Due,
    /// Entries that were read.
    Entries(Vec<Entry>),
    /// All were read.
    AllRead,
    /// The stale ones are deleted.
    Done(Result<Looked, JoinError>),
}

impl Flush {
    /// Nothing is suspected yet.
    ///
    /// # Errors
    /// When there is no netlink to be had.
    pub fn open(metrics: LikeKubeProxy) -> anyhow::Result<Self> {
        let conntrack = Conntrack::open().context("cannot open netlink to conntrack")?;
        Ok(Self {
            conntrack: Some(conntrack),
            fresh: VecDeque::new(),
            again: VecDeque::new(),
            look: None,
            waiting: HashMap::new(),
            owed: None,
            rested: Instant::now(),
            problem: None,
            metrics,
        })
    }

    /// What is wrong, in words.
    pub fn problem(&self) -> Option<String> {
        self.problem.clone()
    }

    /// Something was programmed. It is told as the last sync when what it made stale is gone.
    pub fn after<B: Backend>(&mut self, sync: LastSync, engine: &mut Engine<B>) {
        self.fresh.push_back(Fresh {
            due: Instant::now() + ANSWERED,
            candidates: engine.take_stale_candidates(),
            sync: Some(sync),
        });
        self.tell(engine);
    }

    fn tell<B: Backend>(&mut self, engine: &mut Engine<B>) {
        let looking = self.look.as_ref().is_some_and(|look| look.first);
        let mut told = None;
        while !looking
            && let Some(fresh) = self.fresh.pop_front_if(|fresh| fresh.candidates.is_empty())
        {
            told = fresh.sync.or(told);
        }
        // Where entries cannot be flushed, nobody waits for it.
        if self.problem.is_some() {
            let waiting = self.fresh.iter_mut().filter_map(|fresh| fresh.sync.take());
            told = waiting.last().or(told);
        }
        engine.note_flushing(looking || !self.fresh.is_empty());
        if let Some(sync) = told {
            engine.note_sync(sync);
        }
    }

    /// Waits for what is to be done next. Nothing is lost when it is not waited for to the end.
    pub async fn next(&mut self) -> Step {
        match &mut self.look {
            Some(look) if look.judged.is_some() => match look.entries.recv().await {
                Some(entries) => Step::Entries(entries),
                None => Step::AllRead,
            },
            Some(look) => Step::Done((&mut look.reader).await),
            None => match self.due() {
                Some(due) => {
                    sleep_until(due).await;
                    Step::Due
                }
                None => std::future::pending().await,
            },
        }
    }

    fn due(&self) -> Option<Instant> {
        // Lost with its thread: see `end`.
        self.conntrack.as_ref()?;
        // Where a first look is to come, it is a second one for others as well.
        let fresh = self.fresh.front().map(|fresh| fresh.due);
        let again = self.again.front().map(|(due, _)| *due);
        fresh.or(again).map(|due| due.max(self.rested))
    }

    /// Does it.
    pub fn take<B: Backend>(&mut self, step: Step, engine: &mut Engine<B>) {
        match (step, &mut self.look) {
            (Step::Due, _) => self.begin(),
            (Step::Entries(entries), Some(look)) => {
                let now = Instant::now();
                // What changed again since may have answers on their way again, and has a look of
                // its own to come.
                let later =
                    |entry: &Entry| self.fresh.iter().any(|fresh| fresh.candidates.concern(entry));
                for entry in engine.stale(&look.candidates, entries) {
                    let since = self.waiting.get(&entry).copied().unwrap_or(now);
                    if now < since + ANSWERED && later(&entry) {
                        look.waiting.insert(entry, since);
                    } else {
                        look.stale.push(entry);
                    }
                }
            }
            (Step::AllRead, Some(look)) => {
                if let Some(judged) = look.judged.take() {
                    // A reader that has failed takes none.
                    let _ = judged.send(std::mem::take(&mut look.stale));
                }
            }
            (Step::Done(done), _) => self.end(done, engine),
            (Step::Entries(_) | Step::AllRead, None) => {}
        }
    }

    fn begin(&mut self) {
        let Some(conntrack) = self.conntrack.take() else {
            return;
        };
        let now = Instant::now();
        let (mut candidates, mut sync) = (StaleCandidates::default(), None);
        while let Some(fresh) = self.fresh.pop_front_if(|fresh| fresh.due <= now) {
            candidates.absorb(fresh.candidates);
            sync = fresh.sync.or(sync);
        }
        let first = !candidates.is_empty();
        let again = first.then(|| (now + SECOND_LOOK, candidates.clone()));
        // One look for all that are due soon.
        while let Some((_, due)) = self.again.pop_front_if(|(due, _)| *due <= now + ANSWERED) {
            candidates.absorb(due);
        }
        self.again.extend(again);
        let (read, entries) = mpsc::channel(PIECES);
        let (judged, stale) = oneshot::channel();
        let wanted = candidates.clone();
        self.look = Some(Look {
            candidates,
            first,
            sync,
            begun: now,
            entries,
            stale: Vec::new(),
            waiting: HashMap::new(),
            judged: Some(judged),
            reader: spawn_blocking(move || look_for(&wanted, conntrack, read, stale)),
        });
    }

    fn end<B: Backend>(&mut self, done: Result<Looked, JoinError>, engine: &mut Engine<B>) {
        let Some(look) = self.look.take() else { return };
        let took = look.begun.elapsed();
        self.waiting.retain(|entry, _| !look.candidates.concern(entry));
        self.waiting.extend(look.waiting);
        self.rested = Instant::now() + took.clamp(SHORTEST_REST, LONGEST_REST);
        let (deleted, problem) = match done {
            Ok(looked) => {
                self.conntrack = Some(looked.conntrack);
                (looked.deleted, looked.error.map(|error| describe(&error)))
            }
            Err(error) => (0, Some(format!("conntrack: nothing is flushed any more: {error}"))),
        };
        engine.note_flushed(deleted);
        self.metrics.conntrack_duration.observe(took.as_secs_f64());
        self.metrics.conntrack_deleted.inc_by(deleted as u64);
        if deleted > 0 {
            info!(entries = deleted, elapsed = ?took, "stale flows flushed");
        } else {
            debug!(elapsed = ?took, "no stale flows");
        }
        if problem.is_some() {
            self.rested = Instant::now() + RETRY;
            self.fresh.push_front(Fresh {
                due: self.rested,
                candidates: look.candidates,
                sync: None,
            });
        }
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.problem) {
            error!(error = problem, "stale flows may be left");
        }
        self.problem = problem;
        if let Some(sync) = self.finished(look.sync) {
            engine.note_sync(sync);
        }
        self.tell(engine);
    }

    /// A look is over: what can be told now, since nothing waits that it was to flush.
    fn finished(&mut self, sync: Option<LastSync>) -> Option<LastSync> {
        let Some(oldest) = self.waiting.values().min() else {
            let owed = self.owed.take();
            return sync.or(owed.map(|(_, sync)| sync));
        };
        let told = self.owed.take_if(|(by, _)| *by < *oldest);
        self.owed = self.owed.take().or(sync.map(|sync| (Instant::now(), sync)));
        told.map(|(_, sync)| sync)
    }
}

/// Reads what the candidates are about, has it judged, and deletes what is stale.
fn look_for(
    candidates: &StaleCandidates,
    mut conntrack: Conntrack,
    read: mpsc::Sender<Vec<Entry>>,
    stale: oneshot::Receiver<Vec<Entry>>,
) -> Looked {
    let mut piece = Vec::with_capacity(PIECE);
    let mut error = None;
    for (family, protocol) in candidates.parts() {
        let result = conntrack.read(family, protocol, |entry| {
            if candidates.concern(&entry) {
                piece.push(entry);
            }
            if piece.len() == PIECE {
                // The loop ends only with the process.
                let _ =
                    read.blocking_send(std::mem::replace(&mut piece, Vec::with_capacity(PIECE)));
            }
        });
        error = error.or(result.err());
    }
    let _ = read.blocking_send(piece);
    drop(read);
    let stale = stale.blocking_recv().unwrap_or_default();
    let mut deleted = 0;
    let result = conntrack.delete(&stale, &mut deleted);
    Looked { conntrack, deleted, error: error.or(result.err()) }
}
