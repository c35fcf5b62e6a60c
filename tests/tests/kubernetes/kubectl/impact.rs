//! `impact` of what the API server has.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::packets::probe::{Outcome, Probe};
use denizen_tests::peers::api::Api;
use denizen_tests::test_length;
use denizen_tests::workstation::Workstation;
use serde_json::{Value, json};

use super::explain::Shop;

fn pod(name: &str, app: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": "shop", "name": name, "labels": { "app": app },
            "ownerReferences": [{ "kind": "StatefulSet", "name": app, "controller": true }] },
        "spec": { "nodeName": "n1" },
        "status": { "phase": "Running", "podIPs": [{ "ip": address }] },
    })
}

/// It permits this app to reach the database.
fn policy(name: &str, permitted: &str) -> Value {
    let from = json!([{ "podSelector": { "matchLabels": { "app": permitted } } }]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "shop", "name": name },
        "spec": { "podSelector": { "matchLabels": { "app": "db" } }, "ingress": [{ "from": from }] },
    })
}

/// A workstation with a shop whose database `web` may reach, and a file with another policy.
fn shop(label: &str, change: &Value) -> Result<(Workstation, String)> {
    let workstation = Workstation::new(label)?;
    workstation.node("n1", "192.168.0.1")?;
    workstation.api.put(&pod("db-0", "db", "10.0.0.1"))?;
    workstation.api.put(&pod("web-0", "web", "10.0.0.2"))?;
    workstation.api.put(&pod("job-0", "job", "10.0.0.3"))?;
    workstation.api.put(&policy("db", "web"))?;
    let file = workstation.folder.path().join("policy.json");
    fs::write(&file, change.to_string())?;
    Ok((workstation, file.to_str().context("a path")?.to_owned()))
}

/// Of each row: lost or gained, the peers, and what would be decided.
fn rows(answer: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = answer["changes"].as_array().into_iter().flatten();
    let row = |row: &Value| {
        let names = row["peers"].as_array().into_iter().flatten();
        let names: Vec<String> = names.map(|peer| text(&peer["name"])).collect();
        (text(&row["change"]), names.join(","), text(&row["after"]["result"]))
    };
    rows.map(row).collect()
}

#[test]
fn the_clusters_policies_are_what_a_change_changes() -> Result<()> {
    let (workstation, file) = shop("impact", &policy("db", "job"))?;
    let expected = |changes: &[[&str; 3]]| -> Vec<(String, String, String)> {
        let owned = |row: &[&str; 3]| row.map(str::to_owned).into();
        changes.iter().map(owned).collect()
    };
    let replaced = workstation.json(&["impact", "-f", &file], 1)?.json()?;
    let swapped = [["lost", "web", "refused"], ["gained", "job", "permitted"]];
    ensure!(rows(&replaced) == expected(&swapped), "{replaced:#}");
    ensure!(replaced["changes"][0]["before"]["policies"] == json!(["shop/db"]), "{replaced:#}");
    ensure!(replaced["pods"] == 3, "{replaced:#}");
    // Another one beside it takes nothing away.
    fs::write(&file, policy("more", "job").to_string())?;
    let added = workstation.json(&["impact", "-f", &file], 0)?.json()?;
    ensure!(rows(&added) == expected(&swapped[1..]), "{added:#}");
    workstation.json(&["impact", "-f", &file, "--fail-on", "warning"], 1)?;
    // Nobody executes anything anywhere.
    ensure!(
        workstation.api.requests().iter().all(|request| request.method == "GET"),
        "something was written"
    );
    Ok(())
}

/// 10,000 pods and 500 policies. How long that takes is printed, and counts in full length alone.
#[test]
fn the_largest_cluster_is_judged() -> Result<()> {
    const NAMESPACES: usize = 100;
    const WORKLOADS: usize = 10;
    const PODS: usize = 10;
    let mut objects = Vec::new();
    for space in 0..NAMESPACES {
        let namespace = format!("ns-{space:02}");
        objects.push(json!({ "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": namespace, "labels": { "team": format!("t{}", space % 7) } } }));
        for (workload, at) in (0..WORKLOADS).flat_map(|of| (0..PODS).map(move |at| (of, at))) {
            let app = format!("app-{workload}");
            let address = format!("10.{workload}.{space}.{}", at + 1);
            let mut object = pod(&format!("{app}-{at}"), &app, &address);
            object["metadata"]["namespace"] = json!(namespace);
            objects.push(object);
        }
        for at in 0..5 {
            let mut object = policy(&format!("p{at}"), &format!("app-{at}"));
            object["metadata"]["namespace"] = json!(namespace);
            object["spec"]["podSelector"]["matchLabels"]["app"] = json!(format!("app-{}", at + 1));
            let team = json!({ "matchLabels": { "team": format!("t{}", at) } });
            object["spec"]["ingress"][0]["from"][0]["namespaceSelector"] = team;
            objects.push(object);
        }
    }
    let mut change = policy("new", "app-9");
    change["metadata"]["namespace"] = json!("ns-07");
    change["spec"]["podSelector"]["matchLabels"]["app"] = json!("app-8");
    let (workstation, file) = shop("large", &change)?;
    let manifests = workstation.folder.path().join("manifests");
    fs::create_dir(&manifests)?;
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    fs::write(manifests.join("all.json"), list.to_string())?;
    let began = Instant::now();
    let words = ["impact", "-f", &file, "--manifests", manifests.to_str().context("a path")?];
    let answer = workstation.json(&words, 1)?.json()?;
    let took = began.elapsed();
    eprintln!("{took:?}");
    ensure!(!test_length::is_full() || took < Duration::from_secs(5), "{took:?}");
    ensure!(answer["pods"] == NAMESPACES * WORKLOADS * PODS, "{}", answer["pods"]);
    let rows = answer["changes"].as_array().context("no changes")?;
    ensure!(!rows.is_empty(), "nothing changes");
    for row in rows {
        let subjects = row["subjects"].as_array().context("no subjects")?;
        let is_meant = |of: &Value| of["namespace"] == "ns-07" && of["name"] == "app-8";
        ensure!(row["change"] == "lost" && subjects.iter().all(is_meant), "{row:#}");
    }
    let kept = rows.iter().flat_map(|row| row["peers"].as_array().into_iter().flatten());
    let is_kept = |of: &Value| of["namespace"] == "ns-07" && of["name"] == "app-9";
    ensure!(!kept.into_iter().any(is_kept), "the policy permits it");
    Ok(())
}

/// Nodes can be done without; without policies the answer would be wrong.
#[test]
fn what_must_not_be_read_is_named() -> Result<()> {
    let (workstation, file) = shop("unread", &policy("db", "job"))?;
    workstation.api.behave(|behaviour| behaviour.forbidden = vec!["nodes"]);
    let answer = workstation.json(&["impact", "-f", &file], 1)?.json()?;
    let notes = answer["notes"].to_string();
    ensure!(notes.contains("nodes are not judged"), "{answer:#}");
    workstation.api.behave(|behaviour| behaviour.forbidden = vec!["networkpolicies"]);
    let output = workstation.run(&["impact", "-f", &file])?;
    ensure!(
        output.code == 2 && output.stderr.contains("cannot list NetworkPolicies"),
        "{output:#?}"
    );
    Ok(())
}

/// A connection between two nodes is in the tables of both, and is one. Who does not answer is
/// named beside what the others know.
#[test]
fn losses_that_connections_would_feel_are_named() -> Result<()> {
    let shop = Shop::with("impact-live", &[])?;
    let far = SocketAddr::new(shop.far.addresses[0], 8080);
    let connected = Probe::tcp(far).send_in(&shop.client.netns);
    ensure!(matches!(connected, Outcome::Answered { .. }), "{connected:?}");
    let file = shop.workstation.folder.path().join("policy.json");
    let deny = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "default", "name": "deny" },
        "spec": { "podSelector": { "matchLabels": { "app": "far" } }, "policyTypes": ["Ingress"] },
    });
    fs::write(&file, deny.to_string())?;
    let words = ["impact", "--live", "-f", file.to_str().context("a path")?];
    let answer = shop.workstation.json(&words, 1)?.json()?;
    let first = &answer["changes"][0];
    ensure!(first["connections"] == 1 && answer["unanswered"] == json!([]), "{answer:#}");
    let example = first["examples"][0].as_str().context("no example")?;
    ensure!(example.contains("default/client"), "{example}");
    shop.workstation.agent(
        "node-1",
        &json!({ "waiting": { "reason": "CrashLoopBackOff" } }),
        &[],
    )?;
    let output = shop.workstation.json(&words, 1)?;
    let answer = output.json()?;
    ensure!(answer["changes"][0]["connections"] == 1, "the receiver's node knows it: {answer:#}");
    ensure!(output.unanswered("node-1")?.0 == "not-running", "{answer:#}");
    Ok(())
}
