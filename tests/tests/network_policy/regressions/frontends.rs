//! The ways to a pod that are not its own address, and those of its node.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::world::{host_length, ip};
use denizen_tests::policy::{NetworkPolicy, PolicyPeer, PolicyRule};
use serde_json::{Value, json};

use super::test_cluster::{TestCluster, expect_at, x};

const NODE_PORT: u16 = 30_080;
const EXTERNAL: &str = "198.51.100.7";
const BALANCED: &str = "198.51.100.8";

/// Pods of x are reached from this address alone.
fn from(address: IpAddr) -> NetworkPolicy {
    let block = format!("{address}/{}", host_length(address));
    x("from").ingress([PolicyRule::from([PolicyPeer::block(block, [])])])
}

/// A service of one family with every kind of address, which `x/a` serves.
fn service(cluster: &TestCluster, family: usize, policy: &str) -> Vec<Value> {
    let name = ["outward", "outward6"][family];
    let ports = [Port::tcp("tcp-80", 80, 80).at_node(NODE_PORT)];
    let cluster_ip = [ip("172.30.7.1"), ip("fd00:30::7:1")][family];
    let mut service = manifest::service(name, &[cluster_ip], &ports);
    service["spec"]["externalTrafficPolicy"] = policy.into();
    if family == 0 {
        service["spec"]["type"] = "LoadBalancer".into();
        service["spec"]["externalIPs"] = json!([EXTERNAL]);
        service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": BALANCED }] } });
    }
    let node = cluster.play.nodes.hosts[0].node.name.as_str();
    vec![service, manifest::slice(name, &ports, &[(cluster.addresses("x/a")[family], node)])]
}

#[test]
fn a_node_reaches_its_isolated_pods_and_the_other_node_does_not() -> Result<()> {
    let mut cluster = TestCluster::new("np-probes")?;
    cluster.put([x("deny").ingress([]).egress([])])?;
    for pod in ["x/a", "x/b", "x/c"] {
        cluster.expect(cluster.node(0), pod, true)?;
        cluster.expect(cluster.node(1), pod, false)?;
    }
    Ok(())
}

/// Node ports, external addresses and those of load balancers, by either traffic policy.
#[test]
fn every_frontend_of_an_isolated_pod_is_judged() -> Result<()> {
    let mut cluster = TestCluster::new("np-frontends")?;
    let [own, client] = [0, 1].map(|node| cluster.play.nodes.hosts[node].node.addresses.clone());
    cluster.node(1).ip(&format!("route add 198.51.100.0/24 via {}", own[0]))?;
    for (policy, family) in [("Cluster", 0), ("Local", 0), ("Cluster", 1), ("Local", 1)] {
        cluster.play.more = service(&cluster, family, policy);
        let mut frontends = vec![SocketAddr::new(own[family], NODE_PORT)];
        if family == 0 {
            frontends.extend([EXTERNAL, BALANCED].map(|text| SocketAddr::new(ip(text), 80)));
        }
        let mut evaluated = |policy: NetworkPolicy, arrives| -> Result<()> {
            cluster.put([policy])?;
            frontends.iter().try_for_each(|to| expect_at(cluster.node(1), *to, arrives))
        };
        evaluated(x("deny").ingress([]), false).context(policy)?;
        evaluated(from(client[family]), true).context(policy)?;
    }
    Ok(())
}

/// What was sent to a node that has no endpoint comes from that node.
#[test]
fn a_client_that_another_node_masqueraded_is_that_node() -> Result<()> {
    let mut cluster = TestCluster::new("np-masquerade")?;
    let [client, between] =
        [0, 1].map(|node| cluster.play.nodes.hosts[node].node.addresses.clone());
    cluster.play.more = service(&cluster, 0, "Cluster");
    let frontend = SocketAddr::new(between[0], NODE_PORT);
    cluster.put([from(between[0])])?;
    expect_at(cluster.node(0), frontend, true)?;
    cluster.put([from(client[0])])?;
    expect_at(cluster.node(0), frontend, false)
}

#[test]
fn a_pod_reaches_itself_through_its_service() -> Result<()> {
    let mut cluster = TestCluster::new("np-hairpin")?;
    cluster.put([x("deny").ingress([]).egress([])])?;
    for pod in ["x/a", "x/b"] {
        for service in cluster.play.pod(pod).1 {
            expect_at(cluster.netns(pod), SocketAddr::new(service, 80), true).context(pod)?;
        }
    }
    let [service, _] = cluster.play.pod("x/b").1;
    expect_at(cluster.netns("x/a"), SocketAddr::new(service, 80), false)
}
