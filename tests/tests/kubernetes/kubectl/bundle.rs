//! `bundle` beside what nobody must see.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use denizen_tests::node::netns::checked;
use denizen_tests::peers::api::Api;
use denizen_tests::peers::api::exec::Execution;
use denizen_tests::workstation::{Workstation, agent_program};
use serde_json::{Value, json};

use super::real::{AgentNode, hosts};

/// In every secret.
const SECRET: &str = "hunter2";

/// CNI configurations: one as older releases of Calico write it, and some that cannot be understood
/// where a secret is.
fn configurations() -> [(&'static str, String); 5] {
    let token = format!("{SECRET}-token");
    let list = |plugins: Value| {
        json!({ "cniVersion": "0.3.1", "name": "pods", "plugins": plugins }).to_string()
    };
    let calico = json!({ "type": "calico", "k8s_auth_token": token,
        "policy": { "type": "k8s", "k8s_auth_token": token } });
    [
        ("10-calico.conflist", list(json!([calico, { "type": "denizen", "password": token }]))),
        ("20-text.conflist", list(json!(token))),
        ("30-plugin.conflist", list(json!([token]))),
        ("40-type.conflist", list(json!([{ "type": { "token": token } }, { "type": "denizen" }]))),
        ("50-broken.conf", format!("{{ \"k8s_auth_token\": \"{token}\" {token}")),
    ]
}

/// What a real agent says, which has a token in its environment, beside these configurations.
fn answers(host: &AgentNode, folder: &Path) -> Result<[(&'static str, Value); 4]> {
    let command = |words: &[&str]| -> Result<Value> {
        let mut command = Command::new(agent_program()?);
        command.args(words).args(["--output", "json", "--run-dir"]).arg(host.agent.run_dir());
        command.env("TOKEN", SECRET).env("DENIZEN_PASSWORD", SECRET);
        let output = host.netns.run(|| command.output())??;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        serde_json::from_slice(&output.stdout).with_context(|| format!("{words:?}: {stderr}"))
    };
    let mut checks = Vec::new();
    // The runtime uses one of them, so each is alone.
    for (name, text) in configurations() {
        let folder = folder.join(name);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), text)?;
        let folder = folder.to_str().context("a path")?;
        let mut printed = command(&["check", "--cni-conf-dir", folder])?;
        let of: Vec<Value> = serde_json::from_value(printed["checks"].take())?;
        let finding = of.iter().find(|check| check["name"] == "cni-configuration");
        let code = if name.starts_with("10") { "run-dirs-differ" } else { "cni-unusable" };
        ensure!(finding.is_some_and(|finding| finding["code"] == code), "{name}: {finding:#?}");
        checks.extend(of);
    }
    Ok([
        ("status", command(&["status"])?),
        ("check", json!({ "checks": checks })),
        ("drops", command(&["drops"])?),
        ("view", host.agent.ask_directly(&json!({ "view": { "search": "", "skip": 0 } }))?),
    ])
}

#[test]
fn no_secret_is_in_a_bundle() -> Result<()> {
    let workstation = Workstation::new("secrets")?;
    let hosts = hosts(&workstation, 1)?;
    let answers = answers(&hosts[0], workstation.folder.path())?;
    for plural in ["pods", "nodes"] {
        let mut object = workstation.api.objects(plural).pop().context("no object")?;
        object["metadata"]["annotations"] = json!({ "password": SECRET });
        object["metadata"]["labels"]["password"] = json!(SECRET);
        if plural == "pods" {
            let env = json!([{ "name": "TOKEN", "value": SECRET }]);
            object["spec"]["containers"][0]["env"] = env;
            object["spec"]["containers"][0]["command"] = json!(["denizen-agent", SECRET]);
        }
        workstation.api.put(&object)?;
    }
    workstation.execute(move |_, _| {
        let answers = answers.clone();
        let answer = move |request: &Value| {
            let found = answers.iter().find(|(name, _)| request.get(name).is_some());
            json!({ "answer": found.map(|(_, answer)| answer) })
        };
        Execution::relays(answer)
    });
    let bundle = workstation.folder.path().join("bundle");
    let printed = workstation.json(&["bundle", bundle.to_str().context("a path")?], 0)?;
    ensure!(printed.json()?["missing"] == json!({}), "{printed:#?}");
    let found = checked(Command::new("grep").args(["-rc", ""]).arg(&bundle))?;
    let files = String::from_utf8(found.stdout)?;
    for file in ["n0/check.json", "n0/status.json", "n0/view.json", "nodes.json", "manifest.json"] {
        ensure!(files.contains(file), "{file}: {files}");
    }
    let secrets = Command::new("grep").args(["-r", SECRET]).arg(&bundle).output()?;
    ensure!(secrets.status.code() == Some(1), "{}", String::from_utf8_lossy(&secrets.stdout));
    ensure!(!printed.stdout.contains(SECRET), "{printed:#?}");
    for request in workstation.api.requests() {
        let is_secret = ["secrets", "configmaps"].iter().any(|word| request.path.contains(word));
        ensure!(!is_secret && request.method == "GET", "{request:?}");
    }
    Ok(())
}
