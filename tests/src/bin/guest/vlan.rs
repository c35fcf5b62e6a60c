//! A bridge that keeps VLANs apart: the node's stack sees its pods' packets come in through neither
//! the bridge nor their veths.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::{Cluster, serve};
use denizen_tests::node::cni::Chain;
use denizen_tests::node::fixture::{PORT, is_local, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::Pod;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Probe, Protocol, SILENCE};
use serde_json::{Value, json};

const BRIDGE: &str = "br0";

/// How long anything may take on an emulated processor.
const TIMEOUT: Duration = Duration::from_secs(60);

/// VLAN 7: the node has no device in it, so the plugin in front joins the node to it by a veth.
const JOINED: [(&str, &str); 2] = [("10.7.0.0/16", "10.7.0.1"), ("fd00:10:7::/64", "fd00:10:7::1")];

/// VLAN 8, for which the bridge has a VLAN device.
const DEVICE: [(&str, &str); 2] = [("10.8.0.0/16", "10.8.0.1"), ("fd00:10:8::/64", "fd00:10:8::1")];

/// Pods that the real plugin in front attaches are recorded with their input interface, and
/// detected by it.
pub(crate) fn pods_are_local() -> Result<()> {
    let cluster = Cluster::new("vlan", &Value::Null)?;
    let node = &cluster.world.node;
    // Otherwise the rules see the pods' packets already at the bridge.
    for key in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
        node.sysctl(&format!("net.bridge.{key}"), "0")?;
    }
    let _server = cluster.remote_web(&service_ips(10), Port::tcp("web", 80, PORT))?;
    node.ip(&format!(
        "link add {BRIDGE} type bridge vlan_filtering 1\nlink set {BRIDGE} up\n\
         link add link {BRIDGE} name {BRIDGE}.8 type vlan id 8\nlink set {BRIDGE}.8 up"
    ))?;
    node.output("bridge", &["vlan", "add", "dev", BRIDGE, "vid", "8", "self"])?;
    let joined = attached(&cluster, "joined", 7, JOINED)?;
    let device = attached(&cluster, "device", 8, DEVICE)?;
    let kind = node.output("ip", &["-details", "link", "show", "type", "veth"])?;
    ensure!(
        kind.contains(&format!(" {BRIDGE}.7@")) && !kind.contains(&format!(" {BRIDGE}.8@")),
        "{kind}"
    );
    let agent = cluster.start_agent()?;
    ensure!(is_local(&joined), "behind a veth to the bridge");
    ensure!(is_local(&device), "behind a VLAN device");
    ensure!(agent.status()?["warnings"] == json!([]), "{}", agent.status()?);
    node.sysctl("net.bridge.bridge-nf-call-iptables", "1")?;
    let warnings = agent.status()?["warnings"].to_string();
    ensure!(warnings.contains("pods in VLANs of bridge br0 are not detected"), "{warnings}");
    node.sysctl("net.bridge.bridge-nf-call-iptables", "0")?;
    let to = SocketAddr::new(service_ips(10)[0], 80);
    let from = device.address_like(to.ip()).context("no address of its family")?;
    for (vlan, is_its) in [(8, true), (7, false)] {
        let explained =
            agent.explain(from, Some(&format!("{BRIDGE}.{vlan}")), to, Protocol::Tcp)?;
        ensure!(explained.local == is_its, "{from} through VLAN {vlan}: {explained:?}");
    }
    Ok(())
}

fn attached(
    cluster: &Cluster,
    name: &str,
    vlan: u16,
    ranges: [(&'static str, &str); 2],
) -> Result<Pod> {
    let data = cluster.world.subfolder(&format!("cni-vlan{vlan}"))?;
    let ranges: [(&str, IpAddr); 2] = ranges.map(|(range, gateway)| (range, ip(gateway)));
    let chain = Chain::bridged(BRIDGE, &ranges, &data)
        .in_vlan(vlan)
        .then_denizen(cluster.run_dir(), &Value::Null);
    let pod = Pod::attach(&cluster.world.node, Netns::new(&format!("vlan-{name}"))?, name, &chain)?;
    let state: Value =
        serde_json::from_str(&fs::read_to_string(cluster.run_dir().join("pods.json"))?)?;
    let record = &state["attachments"][pod.attachment()];
    ensure!(
        record["bridge"] == BRIDGE && record["l3Interface"] == format!("{BRIDGE}.{vlan}"),
        "{name}: {record}"
    );
    Ok(pod)
}

/// IP rules do not see what the bridge forwards within a VLAN: a pod that a policy restricts is cut
/// off from its neighbours there, and the node still reaches it.
pub(crate) fn isolated_pods_are_cut_off() -> Result<()> {
    let cluster = Cluster::new("vlan-policy", &Value::Null)?;
    let node = &cluster.world.node;
    for key in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
        node.sysctl(&format!("net.bridge.{key}"), "0")?;
    }
    let pods = ["one", "two"].map(|name| attached(&cluster, name, 7, JOINED));
    let [one, two] = pods;
    let (one, two) = (one?, two?);
    let _server = serve(&two.netns, &two.addresses, &[(Protocol::Tcp, PORT)])?;
    let agent = cluster.start_agent()?;
    let reach = |from: &Netns| -> Vec<bool> {
        let probes = two.addresses.iter().map(|to| Probe::tcp(SocketAddr::new(*to, PORT)));
        probes.map(|probe| probe.timeout(SILENCE).send_in(from).endpoint().is_some()).collect()
    };
    ensure!(reach(&one.netns) == [true; 2], "without policies");
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny", "namespace": "default" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"] },
    });
    cluster.manifests.put("deny", &[policy])?;
    eventually("they are cut off", TIMEOUT, || Ok(reach(&one.netns) == [false; 2]))?;
    ensure!(reach(node) == [true; 2], "the node reaches its pods");
    agent.until("status says so", TIMEOUT, |status| {
        status["errors"].to_string().contains("cut off from its other ports")
    })?;
    Ok(())
}
