//! The documented roles permit what the program asks for: no less, and no more.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use denizen_tests::binary;
use denizen_tests::conf::documents;
use denizen_tests::peers::api::exec::Execution;
use denizen_tests::peers::api::{Api, ReceivedRequest};
use denizen_tests::workstation::Workstation;
use serde_json::{Value, json};

/// Whether in one namespace alone, an API group, a resource, and what is done with it.
type Right = (bool, String, String, String);

fn permitted() -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    let texts = |list: &Value| -> Vec<String> {
        let texts = list.as_array().into_iter().flatten();
        texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    for role in documents("kubectl/rbac.yaml")? {
        let is_namespaced = role["kind"] == "Role";
        for rule in role["rules"].as_array().into_iter().flatten() {
            for (group, resource) in texts(&rule["apiGroups"]).into_iter().flat_map(|group| {
                texts(&rule["resources"]).into_iter().map(move |of| (group.clone(), of))
            }) {
                let verbs = texts(&rule["verbs"]).into_iter();
                rights.extend(
                    verbs.map(|verb| (is_namespaced, group.clone(), resource.clone(), verb)),
                );
            }
        }
    }
    Ok(rights)
}

/// What a request needs; `None` for what everybody may read.
fn right(request: &ReceivedRequest) -> Result<Option<Right>> {
    ensure!(request.method == "GET", "{request:?}");
    let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    let (is_namespaced, group, resource, verb) = match parts[..] {
        ["version"] => return Ok(None),
        ["api", "v1", resource] | ["api", "v1", "namespaces", _, resource] => {
            (false, "", resource.to_owned(), "list")
        }
        ["api", "v1", "namespaces", _, resource, _] => (false, "", resource.to_owned(), "get"),
        ["api", "v1", "namespaces", "kube-system", resource, _, sub] => {
            (true, "", format!("{resource}/{sub}"), "get")
        }
        ["apis", group, _, resource] | ["apis", group, _, "namespaces", _, resource] => {
            (false, group, resource.to_owned(), "list")
        }
        _ => anyhow::bail!("{request:?}"),
    };
    Ok(Some((is_namespaced, group.to_owned(), resource, verb.to_owned())))
}

#[test]
fn the_documented_roles_are_enough_and_not_too_much() -> Result<()> {
    let workstation = Workstation::new("roles")?;
    workstation.node_with_agent("n1")?;
    workstation.api.put(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": "default", "name": "client" },
        "spec": { "nodeName": "n1" },
        "status": { "phase": "Running", "podIPs": [{ "ip": "10.0.0.5" }] },
    }))?;
    workstation.api.put(&json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "namespace": "default", "name": "web" },
    }))?;
    workstation.execute(|_, _| {
        let answer = |request: &Value| match request.get("explain") {
            Some(_) => json!({ "answer": { "verdict": "untouched" } }),
            None => json!({ "answer": { "checks": [], "synced": true } }),
        };
        Execution::relays(answer)
    });
    let folder = workstation.folder.path().join("bundle");
    let folder = folder.to_str().context("a path")?;
    let policy = workstation.folder.path().join("policy.json");
    let metadata = json!({ "namespace": "default", "name": "p" });
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata,
    });
    fs::write(&policy, object.to_string())?;
    let policy = policy.to_str().context("a path")?;
    let verbs: [&[&str]; 11] = [
        &["status"],
        &["check"],
        &["drops"],
        &["connections"],
        &["services"],
        &["services", "web"],
        &["policies", "client"],
        &["bundle", folder],
        &["impact", "-f", policy],
        &["explain", "client", "web:80"],
        &["explain", "10.0.0.5", "10.0.0.9:80"],
    ];
    for words in verbs {
        let output = workstation.run(words)?;
        ensure!(output.code != 2, "{words:?}: {output:#?}");
    }
    let link = workstation.folder.path().join("kubectl_complete-denizen");
    symlink(binary::ours("kubectl-denizen")?, &link)?;
    let mut command = Command::new(&link);
    command.env_clear().env("KUBECONFIG", workstation.api.kubeconfig()).args(["explain", ""]);
    ensure!(workstation.output_of(command)?.stdout.contains("web"));

    let requests: Vec<Option<Right>> =
        workstation.api.requests().iter().map(right).collect::<Result<_>>()?;
    let mut needed: BTreeSet<Right> = requests.into_iter().flatten().collect();
    // For the same request, Kubernetes asks for it too since 1.35.
    let create = (true, String::new(), "pods/exec".to_owned(), "create".to_owned());
    needed.insert(create);
    assert_eq!(needed, permitted()?);
    Ok(())
}

/// The page about the program says what the file says.
#[test]
fn the_page_names_the_roles() -> Result<()> {
    let page = fs::read_to_string(denizen_tests::conf::folder().join("reference/kubectl.md"))?;
    for (_, _, resource, _) in permitted()? {
        ensure!(page.contains(&format!("`{resource}`")), "{resource}");
    }
    let help = Command::new(binary::ours("kubectl-denizen")?).arg("--help").output()?;
    let help = String::from_utf8(help.stdout)?;
    let (_, verbs) = help.split_once("Commands:\n").context("no verbs")?;
    let verbs = verbs.lines().take_while(|line| !line.is_empty());
    let names = verbs.filter_map(|line| line.split_whitespace().next());
    for verb in names.filter(|name| *name != "help") {
        ensure!(page.contains(&format!("`{verb}")), "{verb}");
    }
    Ok(())
}
