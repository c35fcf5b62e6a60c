//! One family's rules on their way into the kernel. Pure, but for the thread that it gives jobs to.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tracing::{error, info, warn};

use super::edit::Edit;
use super::egress;
use super::name::{Kind, Table};
use super::refusals::{News, Refusals, shortened};
use super::ruleset::Ruleset;
use super::save::Observed;
use super::tools::IptablesError;
use super::worker::{Done, Job, Outcome};
use crate::backend::Repair;
use crate::model::Family;
use crate::plan::FrontendKey;

/// Rewritten so often in [`WINDOW`], or at one more look than that, the chains are somebody else's
/// too, who does not stop.
const CONTENDED: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);

/// One family's way into the kernel.
#[derive(Debug)]
pub struct FamilyWriter {
    jobs: Sender<Job>,
    /// A job is being done.
    busy: bool,
    /// What the kernel holds is not known: nothing was read yet, or a job failed, or somebody
    /// should look.
    pub unknown: bool,
    /// All was in the kernel once.
    pub settled: bool,
    /// Frontends of an earlier run, or of kube-proxy, that are none any more.
    pub left_frontends: Vec<FrontendKey>,
    /// What cannot be written.
    pub refused: Refusals,
    /// Why egress masquerade is not as it should be. It is tried again at every look.
    pub egress: Option<String>,
    /// It is time to try again what is refused: this.
    due: Option<Instant>,
    /// Chains of what is refused that are being tried again.
    again: BTreeSet<(Table, String)>,
    /// When somebody else's changes were seen.
    rewritten: Vec<Instant>,
    /// The last looks: where they are seldom, a minute sees one.
    looks: VecDeque<Instant>,
}

impl FamilyWriter {
    /// Nothing is known yet.
    pub fn new(jobs: Sender<Job>) -> Self {
        Self {
            jobs,
            busy: false,
            unknown: true,
            settled: false,
            left_frontends: Vec::new(),
            refused: Refusals::default(),
            egress: None,
            due: None,
            again: BTreeSet::new(),
            rewritten: Vec::new(),
            looks: VecDeque::new(),
        }
    }

    /// Nothing is being done, and nothing is to be done.
    pub fn is_settled(&self, rules: &Ruleset) -> bool {
        self.settled && !self.busy && !self.unknown && !rules.is_changed()
    }

    /// Somebody else goes on writing these chains.
    pub fn is_contended(&self) -> bool {
        self.rewritten.len() >= CONTENDED
    }

    /// Most services are served: of the chains that choose endpoints, and of those that lead to
    /// them, no more than half are refused.
    pub fn serves(&self, rules: &Ruleset) -> bool {
        let needed: [&[Kind]; 2] = [&[Kind::Service, Kind::Local], &[Kind::Endpoint]];
        needed.into_iter().all(|kinds| {
            let refused: usize = kinds.iter().map(|kind| self.refused.chains_of(*kind)).sum();
            let chains = || kinds.iter().map(|kind| rules.chains_of(*kind)).sum::<usize>();
            refused == 0 || refused * 2 <= chains()
        })
    }

    /// Gives the next job, if there is one and the last is done. What is contended is left alone
    /// for good.
    pub fn go_on(&mut self, rules: &mut Ruleset) {
        if self.busy || self.is_contended() {
            return;
        }
        let all = rules.has_other_jumps() || (self.egress.is_some() && rules.has_other_egress());
        if self.unknown || all {
            self.give(Job::Look(self.tables(rules)));
        } else if rules.is_changed() {
            let edit = Edit::of(rules.take_changes(), &mut self.refused);
            self.give(Job::Write(edit.into()));
        } else if let Some(at) = self.due.take() {
            self.again = self.refused.due(at);
            let edit = Edit::anew(self.again.clone(), rules);
            self.give(Job::WriteAgain(edit.into()));
        }
    }

    /// The tables in which there may be anything of ours.
    fn tables(&self, rules: &Ruleset) -> &'static [Table] {
        let is_egress_there = !self.settled || self.egress.is_some() || rules.has_egress();
        if is_egress_there { &Table::ALL } else { &Table::OF_SERVICES }
    }

    /// When what is refused is to be tried again; `None` as long as nothing is to be done for that.
    pub fn next_try(&self) -> Option<Instant> {
        let is_free = !self.busy && !self.is_contended() && self.due.is_none();
        self.refused.next().filter(|_| is_free)
    }

    /// It is so late.
    pub fn try_again(&mut self, at: Instant) {
        self.due = self.next_try().filter(|next| *next <= at).or(self.due);
    }

    fn give(&mut self, job: Job) {
        // The thread ends when this value does.
        self.busy = self.jobs.send(job).is_ok();
    }

    /// Takes in what came of a job; what was repaired of somebody else's changes.
    ///
    /// # Errors
    /// The job's.
    pub fn take(&mut self, done: Done, rules: &mut Ruleset) -> Result<Repair, IptablesError> {
        self.busy = false;
        let again = std::mem::take(&mut self.again);
        match done.result {
            Err(error) => {
                self.unknown = true;
                // What is missing then is nobody's doing.
                self.settled = false;
                Err(error)
            }
            Ok(Outcome::Written(refusals, egress)) => {
                let News { refused, taken } = self.refused.learn(&again, refusals, done.at);
                for error in shortened(refused) {
                    error!(family = %rules.family(), error, "all else is written");
                }
                for before in shortened(taken) {
                    info!(family = %rules.family(), before, "what was refused is taken now");
                }
                self.note_egress(egress, rules.family());
                self.settled = true;
                Ok(Repair::default())
            }
            Ok(Outcome::Unspoken) => {
                if !self.settled {
                    info!(family = %rules.family(), "this kernel is without it: no rules are needed");
                }
                (self.unknown, self.settled) = (false, true);
                rules.forget_changes();
                Ok(Repair::default())
            }
            Ok(Outcome::Seen(seen)) => {
                self.unknown = false;
                let repair = self.compare(&seen, rules, done.at);
                self.looks.push_back(done.at);
                self.looks.drain(..self.looks.len().saturating_sub(CONTENDED));
                Ok(repair)
            }
        }
    }

    fn note_egress(&mut self, written: Option<Result<(), IptablesError>>, family: Family) {
        let before = match &written {
            Some(_) => self.egress.take(),
            None => return,
        };
        self.egress = written.and_then(Result::err).map(|error| egress::words(family, &error));
        if let Some(error) = self.egress.as_ref().filter(|now| before.as_ref() != Some(now)) {
            error!(%family, error, "services are as they should be");
        }
    }

    fn note_first(&mut self, seen: &Observed, rules: &Ruleset, due: Repair) {
        let family = rules.family();
        let left = seen.keys(family).filter(|key| !rules.has_frontend(key));
        self.left_frontends.extend(left);
        let adopted = !seen.is_empty() && !seen.is_ours;
        info!(%family, chains = due.chains, adopted, "rules are brought up to date");
    }

    fn note_foreign(&mut self, at: Instant) {
        let since = self.looks.front().copied().unwrap_or(at);
        self.rewritten.retain(|before| at - *before < WINDOW || *before >= since);
        self.rewritten.push(at);
    }

    fn compare(&mut self, seen: &Observed, rules: &mut Ruleset, at: Instant) -> Repair {
        let due = rules.is_changed();
        let edit = Edit::between(seen, rules, &mut self.refused);
        let family = rules.family();
        let repair = Repair { rebuilt: false, chains: edit.chains(), elements: edit.jumps() };
        rules.forget_changes();
        if !edit.is_of(&[Table::Security]) {
            self.egress = None;
        }
        if edit.is_empty() {
            self.settled = true;
            return Repair::default();
        }
        // What could not be written is nobody's doing.
        let of_services = edit.is_of(&Table::OF_SERVICES);
        if self.egress.is_some() && !of_services {
            self.give(Job::Write(edit.into()));
            return Repair::default();
        }
        // Nor is what is missing at first, or changed here meanwhile.
        let expected = due || !self.settled;
        if !self.settled {
            self.note_first(seen, rules, repair);
        }
        if !expected && of_services {
            self.note_foreign(at);
        }
        if self.is_contended() {
            return Repair::default();
        }
        self.give(Job::Write(edit.into()));
        if expected {
            return Repair::default();
        }
        warn!(%family, chains = repair.chains, jumps = repair.elements, "somebody changed the rules; repaired");
        repair
    }
}
