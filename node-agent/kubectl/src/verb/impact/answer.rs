//! The answer: rows of the plan, by workload.

mod ends;
mod words;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

use denizen_model::{Family, PodName};
use denizen_plan::Direction;
use denizen_plan::impact::{AccessChange, Impact, ImpactRow};
use denizen_text::Printable;
use serde::Serialize;

use self::ends::{ImpactEnds, ImpactMember};
use self::words::{DeciderWords, PortWords};
use super::live::RowConnections;
use crate::output::{Body, Level};
use crate::workload::Workload;

/// How many rows a person is shown.
const ROWS: usize = 40;

/// What would change.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyImpact {
    /// Losses first.
    changes: Vec<ChangeRow>,
    /// How many pods were compared.
    pods: usize,
    /// Pods that were not compared, since they have no address.
    without_address: Vec<String>,
    /// Addresses outside the cluster that policies tell from all others.
    ranges: Vec<String>,
    /// `None` if the notes are shown elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    notes: Option<Vec<String>>,
    #[serde(skip)]
    all_ends: ImpactEnds,
    /// Whether pods have addresses of both families.
    #[serde(skip)]
    is_dual_stack: bool,
}

/// The same change for all pairs of these subjects and peers, except a subject with itself.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct ChangeRow {
    change: ChangeWord,
    /// The side that decides: `ingress` or `egress` of the subjects.
    direction: String,
    subjects: Vec<ImpactMember>,
    peers: Vec<ImpactMember>,
    ports: PortWords,
    /// `IPv4`, `IPv6` or both: the families of the addresses for which the change holds.
    families: Vec<String>,
    before: DeciderWords,
    after: DeciderWords,
    /// Set if agents were asked for connections.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    live: Option<RowConnections>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum ChangeWord {
    Lost,
    Gained,
}

impl PolicyImpact {
    /// `live`: the connections of each row of the plan, if agents were asked for them.
    pub fn new(
        impact: Impact,
        live: Option<Vec<RowConnections>>,
        workloads: &HashMap<PodName, Workload>,
        notes: Vec<String>,
    ) -> Self {
        let Impact { ends, profiles, rows, families, without_address, .. } = impact;
        let all_ends = ImpactEnds::new(&ends, workloads);
        let members = |of: &[usize]| {
            let ends: BTreeSet<usize> =
                of.iter().flat_map(|profile| profiles[*profile].iter().copied()).collect();
            all_ends.members(&ends)
        };
        let live = live.map_or_else(Vec::new, |live| live.into_iter().map(Some).collect());
        let live = live.into_iter().chain(std::iter::repeat(None));
        let row = |(row, live): (&ImpactRow, Option<RowConnections>)| ChangeRow {
            change: match row.change {
                AccessChange::Lost => ChangeWord::Lost,
                AccessChange::Gained => ChangeWord::Gained,
            },
            direction: row.direction.to_string(),
            subjects: members(&row.subjects),
            peers: members(&row.peers),
            ports: PortWords::new(&row.ports),
            families: row.families.iter().map(|family| name_of(*family)).collect(),
            before: DeciderWords::new(&row.before, row.direction),
            after: DeciderWords::new(&row.after, row.direction),
            live,
        };
        let mut changes: Vec<ChangeRow> = rows.iter().zip(live).map(row).collect();
        changes.sort();
        let number = |row: &ChangeRow| row.live.as_ref().map_or(0, |live| live.number);
        changes.sort_by_key(|row| (row.change, Reverse(number(row))));
        Self {
            changes,
            pods: all_ends.pods(),
            without_address: without_address.iter().map(PodName::to_string).collect(),
            ranges: all_ends.ranges(),
            notes: Some(notes),
            all_ends,
            is_dual_stack: families.len() > 1,
        }
    }

    /// Takes out the notes about what could not be read, to show them elsewhere.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.notes.take().unwrap_or_default()
    }

    fn has(&self, change: ChangeWord) -> bool {
        self.changes.iter().any(|row| row.change == change)
    }
}

fn name_of(family: Family) -> String {
    match family {
        Family::V4 => "IPv4".to_owned(),
        Family::V6 => "IPv6".to_owned(),
    }
}

impl Body for PolicyImpact {
    fn level(&self) -> Level {
        match (self.has(ChangeWord::Lost), self.has(ChangeWord::Gained)) {
            (true, _) => Level::Failure,
            (false, true) => Level::Warning,
            (false, false) => Level::Good,
        }
    }
}

impl fmt::Display for PolicyImpact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { changes, pods, without_address, notes, .. } = self;
        writeln!(f, "for the {pods} pods of today:")?;
        for row in changes.iter().take(ROWS) {
            row.write(f, self)?;
        }
        if changes.len() > ROWS {
            writeln!(f, "and {} more; `-o json` has all", changes.len() - ROWS)?;
        }
        if changes.is_empty() {
            writeln!(f, "nobody loses or gains access")?;
        }
        if !without_address.is_empty() {
            let number = without_address.len();
            writeln!(f, "note: without an address, and so not judged: {number} of the pods")?;
        }
        notes.iter().flatten().try_for_each(|note| writeln!(f, "note: {}", Printable(note)))
    }
}

impl ChangeRow {
    fn write(&self, f: &mut fmt::Formatter<'_>, answer: &PolicyImpact) -> fmt::Result {
        let PolicyImpact { all_ends, is_dual_stack, .. } = answer;
        let Self { change, direction, subjects, peers, ports, families, before, after, live } =
            self;
        let word = match change {
            ChangeWord::Lost => "LOST",
            ChangeWord::Gained => "gained",
        };
        let towards = if *direction == Direction::Egress.to_string() { "to" } else { "from" };
        let (subjects, peers) = (all_ends.text(subjects), all_ends.text(peers));
        writeln!(f, "{word}  {direction} of {subjects}, {towards} {peers}")?;
        let family = match (&families[..], is_dual_stack) {
            ([only], true) => format!(" ({only} alone)"),
            (_, _) => String::new(),
        };
        writeln!(f, "    {ports}{family}")?;
        writeln!(f, "    now   {before}")?;
        writeln!(f, "    then  {after}")?;
        match live {
            Some(live) if *change == ChangeWord::Lost => live.write(f),
            Some(_) | None => Ok(()),
        }
    }
}
