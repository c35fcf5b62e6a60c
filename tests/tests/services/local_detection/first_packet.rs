//! A pod's first packet, sent as soon as ADD has returned, is already a local pod's.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Result;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::fixture::{PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::pod::Wiring;
use denizen_tests::packets::probe::Probe;
use denizen_tests::test_length;
use serde_json::json;

fn no_first_packet_is_masqueraded(label: &str, flags: Vec<String>) -> Result<()> {
    let cluster = Cluster::new(label, &json!({ "timeout": "5s", "onTimeout": "fail" }))?;
    let _server = cluster.remote_web(&service_ips(10), Port::tcp("http", 80, PORT))?;
    let _agent = cluster.start_agent_with(flags)?;
    let (pods, started) = (test_length::times(500, 40), Instant::now());
    let (mut wrong, mut slowest) = (Vec::new(), std::time::Duration::ZERO);
    for number in 0..pods {
        let wiring = if number % 2 == 0 { Wiring::Bridged } else { Wiring::Routed };
        let pod = cluster.add_pod(&format!("p{number}"), wiring)?;
        let to = SocketAddr::new(service_ips(10)[number / 2 % 2], 80);
        let outcome = Probe::tcp(to).send_in(&pod.netns);
        if outcome.seen() != pod.address_like(to.ip()) {
            wrong.push((number, wiring, outcome));
        }
        slowest = pod
            .took()
            .iter()
            .filter(|(plugin, _)| plugin == "denizen")
            .map(|(_, took)| *took)
            .fold(slowest, Ord::max);
        pod.detach(&cluster.world.node)?;
    }
    eprintln!(
        "{pods} pods in {:?}; denizen's ADD took {slowest:?} at most, its wait included",
        started.elapsed()
    );
    assert!(wrong.is_empty(), "{} of {pods}: {wrong:?}", wrong.len());
    Ok(())
}

#[test]
fn with_nftables() -> Result<()> {
    no_first_packet_is_masqueraded("first", Vec::new())
}

/// Three things of two kernel interfaces must be there by then.
#[test]
fn with_iptables_and_exact_ports() -> Result<()> {
    let mut flags = Variant::Legacy.flags();
    flags.push("--detect-local=pod-state=port-exact".to_owned());
    no_first_packet_is_masqueraded("first-port", flags)
}
