//! `"onTimeout": "isolate"`: a pod that no agent has programmed starts, and nothing reaches it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Stdio};

use denizen_state::firewall::note_whether_off;
use denizen_state::run_dir::SOCKET;
use denizen_state::socket::WaitAnswer;
use denizen_tests::node::cni::{PluginContext, Refusal};
use serde_json::{Value, json};

use super::wait::{SLACK, TIMEOUT, absences, agent, says, timed, waiting};

/// The tables as far as the plugin knows them.
pub const TABLES: &str = "add table ip denizen-firewall
add set ip denizen-firewall pending { typeof ip saddr; }
add table ip6 denizen-firewall
add set ip6 denizen-firewall pending { typeof ip6 saddr; }";

pub fn nft(context: &PluginContext, arguments: &[&str]) -> String {
    let mut nft = Command::new("nft");
    nft.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = context.node.spawn(nft).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The pending addresses of both families.
pub fn pending(context: &PluginContext) -> Vec<Value> {
    let of = |family| -> Vec<Value> {
        let set = nft(context, &["-j", "list", "set", family, "denizen-firewall", "pending"]);
        let set: Value = serde_json::from_str(&set).unwrap();
        set["nftables"][1]["set"]["elem"].as_array().cloned().unwrap_or_default()
    };
    [of("ip"), of("ip6")].concat()
}

fn call(context: &PluginContext, command: &str) -> Result<Value, Refusal> {
    context.call(context.variables(command, "c2"), &waiting(context, "isolate"))
}

#[test]
fn without_the_agent_s_word_the_pod_starts_isolated_within_the_time_out() {
    for (name, arrange, _, _) in absences() {
        let context = PluginContext::new();
        context.add("c1");
        nft(&context, &[TABLES]);
        arrange(&context);
        let (added, took) = timed(|| call(&context, "ADD"));
        assert_eq!(added.expect(name), context.configuration("1.1.0")["prevResult"], "{name}");
        assert_eq!(context.records(), ["c1/eth0", "c2/eth0"], "{name}");
        assert_eq!(pending(&context), [json!("10.1.0.5"), json!("2001:db8:1::5")], "{name}");
        assert!(took < TIMEOUT + SLACK, "{name}: {took:?}");
    }
}

#[test]
fn an_address_that_is_pending_already_is_isolated() {
    let context = PluginContext::new();
    nft(&context, &[TABLES]);
    call(&context, "ADD").unwrap();
    call(&context, "ADD").unwrap();
    assert_eq!(pending(&context).len(), 2);
}

#[test]
fn what_the_agent_has_programmed_is_not_isolated() {
    let context = PluginContext::new();
    context.add("c1");
    nft(&context, &[TABLES]);
    agent(&context, |mut stream, _| {
        let answer = WaitAnswer { programmed: true, reason: None };
        serde_json::to_writer(&mut stream, &answer).unwrap();
    });
    call(&context, "ADD").unwrap();
    assert!(pending(&context).is_empty());
}

/// A fresh node, and one of which only one family's table is left: nothing is half isolated.
#[test]
fn where_a_pod_cannot_be_isolated_it_does_not_start() {
    let half = "add table ip denizen-firewall; \
                add set ip denizen-firewall pending { typeof ip saddr; }";
    for (name, tables) in [("a fresh node", ""), ("no IPv6 table", half)] {
        let context = PluginContext::new();
        context.add("c1");
        nft(&context, &[tables]);
        let refusal = call(&context, "ADD").expect_err(name);
        assert_eq!(refusal["code"], 11, "{name}: {refusal}");
        let message = refusal["msg"].as_str().unwrap();
        assert!(message.contains("c2/eth0") && message.contains("isolated"), "{message}");
        assert!(message.contains("denizen-firewall"), "{name}: {message}");
        assert_eq!(context.records(), ["c1/eth0"], "{name}");
        if !tables.is_empty() {
            let left = nft(&context, &["list", "set", "ip", "denizen-firewall", "pending"]);
            assert!(!left.contains("10.1.0.5"), "{left}");
        }
    }
}

/// No firewall has tables there, and none will come.
#[test]
fn where_no_policy_is_enforced_the_pod_starts_as_it_is() {
    let context = PluginContext::new();
    context.add("c1");
    note_whether_off(&context.run_dir(), true).unwrap();
    assert_eq!(call(&context, "ADD").unwrap(), context.configuration("1.1.0")["prevResult"]);
    assert_eq!(context.records(), ["c1/eth0", "c2/eth0"]);
    call(&context, "STATUS").unwrap();
    assert_eq!(nft(&context, &["list", "tables"]), "");
    note_whether_off(&context.run_dir(), false).unwrap();
    assert_eq!(call(&context, "ADD").unwrap_err()["code"], 11, "an agent with a firewall came");
    assert_eq!(call(&context, "STATUS").unwrap_err()["code"], 50);
}

#[test]
fn status_says_50_when_no_pod_could_be_isolated() {
    let context = PluginContext::new();
    let refusal = call(&context, "STATUS").unwrap_err();
    assert_eq!(refusal["code"], 50);
    let message = refusal["msg"].as_str().unwrap();
    assert!(message.contains(SOCKET) && message.contains("denizen-firewall"), "{message}");
    nft(&context, &["add table bridge denizen-firewall"]);
    assert_eq!(call(&context, "STATUS").unwrap_err()["code"], 50, "it has no pending addresses");
    nft(&context, &[TABLES]);
    call(&context, "STATUS").unwrap();
    nft(&context, &["flush ruleset"]);
    agent(&context, says(""));
    call(&context, "STATUS").unwrap();
}
