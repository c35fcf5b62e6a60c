//! A thread for each family that executes the programs: thousands of rules take them seconds, and
//! whoever waits for a pod must not wait for rules.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tracing::debug;

use super::edit::{AT_ONCE, Edit};
use super::isolate::{forget_written, is_the_rules, isolate};
use super::name::Table;
use super::refusal::Refusal;
use super::ruleset::Lines;
use super::save::Observed;
use super::search::{Kernel, write_in_parts};
use super::tools::{IptablesError, Tools, Variant, is_spoken};
use crate::model::Family;

/// What is to be done.
#[derive(Debug)]
pub enum Job {
    /// Read what the kernel holds in these tables.
    Look(&'static [Table]),
    /// Change it.
    Write(Box<Edit>),
    /// Change chains that are there, and were refused before.
    WriteAgain(Box<Edit>),
}

/// What came of it.
#[derive(Debug)]
pub enum Outcome {
    /// The kernel holds this.
    Seen(Box<Observed>),
    /// It is changed, but for what was refused; and what became of egress masquerade, where that
    /// was to change.
    Written(Vec<Refusal>, Option<Result<(), IptablesError>>),
    /// The kernel is without this family.
    Unspoken,
}

/// A job that is done.
#[derive(Debug)]
pub struct Done {
    /// Whose rules.
    pub family: Family,
    /// What came of it.
    pub result: Result<Outcome, IptablesError>,
    /// When it was done.
    pub at: Instant,
    /// How long it took.
    pub took: Duration,
}

/// Starts a thread that does one job after the other until nobody gives it any more.
pub fn start(tools: Tools, family: Family, done: UnboundedSender<Done>) -> Sender<Job> {
    let (jobs, todo) = channel();
    thread::spawn(move || {
        for job in todo {
            let begun = now();
            let result = match job {
                _ if !is_spoken(family) => Ok(Outcome::Unspoken),
                Job::Look(tables) => {
                    tools.save(family, tables).map(|seen| Outcome::Seen(Box::new(seen)))
                }
                Job::Write(edit) => {
                    let egress = edit.egress_input();
                    // Its table is one that a kernel may be without.
                    let apart = || (!egress.is_empty()).then(|| tools.restore(family, &egress));
                    let seen = edit.seen();
                    let written = write_all_but_refused(tools, family, *edit, seen);
                    written.map(|refusals| Outcome::Written(refusals, apart()))
                }
                Job::WriteAgain(edit) => {
                    let seen = Some(edit.of_all_there());
                    let written = write_all_but_refused(tools, family, *edit, seen);
                    written.map(|refusals| Outcome::Written(refusals, None))
                }
            };
            let at = now();
            let took = at - begun;
            let told = done.send(Done { family, result, at, took });
            if told.is_err() {
                return;
            }
        }
    });
    jobs
}

/// So many refused lines that a program names are left out one by one, as long as it takes no
/// longer than this; and for so long it is looked closer at what is refused unnamed.
const MOST_NAMED: usize = 16;
const PATIENCE: Duration = Duration::from_secs(10);

/// `seen` was in the kernel before; to find that out takes seconds where there is much.
fn write_all_but_refused(
    tools: Tools,
    family: Family,
    mut edit: Edit,
    mut seen: Option<Observed>,
) -> Result<Vec<Refusal>, IptablesError> {
    let until = now() + PATIENCE;
    let mut refusals = Vec::new();
    while let Err((input, error)) = write(tools, family, &edit) {
        let said = match &error {
            IptablesError::Failed { said, .. } if is_the_rules(&input, said) => said,
            IptablesError::Failed { .. }
            | IptablesError::Run { .. }
            | IptablesError::Set { .. }
            | IptablesError::Netlink { .. }
            | IptablesError::Bridge(_) => return Err(error),
        };
        let seen = match &seen {
            Some(seen) => seen,
            None => seen.insert(tools.save(family, &Table::OF_SERVICES)?),
        };
        forget_written(&mut edit, &input, said);
        let is_soon = refusals.len() < MOST_NAMED && now() < until;
        let named = is_soon.then(|| isolate(&mut edit, seen, &input, said));
        if let Some(named) = named.flatten() {
            refusals.push(named);
            continue;
        }
        debug!(%family, error = said, "what is refused is searched for");
        let mut node = Node { tools, family, until: None };
        refusals.extend(write_in_parts(&mut node, edit, seen)?);
        break;
    }
    Ok(refusals)
}

/// One family's tables of this node.
struct Node {
    tools: Tools,
    family: Family,
    /// Until when there is time to look closer, from the first time on that there is anything to
    /// look at.
    until: Option<Instant>,
}

impl Kernel for Node {
    fn write(&mut self, input: &str) -> Result<(), IptablesError> {
        self.tools.restore(self.family, input)
    }

    fn lines(&mut self, table: Table, chain: &str) -> Result<Lines, IptablesError> {
        self.tools.lines(self.family, table, chain)
    }

    fn at_once(&self) -> usize {
        match self.tools.variant {
            // Whatever is written, all is written anew.
            Variant::Legacy => usize::MAX,
            Variant::Nft => AT_ONCE,
        }
    }

    fn has_time(&mut self) -> bool {
        let now = now();
        now < *self.until.get_or_insert(now + PATIENCE)
    }
}

/// ip_tables would write all anew with every go. Where one fails, its input is told too.
fn write(tools: Tools, family: Family, edit: &Edit) -> Result<(), (String, IptablesError)> {
    let goes = match tools.variant {
        Variant::Legacy => vec![edit.input()],
        Variant::Nft => edit.goes(),
    };
    let mut goes = goes.into_iter().filter(|input| !input.is_empty());
    goes.try_for_each(|input| tools.restore(family, &input).map_err(|error| (input, error)))
}

#[expect(clippy::disallowed_methods, reason = "what a look costs decides how often there is one")]
fn now() -> Instant {
    Instant::now()
}
