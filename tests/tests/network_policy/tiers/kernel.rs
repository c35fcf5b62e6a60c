//! ClusterNetworkPolicies in the kernel, between real pods.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::node::cluster::serve;
use denizen_tests::packets::probe::Protocol::Tcp;
use denizen_tests::policy::{ClusterNetworkPolicy, NetworkPolicy};
use serde_json::json;

use super::{admin, baseline, everybody, from, networks, pods_of, to};
use crate::regressions::connections::{ENDING, connections};
use crate::regressions::test_cluster::{TIMEOUT, TestCluster, expect_at, x};

/// What cannot get through in this time is dropped.
const SILENCE: Duration = Duration::from_millis(300);

fn put(
    cluster: &mut TestCluster,
    tiers: Vec<ClusterNetworkPolicy>,
    policies: Vec<NetworkPolicy>,
) -> Result<()> {
    cluster.world.tiers = tiers;
    cluster.put(policies)
}

#[test]
fn a_nodes_probes_pass_a_policy_that_denies_all() -> Result<()> {
    let mut cluster = TestCluster::new("cnp-probes")?;
    let wrong = [from("Deny", json!({}))];
    put(&mut cluster, vec![admin(0, "p", "x").ingress(wrong)], vec![])?;
    for pod in ["x/a", "x/b", "x/c"] {
        cluster.expect(cluster.node(0), pod, true)?;
        cluster.expect(cluster.node(1), pod, false)?;
        cluster.expect(cluster.netns("y/a"), pod, false)?;
    }
    Ok(())
}

/// NetworkPolicies never forbid that, ClusterNetworkPolicies do.
#[test]
fn a_pod_that_reaches_itself_through_its_service_is_judged() -> Result<()> {
    let mut cluster = TestCluster::new("cnp-hairpin")?;
    let closed = || vec![x("closed").ingress([]).egress([])];
    let deny = [from("Deny", pods_of("x"))];
    let cases = [
        ("no rule is about itself", admin(0, "p", "x").ingress([from("Deny", pods_of("y"))]), true),
        ("Admin denies it", admin(0, "p", "x").ingress(deny.clone()), false),
        ("Baseline stands behind NetworkPolicies", baseline(0, "p", "x").ingress(deny), true),
    ];
    for (case, policy, arrives) in cases {
        put(&mut cluster, vec![policy], closed())?;
        for pod in ["x/a", "x/b"] {
            let (own, services) = cluster.play.pod(pod);
            for service in services {
                expect_at(cluster.netns(pod), SocketAddr::new(service, 80), arrives)
                    .context(case)?;
            }
            // It does not leave the pod.
            for address in &own.addresses {
                expect_at(cluster.netns(pod), SocketAddr::new(*address, 80), true)?;
            }
        }
    }
    // Of others' services too, the endpoint is judged.
    let to_a = json!({ "pods": {
        "namespaceSelector": { "matchLabels": { "ns": "y" } },
        "podSelector": { "matchLabels": { "pod": "a" } },
    } });
    put(&mut cluster, vec![admin(0, "p", "x").egress([to("Deny", to_a)])], vec![])?;
    for (endpoint, arrives) in [("y/a", false), ("y/b", true)] {
        for service in cluster.play.pod(endpoint).1 {
            expect_at(cluster.netns("x/a"), SocketAddr::new(service, 80), arrives)?;
        }
    }
    Ok(())
}

/// As a pod of the host's network on the pod's own node.
#[test]
fn a_pod_is_kept_from_its_own_node() -> Result<()> {
    let mut cluster = TestCluster::new("cnp-node")?;
    let nodes: Vec<_> =
        cluster.play.nodes.hosts.iter().map(|host| host.node.addresses.clone()).collect();
    let _servers = [0, 1]
        .map(|node| serve(cluster.node(node), &nodes[node], &[(Tcp, 80), (Tcp, 81)]))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let all = networks(&["0.0.0.0/0", "::/0"]);
    for (peer, others_too) in [(json!({ "nodes": {} }), false), (all, true)] {
        let first = super::at(81, to("Accept", json!({ "nodes": {} })));
        let policy = admin(0, "p", "x").egress([first, to("Deny", peer)]);
        put(&mut cluster, vec![policy], vec![])?;
        for pod in ["x/a", "x/b"] {
            for to in nodes.iter().flatten() {
                expect_at(cluster.netns(pod), SocketAddr::new(*to, 80), false)?;
                expect_at(cluster.netns(pod), SocketAddr::new(*to, 81), true)?;
            }
            cluster.expect(cluster.netns(pod), "y/a", !others_too)?;
        }
    }
    Ok(())
}

#[test]
fn what_a_new_deny_forbids_ends_and_goes_on_without_it() -> Result<()> {
    let mut cluster = TestCluster::new("cnp-ends")?;
    let denied = connections(&cluster, &["y/a", "x/b", "x/c"], "x/a")?;
    // It may still send, so it still hears the answers.
    let answered = connections(&cluster, &["x/a", "x/b"], "y/a")?;
    let deny = || vec![admin(0, "p", "x").ingress([from("Deny", everybody())])];
    put(&mut cluster, deny(), vec![])?;
    thread::sleep(ENDING);
    ensure!(!denied.iter().any(|connection| connection.goes_on(SILENCE)));
    ensure!(answered.iter().all(|connection| connection.goes_on(TIMEOUT)));
    cluster.expect(cluster.netns("y/a"), "x/a", false)?;
    put(&mut cluster, vec![], vec![])?;
    // What waits is sent again, and answered.
    ensure!(denied.iter().all(|connection| connection.goes_on(TIMEOUT)));
    ensure!(answered.iter().all(|connection| connection.goes_on(TIMEOUT)));
    cluster.expect(cluster.netns("y/a"), "x/a", true)
}
