//! The results of a test, and how they are shown. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::plan::{CheckKind, ExpectedOutcome, PlannedProbe};
use super::probe::{ProbeReport, ProbedPair};
use crate::no_answer::NoAnswer;
use crate::output::{Body, ClusterReport, Level, table};
use crate::survey::Unanswered;
use crate::verb::explain::ClusterExplanation;
use crate::verb::trace::ClusterTrace;
use denizen_text::Printable;

/// Maximum number of failures that are shown as text; all of them are in JSON.
const MAX_SHOWN_FAILURES: usize = 20;

/// What was tested, and what is wrong.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectivityReport {
    pub namespace: String,
    /// Whether the namespace is gone, or being deleted.
    pub deleted: bool,
    checks: Vec<CheckCount>,
    pub failures: Vec<ConnectivityFailure>,
}

/// Probes of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct CheckCount {
    kind: CheckKind,
    passed: usize,
    failed: usize,
}

/// A probe that did not have the expected outcome.
#[derive(Debug, Serialize)]
pub struct ConnectivityFailure {
    pub kind: CheckKind,
    /// The pod that asked, and its node.
    pub from: String,
    pub node: String,
    /// `HOST:PORT/PROTO`.
    pub to: String,
    what: String,
    expected: String,
    outcome: String,
    attempts: u32,
    /// The outcome in words.
    why: String,
    /// What the agents say of such a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explained: Option<ClusterReport<ClusterExplanation>>,
    /// Whether the probe should have arrived.
    #[serde(skip)]
    should_arrive: bool,
    /// What became of real packets of another attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traced: Option<ClusterReport<ClusterTrace>>,
}

/// The results of all probes.
#[derive(Debug)]
pub struct ProbeSummary {
    pub report: ConnectivityReport,
    /// Nodes whose pods were not asked.
    pub unanswered: Vec<Unanswered>,
    pub notes: Vec<String>,
}

/// `ips`: the addresses of each pod.
pub fn summary(
    namespace: String,
    probed: Vec<ProbedPair>,
    ips: &BTreeMap<String, BTreeSet<std::net::IpAddr>>,
) -> ProbeSummary {
    let mut counts = BTreeMap::<CheckKind, [usize; 2]>::new();
    let (mut failures, mut silent) = (Vec::new(), BTreeMap::<String, NoAnswer>::new());
    let mut masqueraded = BTreeMap::new();
    for (probe, report) in probed {
        let report = match report {
            Ok(report) => report,
            Err(why) => {
                silent.entry(probe.node).or_insert(why);
                continue;
            }
        };
        let is_met = probe.expected.is_met(&report);
        counts.entry(probe.kind).or_default()[usize::from(!is_met)] += 1;
        let own = ips.get(&probe.from);
        if let Some((seen, own)) = report.client.zip(own).filter(|_| probe.kind == CheckKind::Pod)
            && is_met
            && !own.contains(&seen)
        {
            masqueraded.insert(probe.node.clone(), seen);
        }
        if !is_met {
            failures.push(ConnectivityFailure::new(probe, report));
        }
    }
    let checks =
        counts.into_iter().map(|(kind, [passed, failed])| CheckCount { kind, passed, failed });
    let note = |(node, seen)| {
        format!(
            "connections between pods are masqueraded: those from {node} seem to come from {seen}"
        )
    };
    let unanswered = silent.into_iter().map(|(node, why)| Unanswered { node, why });
    ProbeSummary {
        unanswered: unanswered.collect(),
        notes: masqueraded.into_iter().map(note).collect(),
        report: ConnectivityReport {
            namespace,
            deleted: false,
            checks: checks.collect(),
            failures,
        },
    }
}

impl ConnectivityFailure {
    fn new(probe: PlannedProbe, report: ProbeReport) -> Self {
        let PlannedProbe { kind, from, node, to, what, expected } = probe;
        let why = came(&expected, &report);
        let ProbeReport { outcome, attempts, .. } = report;
        let should_arrive = !matches!(expected, ExpectedOutcome::Nothing);
        let expected = match expected {
            ExpectedOutcome::Answer(name) => format!("an answer of {name}"),
            ExpectedOutcome::AnswerOfServer => "an answer of a server".to_owned(),
            ExpectedOutcome::Connection => "a connection".to_owned(),
            ExpectedOutcome::Nothing => "nothing".to_owned(),
        };
        let (explained, traced) = (None, None);
        Self {
            kind,
            from,
            node,
            to,
            what,
            expected,
            outcome,
            attempts,
            why,
            explained,
            should_arrive,
            traced,
        }
    }

    /// Whether the probe should have arrived, and did not: a trace can show what became of its
    /// packets.
    pub fn is_lost(&self) -> bool {
        self.should_arrive
    }
}

fn came(expected: &ExpectedOutcome, report: &ProbeReport) -> String {
    let ProbeReport { outcome, attempts, name, why, .. } = report;
    let words = match (&**outcome, name) {
        ("answered", Some(name)) => format!("answered by {name}"),
        ("timedOut", _) => format!("timed out, {attempts} attempts"),
        (outcome, _) => outcome.to_owned(),
    };
    let words = match why {
        Some(why) if outcome != "timedOut" => format!("{words}: {why}"),
        Some(_) | None => words,
    };
    match expected {
        ExpectedOutcome::Nothing => format!("{words}, though a NetworkPolicy forbids it"),
        ExpectedOutcome::Answer(_)
        | ExpectedOutcome::AnswerOfServer
        | ExpectedOutcome::Connection => words,
    }
}

impl Body for ConnectivityReport {
    fn level(&self) -> Level {
        match (self.failures.is_empty(), self.checks.is_empty()) {
            (false, _) => Level::Failure,
            (true, true) => Level::Warning,
            (true, false) => Level::Good,
        }
    }
}

impl fmt::Display for CheckKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => "pod",
            Self::ClusterIp => "cluster-ip",
            Self::NodePort => "node-port",
            Self::Hairpin => "hairpin",
            Self::Policy => "policy",
            Self::External => "external",
        })
    }
}

impl fmt::Display for ConnectivityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, deleted, checks, failures } = self;
        let row = |count: &CheckCount| {
            let CheckCount { kind, passed, failed } = count;
            vec![kind.to_string(), passed.to_string(), failed.to_string()]
        };
        table(f, &["CHECK", "PASSED", "FAILED"], &checks.iter().map(row).collect::<Vec<_>>())?;
        for failure in failures.iter().take(MAX_SHOWN_FAILURES) {
            failure.write(f)?;
        }
        if let Some(more) = failures.len().checked_sub(MAX_SHOWN_FAILURES).filter(|more| *more > 0)
        {
            writeln!(f, "and {more} more failures: see -o json")?;
        }
        if !deleted {
            writeln!(f, "namespace {} is still there", Printable(namespace))?;
        }
        Ok(())
    }
}

impl ConnectivityFailure {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, from, node, to, what, why, explained, traced, .. } = self;
        let line = format!("FAILURE  {kind}: {from} on {node} to {to} ({what}): {why}");
        writeln!(f, "{}", Printable(&line))?;
        let mut nested = |title: &str, text: String| {
            writeln!(f, "    {title}")?;
            text.lines().try_for_each(|line| writeln!(f, "      {line}"))
        };
        if let Some(explained) = explained {
            nested("explain:", explained.to_string())?;
        }
        if let Some(traced) = traced {
            nested("trace of another attempt:", traced.to_string())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
