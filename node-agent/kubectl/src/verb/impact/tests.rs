//! From files to the answer's text.

#![expect(clippy::disallowed_methods, reason = "the files that are read")]

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::answer::PolicyImpact;
use super::{decided, deleted, manifest};
use crate::output::{Body, Level};
use crate::verb::connections::ClusterConnection;
use crate::verb::impact::facts::ImpactFacts;

const SHOP: &str = "\
apiVersion: v1
kind: List
items:
- kind: Pod
  apiVersion: v1
  metadata:
    {name: db-0, namespace: shop, labels: {app: db}, ownerReferences: [{kind: StatefulSet, name: db}]}
  status: {podIPs: [{ip: 10.0.0.1}]}
- kind: Pod
  apiVersion: v1
  metadata:
    name: web-5d4-a
    namespace: shop
    labels: {app: web, pod-template-hash: 5d4}
    ownerReferences: [{kind: ReplicaSet, name: web-5d4, controller: true}]
  status: {podIPs: [{ip: 10.0.0.2}]}
- kind: Pod
  apiVersion: v1
  metadata:
    name: web-5d4-b
    namespace: shop
    labels: {app: web, canary: yes please, pod-template-hash: 5d4}
    ownerReferences: [{kind: ReplicaSet, name: web-5d4, controller: true}]
  status: {podIPs: [{ip: 10.0.0.3}]}
- {kind: Pod, apiVersion: v1, metadata: {name: new, namespace: shop}}
- kind: Node
  apiVersion: v1
  metadata: {name: n1}
  status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
";

const POLICY: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchExpressions: [{key: canary, operator: Exists}]}}]
    ports: [{port: 5432}]
";

/// The folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn policies(text: &str, parts_count: bool) -> Result<Vec<denizen_model::Event>, String> {
    let folder = folder(&[("policy.yaml", text)]);
    let files: [PathBuf; 1] = [folder.path().join("policy.yaml")];
    let read = manifest::policies(&files, parts_count);
    let read = read.map(|all| all.into_iter().map(|of| of.into_event("mine")).collect());
    read.map_err(|error| format!("{error:#}").replace(folder.path().to_str().unwrap(), "F"))
}

#[test]
fn losses_are_named_by_workload_with_who_decides() {
    let there = folder(&[("shop.yaml", SHOP)]);
    let facts = ImpactFacts::of_folder(there.path()).unwrap();
    let answer = decided(facts, policies(POLICY, true).unwrap(), None);
    let expected = "\
for the 3 pods of today:
LOST  ingress of StatefulSet shop/db, from Deployment shop/web (1 of 2 pods)
    tcp 0-5431, tcp 5433-65535, every udp port, every sctp port, protocols without ports
    now   permitted: no policy restricts it
    then  dropped: NetworkPolicy shop/db isolates it for ingress, and no rule permits this
LOST  ingress of StatefulSet shop/db, from Deployment shop/web (1 of 2 pods), all other \
addresses, node n1
    every port and protocol
    now   permitted: no policy restricts it
    then  dropped: NetworkPolicy shop/db isolates it for ingress, and no rule permits this
note: without an address, and so not judged: 1 of the pods
";
    assert_eq!(answer.to_string(), expected);
    assert_eq!(answer.level(), Level::Failure);
}

#[test]
fn gains_are_warnings_and_nothing_is_nothing() {
    let there = folder(&[("a.yaml", SHOP), ("b.yaml", POLICY)]);
    let of = || ImpactFacts::of_folder(there.path()).unwrap();
    let same = decided(of(), policies(POLICY, true).unwrap(), None);
    assert!(same.to_string().contains("nobody loses or gains access"), "{same}");
    assert_eq!(same.level(), Level::Good);
    let facts = of();
    let gone = policies(POLICY, false).unwrap().into_iter();
    let gone = gone.map(|event| deleted(event, &facts)).collect::<Result<_, _>>().unwrap();
    let answer = decided(facts, gone, None);
    assert!(answer.to_string().contains("gained  ingress of StatefulSet shop/db"), "{answer}");
    assert_eq!(answer.level(), Level::Warning);
}

fn connection(client: &str, to: &str, endpoint: Option<&str>, more: &Value) -> ClusterConnection {
    let end = |address: &str| json!({ "address": address });
    let mut connection = json!({
        "protocol": "tcp", "state": "established", "client": end(client), "destination": end(to),
        "endpoint": endpoint.map(end),
    });
    let more = more.as_object().cloned().unwrap_or_default();
    connection.as_object_mut().unwrap().extend(more);
    let connection = serde_json::from_value(connection).unwrap();
    ClusterConnection { connection, nodes: ["n1".to_owned()].into() }
}

/// What is not answered is no loss, and a node reaches its own pods whatever policies say.
#[test]
fn losses_that_connections_would_feel_come_first() {
    let status = "status: {podIPs: [{ip: 10.0.0.1}]}";
    let shop = SHOP.replace(status, &format!("spec: {{nodeName: n1}}\n  {status}"));
    let there = folder(&[("shop.yaml", &shop)]);
    let none = json!({});
    let (db, web, canary) = ("10.0.0.1:5432", "10.0.0.2:4000", "10.0.0.3:4000");
    let tracked = [
        connection(web, "10.96.0.1:80", Some(db), &none),
        connection(canary, db, None, &none),
        connection(web, db, None, &json!({ "state": "syn_sent" })),
        connection(web, db, None, &json!({ "protocol": "udp", "state": "unanswered" })),
        connection("192.168.0.1:4000", db, None, &none),
        connection(canary, db, None, &json!({ "masqueradedAs": "192.168.9.9:4001" })),
    ];
    let answer = |tracked: Option<&[ClusterConnection]>| {
        let facts = ImpactFacts::of_folder(there.path()).unwrap();
        decided(facts, policies(POLICY, true).unwrap(), tracked)
    };
    let lines = |answer: &PolicyImpact| -> Vec<String> {
        let text = answer.to_string();
        let is_shown = |line: &&str| line.contains("LOST") || line.contains("onnection");
        text.lines().filter(is_shown).map(|line| line.trim().to_owned()).collect()
    };
    let expected = [
        "LOST  ingress of StatefulSet shop/db, from Deployment shop/web (1 of 2 pods), all other \
         addresses, node n1",
        "2 connections now, such as:",
        "LOST  ingress of StatefulSet shop/db, from Deployment shop/web (1 of 2 pods)",
        "no connection now",
    ];
    let live = answer(Some(&tracked));
    assert_eq!(lines(&live), expected, "{live}");
    let json = serde_json::to_value(&live).unwrap();
    assert_eq!(json["changes"][0]["connections"], 2, "{json:#}");
    let examples = json["changes"][0]["examples"].as_array().unwrap();
    assert!(examples[0].as_str().unwrap().contains("10.0.0.2:4000 to 10.96.0.1:80"), "{json:#}");
    let planned = answer(None);
    assert!(serde_json::to_value(&planned).unwrap()["changes"][0]["connections"].is_null());
    assert_eq!(lines(&planned), [expected[2], expected[0]], "{planned}");
}

#[test]
fn what_is_not_there_cannot_be_deleted() {
    let facts = ImpactFacts::of_folder(folder(&[("a.yaml", SHOP)]).path()).unwrap();
    let event = policies(POLICY, false).unwrap().remove(0);
    let error = deleted(event, &facts).unwrap_err().to_string();
    assert_eq!(error, "NetworkPolicy shop/db is not there, so it cannot be deleted");
}

/// Each names the file, the document and the field.
#[test]
fn a_policy_that_is_not_understood_is_an_error() {
    let second = |spec: &str| {
        format!(
            "{POLICY}---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
             metadata: {{name: p, namespace: shop}}\nspec: {spec}\n"
        )
    };
    let cases = [
        (
            second("{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/40}}]}]}"),
            "F/policy.yaml, document 2 (line 9): NetworkPolicy shop/p: spec.ingress[0].from[0].ipBlock",
        ),
        (
            second("{podSelector: {}, ingres: []}"),
            "F/policy.yaml, document 2 (line 9): NetworkPolicy shop/p: spec.ingres",
        ),
        ("apiVersion: v1\nkind: [".to_owned(), "F/policy.yaml, document 1 (line 2): not YAML"),
        (
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {}\n".to_owned(),
            "NetworkPolicy without metadata.name",
        ),
        (
            "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: p}\n"
                .to_owned(),
            "F/policy.yaml has no NetworkPolicy of networking.k8s.io/v1",
        ),
    ];
    for (text, expected) in cases {
        let error = policies(&text, true).unwrap_err();
        assert!(error.contains(expected), "{text}\n{error}\n{expected}");
    }
    // Its name is enough to delete it.
    assert_eq!(policies(&second("{podSelector: {}, ingres: []}"), false).unwrap().len(), 2);
}

/// As `kubectl apply` has it.
#[test]
fn a_policy_without_a_namespace_is_in_that_of_the_command_line() {
    let text = POLICY.replace(", namespace: shop", "");
    let name = |event: &denizen_model::Event| {
        let denizen_model::Event::NetworkPolicy(name, Some(policy)) = event else {
            panic!("{event:?}")
        };
        assert_eq!(policy.name, *name);
        name.to_string()
    };
    let names = |text: &str| policies(text, true).unwrap().iter().map(name).collect::<Vec<_>>();
    assert_eq!(names(&text), ["mine/db"]);
    assert_eq!(names(POLICY), ["shop/db"]);
}

/// Files have policies beside what they are for.
#[test]
fn what_is_wrong_with_other_objects_is_no_matter() {
    let service =
        "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: -1}]}\n";
    let text = format!("{service}---\n{POLICY}");
    assert_eq!(policies(&text, true).unwrap().len(), 1);
}

#[test]
fn a_person_is_shown_the_first_rows() {
    let pods: String = (0..60)
        .map(|at| {
            format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{at}, namespace: shop, \
                 labels: {{app: db}}}}\nspec: {{containers: [{{ports: [{{name: x, \
                 containerPort: {}}}]}}]}}\nstatus: {{podIPs: [{{ip: 10.0.0.{at}}}]}}\n",
                at + 1
            )
        })
        .collect();
    let there = folder(&[("pods.yaml", &pods)]);
    let policy = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {}, ingress: [{ports: [{port: x}]}]}
";
    let facts = ImpactFacts::of_folder(there.path()).unwrap();
    let answer = decided(facts, policies(policy, true).unwrap(), None);
    let text = answer.to_string();
    assert!(text.contains("and 20 more; `-o json` has all"), "{text}");
    assert_eq!(text.matches("LOST").count(), 40);
}

#[test]
fn a_folder_is_read_as_the_agent_reads_it() {
    let there = folder(&[
        ("a.yaml", POLICY),
        ("b.json", "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"x\"}}"),
        ("c.yaml", POLICY),
        ("d.yml", "kind: ["),
        (".hidden.yaml", "kind: ["),
        ("text", "kind: ["),
    ]);
    let facts = ImpactFacts::of_folder(there.path()).unwrap();
    assert_eq!(facts.events.len(), 2);
    let [duplicate, broken] = &facts.notes[..] else { panic!("{:?}", facts.notes) };
    assert!(duplicate.contains("duplicate of NetworkPolicy shop/db"), "{duplicate}");
    assert!(broken.contains("d.yml"), "{broken}");
}
