//! ARP between pods on one bridge: a pod says of its own addresses alone that it has them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::cni::POD_INTERFACE;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::packets::frame::{self, FrameSocket};
use denizen_tests::packets::probe::{Probe, SILENCE};
use serde_json::{Value, json};

/// What has not happened by then never will.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Everything is permitted, but a policy exists from now on.
fn put_in_force(cluster: &Cluster, agent: &Agent) -> Result<()> {
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "all", "namespace": "default" },
        "spec": { "podSelector": {}, "ingress": [{}] },
    });
    cluster.manifests.put("all", &[policy])?;
    let is_in_force = |status: &Value| status["networkPolicy"]["isolated"] != 0;
    agent.until("in force", TIMEOUT, is_in_force).map(drop)
}

/// A pod's IPv4 address.
fn address(pod: &Pod) -> Result<IpAddr> {
    pod.addresses.iter().copied().find(IpAddr::is_ipv4).context("no IPv4 address")
}

fn shown(pod: &Pod, arguments: &[&str], field: &str) -> Result<Option<String>> {
    let text = pod.netns.output("ip", &[&["-j"], arguments].concat())?;
    let found: Value =
        if text.trim().is_empty() { json!([]) } else { serde_json::from_str(&text)? };
    Ok(found[0][field].as_str().map(str::to_owned))
}

/// A pod's own link-layer address.
fn mac(pod: &Pod) -> Result<Option<String>> {
    shown(pod, &["link", "show", "eth0"], "address")
}

/// At which link-layer address `pod` would reach `address`; `None` if nobody says.
fn known(pod: &Pod, address: IpAddr) -> Result<Option<String>> {
    shown(pod, &["neigh", "show", &address.to_string(), "dev", "eth0"], "lladdr")
}

/// Asks on the bridge who has `address`, as a connection to it does, and returns who says so.
fn ask(pod: &Pod, address: IpAddr) -> Result<Option<String>> {
    pod.netns.ip("neigh flush dev eth0")?;
    let _ = Probe::tcp(SocketAddr::new(address, 80)).timeout(SILENCE).send_in(&pod.netns);
    known(pod, address)
}

fn spoofed(agent: &Agent) -> Result<u64> {
    agent.status()?["networkPolicy"]["dropped"]["spoofed"].as_u64().context("a number")
}

#[test]
fn a_pod_takes_no_neighbours_address_over() -> Result<()> {
    let cluster = Cluster::new("np-arp", &json!({ "timeout": "10s", "onTimeout": "fail" }))?;
    let agent = cluster.start_agent()?;
    let pod = |name| cluster.add_pod(name, Wiring::Bridged);
    let (victim, thief, client) = (pod("victim")?, pod("thief")?, pod("client")?);
    let stolen = address(&victim)?;
    victim.netns.ip("link set eth0 down")?;
    thief.netns.ip(&format!("address add {stolen}/32 dev eth0"))?;
    assert_eq!(ask(&client, stolen)?, mac(&thief)?, "without policies nothing is checked");

    put_in_force(&cluster, &agent)?;
    let before = spoofed(&agent)?;
    assert_eq!(ask(&client, stolen)?, None);
    eventually("the answers are dropped", TIMEOUT, || Ok(spoofed(&agent)? > before))?;
    assert_eq!(known(&client, stolen)?, None);
    victim.netns.ip("link set eth0 up")?;
    eventually("the victim is found again", TIMEOUT, || Ok(ask(&client, stolen)? == mac(&victim)?))
}

/// With its own Ethernet address alone: a policy selects it.
#[test]
fn a_pod_announces_its_own_address_and_may_ask_before_it_takes_one() -> Result<()> {
    let cluster = Cluster::new("np-garp", &json!({ "timeout": "10s", "onTimeout": "fail" }))?;
    let agent = cluster.start_agent()?;
    let pod = |name| cluster.add_pod(name, Wiring::Bridged);
    let (announcing, client) = (pod("announcing")?, pod("client")?);
    put_in_force(&cluster, &agent)?;
    let IpAddr::V4(own) = address(&announcing)? else { bail!("an IPv4 address") };
    let [from, to] = [&announcing, &client].map(|pod| FrameSocket::open(&pod.netns, POD_INTERFACE));
    let (from, to) = (from?, to?);
    let mac = frame::mac_of(&announcing.netns, POD_INTERFACE)?;
    let other = [2, 0, 0, 0, 0, 0x77];
    let says = |ether, mac, address: [u8; 4], marker: &str| {
        let message = frame::arp(mac, address, (frame::BROADCAST, address));
        let message = [&message, marker.as_bytes()].concat();
        frame::frame(ether, frame::BROADCAST, &[], frame::ARP, &message)
    };
    let output = [
        ("an announcement", says(mac, mac, own.octets(), "an announcement"), true),
        ("a question", says(mac, mac, [0; 4], "a question"), true),
        ("from elsewhere", says(other, mac, own.octets(), "from elsewhere"), false),
        ("of another", says(mac, other, own.octets(), "of another"), false),
    ];
    output.iter().try_for_each(|(_, frame, _)| from.send(frame))?;
    let names: Vec<_> = output.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let heard = to.heard(&names, Duration::from_secs(1))?;
    for (number, (name, _, arrives)) in output.iter().enumerate() {
        ensure!(heard.contains(&number) == *arrives, "{name}: {heard:?}");
    }
    assert_eq!(spoofed(&agent)?, 2);
    Ok(())
}
