//! What `render` prints, feature by feature: `golden/NAME.yaml` (and `NAME.json`, the state file)
//! against `golden/NAME.txt`. `UPDATE_GOLDEN=1` writes the latter anew.
//!
//! `empty` is printed whole. The others show only what they have beyond it: the sets with elements
//! and the chains that are otherwise.

#![allow(
    clippy::disallowed_methods,
    reason = "tests read files and execute programs; denizen does not"
)]

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;

const EMPTY: &str = "empty";

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The program; for `tests/arm64` the one that it has compiled, in an emulator.
fn agent() -> Command {
    let Some(emulator) = std::env::var_os("DENIZEN_EMULATOR") else {
        return Command::new(env!("CARGO_BIN_EXE_denizen-agent"));
    };
    let mut agent = Command::new(emulator);
    agent.args(std::env::var_os("DENIZEN_AGENT"));
    agent
}

/// Runs the program on one feature's files.
fn run(name: &str, command: &[&str]) -> Result<String> {
    run_on(&golden(), name, command)
}

/// Runs the program on `NAME.yaml` and `NAME.json` of a folder.
fn run_on(of: &Path, name: &str, command: &[&str]) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let (manifests, run_dir) = (folder.path().join("manifests"), folder.path().join("run"));
    fs::create_dir(&manifests)?;
    fs::create_dir(&run_dir)?;
    fs::set_permissions(&run_dir, Permissions::from_mode(0o700))?;
    let text = fs::read_to_string(of.join(format!("{name}.yaml")))?;
    fs::write(manifests.join("all.yaml"), &text)?;
    if let Ok(state) = fs::read(of.join(format!("{name}.json"))) {
        fs::write(run_dir.join("pods.json"), state)?;
        fs::set_permissions(run_dir.join("pods.json"), Permissions::from_mode(0o600))?;
    }
    let flags = text.lines().find_map(|line| line.strip_prefix("# flags: "));
    // What a flag names is a file beside the others.
    let flags = flags.unwrap_or_default().replace("GOLDEN", &golden().to_string_lossy());
    let output = agent()
        .args(command)
        .arg("--manifests")
        .arg(&manifests)
        .arg("--run-dir")
        .arg(&run_dir)
        .args(["--node-name", "node-1"])
        .args(flags.split_whitespace())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.is_empty(), "{name}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The features' names, sorted.
fn features() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(golden())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = path.file_stem().context("a name")?;
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// A rendering's sets and chains, each after the line that begins its table.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let mut table = "";
    let mut found = Vec::new();
    for block in text.split("\n\n") {
        if block.starts_with("table ") {
            table = block.lines().next().unwrap_or_default();
        } else {
            let block = block.trim_end_matches('\n');
            // The last one of a table stands before the table's own end.
            found.push((table, block.strip_suffix("\n}").unwrap_or(block)));
        }
    }
    found
}

/// Compares a text with its golden file, or writes that anew. Returns what is not as it was.
fn difference(path: &Path, text: String) -> Result<Option<String>> {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().context("a folder")?)?;
        fs::write(path, text)?;
        return Ok(None);
    }
    let is_same = fs::read_to_string(path).unwrap_or_default() == text;
    Ok((!is_same).then(|| format!("{}:\n{text}", path.display())))
}

fn all_as_they_were(wrong: &[String]) -> Result<()> {
    let shown = wrong.join("\n");
    ensure!(wrong.is_empty(), "not as it was (UPDATE_GOLDEN=1 takes it over):\n{shown}");
    Ok(())
}

fn beyond(empty: &str, text: &str) -> String {
    let usual: BTreeSet<_> = blocks(empty).into_iter().collect();
    let mut shown = String::new();
    let mut table = "";
    for (of, block) in blocks(text).into_iter().filter(|block| !usual.contains(block)) {
        if of != table {
            shown += &format!("{of}\n");
            table = of;
        }
        shown += &format!("{block}\n\n");
    }
    shown
}

#[test]
fn rules_are_as_they_were() -> Result<()> {
    let empty = run(EMPTY, &["render"])?;
    let mut wrong = Vec::new();
    for name in features()? {
        let text = run(&name, &["render"])?;
        let text = if name == EMPTY { text } else { beyond(&empty, &text) };
        wrong.extend(difference(&golden().join(format!("{name}.txt")), text)?);
    }
    all_as_they_were(&wrong)
}

/// Lines that `empty` has not, each after the line that begins its table.
fn lines_beyond(empty: &str, text: &str) -> String {
    let usual: BTreeSet<_> = empty.lines().collect();
    let (mut shown, mut headings) = (String::new(), Vec::new());
    for line in text.lines() {
        if line.contains("-restore --noflush") {
            headings = vec![line];
        } else if line.starts_with('*') {
            headings.retain(|heading| !heading.starts_with('*'));
            headings.push(line);
        } else if !usual.contains(line) {
            headings.drain(..).for_each(|heading| shown += &format!("{heading}\n"));
            shown += &format!("{line}\n");
        }
    }
    shown
}

#[test]
fn iptables_rules_are_as_they_were() -> Result<()> {
    let render = |name: &str| run(name, &["render", "--backend", "iptables"]);
    let empty = render(EMPTY)?;
    let mut wrong = Vec::new();
    for name in features()? {
        let text = render(&name)?;
        for rule in text.lines().filter(|line| line.starts_with('-')) {
            let comment =
                rule.split_once("--comment \"").and_then(|(_, rest)| rest.split_once('"'));
            ensure!(
                comment.is_some_and(|(words, _)| !words.is_empty()),
                "{name}: no word of why: {rule}"
            );
        }
        let text = if name == EMPTY { text } else { lines_beyond(&empty, &text) };
        wrong.extend(difference(&golden().join("iptables").join(format!("{name}.txt")), text)?);
    }
    all_as_they_were(&wrong)
}

/// Rules, and the virtual servers behind them.
#[test]
fn virtual_servers_are_as_they_were() -> Result<()> {
    let folder = golden().join("ipvs");
    let text = beyond(&run(EMPTY, &["render"])?, &run_on(&folder, "web", &["render"])?);
    all_as_they_were(difference(&folder.join("web.txt"), text)?.as_slice())?;
    let json = run_on(&folder, "web", &["render", "--output", "json"])?;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    let count = |of: &str| json[of].as_array().map_or(0, Vec::len);
    assert_eq!((count("tables"), count("virtualServers")), (3, 2), "{json:#}");
    Ok(())
}

/// The chains by which policies judge what IPVS forwards.
#[test]
fn policies_beside_ipvs_are_as_they_were() -> Result<()> {
    let of = |backend| run("network-policy", &["render", "--backend", backend]);
    let text = beyond(&of("nftables")?, &of("ipvs")?);
    all_as_they_were(difference(&golden().join("ipvs/network-policy.txt"), text)?.as_slice())
}

#[test]
fn json_has_what_text_has() -> Result<()> {
    for name in features()? {
        let json: serde_json::Value =
            serde_json::from_str(&run(&name, &["render", "--output", "json"])?)?;
        let of_services = json["tables"].as_array().context("tables")?.iter();
        let of_policies = json["networkPolicy"]["tables"].as_array().into_iter().flatten();
        let tables: Vec<_> = of_services.chain(of_policies).collect();
        let count = |of: &str| -> usize {
            tables.iter().filter_map(|t| t[of].as_array()).map(Vec::len).sum()
        };
        let text = run(&name, &["render"])?;
        let lines = |begins: &str| text.lines().filter(|line| line.starts_with(begins)).count();
        assert_eq!(count("chains"), lines("\tchain "), "{name}");
        assert_eq!(count("sets"), lines("\tset ") + lines("\tmap "), "{name}");
    }
    Ok(())
}

#[test]
fn iptables_json_has_what_text_has() -> Result<()> {
    for name in features()? {
        let render = |output| run(&name, &["render", "--backend", "iptables", "--output", output]);
        let (json, text) = (render("json")?, render("text")?);
        let json: serde_json::Value = serde_json::from_str(&json)?;
        let lines = |begins: &str| text.lines().filter(|line| line.starts_with(begins)).count();
        let families = || json["families"].as_array().into_iter().flatten();
        let sets = families().filter_map(|family| family["sets"].as_array()).flatten();
        let elements = sets.filter_map(|set| set["elements"].as_array());
        assert_eq!(elements.map(Vec::len).sum::<usize>(), lines("# add "), "{name}");
        let tables = families().filter_map(|family| family["tables"].as_array()).flatten();
        let chains = tables.filter_map(|table| table["chains"].as_object()).flatten();
        let rules = chains.filter_map(|(_, rules)| rules.as_array());
        assert_eq!(rules.map(Vec::len).sum::<usize>(), lines("-"), "{name}");
        let tables = |of: &str| json[of]["tables"].as_array().map_or(0, Vec::len);
        assert_eq!(tables("bridge") + tables("networkPolicy"), lines("table "), "{name}");
    }
    Ok(())
}

#[test]
fn a_packet_is_explained_without_an_agent() -> Result<()> {
    let cases = [
        ("detect-pod-state", "10.1.2.3", "10.96.0.10:80", "forward", false),
        ("detect-pod-state", "10.1.2.3@eth0", "10.96.0.10:80", "forward", true),
        ("detect-pod-state", "10.7.7.7", "10.96.0.10:80", "forward", true),
        ("detect-pod-state", "10.7.7.7", "10.96.0.10:81", "reject", false),
        ("detect-pod-state", "10.7.7.7", "10.96.0.77:80", "untouched", false),
        ("detect-bridge", "10.7.7.7@cni0", "10.96.0.10:80", "forward", false),
        ("external-local", "10.7.7.7", "198.51.100.9:80", "forward", false),
        ("external-local", "10.7.7.7", "192.168.0.2:30081", "drop", false),
        ("external-local", "192.168.0.2", "192.168.0.2:30081", "forward", true),
        ("external-local", "10.7.7.7", "192.168.0.2:30082", "reject", false),
        ("egress", "10.1.2.3@cni0", "203.0.113.1:443", "untouched", true),
        ("egress", "fd00:1:2::3@cni0", "[2001:db8:9::9]:443", "untouched", true),
        ("egress", "10.1.2.3@cni0", "10.200.0.1:443", "untouched", false),
        ("egress", "10.1.2.3@cni0", "169.254.169.254:80", "untouched", false),
        ("egress", "10.1.2.3@cni0", "192.168.0.2:443", "untouched", false),
        ("egress", "10.1.2.3@eth0", "203.0.113.1:443", "untouched", false),
        ("egress", "10.7.7.7", "203.0.113.1:443", "untouched", false),
        // It is the endpoint that counts.
        ("egress", "10.1.2.3@cni0", "10.96.0.10:80", "forward", false),
        ("egress", "10.1.2.3@cni0", "10.96.0.20:80", "forward", true),
    ];
    for (name, from, to, verdict, masquerade) in cases {
        for backend in ["nftables", "iptables"] {
            let command =
                ["explain", "--from", from, "--to", to, "--output", "json", "--backend", backend];
            let said: serde_json::Value = serde_json::from_str(&run(name, &command)?)?;
            let case = format!("{name}: {from} to {to}, {backend}: {said:#}");
            // What no service has is left alone by iptables.
            let verdict =
                if (backend, to) == ("iptables", "10.96.0.10:81") { "untouched" } else { verdict };
            assert_eq!(said["verdict"], verdict, "{case}");
            assert_eq!(said["masquerade"], masquerade, "{case}");
        }
    }
    Ok(())
}

/// Both directions, with services and without.
#[test]
fn policies_are_explained_without_an_agent() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/offline");
    let explained = |flag: &str, from: &str, to: &str| -> Result<serde_json::Value> {
        let command = ["explain", "--network-policy=on", flag, "--from", from, "--to", to];
        let command = [&command[..], &["--output", "json"]].concat();
        Ok(serde_json::from_str(&run_on(&folder, "network-policy", &command)?)?)
    };
    let (on, off) = ("--services=on", "--services=off");
    let (client, web) = ("10.1.2.3@veth1", "10.1.2.4");
    let permitted = json!([
        { "direction": "egress", "pod": "shop/client", "isolatedBy": ["shop/client-egress"],
          "result": "permitted", "policy": "shop/client-egress", "rule": 0,
          "peer": "pods of namespace shop with app=web", "ports": "tcp port 8080" },
        { "direction": "ingress", "pod": "shop/web", "isolatedBy": ["shop/web-ingress"],
          "result": "permitted", "policy": "shop/web-ingress", "rule": 1,
          "peer": "pods of namespace shop with app=client", "ports": "tcp port 8080" },
    ]);
    for flag in [on, off] {
        let said = explained(flag, client, &format!("{web}:8080"))?;
        assert_eq!((&said["verdict"], &said["policies"]), (&json!("untouched"), &permitted));
        let said = explained(flag, client, &format!("{web}:9090"))?;
        assert_eq!(said["verdict"], "drop", "egress permits only 8080: {said:#}");
        let results =
            |said: &serde_json::Value| [0, 1].map(|n| said["policies"][n]["result"].clone());
        assert_eq!(results(&said), ["refused", "permitted"], "{said:#}");
        let said = explained(flag, "192.0.2.7", &format!("{web}:8080"))?;
        assert_eq!(said["verdict"], "drop", "{said:#}");
        assert_eq!(said["policies"][0]["result"], "refused", "{said:#}");
    }
    // By the service's address: only services that are decided here lead to an endpoint.
    let said = explained(on, client, "10.96.0.10:80")?;
    assert_eq!(said["verdict"], "forward", "{said:#}");
    assert_eq!(said["policies"][1]["endpoint"], "10.1.2.4:8080", "{said:#}");
    let said = explained(off, client, "10.96.0.10:80")?;
    assert!(said["steps"].to_string().contains("services are not decided here"), "{said:#}");
    Ok(())
}

/// The running agent has flags of its own; to take these in silence would explain another node.
#[test]
fn flags_that_a_running_agent_does_not_go_by_are_refused() -> Result<()> {
    let output = agent()
        .args(["explain", "--from", "10.1.2.3", "--to", "10.96.0.10:80"])
        .args(["--masquerade-all", "--detect-local=bridge=cni0"])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        !output.status.success() && said.contains("--detect-local, --masquerade-all"),
        "{said}"
    );
    Ok(())
}

/// `render | head`.
#[test]
fn who_has_read_enough_is_no_error() {
    let mut render = agent()
        .args(["render", "--manifests"])
        .arg(golden())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(render.stdout.take());
    let output = render.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("panicked"), "{said}");
}
