use super::*;

fn probe(from: &str, kind: CheckKind, expected: ExpectedOutcome) -> PlannedProbe {
    let (node, to) = (format!("node-of-{from}"), "10.0.0.1:8080/tcp".to_owned());
    PlannedProbe { kind, from: from.to_owned(), node, to, what: "pod b".to_owned(), expected }
}

fn report(outcome: &str, name: Option<&str>, client: &str) -> ProbeReport {
    let (name, client) = (name.map(str::to_owned), client.parse().ok());
    ProbeReport { outcome: outcome.to_owned(), attempts: 4, name, client, ..Default::default() }
}

fn summary_of(probed: Vec<ProbedPair>) -> ProbeSummary {
    let ips = BTreeMap::from([("a".to_owned(), BTreeSet::from(["10.0.0.7".parse().unwrap()]))]);
    summary("denizen-test-1".to_owned(), probed, &ips)
}

#[test]
fn a_failure_says_who_to_whom_and_what_came() {
    let answer = || ExpectedOutcome::Answer("b".to_owned());
    let gone = NoAnswer::new(NoAnswer::NOT_RUNNING, "gone");
    let ProbeSummary { report, unanswered, notes } = summary_of(vec![
        (probe("a", CheckKind::Pod, answer()), Ok(report("answered", Some("b"), "10.0.0.7"))),
        (probe("a", CheckKind::Pod, answer()), Ok(report("timedOut", None, ""))),
        (
            probe("a", CheckKind::Policy, ExpectedOutcome::Nothing),
            Ok(report("answered", Some("b"), "")),
        ),
        (probe("c", CheckKind::Pod, answer()), Err(gone.clone())),
        (probe("c", CheckKind::Pod, answer()), Err(gone)),
    ]);
    assert_eq!(notes, Vec::<String>::new());
    assert_eq!((unanswered.len(), &*unanswered[0].node), (1, "node-of-c"));
    assert_eq!(report.level(), Level::Failure);
    let expected = "\
CHECK   PASSED  FAILED
pod     1       1
policy  0       1
FAILURE  pod: a on node-of-a to 10.0.0.1:8080/tcp (pod b): timed out, 4 attempts
FAILURE  policy: a on node-of-a to 10.0.0.1:8080/tcp (pod b): answered by b, though a \
NetworkPolicy forbids it
namespace denizen-test-1 is still there
";
    assert_eq!(report.to_string(), expected);
}

#[test]
fn a_masqueraded_source_is_noted_and_nothing_tested_is_not_good() {
    let answer = ExpectedOutcome::Answer("b".to_owned());
    let seen = report("answered", Some("b"), "192.168.0.1");
    let summarized = summary_of(vec![(probe("a", CheckKind::Pod, answer), Ok(seen))]);
    assert_eq!(summarized.report.level(), Level::Good);
    assert!(
        summarized.notes[0].contains("node-of-a seem to come from 192.168.0.1"),
        "{summarized:?}"
    );
    assert_eq!(summary_of(Vec::new()).report.level(), Level::Warning);
}
