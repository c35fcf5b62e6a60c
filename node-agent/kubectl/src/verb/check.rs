//! `check`: what every agent finds on its node, equal findings once; and what only shows when nodes
//! are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::cluster::{Api, NodeAgent};
use crate::finding::{CommonText, Texts, node_names, shape, spread};
use crate::no_answer::NoAnswer;
use crate::output::{Body, ClusterReport, Level};
use crate::session::Answers;
use crate::session::request::Request;
use crate::survey::{Limits, survey};
use denizen_text::Printable;

/// What is wrong, or may be.
#[derive(Debug, Serialize)]
pub struct ClusterCheck {
    /// Failures first; those of most nodes first.
    findings: Vec<Finding>,
    /// How many checks went well.
    passed: usize,
    /// How many do not apply, or could not be made.
    skipped: usize,
}

#[derive(Debug, Serialize)]
struct Finding {
    group: String,
    name: String,
    verdict: FindingVerdict,
    /// What was found, with the nodes' own values.
    #[serde(flatten)]
    shared: CommonText,
    advice: Option<String>,
    /// What makes findings equal, as [the agents have it](NodeCheck::code).
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    /// The nodes' own values of each parameter.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parameters: BTreeMap<String, BTreeSet<String>>,
}

/// Ordered: what matters least comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum FindingVerdict {
    Failure,
    Warning,
    Ok,
    Skipped,
    /// A verdict of a newer agent. It is shown.
    #[serde(other)]
    Unknown,
}

/// What an agent's `check` says.
#[derive(Debug, Deserialize)]
struct NodeReport {
    checks: Vec<NodeCheck>,
}

#[derive(Debug, Deserialize)]
struct NodeCheck {
    group: String,
    name: String,
    verdict: FindingVerdict,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    advice: Option<String>,
    /// Older agents have none.
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
}

/// What is compared between nodes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ComparedStatus {
    backend: String,
}

#[derive(Debug)]
struct CheckedNode {
    release: String,
    backend: Option<String>,
    checks: Vec<NodeCheck>,
}

pub async fn check(api: &Api, limits: Limits) -> anyhow::Result<ClusterReport<ClusterCheck>> {
    let node_agents = api.node_agents().await?;
    let overlaps = overlaps(&pod_cidrs(&node_agents.all));
    let requests = [Request::CHECK, Request::STATUS];
    let surveyed = survey(&api.client, node_agents, limits, &requests, checked).await;
    Ok(ClusterReport::of(surveyed, |answered| {
        let mut check = merged(&answered);
        let between = [
            differing(&answered, "releases", |of| Some(&of.release)),
            differing(&answered, "backends", |of| of.backend.as_ref()),
        ];
        check.findings.extend(between.into_iter().flatten().chain(overlaps));
        check.findings.sort_by_key(|finding| {
            (finding.verdict, std::cmp::Reverse(finding.shared.nodes.len()))
        });
        check
    }))
}

fn checked(_node: &str, answers: Answers) -> Result<CheckedNode, NoAnswer> {
    let failed = |why: String| NoAnswer::new(NoAnswer::FAILED, why);
    let release = answers.release.unwrap_or_else(|| "older".to_owned());
    let mut all = answers.answers.into_iter();
    let report =
        all.next().ok_or_else(|| failed("the agent sent no answer".to_owned()))?.map_err(failed)?;
    let report: NodeReport = serde_json::from_str(report.get())
        .map_err(|error| failed(format!("unknown answer: {error}")))?;
    // Without a status, `check` itself says that no agent runs.
    let status = all.next().and_then(Result::ok);
    let status =
        status.and_then(|status| serde_json::from_str::<ComparedStatus>(status.get()).ok());
    let backend = status.map(|status| status.backend);
    Ok(CheckedNode { release, backend, checks: report.checks })
}

/// The key by which findings are merged.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FindingKey {
    verdict: FindingVerdict,
    group: String,
    name: String,
    /// The agents' code, or else the shape of the advice; without a code, the shapes of the texts
    /// must be equal too.
    sense: Result<String, String>,
}

/// Findings with one key.
#[derive(Debug, Default)]
struct MergedFindings {
    texts: Texts,
    advice: Option<String>,
    parameters: BTreeMap<String, BTreeSet<String>>,
}

/// Merges equal findings.
fn merged(answered: &[(String, CheckedNode)]) -> ClusterCheck {
    let mut by_key: BTreeMap<FindingKey, MergedFindings> = BTreeMap::new();
    let (mut passed, mut skipped) = (0, 0);
    let all =
        answered.iter().flat_map(|(node, of)| of.checks.iter().map(move |check| (node, check)));
    for (node, check) in all {
        match check.verdict {
            FindingVerdict::Ok => passed += 1,
            FindingVerdict::Skipped => skipped += 1,
            FindingVerdict::Failure | FindingVerdict::Warning | FindingVerdict::Unknown => {
                let advice = check.advice.as_deref().unwrap_or_default();
                let sense = check.code.clone().ok_or_else(|| shape(advice));
                let same = match &sense {
                    Ok(code) => code.clone(),
                    Err(_) => shape(&check.reason),
                };
                let (group, name) = (check.group.clone(), check.name.clone());
                let key = FindingKey { verdict: check.verdict, group, name, sense };
                let merged = by_key.entry(key).or_default();
                merged.texts.add_as(same, node, &check.reason);
                merged.advice.get_or_insert_with(|| advice.to_owned());
                for (name, value) in &check.parameters {
                    let values = merged.parameters.entry(name.clone()).or_default();
                    values.insert(value.clone());
                }
            }
        }
    }
    let findings = by_key.into_iter().flat_map(|(key, merged)| {
        let FindingKey { verdict, group, name, sense } = key;
        let MergedFindings { texts, advice, parameters } = merged;
        let advice = advice.filter(|advice| !advice.is_empty());
        texts.sorted().into_iter().map(move |shared| Finding {
            group: group.clone(),
            name: name.clone(),
            verdict,
            shared,
            advice: advice.clone(),
            code: sense.clone().ok(),
            parameters: parameters.clone(),
        })
    });
    ClusterCheck { findings: findings.collect(), passed, skipped }
}

/// A warning if not all nodes have the same value.
fn differing<'a>(
    answered: &'a [(String, CheckedNode)],
    name: &str,
    value: impl Fn(&'a CheckedNode) -> Option<&'a String>,
) -> Option<Finding> {
    let mut by_value: BTreeMap<&String, BTreeSet<String>> = BTreeMap::new();
    for (node, checked) in answered {
        if let Some(value) = value(checked) {
            by_value.entry(value).or_default().insert(node.clone());
        }
    }
    // Name the nodes that differ from most.
    let most = by_value.values().map(BTreeSet::len).max()?;
    let usual = by_value.iter().find(|(_, nodes)| nodes.len() == most).map(|(value, _)| *value)?;
    let others = by_value.iter().filter(|(value, _)| **value != usual);
    let nodes: BTreeSet<String> = others.flat_map(|(_, nodes)| nodes.clone()).collect();
    let each = by_value.iter().map(|(value, nodes)| format!("{value} on {}", nodes.len()));
    let text = format!("nodes differ: {}", each.collect::<Vec<_>>().join(", "));
    (!nodes.is_empty()).then(|| Finding {
        group: "cluster".to_owned(),
        name: name.to_owned(),
        verdict: FindingVerdict::Warning,
        shared: CommonText { texts: BTreeSet::from([text]), nodes },
        advice: Some(
            "this is usual while nodes are updated one after the other; otherwise look why"
                .to_owned(),
        ),
        code: None,
        parameters: BTreeMap::new(),
    })
}

fn pod_cidrs(node_agents: &[NodeAgent]) -> Vec<(String, IpNetwork)> {
    let objects = node_agents
        .iter()
        .filter_map(|node_agent| Some((&node_agent.node, node_agent.object.as_ref()?)));
    let cidrs = objects.flat_map(|(node, object)| {
        let parsed = object.spec.pod_cidrs.iter().filter_map(|cidr| cidr.parse().ok());
        parsed.map(|cidr| (node.clone(), cidr))
    });
    cidrs.collect()
}

/// A failure for each podCIDR inside a podCIDR of another node. Only the widest podCIDR around it
/// is compared.
fn overlaps(cidrs: &[(String, IpNetwork)]) -> Vec<Finding> {
    let mut sorted: Vec<&(String, IpNetwork)> = cidrs.iter().collect();
    // The larger first: it may contain those that follow.
    sorted.sort_by_key(|(_, cidr)| (cidr.network(), cidr.prefix()));
    let mut found = Vec::new();
    let mut widest: Option<&(String, IpNetwork)> = None;
    for next in sorted {
        match widest {
            Some((node, cidr)) if cidr.contains(next.1.network()) => {
                if *node != next.0 {
                    found.push(overlap((node, cidr), (&next.0, &next.1)));
                }
            }
            Some(_) | None => widest = Some(next),
        }
    }
    found
}

fn overlap(one: (&String, &IpNetwork), other: (&String, &IpNetwork)) -> Finding {
    let text = format!("podCIDR {} of {} overlaps {} of {}", one.1, one.0, other.1, other.0);
    Finding {
        group: "cluster".to_owned(),
        name: "pod-cidrs".to_owned(),
        verdict: FindingVerdict::Failure,
        shared: CommonText {
            texts: BTreeSet::from([text]),
            nodes: [one.0, other.0].map(Clone::clone).into(),
        },
        advice: Some("give each node a range of its own: two pods get one address".to_owned()),
        code: None,
        parameters: BTreeMap::new(),
    }
}

impl Finding {
    /// The text of one merged finding, and the values in which the others differ.
    fn text(&self) -> String {
        let own = self.shared.texts.iter().next().filter(|_| self.code.is_some());
        let Some(own) = own else { return self.shared.shown() };
        let differing = self.parameters.iter().filter(|(_, values)| values.len() > 1);
        let differing: Vec<String> =
            differing.map(|(name, values)| format!("{name}: {}", spread(values))).collect();
        match differing.is_empty() {
            true => own.clone(),
            false => format!("{own} ({})", differing.join("; ")),
        }
    }
}

impl Body for ClusterCheck {
    fn level(&self) -> Level {
        let level = |finding: &Finding| match finding.verdict {
            FindingVerdict::Failure => Level::Failure,
            FindingVerdict::Warning | FindingVerdict::Unknown => Level::Warning,
            FindingVerdict::Ok | FindingVerdict::Skipped => Level::Good,
        };
        self.findings.iter().map(level).max().unwrap_or_default()
    }
}

impl fmt::Display for ClusterCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let Finding { group, name, verdict, shared, advice, .. } = finding;
            let word = match verdict {
                FindingVerdict::Failure => "FAILURE",
                FindingVerdict::Warning | FindingVerdict::Unknown => "warning",
                FindingVerdict::Ok | FindingVerdict::Skipped => continue,
            };
            let (nodes, text) = (node_names(shared.nodes.iter()), finding.text());
            writeln!(
                f,
                "{word}  {} ({})",
                Printable(&format!("{group}/{name}")),
                Printable(&nodes)
            )?;
            writeln!(f, "    {}", Printable(&text))?;
            if let Some(advice) = advice {
                writeln!(f, "    -> {}", Printable(advice))?;
            }
        }
        let of = |wanted| self.findings.iter().filter(|finding| finding.verdict == wanted).count();
        let (failures, warnings) = (of(FindingVerdict::Failure), of(FindingVerdict::Warning));
        let Self { passed, skipped, .. } = self;
        writeln!(
            f,
            "{failures} failures, {warnings} warnings; {passed} checks passed, {skipped} skipped"
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn on(node: &str, release: &str, checks: Value) -> (String, CheckedNode) {
        let checks = serde_json::from_value(checks).unwrap();
        let backend = Some("nftables".to_owned());
        (node.to_owned(), CheckedNode { release: release.to_owned(), backend, checks })
    }

    #[test]
    fn equal_findings_are_one_and_a_nodes_own_stays() {
        let answered: Vec<_> = (0..40)
            .map(|at| {
                let mut checks = vec![
                    json!({ "group": "kernel", "name": "nftables", "verdict": "ok" }),
                    json!({ "group": "api", "name": "node", "verdict": "warning", "advice": "look",
                            "reason": format!("no Node n{at} with 10.0.{at}.1"), "new": 1 }),
                ];
                if at == 7 {
                    checks.push(json!({ "group": "settings", "name": "forwarding",
                        "verdict": "failure", "reason": "ip_forward is off", "advice": "set it" }));
                    checks.push(json!({ "group": "x", "name": "y", "verdict": "strange" }));
                }
                on(&format!("n{at}"), "0.1.0", json!(checks))
            })
            .collect();
        let check = merged(&answered);
        assert_eq!((check.passed, check.findings.len()), (40, 3));
        assert_eq!(check.level(), Level::Failure);
        let text = check.to_string();
        assert!(text.contains("warning  api/node (40 nodes: "), "{text}");
        assert!(text.contains("FAILURE  settings/forwarding (n7)"), "{text}");
        assert!(text.contains("warning  x/y (n7)"), "{text}");
    }

    /// With other words, other advice and other values.
    #[test]
    fn findings_of_one_code_are_one_and_show_how_they_differ() {
        let full = |node: &str, code: Value, count: u32| {
            let check = json!({ "group": "settings", "name": "conntrack-room", "verdict": "failure",
                "reason": format!("{count} of 100 are tracked"), "advice": format!("{count}"),
                "code": code, "parameters": { "count": count.to_string(), "max": "100" } });
            on(node, "0.1.0", json!([check]))
        };
        let code = || json!("conntrack-full");
        let answered = [full("a", code(), 97), full("b", code(), 100), full("c", json!("x"), 7)];
        let check = merged(&answered);
        let [full, _] = &check.findings[..] else { panic!("{check:#?}") };
        assert_eq!(full.shared.nodes.len(), 2);
        assert_eq!(full.text(), "100 of 100 are tracked (count: 97 to 100)");
        let json = serde_json::to_value(&check).unwrap();
        assert_eq!(json["findings"][0]["code"], "conntrack-full");
        assert_eq!(json["findings"][0]["parameters"]["count"], json!(["100", "97"]));
    }

    /// Errors that have only the group and the name in common are not merged.
    #[test]
    fn without_codes_the_words_say_what_is_equal() {
        let of = |node: &str, reason: &str| {
            let check = json!({ "group": "agent", "name": "status", "verdict": "failure",
                "reason": reason, "advice": "look" });
            on(node, "0.1.0", json!([check]))
        };
        let answered =
            [of("a", "no table 7"), of("b", "no table 9"), of("c", "another program listens")];
        let check = merged(&answered);
        let nodes: Vec<usize> =
            check.findings.iter().map(|finding| finding.shared.nodes.len()).collect();
        assert_eq!(nodes, [2, 1]);
        assert!(serde_json::to_value(&check).unwrap()["findings"][0].get("code").is_none());
    }

    #[test]
    fn nodes_that_differ_from_most_are_named() {
        let answered = [on("a", "2", json!([])), on("b", "1", json!([])), on("c", "2", json!([]))];
        let found = differing(&answered, "releases", |of| Some(&of.release)).unwrap();
        assert_eq!(found.shared.nodes, BTreeSet::from(["b".to_owned()]));
        assert!(found.shared.shown().contains("1 on 1, 2 on 2"), "{found:?}");
        assert!(differing(&answered, "backends", |of| of.backend.as_ref()).is_none());
    }

    #[test]
    fn overlapping_ranges_of_two_nodes_are_found() {
        let of = |cidrs: &[(&str, &str)]| {
            let parsed = cidrs.iter().map(|(node, cidr)| (node.to_string(), cidr.parse().unwrap()));
            overlaps(&parsed.collect::<Vec<_>>()).len()
        };
        assert_eq!(of(&[("a", "10.0.0.0/24"), ("b", "10.0.1.0/24"), ("a", "fd00::/64")]), 0);
        assert_eq!(of(&[("a", "10.0.0.0/16"), ("b", "10.0.3.0/24"), ("c", "10.0.7.0/24")]), 2);
        assert_eq!(of(&[("a", "10.0.0.0/24"), ("b", "10.0.0.0/24")]), 1);
        assert_eq!(of(&[("a", "10.0.0.0/16"), ("a", "10.0.3.0/24")]), 0);
    }
}
