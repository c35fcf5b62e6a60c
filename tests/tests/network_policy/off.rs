//! `--network-policy off`, and `cleanup`: nothing is left of the firewall, and no pod waits for it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::ruleset::{FIREWALL, tables};
use denizen_tests::node::cluster::{Cluster, serve};
use denizen_tests::node::pod::{BRIDGE, Pod, Wiring};
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};
use serde_json::json;

/// What has not happened by then never will.
const TIMEOUT: Duration = Duration::from_secs(60);

const PORT: u16 = 8080;

/// What a pod gets from the pod of another node, in both families.
fn outcomes(pod: &Pod, remote: &[IpAddr]) -> Vec<Outcome> {
    let ask = |address: &IpAddr| Probe::tcp(SocketAddr::new(*address, PORT)).send_in(&pod.netns);
    remote.iter().map(ask).collect()
}

/// A firewall that was at work, also across a restart, ends by `end`. The entry of the plugin,
/// which says `isolate`, stays as it is.
fn ends(label: &str, end: impl Fn(&Cluster) -> Result<()>) -> Result<()> {
    let cluster = Cluster::new(label, &json!({ "timeout": "2s", "onTimeout": "isolate" }))?;
    let (world, node) = (&cluster.world, &cluster.world.node);
    let remote = &world.addresses().remote;
    let _server = serve(&world.remote, remote, &[(Protocol::Tcp, PORT)])?;
    let agent = cluster.start_agent()?;
    let first = cluster.add_pod("first", Wiring::Bridged)?;
    assert_eq!(node.bridge_switches(BRIDGE)?, [0, 0], "no policy, nothing in the way");
    cluster.manifests.put(
        "deny",
        &[json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": "deny", "namespace": "default" },
            "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"] },
        })],
    )?;
    let is_isolated =
        || outcomes(&first, remote).iter().all(|outcome| *outcome == Outcome::Dropped);
    eventually("it is isolated", TIMEOUT, || Ok(is_isolated()))?;
    assert_eq!(node.bridge_switches(BRIDGE)?, [1, 1]);
    agent.terminate()?;
    cluster.start_agent()?.terminate()?;
    ensure!(is_isolated());
    let forbidden =
        "-I -p udp -s 198.51.100.1 -d 198.51.100.2 --sport 1 --dport 2 -t 600 -m 0x1020";
    node.output("conntrack", &forbidden.split(' ').collect::<Vec<_>>())?;

    end(&cluster)?;
    let marked = node.output("conntrack", &["-L", "-p", "udp", "-d", "198.51.100.2"])?;
    ensure!(marked.contains(&format!("mark={}", 0x1000)), "others' bits alone are left: {marked}");
    assert_eq!(node.bridge_switches(BRIDGE)?, [0, 0], "as it was before denizen");
    let left = tables(node)?;
    ensure!(left.iter().all(|table| !FIREWALL.contains(&&**table)), "{left:?}");
    // No agent runs, and there is no table that could isolate it.
    let second = cluster.add_pod("second", Wiring::Routed)?;
    for pod in [&first, &second] {
        for outcome in outcomes(pod, remote) {
            ensure!(outcome.endpoint().is_some(), "{outcome:?}");
        }
    }
    Ok(())
}

#[test]
fn a_run_without_it_undoes_what_one_with_it_left() -> Result<()> {
    ends("np-off", |cluster| {
        let agent = cluster.start_agent_with(["--network-policy=off"])?;
        assert_eq!(agent.status()?["networkPolicyWhy"], "it is configured");
        agent.terminate().map(drop)
    })
}

#[test]
fn cleanup_undoes_what_it_left() -> Result<()> {
    ends("np-cleanup", |cluster| {
        let program = binary::ours("denizen-agent")?.display().to_string();
        let run_dir = cluster.run_dir().display().to_string();
        let output = cluster.world.node.output(&program, &["cleanup", "--run-dir", &run_dir])?;
        let words = format!("set nf_call_iptables and nf_call_ip6tables of bridge {BRIDGE} back\n");
        ensure!(output.contains(&words), "{output}");
        assert_eq!(tables(&cluster.world.node)?, [""; 0]);
        Ok(())
    })
}
