//! Agents of another release: every verb answers, or says what they lack.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::binary;
use denizen_tests::packets::probe::{Outcome, Probe, SILENCE};
use denizen_tests::peers::api::exec::Execution;
use denizen_tests::workstation::Workstation;
use serde_json::{Value, json};

use super::explain::Shop;
use super::picture::ask::Picture;
use super::trace::traced;

/// What is said of a request that came with a later release.
const LACKS: &str = "this agent's release does not support";

/// As it stands in the source of what an agent says.
const RAW: &str = "unknown variant";

const LONG: Duration = Duration::from_secs(60);

/// Those of the release whose programs `DENIZEN_PREVIOUS_RELEASE` names. Without it, they are this
/// one's, and lack nothing.
#[test]
fn agents_of_the_previous_release_are_understood() -> Result<()> {
    let previous = binary::previous("denizen-agent");
    let shop = Shop::of("previous", &[], previous.clone())?;
    shop.hold(&[("far", "Ingress")])?;
    let far = SocketAddr::new(shop.far.addresses[0], 8080);
    let dropped = Probe::tcp(far).timeout(SILENCE).send_in(&shop.client.netns);
    ensure!(dropped == Outcome::Dropped, "{dropped:?}");
    let path = |name: &str| -> Result<String> {
        Ok(shop.workstation.folder.path().join(name).to_str().context("a path")?.to_owned())
    };
    let (folder, file) = (path("bundle")?, path("policy.json")?);
    let deny = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "default", "name": "deny" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"] },
    });
    fs::write(&file, deny.to_string())?;
    let verbs: [(&[&str], &[i32]); 12] = [
        (&["status"], &[0]),
        // The machine's own CNI configuration is not ours.
        (&["check"], &[0, 1]),
        (&["drops"], &[0]),
        (&["connections"], &[0]),
        (&["services"], &[0]),
        (&["services", "web"], &[0]),
        (&["policies", "far"], &[0]),
        (&["explain", "client", "web:80"], &[1]),
        (&["explain", "192.168.0.1", "web:80"], &[1]),
        (&["impact", "-f", &file], &[1]),
        (&["impact", "--live", "-f", &file], &[1]),
        (&["bundle", &folder], &[0]),
    ];
    let mut lacking = Vec::new();
    for (words, codes) in verbs {
        let output = shop.workstation.run(&[words, &["-o", "json"]].concat())?;
        ensure!(codes.contains(&output.code), "{words:?}: {output:#?}");
        let json = output.json()?;
        let unanswered = json.get("unanswered").unwrap_or(&json!([])).clone();
        ensure!(unanswered == json!([]), "{words:?}: {json:#}");
        ensure!(!output.stdout.contains(RAW), "{words:?}: {json:#}");
        if output.stdout.contains(LACKS) {
            lacking.push(words[0]);
        }
    }
    let near = traced(&shop, &["web:80", "--count", "2", "-o", "json"], far);
    drop(near?.json()?);
    let page = Picture::of(&shop.workstation, &["--every", "1h"])?
        .until(LONG, |page| page.contains(">dropped</span>") || page.contains(LACKS))?;
    ensure!(!page.contains(RAW), "{page}");
    if page.contains(LACKS) {
        lacking.push("ui");
    }
    eprintln!("the agents lack something for {lacking:?}");
    ensure!(previous.is_some() || lacking.is_empty(), "{lacking:?}");
    Ok(())
}

/// Requests that came later than `relay`, and what an agent that does not know them says. The rest
/// is answered, with fields that nobody knows yet.
#[test]
fn an_agent_that_lacks_a_request_says_so_beside_its_answers() -> Result<()> {
    let workstation = Workstation::new("lacks")?;
    workstation.node_with_agent("n1")?;
    workstation.execute(|_, _| Execution::relays(answer));
    let drops = workstation.json(&["drops"], 0)?.json()?;
    ensure!(drops["drops"][0]["packets"] == 7 && drops["flows"] == json!([]), "{drops:#}");
    let expected = json!([{ "texts": [format!("{LACKS} refused")], "nodes": ["n1"] }]);
    ensure!(drops["notNoted"] == expected, "{drops:#}");
    let status = workstation.json(&["status"], 0)?.json()?;
    ensure!(status["statuses"][0]["status"]["ofTomorrow"] == 1, "{status:#}");
    let output = workstation.run(&["connections"])?;
    ensure!(output.code == 0 && output.stdout.contains("10.0.0.1:4000"), "{output:#?}");
    let page = Picture::of(&workstation, &["--every", "1h"])?
        .until(LONG, |page| page.contains(&format!("{LACKS} dropped")))?;
    ensure!(page.contains(&format!("{LACKS} refused")), "{page}");
    ensure!(page.contains(">connected</span>") && !page.contains(RAW), "{page}");
    Ok(())
}

fn answer(request: &Value) -> Value {
    let key = request.as_object().and_then(|request| request.keys().next());
    let answer = match key.map(String::as_str) {
        Some(name @ ("refused" | "dropped")) => {
            let known = "expected one of `status`, `view`, `route`, `end` at line 1 column 10";
            return json!({ "error": format!("not a request: {RAW} `{name}`, {known}") });
        }
        Some("drops") => json!({ "drops": [{ "table": "ip denizen", "verdict": "refused",
            "reason": "no endpoints", "packets": 7, "ofTomorrow": 1 }] }),
        Some("connections") => json!({ "total": 1, "connections": [{
            "protocol": "tcp", "state": "established", "ofTomorrow": { "a": 1 },
            "client": { "address": "10.0.0.1:4000" },
            "destination": { "address": "10.0.0.2:80", "ofTomorrow": 1 } }] }),
        _ => json!({ "synced": true, "errors": [], "warnings": [], "ofTomorrow": 1 }),
    };
    json!({ "answer": answer })
}
