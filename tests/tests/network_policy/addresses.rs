//! Packets with an address that is not the pod's own: forged sources, and broadcast and multicast
//! between pods on one bridge.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::observed;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::world::{host_length, ip};
use denizen_tests::packets::probe::SILENCE;
use serde_json::{Value, json};
use socket2::SockRef;

/// What has not happened by then never will.
const TIMEOUT: Duration = Duration::from_secs(30);

/// To all stations of a bridge. Every pod listens to each of them.
const STATIONS: [&str; 3] = ["255.255.255.255:91", "224.0.0.1:92", "[ff02::1]:93"];

/// Isolates the pods by a policy with this spec.
fn put(cluster: &Cluster, spec: &Value) -> Result<()> {
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "policy", "namespace": "default" }, "spec": spec,
    });
    cluster.manifests.put("policy", &[policy])
}

fn is_in_force(status: &Value) -> bool {
    status["networkPolicy"]["isolated"] != 0
}

/// The pod's address of the family that `of` has.
fn own(pod: &Pod, of: IpAddr) -> Result<IpAddr> {
    let own = pod.addresses.iter().find(|address| address.is_ipv4() == of.is_ipv4());
    own.copied().context("an address of each family")
}

fn send(from: &Pod, source: IpAddr, to: SocketAddr) -> Result<()> {
    let sent = from.netns.run(|| -> io::Result<usize> {
        let socket = UdpSocket::bind((source, 0))?;
        socket.set_broadcast(true)?;
        SockRef::from(&socket).bind_device(Some(b"eth0"))?;
        socket.send_to(b"?", to)
    })?;
    sent.map(drop).with_context(|| format!("cannot send to {to}"))
}

/// At which of them `to` hears `from`.
fn heard(from: &Pod, to: &Pod) -> Result<Vec<&'static str>> {
    let mut heard = Vec::new();
    for station in STATIONS {
        let at: SocketAddr = station.parse()?;
        let any: IpAddr = match at {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let listener = to.netns.run(|| UdpSocket::bind((any, at.port())))??;
        listener.set_read_timeout(Some(SILENCE))?;
        send(from, own(from, at.ip())?, at)?;
        if listener.recv(&mut [0]).is_ok() {
            heard.push(station);
        }
    }
    Ok(heard)
}

/// No rule can permit it to who is isolated for ingress: rules name their pods by addresses.
#[test]
fn isolated_pods_hear_no_broadcast_and_no_multicast() -> Result<()> {
    let cluster = Cluster::new("np-multi", &json!({ "timeout": "10s", "onTimeout": "fail" }))?;
    let agent = cluster.start_agent()?;
    let pod = |name| cluster.add_pod(name, Wiring::Bridged);
    let (sender, listener) = (pod("sender")?, pod("listener")?);
    let hears = |what: &str, expected: &[&str]| {
        observed(what, TIMEOUT, || heard(&sender, &listener), |found| found == expected).map(drop)
    };
    hears("without policies all of it arrives", &STATIONS)?;
    put(&cluster, &json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{}] }))?;
    agent.until("in force", TIMEOUT, is_in_force)?;
    hears("who may send everything is heard", &STATIONS)?;
    put(&cluster, &json!({ "podSelector": {}, "ingress": [{}] }))?;
    hears("who is isolated for ingress hears nothing", &[])?;
    put(&cluster, &json!({ "podSelector": {}, "policyTypes": ["Egress"] }))?;
    hears("who is isolated for egress is not heard", &[])
}

/// A pod sends with its own addresses alone, whatever policies permit it.
#[test]
fn what_a_pod_sends_with_a_forged_source_is_dropped() -> Result<()> {
    let cluster = Cluster::new("np-forged", &json!({ "timeout": "10s", "onTimeout": "fail" }))?;
    let agent = cluster.start_agent()?;
    let victim = cluster.add_pod("victim", Wiring::Bridged)?;
    let forgers = [Wiring::Bridged, Wiring::Routed]
        .map(|wiring| cluster.add_pod(&format!("{wiring:?}").to_lowercase(), wiring));
    let forgers = forgers.into_iter().collect::<Result<Vec<_>>>()?;
    let forged = ["198.51.100.7", "2001:db8:7::7"].map(ip);
    for (forger, forged) in forgers.iter().flat_map(|forger| forged.map(|forged| (forger, forged)))
    {
        forger.netns.ip(&format!("address add {forged}/{} dev eth0 nodad", host_length(forged)))?;
    }
    let arrives = |forger: &Pod, source: IpAddr| -> Result<bool> {
        let at = SocketAddr::new(own(&victim, source)?, 94);
        let listener = victim.netns.run(|| UdpSocket::bind(at))??;
        listener.set_read_timeout(Some(SILENCE))?;
        send(forger, source, at)?;
        Ok(listener.recv(&mut [0]).is_ok())
    };
    let check = |what: &str, expected: bool| {
        for (forger, forged) in
            forgers.iter().flat_map(|forger| forged.map(|forged| (forger, forged)))
        {
            let what = format!("{what}: {forged} of {:?}", forger.addresses);
            observed(&what, TIMEOUT, || arrives(forger, forged), |found| *found == expected)?;
            let own = own(forger, forged)?;
            observed(&what, TIMEOUT, || arrives(forger, own), |arrives| *arrives)?;
        }
        anyhow::Ok(())
    };
    check("without policies nothing is checked", true)?;
    put(&cluster, &json!({ "podSelector": {}, "ingress": [{}] }))?;
    agent.until("in force", TIMEOUT, is_in_force)?;
    check("everything is permitted", false)?;
    let dropped = agent.status()?["networkPolicy"]["dropped"]["spoofed"].clone();
    ensure!(dropped.as_u64() >= Some(4), "{dropped}");
    Ok(())
}
