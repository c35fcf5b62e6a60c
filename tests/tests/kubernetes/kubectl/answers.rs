//! What is made of the agents' answers, of answers that are none, and of the lack of one.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::binary;
use denizen_tests::peers::api::Api;
use denizen_tests::peers::api::exec::Execution;
use denizen_tests::workstation::Workstation;
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

fn good() -> Value {
    json!({ "synced": true, "backend": "nftables", "pods": 30, "services": 1000,
            "errors": [], "warnings": [] })
}

/// An agent that answers each request with this.
fn says(answer: Value) -> Execution {
    Execution::relays(move |_| json!({ "answer": answer }))
}

#[test]
fn a_thousand_nodes_are_asked_fifty_at_once() -> Result<()> {
    let workstation = Workstation::new("thousand")?;
    (0..1000).try_for_each(|at| workstation.node_with_agent(&format!("n{at:03}")))?;
    workstation.execute(|_, _| {
        let answer = |_: &Value| json!({ "answer": good() });
        Execution::relays_after(Duration::from_millis(200), answer)
    });
    let began = Instant::now();
    let output = workstation.json(&["status"], 0)?;
    let took = began.elapsed();
    let statuses = output.json()?["statuses"].as_array().map(Vec::len);
    ensure!(statuses == Some(1000), "{statuses:?}");
    let most = workstation.api.most_at_once();
    ensure!((2..=50).contains(&most), "{most} at once");
    let kilobytes = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
    eprintln!("{most} at once, {kilobytes} KB, {took:?}");
    ensure!(kilobytes < 100_000, "{kilobytes} KB");
    Ok(())
}

#[test]
fn who_does_not_answer_well_is_named_beside_the_answers_of_the_others() -> Result<()> {
    let workstation = Workstation::new("silent")?;
    for node in ["good", "hangs", "cut", "garbled", "ends", "fails", "newer"] {
        workstation.node_with_agent(node)?;
    }
    workstation.node("none", "192.168.0.9")?;
    workstation.node("crashing", "192.168.0.8")?;
    workstation.agent("crashing", &json!({ "waiting": { "reason": "CrashLoopBackOff" } }), &[])?;
    let hello = |protocol: u8| format!("{{\"agent\":\"7\",\"protocol\":{protocol}}}\n");
    workstation.execute(move |node, _| {
        let prints = |stdout: String, stderr: &str, code| Execution::Prints {
            stdout: stdout.into_bytes(),
            stderr: stderr.as_bytes().to_vec(),
            code,
        };
        match node {
            "good" => says(good()),
            "cut" => Execution::BreaksOff(format!("{}{{\"answer\":{{\"syn", hello(1)).into_bytes()),
            "garbled" => prints("<html>Welcome</html>\n".to_owned(), "", 0),
            "ends" => prints(hello(1), "", 0),
            "fails" => prints(String::new(), "exec: no such file\u{1b}[2J\n", 127),
            "newer" => prints(hello(9), "", 0),
            _ => Execution::Hangs,
        }
    });
    let output = workstation.json(&["status", "--timeout", "4s"], 3)?;
    let expected = [
        ("hangs", "timed-out", "within"),
        ("cut", "cut-off", "cut off after"),
        ("garbled", "failed", "first line"),
        ("ends", "failed", "before it had answered"),
        ("fails", "failed", "127: exec: no such file"),
        ("newer", "failed", "agent 7"),
        ("none", "no-agent", "no pod"),
        ("crashing", "not-running", "CrashLoopBackOff, exit code 139"),
    ];
    for (node, code, words) in expected {
        let (found, reason) = output.unanswered(node)?;
        ensure!(found == code && reason.contains(words), "{node}: {found}: {reason}");
    }
    let json = output.json()?;
    ensure!(json["statuses"][0]["node"] == "good" && json["nodes"] == 9, "{json:#}");
    let text = workstation.run(&["status", "--timeout", "4s"])?.stdout;
    ensure!(text.contains("1 of 9 nodes answered; not:"), "{text}");
    ensure!(text.contains("no such file\\u{1b}[2J") && !text.contains('\u{1b}'), "{text}");
    ensure!(text.lines().filter(|line| line.starts_with("good ")).count() == 1, "{text}");
    Ok(())
}

/// Both protocols of the API server; each answer byte for byte, though standard error is full.
#[test]
fn an_answer_of_five_megabytes_arrives_whole() -> Result<()> {
    let workstation = Workstation::new("large")?;
    workstation.node_with_agent("n1")?;
    let large: String = (0..5 << 20).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
    let expected = large.clone();
    workstation.execute(move |_, _| {
        let answer = json!({ "answer": { "synced": true, "large": large } });
        let hello = "{\"agent\":\"0.1.0\",\"protocol\":1}\n";
        Execution::Prints {
            stdout: format!("{hello}{answer}\n").into_bytes(),
            stderr: vec![b'x'; 5 << 20],
            code: 0,
        }
    });
    for protocol in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        workstation.api.behave(|behaviour| behaviour.exec_protocol = protocol);
        let output = workstation.json(&["status"], 0)?.json()?;
        let found = output["statuses"][0]["status"]["large"].as_str().context("no text")?;
        ensure!(found == expected, "{protocol}: {} bytes", found.len());
    }
    Ok(())
}

#[test]
fn what_is_equal_on_forty_nodes_is_said_once() -> Result<()> {
    let workstation = Workstation::new("equal")?;
    (0..40).try_for_each(|at| workstation.node_with_agent(&format!("n{at:02}")))?;
    workstation.execute(|node, _| {
        let number = node.trim_start_matches('n').to_owned();
        let of = move |request: &Value| {
            if request.get("check").is_none() {
                return json!({ "answer": good() });
            }
            let reason = format!("10.0.{number}.1 is a pod's, and pod a/p{number} is another's");
            let mut checks = vec![json!({ "group": "cni-plugin", "name": "records",
                "verdict": "warning", "reason": reason, "advice": "restart them" })];
            if number == "07" {
                checks.push(json!({ "group": "settings", "name": "forwarding",
                    "verdict": "failure", "reason": "off\u{9b}", "advice": null }));
            }
            json!({ "answer": { "checks": checks } })
        };
        Execution::relays(of)
    });
    let output = workstation.run(&["check"])?;
    ensure!(output.code == 1, "{output:#?}");
    let lines: Vec<&str> = output.stdout.lines().collect();
    let expected = ["FAILURE  settings/forwarding (n07)", "    off\\u{9b}"];
    ensure!(lines[..2] == expected, "{output:#?}");
    let equal =
        lines.iter().filter(|line| line.starts_with("warning  cni-plugin/records (40 nodes"));
    ensure!(equal.count() == 1, "{output:#?}");
    let findings = workstation.json(&["check"], 1)?.json()?["findings"].take();
    let nodes: Vec<Option<usize>> = findings
        .as_array()
        .context("no findings")?
        .iter()
        .map(|finding| finding["nodes"].as_array().map(Vec::len))
        .collect();
    ensure!(nodes == [Some(1), Some(40)], "{findings:#}");
    Ok(())
}

/// An agent without `relay` is asked by its commands, and says what it lacks.
#[test]
fn an_older_agent_answers() -> Result<()> {
    let workstation = Workstation::new("older")?;
    workstation.node_with_agent("n1")?;
    workstation.execute(|_, request| {
        let prints = |stdout: Value, stderr: &str, code| Execution::Prints {
            stdout: format!("{stdout}\n").into_bytes(),
            stderr: stderr.as_bytes().to_vec(),
            code,
        };
        let words: Vec<&str> = request.command.iter().map(String::as_str).collect();
        match words[..] {
            ["denizen-agent", "status", "--output=json"] => prints(good(), "", 0),
            ["denizen-agent", "check", "--output=json"] => prints(
                json!({ "checks": [{ "group": "api", "name": "server", "verdict": "failure" }] }),
                "",
                1,
            ),
            ["denizen-agent", "drops", "--output=json"] => prints(json!({ "drops": [] }), "", 0),
            _ => Execution::Prints {
                stdout: Vec::new(),
                stderr: b"error: unrecognized subcommand 'relay'\n".to_vec(),
                code: 2,
            },
        }
    });
    let status = workstation.run(&["status"])?;
    ensure!(status.code == 0 && status.stdout.contains("older"), "{status:#?}");
    ensure!(workstation.json(&["check"], 1)?.stdout.contains("\"server\""));
    workstation.json(&["drops"], 0)?;
    let (code, reason) = workstation.json(&["services", "web"], 3)?.unanswered("n1")?;
    ensure!(code == "failed" && reason.contains("release does not support view"), "{reason}");
    Ok(())
}

#[test]
fn a_right_that_lacks_is_named() -> Result<()> {
    let workstation = Workstation::new("rights")?;
    workstation.node_with_agent("n1")?;
    workstation.node("n2", "192.168.0.2")?;
    workstation.execute(|_, _| says(good()));
    // A newer server asks for both verbs.
    for (release, forbidden, lacking) in [
        ("v1.34.2", "create pods/exec", None),
        ("v1.36.0", "create pods/exec", Some("create")),
        ("v1.34.2", "get pods/exec", Some("get")),
        ("v1.36.0", "get pods/exec", Some("get")),
    ] {
        workstation.api.behave(|behaviour| {
            behaviour.release = release;
            behaviour.forbidden = vec![forbidden];
        });
        // The other node has no agent.
        let output = workstation.json(&["status"], 3)?;
        let Some(verb) = lacking else {
            ensure!(output.json()?["statuses"][0]["node"] == "n1", "{output:#?}");
            continue;
        };
        let (code, reason) = output.unanswered("n1")?;
        ensure!(code == "forbidden" && reason.contains("get and create pods/exec"), "{reason}");
        ensure!(reason.contains(&format!("cannot {verb} resource \"pods/exec\"")), "{reason}");
    }
    // Less is known, and the rest is answered.
    workstation.api.behave(|behaviour| behaviour.forbidden = vec!["nodes"]);
    let output = workstation.json(&["status"], 0)?.json()?;
    ensure!(output["nodes"] == 1, "{output:#}");
    ensure!(output["notes"].to_string().contains("needs: list nodes"), "{output:#}");
    workstation.api.behave(|behaviour| behaviour.forbidden = vec!["pods"]);
    let output = workstation.run(&["status"])?;
    ensure!(output.code == 2 && output.stderr.contains("needs: list pods"), "{output:#?}");
    Ok(())
}

#[test]
fn somebody_elses_pod_with_our_label_is_not_asked() -> Result<()> {
    let workstation = Workstation::new("label")?;
    workstation.node_with_agent("n1")?;
    let mut pod = workstation.api.objects("pods").pop().context("no pod")?;
    pod["metadata"] = json!({
        "namespace": "hacker",
        "name": "denizen-n1",
        "labels": { "app.kubernetes.io/name": "denizen" },
    });
    workstation.api.put(&pod)?;
    workstation.execute(|_, _| says(good()));
    let output = workstation.run(&["status"])?;
    ensure!(output.code == 2 && output.stderr.contains("hacker, kube-system"), "{output:#?}");
    workstation.json(&["status", "--agent-namespace", "kube-system"], 0)?;
    let executed =
        workstation.api.requests().into_iter().filter(|request| request.path.ends_with("/exec"));
    for request in executed {
        ensure!(request.path.contains("/namespaces/kube-system/"), "{request:?}");
    }
    Ok(())
}

#[test]
fn kubectls_flags_and_files_are_known() -> Result<()> {
    let workstation = Workstation::new("flags")?;
    workstation.node_with_agent("n1")?;
    workstation.execute(|_, _| says(good()));
    let program = binary::ours("kubectl-denizen")?;
    let run = |kubeconfig: String, words: &[&str]| {
        let mut command = Command::new(&program);
        workstation.output_of({
            command.env_clear().env("KUBECONFIG", kubeconfig).args(words);
            command
        })
    };
    let real = workstation.api.kubeconfig().display().to_string();
    let other = workstation.folder.path().join("other");
    let context = json!({ "name": "away", "context": { "cluster": "test", "user": "agent" } });
    let config = json!({ "apiVersion": "v1", "kind": "Config", "contexts": [context] });
    fs::write(&other, config.to_string())?;
    // The list's files are one.
    let list = format!("{real}:{}", other.display());
    ensure!(run(list.clone(), &["--context", "away", "status"])?.code == 0);
    let wrong = run(real, &["--context", "away", "status"])?;
    ensure!(wrong.code == 2 && wrong.stderr.contains("away"), "{wrong:#?}");
    let none = run("/nonexistent".to_owned(), &["status"])?;
    ensure!(none.code == 2 && none.stderr.contains("kubeconfig"), "{none:#?}");
    // kubectl finds it by its name, and gives it what stands behind that.
    let kubectl = |words: &[&str]| {
        let mut command = Command::new("kubectl");
        let folder = program.parent().unwrap_or(&program);
        command.env_clear().env("PATH", format!("/usr/bin:/bin:{}", folder.display()));
        command.env("KUBECONFIG", &list).env("HOME", workstation.folder.path()).args(words);
        workstation.output_of(command)
    };
    let through = kubectl(&["denizen", "--context", "away", "status", "-o", "json"])?;
    ensure!(through.code == 0 && through.json()?["nodes"] == 1, "{through:#?}");
    let before = kubectl(&["--context", "away", "denizen", "status"])?;
    ensure!(before.code == 1 && before.stderr.contains("plugin"), "{before:#?}");
    let usage = run(String::new(), &["--help"])?;
    ensure!(usage.code == 0 && usage.stdout.contains("Usage: kubectl denizen"), "{usage:#?}");
    Ok(())
}

#[test]
fn kubectl_completes_verbs_and_names() -> Result<()> {
    let workstation = Workstation::new("complete")?;
    workstation.node_with_agent("n1")?;
    let link = workstation.folder.path().join("kubectl_complete-denizen");
    symlink(binary::ours("kubectl-denizen")?, &link)?;
    let complete = |words: &[&str]| -> Result<String> {
        let mut command = Command::new(&link);
        command.env_clear().env("KUBECONFIG", workstation.api.kubeconfig()).args(words);
        let output = workstation.output_of(command)?;
        ensure!(output.code == 0 && output.stdout.ends_with(":4\n"), "{output:#?}");
        Ok(output.stdout)
    };
    ensure!(complete(&["sta"])?.starts_with("status\t"));
    ensure!(complete(&["bundle", "--nodes", ""])? == "n1\n:4\n");
    ensure!(complete(&["policies", "-n", "kube-system", "den"])? == "denizen-n1\n:4\n");
    // Who types does not wait for a server that hangs, and needs none for verbs.
    workstation.api.behave(|behaviour| behaviour.silent = vec!["nodes"]);
    ensure!(complete(&["bundle", "--nodes", ""])? == ":4\n");
    ensure!(complete(&["--kubeconfig", "/nonexistent", "sta"])?.starts_with("status\t"));
    ensure!(complete(&["--kubeconfig", "/nonexistent", "bundle", "--nodes", ""])? == ":4\n");
    Ok(())
}
