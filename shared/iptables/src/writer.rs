//! Brings one family's tables to what a client wants, and keeps them there. Pure, except for the
//! thread that it gives jobs to.

#[cfg(test)]
mod tests;

use denizen_packet::Family;
use std::collections::{BTreeSet, VecDeque};
use std::error::Error;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tracing::{error, info, warn};

use super::delta::{Delta, DesiredChain};
use super::error::IptablesError;
use super::programs::Programs;
use super::rejected_rules::{News, RejectedRules};
use super::save::Observed;
use super::worker::{self, FinishedJob, Job, JobOutcome};
use super::{ChainId, Desired, Schema, Table};

/// If foreign changes are seen this often within [`WINDOW`], or at each of this many last reads,
/// another program keeps writing the chains.
const CONTENDED: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);

/// The writer of one family's tables.
#[derive(Debug)]
pub struct Writer {
    jobs: Sender<Job>,
    /// A job is being done.
    busy: bool,
    /// It is not known yet what this host lacks, or that may have changed.
    probe_due: bool,
    /// What the kernel holds is not known: nothing was read yet, a job failed, or a resync is
    /// due.
    pub unknown: bool,
    /// Everything was in the kernel once.
    was_programmed: bool,
    /// Differences at the next read do not count as foreign drift.
    expected: bool,
    /// What the first read saw.
    first_seen: Option<Box<Observed>>,
    /// The rules that cannot be written for now.
    pub rejected: RejectedRules,
    /// Why the table that a kernel may lack is not as it should be. It is tried again after
    /// every read.
    optional_failure: Option<IptablesError>,
    /// The time at which a retry of rejected rules was due, if the retry is to be done now.
    due: Option<Instant>,
    /// Chains of rejected rules that are being tried again.
    retrying: BTreeSet<ChainId>,
    /// The times at which foreign changes were seen.
    rewritten: Vec<Instant>,
    /// The times of the last reads. Slow reads come only once a minute, too rarely for [`WINDOW`].
    read_times: VecDeque<Instant>,
    /// The write that is being done.
    writing: Option<WriteExtent>,
    failures: RestoreFailures,
}

/// Counts of failed writes, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RestoreFailures {
    /// Writes of everything that differed when the rules were read.
    pub full: u64,
    /// Writes of what changed.
    pub partial: u64,
}

/// What a write consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteExtent {
    /// All that differed when the rules were read.
    Full,
    /// What changed, or was rejected before.
    Partial,
}

/// How much was repaired of foreign changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repaired {
    /// Chains that were written again.
    pub chains: usize,
    /// Jumps from built-in chains that were added again.
    pub jumps: usize,
}

impl Writer {
    /// Starts the family's thread, which sends what it has done to `done`. Nothing is read or
    /// written yet.
    pub fn start(
        programs: Programs,
        schema: &'static Schema,
        family: Family,
        done: UnboundedSender<FinishedJob>,
    ) -> Self {
        Self::new(schema, worker::start(programs, schema, family, done))
    }

    fn new(schema: &'static Schema, jobs: Sender<Job>) -> Self {
        Self {
            jobs,
            busy: false,
            probe_due: true,
            unknown: true,
            was_programmed: false,
            expected: true,
            first_seen: None,
            rejected: RejectedRules::new(schema),
            optional_failure: None,
            due: None,
            retrying: BTreeSet::new(),
            rewritten: Vec::new(),
            read_times: VecDeque::new(),
            writing: None,
            failures: RestoreFailures::default(),
        }
    }

    /// Whether everything is in the kernel: no job runs, and none is due.
    pub fn is_programmed(&self, desired: &impl Desired) -> bool {
        self.was_programmed && !self.busy && !self.unknown && !desired.is_changed()
    }

    /// Whether another program keeps writing these chains.
    pub fn is_contended(&self) -> bool {
        self.rewritten.len() >= CONTENDED
    }

    /// Why the table that a kernel may lack is not as it should be.
    pub fn optional_failure(&self) -> Option<&IptablesError> {
        self.optional_failure.as_ref()
    }

    /// Counts of failed writes since the start.
    pub fn restore_failures(&self) -> RestoreFailures {
        self.failures
    }

    /// What the first read saw; returned once.
    pub fn take_first_seen(&mut self) -> Option<Box<Observed>> {
        self.first_seen.take()
    }

    /// Gives the thread the next job, if there is one and the last is done. Contended chains are
    /// left alone for good.
    pub fn start_next_job(&mut self, desired: &mut impl Desired) {
        if self.busy || self.is_contended() {
            return;
        }
        let compare = desired.has_changed_jumps()
            || (self.optional_failure.is_some() && desired.is_changed_in(Table::Security));
        if self.probe_due {
            self.send_job(Job::Probe);
        } else if self.unknown || compare {
            self.send_job(Job::Read(self.tables(desired)));
        } else if desired.is_changed() {
            let job = self.change(desired);
            self.send_job(job);
        } else if let Some(at) = self.due.take() {
            self.probe_due = self.rejected.is_any_missing();
            self.retrying = self.rejected.due(at);
            let job = if self.retrying.is_empty() { Job::Probe } else { self.retry(desired) };
            self.send_job(job);
        }
    }

    fn change(&mut self, desired: &mut impl Desired) -> Job {
        let mut filter = |(chain, lines)| {
            let filtered = self.rejected.filter(&chain, lines);
            (chain, filtered)
        };
        let changes: Vec<_> = desired.take_changes().into_iter().map(&mut filter).collect();
        if changes.iter().any(|(_, desired)| *desired == DesiredChain::AsItIs) {
            // Only reading shows whether such a chain is there.
            self.expected = true;
            return Job::Read(self.tables(desired));
        }
        Job::Write(Delta::of(changes).into())
    }

    /// Writes the rejected rules again. Chains that are kept or written as a whole exist, as
    /// [`Delta::of`] requires, or are no longer desired.
    fn retry(&mut self, desired: &impl Desired) -> Job {
        let mut again = self.retrying.clone();
        let mut changes = Vec::new();
        desired.for_each(|chain, lines| {
            if again.remove(&chain) {
                let desired = self.rejected.supported(&chain, lines);
                changes.push((chain, desired));
            }
        });
        changes.extend(again.into_iter().map(|chain| (chain, DesiredChain::Absent)));
        Job::Write(Delta::of(changes).into())
    }

    /// The tables in which there may be chains of the client.
    fn tables(&self, desired: &impl Desired) -> &'static [Table] {
        let may_be_there = !self.was_programmed
            || self.optional_failure.is_some()
            || desired.uses(Table::Security);
        if may_be_there { &Table::ALL } else { &Table::REQUIRED }
    }

    /// When rejected rules are to be tried again; `None` if no rule is rejected, or a retry cannot
    /// be started now.
    pub fn next_try(&self) -> Option<Instant> {
        let is_free = !self.busy && !self.is_contended() && self.due.is_none();
        self.rejected.next().filter(|_| is_free)
    }

    /// Makes a retry that is due at `at`, or was due before, one of the next jobs.
    pub fn try_again(&mut self, at: Instant) {
        self.due = self.next_try().filter(|next| *next <= at).or(self.due);
    }

    fn send_job(&mut self, job: Job) {
        self.writing = match job {
            Job::Write(_) => Some(WriteExtent::Partial),
            Job::Probe | Job::Read(_) => None,
        };
        // The thread ends when this value is dropped.
        self.busy = self.jobs.send(job).is_ok();
    }

    fn send_difference(&mut self, delta: Delta) {
        self.send_job(Job::Write(delta.into()));
        self.writing = Some(WriteExtent::Full);
    }

    fn note_failure(&mut self) {
        match self.writing {
            Some(WriteExtent::Full) => self.failures.full += 1,
            Some(WriteExtent::Partial) => self.failures.partial += 1,
            None => {}
        }
    }

    /// Takes in the result of a job. Returns what was repaired of foreign changes.
    ///
    /// # Errors
    /// The job's.
    pub fn take(
        &mut self,
        done: FinishedJob,
        desired: &mut impl Desired,
    ) -> Result<Repaired, IptablesError> {
        self.busy = false;
        let again = std::mem::take(&mut self.retrying);
        let family = desired.family();
        let mut repaired = Repaired::default();
        match done.result {
            Err(error) => {
                // Differences after a failed job do not count as foreign drift.
                (self.unknown, self.was_programmed, self.expected) = (true, false, true);
                self.note_failure();
                return Err(error);
            }
            Ok(JobOutcome::Probed(missing)) => {
                self.probe_due = false;
                if self.rejected.probed(missing) && self.was_programmed {
                    (self.unknown, self.expected) = (true, true);
                }
            }
            Ok(JobOutcome::Written { rejected, optional }) => {
                self.rejected.learn(&again, rejected, done.at);
                if let Some(result) = optional {
                    self.note_optional(result.err(), family);
                }
                self.was_programmed = true;
            }
            Ok(JobOutcome::FamilyMissing) => {
                if !self.was_programmed {
                    info!(%family, "this kernel lacks the family: no rules are needed");
                }
                (self.probe_due, self.unknown, self.was_programmed) = (false, false, true);
                desired.forget_changes();
            }
            Ok(JobOutcome::Seen(seen)) => {
                let is_first = !self.was_programmed;
                self.unknown = false;
                repaired = self.compare(&seen, desired, done.at);
                if is_first {
                    self.first_seen = Some(seen);
                }
                self.read_times.push_back(done.at);
                self.read_times.drain(..self.read_times.len().saturating_sub(CONTENDED));
            }
        }
        self.report_news(family, done.at);
        Ok(repaired)
    }

    fn report_news(&mut self, family: Family, at: Instant) {
        let News { rejected, accepted } = self.rejected.take_news(at);
        for error in rejected {
            error!(%family, error, "rules are rejected, everything else is written");
        }
        for before in accepted {
            info!(%family, before, "what was rejected is accepted now");
        }
    }

    fn note_optional(&mut self, failure: Option<IptablesError>, family: Family) {
        let before = self.optional_failure.take().map(|error| error.to_string());
        self.optional_failure = failure;
        let now = self.optional_failure.as_ref();
        if let Some(error) = now.filter(|now| before != Some(now.to_string())) {
            let error: &(dyn Error + 'static) = error;
            error!(%family, table = %Table::Security, error, "the other tables are as they should be");
        }
    }

    fn note_foreign(&mut self, at: Instant) {
        let since = self.read_times.front().copied().unwrap_or(at);
        self.rewritten.retain(|before| at - *before < WINDOW || *before >= since);
        self.rewritten.push(at);
    }

    /// The difference between what was seen and what is desired, without rejected rules.
    fn difference(&mut self, seen: &Observed, desired: &impl Desired) -> Delta {
        let rejected = &mut self.rejected;
        let mut others = rejected.chains();
        let filtered = |each: &mut dyn FnMut(ChainId, DesiredChain)| {
            desired.for_each(|chain, lines| {
                others.remove(&chain);
                let filtered = rejected.filter(&chain, Some(lines));
                each(chain, filtered);
            });
            for chain in others {
                if seen.has(&chain) {
                    let filtered = rejected.filter(&chain, None);
                    each(chain, filtered);
                } else {
                    rejected.forget(&chain);
                }
            }
        };
        Delta::between(seen, filtered, desired.jumps())
    }

    fn compare(&mut self, seen: &Observed, desired: &mut impl Desired, at: Instant) -> Repaired {
        // What is missing at first, or was changed here meanwhile, does not count as foreign drift.
        let expected =
            std::mem::take(&mut self.expected) || desired.is_changed() || !self.was_programmed;
        let delta = self.difference(seen, desired);
        let family = desired.family();
        let repaired = Repaired { chains: delta.chains(), jumps: delta.jumps() };
        desired.forget_changes();
        if !delta.touches(&[Table::Security]) {
            self.optional_failure = None;
        }
        if delta.is_empty() {
            self.rejected.learn(&BTreeSet::new(), Vec::new(), at);
            self.was_programmed = true;
            return Repaired::default();
        }
        // What could not be written to the optional table does not count as foreign drift either.
        let is_required = delta.touches(&Table::REQUIRED);
        if self.optional_failure.is_some() && !is_required {
            self.send_difference(delta);
            return Repaired::default();
        }
        if !self.was_programmed {
            info!(%family, chains = repaired.chains, "rules are brought up to date");
        }
        if !expected && is_required {
            self.note_foreign(at);
        }
        if self.is_contended() {
            return Repaired::default();
        }
        self.send_difference(delta);
        if expected {
            return Repaired::default();
        }
        warn!(
            %family,
            chains = repaired.chains,
            jumps = repaired.jumps,
            "somebody changed the rules; repaired"
        );
        repaired
    }
}
