//! A thread for each family that executes the programs: thousands of rules take the programs
//! seconds, and an ADD that waits for its pod must not wait for rules.

use denizen_packet::Family;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::delta::{AT_ONCE, Delta};
use super::error::IptablesError;
use super::probe::MissingExtensions;
use super::programs::{Programs, Variant, has_family};
use super::rejected_rule::RejectedRule;
use super::save::Observed;
use super::search::{self, Kernel};
use super::{Schema, Table};

/// What is to be done.
#[derive(Debug)]
pub enum Job {
    /// Find out what this host lacks.
    Probe,
    /// Read what the kernel holds in these tables.
    Read(&'static [Table]),
    /// Write this difference.
    Write(Box<Delta>),
}

/// The result of the job.
#[derive(Debug)]
pub enum JobOutcome {
    /// This host lacks these extensions.
    Probed(MissingExtensions),
    /// The result of [`Job::Read`].
    Seen(Box<Observed>),
    /// The result of [`Job::Write`].
    Written {
        /// The rules that were rejected. Everything else is in the kernel.
        rejected: Vec<RejectedRule>,
        /// The result for the table that a kernel may lack, if it was to be changed.
        optional: Option<Result<(), IptablesError>>,
    },
    /// The kernel is without this family.
    FamilyMissing,
}

/// A job that is done.
#[derive(Debug)]
pub struct FinishedJob {
    /// The family of the rules.
    pub family: Family,
    /// The result of the job.
    pub result: Result<JobOutcome, IptablesError>,
    /// The time at which it ended.
    pub at: Instant,
    /// Its duration.
    pub took: Duration,
}

/// Starts a thread that does one job after the other until the sender of jobs is dropped.
pub fn start(
    programs: Programs,
    schema: &'static Schema,
    family: Family,
    done: UnboundedSender<FinishedJob>,
) -> Sender<Job> {
    let (jobs, todo) = channel();
    thread::spawn(move || {
        let mut node = FamilyTables { programs, schema, family, until: None };
        for job in todo {
            let begun = now();
            let result = node.execute(job);
            let at = now();
            let took = at - begun;
            if done.send(FinishedJob { family, result, at, took }).is_err() {
                return;
            }
        }
    });
    jobs
}

/// For this long after the first rejection, rejected parts are searched for the rule at fault.
const PATIENCE: Duration = Duration::from_secs(10);

/// One family's tables of this node.
struct FamilyTables {
    programs: Programs,
    schema: &'static Schema,
    family: Family,
    /// Until when rejected parts are searched for the rule at fault; set by the first rejection.
    until: Option<Instant>,
}

impl FamilyTables {
    fn execute(&mut self, job: Job) -> Result<JobOutcome, IptablesError> {
        let Self { programs, schema, family, .. } = *self;
        if !has_family(family) {
            return Ok(JobOutcome::FamilyMissing);
        }
        match job {
            Job::Probe => {
                Ok(JobOutcome::Probed(programs.missing(family, &(schema.extensions)(family))?))
            }
            Job::Read(tables) => {
                let seen = programs.save(family, tables, schema)?;
                Ok(JobOutcome::Seen(Box::new(seen)))
            }
            Job::Write(delta) => self.write(*delta),
        }
    }

    fn write(&mut self, mut delta: Delta) -> Result<JobOutcome, IptablesError> {
        let optional = delta.take_optional();
        self.until = None;
        let mut rejected = Vec::new();
        for (table, delta) in delta.transactions(self.schema, self.at_once()) {
            rejected.extend(search::write(self, self.schema, table, delta)?);
        }
        let input = (!optional.is_empty()).then(|| optional.input(Table::Security));
        let optional = input.map(|input| self.programs.restore(self.family, &input));
        Ok(JobOutcome::Written { rejected, optional })
    }
}

impl Kernel for FamilyTables {
    fn write(&mut self, input: &str) -> Result<(), IptablesError> {
        self.programs.restore(self.family, input)
    }

    fn saved(&mut self, table: Table) -> Result<String, IptablesError> {
        self.programs.saved(self.family, table)
    }

    fn at_once(&self) -> usize {
        match self.programs.variant {
            // Each write replaces the whole table, however little changes.
            Variant::Legacy => usize::MAX,
            Variant::Nft => AT_ONCE,
        }
    }

    fn has_time(&mut self) -> bool {
        let now = now();
        now < *self.until.get_or_insert(now + PATIENCE)
    }
}

#[expect(clippy::disallowed_methods, reason = "the cost of a read decides how often there is one")]
fn now() -> Instant {
    Instant::now()
}
