//! What the plugin has recorded, and what follows from it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::Result;
use denizen_tests::agent::check::{CheckReport, CheckedNode};
use serde_json::{Value, json};

/// The state file.
fn record(node: &CheckedNode, text: &str) -> Result<()> {
    let file = node.path("run/pods.json");
    fs::create_dir_all(node.path("run"))?;
    fs::write(&file, text)?;
    Ok(fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?)
}

/// The state file's text with these records.
fn state(records: &Value) -> String {
    json!({ "version": 1, "epoch": "e", "generation": 1, "attachments": records }).to_string()
}

/// A record of a pod in VLAN 7 of bridge `br0`.
fn in_vlan() -> Value {
    let host = json!({ "name": "veth7", "index": 7, "mac": "02:00:00:00:00:07" });
    let pod = json!({ "namespace": "default", "name": "web-0", "uid": null });
    json!({
        "containerId": "c", "ifName": "eth0", "network": "pods", "netns": null, "pod": pod,
        "hostInterface": host, "l3Interface": "br0.7", "bridge": "br0", "ips": ["10.7.0.2"],
        "addedAt": "2026-11-20T12:00:00Z",
    })
}

#[test]
fn bridge_netfilter_is_found_where_pods_are_in_a_vlan() -> Result<()> {
    let node = CheckedNode::new("check-vlan")?;
    let set = |value| node.netns.sysctl("net.bridge.bridge-nf-call-iptables", value);
    node.netns.ip("link add br0 type bridge")?;
    record(&node, &state(&json!({ "c/eth0": in_vlan() })))?;
    set("0")?;
    let well = node.check(&[])?;
    well.ensure_well()?;
    well.ensure("vlans", "ok", "at the VLAN's interface")?;
    set("1")?;
    let global = "net.bridge.bridge-nf-call-iptables is 1";
    node.check(&[])?.ensure_only("vlans", "warning", global)?;
    set("0")?;
    node.netns.ip("link set br0 type bridge nf_call_iptables 1")?;
    node.check(&[])?.ensure_only("vlans", "warning", "nf_call_iptables of that bridge is 1")?;
    node.netns.ip("link set br0 type bridge nf_call_iptables 0 nf_call_ip6tables 1")?;
    node.check(&[])?.ensure_well()
}

#[test]
fn a_plugin_that_is_not_called_is_found() -> Result<()> {
    let node = CheckedNode::new("check-records")?;
    let check = |verdict: &str, words: &str| {
        let flags = node.all_flags(&[]).into_iter().filter(|flag| flag != "--pre");
        CheckReport::on(&node.netns, flags)?.ensure("records", verdict, words)
    };
    check("warning", "has not recorded any pod")?;
    record(&node, &state(&json!({})))?;
    check("warning", "no pod is recorded")?;
    let mut adopted = in_vlan();
    adopted["adopted"] = true.into();
    adopted["containerId"] = "a".into();
    record(&node, &state(&json!({ "a/eth0": adopted })))?;
    check("warning", "all 1 recorded pods were adopted")?;
    record(&node, &state(&json!({ "a/eth0": adopted, "c/eth0": in_vlan() })))?;
    check("ok", "1 attachments recorded by the plugin, 1 adopted")?;
    let called = |records: Value| state(&records).replacen('{', r#"{"pluginWasCalled":true,"#, 1);
    record(&node, &called(json!({ "a/eth0": adopted })))?;
    check("ok", "the plugin was called; of the pods that it recorded, none is left")?;
    record(&node, &called(json!({})))?;
    check("ok", "the plugin was called; of the pods that it recorded, none is left")?;
    record(&node, "{")?;
    check("failure", "cannot be read as a state file")
}

#[test]
fn a_node_that_forwards_no_ipv6_is_found_where_pods_have_it() -> Result<()> {
    let node = CheckedNode::new("check-v6")?;
    let forward = |value| node.netns.sysctl("net.ipv6.conf.all.forwarding", value);
    forward("0")?;
    node.check(&[])?.ensure_well()?;
    let mut pod = in_vlan();
    (pod["bridge"], pod["l3Interface"]) = (Value::Null, Value::Null);
    pod["ips"] = json!(["10.7.0.2", "fd00:10:7::2"]);
    record(&node, &state(&json!({ "c/eth0": pod })))?;
    node.check(&[])?.ensure_only("forwarding", "failure", "net.ipv6.conf.all.forwarding is 0")?;
    forward("1")?;
    node.check(&[])?.ensure_well()
}
