//! The role for `test` is enough, and not too much; what is missing is named. And what is wrong
//! with pretended clusters is found.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use denizen_tests::conf::{documents, texts};
use denizen_tests::peers::api::ReceivedRequest;
use serde_json::{Value, json};

use super::pretended::{Faults, PretendedCluster};

/// An API group, a resource, and what is done with it.
type TestRight = (String, String, String);

fn permitted(file: &str) -> Result<BTreeSet<TestRight>> {
    let mut rights = BTreeSet::new();
    for role in documents(file)? {
        for rule in role["rules"].as_array().into_iter().flatten() {
            for group in texts(&rule["apiGroups"])? {
                for resource in texts(&rule["resources"])? {
                    let verbs = texts(&rule["verbs"])?.into_iter();
                    rights.extend(verbs.map(|verb| (group.clone(), resource.clone(), verb)));
                }
            }
        }
    }
    Ok(rights)
}

/// What a request needs; `None` for what everybody may ask.
fn right(request: &ReceivedRequest) -> Result<Option<TestRight>> {
    let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    let (group, resource, is_one) = match parts[..] {
        ["apis", "authorization.k8s.io", ..] => return Ok(None),
        ["api", "v1", resource] | ["api", "v1", "namespaces", _, resource] => ("", resource, false),
        ["api", "v1", resource, _] | ["api", "v1", "namespaces", _, resource, _] => {
            ("", resource, true)
        }
        ["api", "v1", "namespaces", _, "pods", _, "exec"] => ("", "pods/exec", true),
        ["apis", group, _, "namespaces", _, resource] => (group, resource, false),
        _ => anyhow::bail!("{request:?}"),
    };
    let verb = match (&*request.method, is_one) {
        ("GET", true) => "get",
        ("GET", false) => "list",
        ("POST", false) => "create",
        ("DELETE", true) => "delete",
        _ => anyhow::bail!("{request:?}"),
    };
    Ok(Some((group.to_owned(), resource.to_owned(), verb.to_owned())))
}

#[test]
fn the_role_for_tests_is_enough_and_not_too_much() -> Result<()> {
    let broken_nodes = ["n01".to_owned()].into();
    let faults = Faults { broken_nodes, ..Faults::default() };
    let cluster = PretendedCluster::new("verb-role", 3, faults)?;
    let output = cluster.tested(&["--timeout=6s", "--output=json"])?;
    // The pod that does not start is named with its event.
    ensure!(output.code == 3, "{output:#?}");
    // And the others are servers of one class.
    let notes = output.json()?["notes"].to_string();
    ensure!(notes.contains("policies are not tested"), "{notes}");
    let (code, why) = output.unanswered("n01")?;
    ensure!(code == "not-running" && why.contains("ContainerCreating"), "{why}");
    ensure!(why.ends_with("plugin denizen failed: no space left on device"), "{why}");
    cluster.tested(&["--cleanup"])?;
    let requests: Vec<Option<TestRight>> =
        cluster.workstation.api.requests().iter().map(right).collect::<Result<_>>()?;
    let mut needed: BTreeSet<TestRight> = requests.into_iter().flatten().collect();
    // Kubernetes asks for it since 1.35, and the tests' server does not.
    needed.insert((String::new(), "pods/exec".to_owned(), "create".to_owned()));
    let (own, usual) = (permitted("kubectl/rbac-test.yaml")?, permitted("kubectl/rbac.yaml")?);
    let more: Vec<_> =
        needed.iter().filter(|right| !own.contains(right) && !usual.contains(right)).collect();
    ensure!(more.is_empty(), "not permitted: {more:?}");
    let less: Vec<_> = own.difference(&needed).collect();
    ensure!(less.is_empty(), "not needed: {less:?}");
    Ok(())
}

#[test]
fn a_missing_right_is_named_before_anything_is_made() -> Result<()> {
    let cluster = PretendedCluster::new("verb-missing", 2, Faults::default())?;
    cluster
        .workstation
        .api
        .behave(|behaviour| behaviour.forbidden = vec!["networkpolicies", "pods/exec"]);
    let output = cluster.tested(&[])?;
    let words =
        "not permitted: get pods/exec, create pods/exec, create networkpolicies. Nothing was made";
    ensure!(output.code == 2 && output.stderr.contains(words), "{output:#?}");
    ensure!(output.stderr.contains("conf/kubectl/rbac-test.yaml"), "{output:#?}");
    let made =
        |request: &&ReceivedRequest| request.method == "POST" && !request.path.contains("reviews");
    ensure!(cluster.workstation.api.requests().iter().find(made).is_none(), "something was made");
    // An API server that does not say what is permitted.
    cluster.workstation.api.behave(|behaviour| {
        behaviour.forbidden = vec!["networkpolicies"];
        behaviour.unserved = vec!["selfsubjectaccessreviews"];
    });
    let output = cluster.tested(&[])?;
    let words = "cannot make a policy (needs: create networkpolicies; conf/kubectl/rbac-test.yaml";
    ensure!(output.code == 2 && output.stderr.contains(words), "{output:#?}");
    Ok(())
}

/// Above 20 nodes nobody asks everybody, and all is asked all the same.
#[test]
fn a_large_cluster_is_a_ring() -> Result<()> {
    const NODES: usize = 24;
    let cluster = PretendedCluster::new("verb-ring", NODES, Faults::default())?;
    let words = ["--external=example.org:443", "--output=json"];
    let output = cluster.tested(&words)?;
    let json = output.json()?;
    ensure!(
        output.code == 0 && json["nodes"] == NODES && json["unanswered"] == json!([]),
        "{output:#?}"
    );
    let count = |kind: &str| {
        let all = json["checks"].as_array().into_iter().flatten();
        let found =
            all.filter(|check| check["kind"] == kind).find_map(|check| check["passed"].as_u64());
        found.with_context(|| format!("no {kind}: {json:#}"))
    };
    let nodes = NODES as u64;
    ensure!(count("pod")? == nodes * 4 * 2, "a neighbour, three others, two protocols: {json:#}");
    ensure!(count("external")? == nodes && count("hairpin")? == nodes * 2, "{json:#}");
    let requests = cluster.probed.lock().expect("nobody panics with it");
    let outside: BTreeSet<&str> = requests
        .iter()
        .map(|(_, target)| &**target)
        .filter(|target| !target.starts_with(|first: char| first.is_ascii_digit()))
        .collect();
    ensure!(outside == ["example.org:443/tcp"].into(), "{outside:?}");
    Ok(())
}

#[test]
fn a_policy_that_nobody_enforces_is_found() -> Result<()> {
    let cluster =
        PretendedCluster::new("verb-open", 1, Faults { is_open: true, ..Faults::default() })?;
    let output = cluster.tested(&["--timeout=8s", "--output=json"])?;
    ensure!(output.code == 1, "{output:#?}");
    let json = output.json()?;
    let failures = json["failures"].as_array().context("no failures")?;
    let of = |failure: &Value| {
        let text = |key: &str| failure[key].as_str().unwrap_or_default().to_owned();
        (text("from"), text("what"), text("kind"))
    };
    let found: BTreeSet<_> = failures.iter().map(of).collect();
    // On a node alone there are two servers.
    let policy = |from: &str, what: &str| (from.to_owned(), what.to_owned(), "policy".to_owned());
    let expected = [
        policy("newcomer-0", "pod server-0 on n00"),
        policy("newcomer-0", "pod server-1 on n00"),
        policy("server-1", "pod newcomer-0 on n00, isolated"),
    ];
    ensure!(found == expected.into(), "{json:#}");
    let why = failures[0]["why"].as_str().unwrap_or_default();
    ensure!(why.ends_with("though a NetworkPolicy forbids it"), "{why}");
    let text = cluster.tested(&["--timeout=8s"])?.stdout;
    for words in [
        "CHECK       PASSED  FAILED\npod         4       0\n",
        "(pod newcomer-0 on n00, isolated): answered by newcomer-0, though a NetworkPolicy",
        "    explain:\n      denizen-test-",
        "1 of 1 nodes answered\n",
    ] {
        ensure!(text.contains(words), "{words}: {text}");
    }
    Ok(())
}
