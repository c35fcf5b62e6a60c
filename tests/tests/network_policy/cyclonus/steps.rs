//! Cases of more than one step, and those that cyclonus took from Kubernetes' own suite.

use denizen_tests::packets::probe::Protocol::Tcp;
use denizen_tests::policy::{NetworkPolicy, PolicyPeer, PolicyPort, PolicyRule, PolicyWorld};

use super::{Direction, rule_for};
use super::{base, label, policy, with};
use crate::case::{Case, Change, labels};
use crate::e2e;

/// Policies, pods and namespaces come, change and go.
pub fn actions() -> Vec<Case> {
    let delete_base = || Change::Delete { namespace: "x".to_owned(), policy: "base".to_owned() };
    vec![
        Case::new("create and delete a policy")
            .put(base())
            .expect_oracle()
            .then(delete_base())
            .expect_oracle(),
        Case::new("create, update and delete a policy")
            .put(base())
            .expect_oracle()
            .put(with(Direction::Ingress, PolicyRule::all()))
            .expect_oracle()
            .then(delete_base())
            .expect_oracle(),
        namespace_comes_and_goes(),
        pod_comes_and_goes(),
        pod_labels(),
        namespace_labels(),
    ]
}

/// Pod x/a hears pods of namespaces with this label, and no others.
fn from_namespaces(value: &str) -> NetworkPolicy {
    let peers = vec![PolicyPeer::namespaces(label("ns", value))];
    with(Direction::Ingress, rule_for(Direction::Ingress, peers))
}

/// Pod x/a hears pods with this label, of every namespace.
fn from_pods(value: &str) -> NetworkPolicy {
    let peers = vec![PolicyPeer::both(Default::default(), label("pod", value))];
    with(Direction::Ingress, rule_for(Direction::Ingress, peers))
}

fn add_pod(namespace: &str, pod: &str) -> Change {
    Change::AddPod { namespace: namespace.to_owned(), pod: pod.to_owned() }
}

fn delete_pod(namespace: &str, pod: &str) -> Change {
    Change::DeletePod { namespace: namespace.to_owned(), pod: pod.to_owned() }
}

fn namespace_comes_and_goes() -> Case {
    let new = || "y-2".to_owned();
    Case::new("create and delete a namespace")
        .put(from_namespaces("y"))
        .expect_oracle()
        .then(Change::AddNamespace { namespace: new(), label: "y".to_owned() })
        .then(add_pod("y-2", "a"))
        .then(add_pod("y-2", "b"))
        .expect_oracle()
        .then(delete_pod("y-2", "a"))
        .then(delete_pod("y-2", "b"))
        .then(Change::DeleteNamespace { namespace: new() })
        .expect_oracle()
}

fn pod_comes_and_goes() -> Case {
    Case::new("create and delete a pod")
        .put(from_pods("d"))
        .expect_oracle()
        .then(add_pod("x", "d"))
        .expect_oracle()
        .then(delete_pod("x", "d"))
        .expect_oracle()
}

fn pod_labels() -> Case {
    let label_b = |value: &str| Change::LabelPod {
        namespace: "y".to_owned(),
        pod: "b".to_owned(),
        labels: labels(&[("pod", value)]),
    };
    Case::new("set the labels of a pod, and set them back")
        .put(from_pods("d"))
        .expect_oracle()
        .then(label_b("d"))
        .expect_oracle()
        .then(label_b("b"))
        .expect_oracle()
}

fn namespace_labels() -> Case {
    let label_y = |value: &str| Change::LabelNamespace {
        namespace: "y".to_owned(),
        labels: labels(&[("ns", value)]),
    };
    Case::new("set the labels of a namespace, and set them back")
        .put(from_namespaces("new"))
        .expect_oracle()
        .then(label_y("new"))
        .expect_oracle()
        .then(label_y("y"))
        .expect_oracle()
}

/// Thirteen of Kubernetes' own cases, asked over all six ports.
pub fn upstream(world: &PolicyWorld) -> Vec<Case> {
    const TAKEN: [&str; 13] = [
        "support a 'default-deny-ingress' policy",
        "enforce policy to allow traffic from pods within server namespace based on PodSelector",
        "enforce policy to allow traffic only from a different namespace, based on NamespaceSelector",
        "enforce policy based on PodSelector with MatchExpressions",
        "enforce policy based on NamespaceSelector with MatchExpressions",
        "enforce policy based on PodSelector or NamespaceSelector",
        "enforce policy based on PodSelector and NamespaceSelector",
        "enforce policy to allow traffic only from a pod in a different namespace",
        "enforce policy based on Ports",
        "enforce multiple, stacked policies with overlapping podSelectors",
        "support allow-all policy",
        "allow ingress access on one named port",
        "allow ingress access from namespace on one named port",
    ];
    let expect_oracle = |case: Case| {
        let mut again = Case::new(format!("upstream: {}", case.name));
        for step in case.steps {
            let changed = step.changes.into_iter().fold(again, Case::then);
            again = changed.expect_oracle();
        }
        again
    };
    let cases = e2e::cases(world).into_iter();
    cases.filter(|case| TAKEN.contains(&case.name.as_str())).map(expect_oracle).collect()
}

/// A named port, and pods that come later and have one of that name too.
pub fn example() -> Case {
    let web = PolicyRule::all().at([PolicyPort::named(Tcp, "serve-80-tcp")]);
    Case::new("a named port, with pods that appear later")
        .put(policy("x", Default::default(), [web], [PolicyRule::all()]))
        .expect_oracle()
        .then(add_pod("x", "d"))
        .expect_oracle()
        .then(add_pod("x", "e"))
        .expect_oracle()
        .then(delete_pod("x", "d"))
        .then(delete_pod("x", "e"))
        .expect_oracle()
}
