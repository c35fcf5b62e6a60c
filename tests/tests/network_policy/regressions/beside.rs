//! Other rules on the node, and its bridges.

use anyhow::{Context, Result};
use denizen_tests::eventually::eventually;
use denizen_tests::node::pod::BRIDGE;
use denizen_tests::policy::PolicyRule;
use serde_json::Value;

use super::test_cluster::{TIMEOUT, TestCluster, x};

#[test]
fn what_another_table_accepts_is_judged_all_the_same() -> Result<()> {
    let mut cluster = TestCluster::new("np-accepts")?;
    let chains = [("first", -400), ("last", 400)].map(|(name, priority)| {
        format!("chain {name} {{ type filter hook forward priority {priority}; accept; }}\n")
    });
    cluster.node(0).nft(&format!("table inet other {{\n{}}}", chains.concat()))?;
    cluster.put([x("deny").ingress([])])?;
    for from in ["y/a", "x/b", "x/c"] {
        cluster.expect(cluster.netns(from), "x/a", false)?;
    }
    cluster.expect(cluster.netns("x/a"), "y/a", true)
}

#[test]
fn what_another_table_drops_stays_dropped() -> Result<()> {
    let mut cluster = TestCluster::new("np-drops")?;
    let [v4, v6] = cluster.addresses("x/a");
    cluster.node(0).nft(&format!(
        "table inet other {{ chain last {{ type filter hook forward priority 10; \
         ip daddr {v4} drop; ip6 daddr {v6} drop; }}; }}"
    ))?;
    cluster.put([x("all").ingress([PolicyRule::all()])])?;
    for from in ["y/a", "x/b", "x/c"] {
        cluster.expect(cluster.netns(from), "x/a", false)?;
    }
    cluster.expect(cluster.netns("y/a"), "x/c", true)
}

/// The switch of the bridge that isolated pods are on is watched; the sysctls are off.
#[test]
fn a_bridge_that_hides_its_frames_is_set_right() -> Result<()> {
    let mut cluster = TestCluster::new("np-bridge")?;
    cluster.node(0).sysctl("net.bridge.bridge-nf-call-iptables", "0")?;
    cluster.node(0).sysctl("net.bridge.bridge-nf-call-ip6tables", "0")?;
    cluster.put([x("deny").ingress([])])?;
    cluster.expect(cluster.netns("x/c"), "x/a", false)?;
    let switches = "nf_call_iptables 0 nf_call_ip6tables 0";
    cluster.node(0).ip(&format!("link set {BRIDGE} type bridge {switches}"))?;
    let is_set = || {
        let shown = cluster.node(0).output("ip", &["-j", "-d", "link", "show", BRIDGE])?;
        let shown: Value = serde_json::from_str(&shown)?;
        let data = shown[0]["linkinfo"]["info_data"].as_object().context("a bridge")?;
        Ok(data["nf_call_iptables"] == 1 && data["nf_call_ip6tables"] == 1)
    };
    eventually("the bridge shows its frames", TIMEOUT, is_set)?;
    cluster.expect(cluster.netns("x/c"), "x/a", false)?;
    cluster.expect(cluster.netns("x/a"), "y/a", true)
}
