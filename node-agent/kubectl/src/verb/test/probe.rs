//! Probes, executed in the test's pods.

#![expect(clippy::disallowed_methods, reason = "a newcomer takes a while to know what came")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::manifest::CONTAINER;
use super::namespace::TestNamespace;
use super::plan::{CheckKind, ExpectedOutcome, Newcomer, PORT, PlannedProbe, SERVER};
use crate::cluster::Api;
use crate::no_answer::NoAnswer;
use crate::session::{self, ContainerCommand};

/// How long an answer is tried for at most: a service that was just made takes a moment on each
/// node.
const MAX_PATIENCE: Duration = Duration::from_secs(5);

/// How long a probe tries a target that it must not reach.
const SILENCE: Duration = Duration::from_millis(1500);

/// Time limit for executing a command, in addition to the time of its probes.
const COMMAND_EXTRA_TIME: Duration = Duration::from_secs(10);

/// Maximum number of targets of one command: they are in a URL.
const TARGETS: usize = 48;

/// The pause between two questions to a newcomer that has no results yet.
const POLL_PAUSE: Duration = Duration::from_millis(250);

/// A pod's report of a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ProbeReport {
    pub to: String,
    /// `answered`, `connected`, `refused`, `unreachable`, `timedOut` or `failed`.
    pub outcome: String,
    pub attempts: u32,
    /// Who answered.
    pub name: Option<String>,
    /// The client's address, as the server saw it.
    pub client: Option<IpAddr>,
    pub why: Option<String>,
    pub back: Option<Box<ProbeReport>>,
    pub first: Option<Vec<ProbeReport>>,
}

#[derive(Debug, Deserialize)]
struct ProbeReports {
    probes: Vec<ProbeReport>,
}

/// A probe and its report; or why the pod was not asked.
pub type ProbedPair = (PlannedProbe, Result<ProbeReport, NoAnswer>);

/// How pods are reached.
#[derive(Clone, Copy)]
pub struct ProbeRunner<'a> {
    pub api: &'a Api,
    pub namespace: &'a TestNamespace,
    pub parallel: usize,
    pub deadline: Instant,
    /// How long an answer is tried for.
    pub patience: Duration,
}

/// How long an answer is tried for in a test with this time limit.
pub fn patience(timeout: Duration) -> Duration {
    MAX_PATIENCE.min(timeout / 8)
}

impl ProbeRunner<'_> {
    /// Runs these probes, a limited number of commands at once. The results are in the probes'
    /// order.
    pub async fn all(self, probes: Vec<PlannedProbe>) -> Vec<ProbedPair> {
        let mut by_pod = BTreeMap::<(String, bool, bool), Vec<(usize, PlannedProbe)>>::new();
        for (number, probe) in probes.into_iter().enumerate() {
            let is_external = probe.kind == CheckKind::External;
            let key = (probe.from.clone(), is_external, probe.expected == ExpectedOutcome::Nothing);
            by_pod.entry(key).or_default().push((number, probe));
        }
        let commands =
            by_pod.into_iter().flat_map(|((pod, is_external, is_silent), mut probes)| {
                let mut commands = Vec::new();
                while !probes.is_empty() {
                    let rest = probes.split_off(probes.len().min(TARGETS));
                    commands.push((pod.clone(), is_external, is_silent, probes));
                    probes = rest;
                }
                commands
            });
        let one = async |(pod, is_external, is_silent, probes): (String, bool, bool, Vec<_>)| {
            let targets = probes.iter().map(|(_, probe): &(usize, PlannedProbe)| &*probe.to);
            let patience = if is_silent { SILENCE } else { self.patience };
            let flags: &[&str] = if is_external { &["--handshake"] } else { &[] };
            let reports = self.connect(&pod, targets.collect(), flags, patience).await;
            let mut reports = reports.map(|reports| reports.into_iter());
            let each = probes.into_iter().map(|(number, probe)| {
                let report = match &mut reports {
                    Ok(reports) => reports.next().ok_or_else(incomplete),
                    Err(why) => Err(why.clone()),
                };
                (number, (probe, report))
            });
            each.collect::<Vec<_>>()
        };
        let done = stream::iter(commands).map(one).buffer_unordered(self.parallel);
        let mut all: Vec<_> = done.collect::<Vec<_>>().await.into_iter().flatten().collect();
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, probed)| probed).collect()
    }

    /// Executes `probe connect` in a pod.
    pub async fn connect(
        self,
        pod: &str,
        targets: Vec<&str>,
        flags: &[&str],
        patience: Duration,
    ) -> Result<Vec<ProbeReport>, NoAnswer> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let why = "it was not asked: the time was over (see --timeout)";
            return Err(NoAnswer::new(NoAnswer::TIMED_OUT, why));
        }
        let time = format!("--timeout={}ms", patience.as_millis());
        let mut words = vec!["probe", "connect", &time];
        words.extend(flags);
        words.extend(targets);
        let (namespace, container) = (&*self.namespace.name, CONTAINER);
        let command = ContainerCommand { namespace, pod, container, words: &words };
        let limit = left.min(patience + COMMAND_EXTRA_TIME);
        let text = session::run(&self.api.client, command, limit).await?;
        let reports: Result<ProbeReports, _> = serde_json::from_str(&text);
        let reports = reports
            .map_err(|error| NoAnswer::new(NoAnswer::FAILED, format!("unknown answer: {error}")));
        reports.map(|reports| reports.probes)
    }

    /// The results of a newcomer's first connections, and of the connections back to it.
    pub async fn first_of(self, newcomer: &Newcomer) -> Vec<ProbedPair> {
        let itself = format!("127.0.0.1:{PORT}/tcp");
        let reports = loop {
            let report = self.connect(&newcomer.name, vec![&itself], &[], self.patience).await;
            match report.map(|reports| reports.into_iter().next().and_then(|report| report.first)) {
                Ok(Some(first)) => break Ok(first),
                Ok(None) => sleep(POLL_PAUSE).await,
                Err(why) => break Err(why),
            }
        };
        let mut reports = reports.map(|reports| reports.into_iter());
        let mut probed = Vec::new();
        for probe in newcomer.first() {
            match &mut reports {
                Err(why) => probed.push((probe, Err(why.clone()))),
                Ok(reports) => match reports.next() {
                    // The newcomer has no address of that family.
                    Some(report) if !newcomer.has_family_of(&report.to) => {}
                    Some(report) => {
                        let back = report.back.as_deref();
                        let back = back.and_then(|back| {
                            Some((newcomer.back(&probe, &back.to)?, Ok(back.clone())))
                        });
                        probed.push((probe, Ok(report)));
                        probed.extend(back);
                    }
                    None => probed.push((probe, Err(incomplete()))),
                },
            }
        }
        probed
    }
}

fn incomplete() -> NoAnswer {
    NoAnswer::new(NoAnswer::FAILED, "fewer answers than questions")
}

impl ExpectedOutcome {
    /// Whether the report shows the expected outcome.
    pub fn is_met(&self, report: &ProbeReport) -> bool {
        let is_reached = ["answered", "connected"].contains(&&*report.outcome);
        match self {
            Self::Answer(name) => report.name.as_ref() == Some(name),
            Self::AnswerOfServer => {
                report.name.as_ref().is_some_and(|name| name.starts_with(SERVER))
            }
            Self::Connection => is_reached,
            // `failed` may mean that another program answered: then the target was reached.
            Self::Nothing => !is_reached && report.outcome != "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_come_is_told_from_what_must_not() {
        let one = || ExpectedOutcome::Answer("one".to_owned());
        let cases = [
            (one(), "answered", Some("one"), true),
            (one(), "answered", Some("two"), false),
            (ExpectedOutcome::AnswerOfServer, "answered", Some("server-7"), true),
            (ExpectedOutcome::AnswerOfServer, "answered", Some("newcomer-7"), false),
            (ExpectedOutcome::AnswerOfServer, "timedOut", None, false),
            (one(), "connected", None, false),
            (one(), "timedOut", None, false),
            (ExpectedOutcome::Connection, "connected", None, true),
            (ExpectedOutcome::Connection, "answered", Some("x"), true),
            (ExpectedOutcome::Connection, "refused", None, false),
            (ExpectedOutcome::Nothing, "timedOut", None, true),
            (ExpectedOutcome::Nothing, "refused", None, true),
            (ExpectedOutcome::Nothing, "unreachable", None, true),
            (ExpectedOutcome::Nothing, "answered", Some("one"), false),
            (ExpectedOutcome::Nothing, "connected", None, false),
            (ExpectedOutcome::Nothing, "failed", None, false),
        ];
        for (expected, outcome, name, is_met) in cases {
            let (outcome, name) = (outcome.to_owned(), name.map(str::to_owned));
            let report = ProbeReport { outcome, name, ..ProbeReport::default() };
            assert_eq!(expected.is_met(&report), is_met, "{expected:?} {report:?}");
        }
    }
}
