//! What became stale while no agent ran.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::conntrack::KeptFlow;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::fixture::{Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::packets::probe::Protocol;

use super::{ConntrackContext, TIMEOUT};

/// Everything that could become stale while nobody was there does; what did not is not looked at
/// twice.
fn a_restart_finds_what_became_stale(label: &str, flags: Vec<String>) -> Result<()> {
    let context = ConntrackContext { flags, ..ConntrackContext::new(label)? };
    let manifests = &context.fixture.cluster.manifests;
    context.endpoints_are(&[Host::Remote])?;
    let ports = [Port::tcp("udp", 54, PORT).over(Protocol::Udp).at_node(30054)];
    let (gone, kept) = (
        context.fixture.service("gone", 11, &ports, &[Host::Routed])?,
        context.fixture.service(
            "moved",
            12,
            &[Port { node_port: None, ..ports[0] }],
            &[Host::Routed],
        )?,
    );
    manifests.put("gone", &gone)?;
    manifests.put("moved", &kept)?;
    let agent = context.start_agent()?;
    let healthy = context.flows()?;
    context.all_are_answered_by(&healthy, Host::Remote)?;
    let mut stale = Vec::new();
    for number in [11, 12] {
        for address in service_ips(number) {
            let source = context.fixture.address(Host::Outside, address)?;
            let place = context.fixture.place(Host::Outside).0;
            let to = SocketAddr::new(address, 54);
            stale.push(KeptFlow::open(place, Protocol::Udp, source, to)?);
            if number == 11 {
                let node =
                    SocketAddr::new(context.fixture.address(Host::ThisNode, address)?, 30054);
                stale.push(KeptFlow::open(place, Protocol::Udp, source, node)?);
            }
        }
    }
    context.all_are_answered_by(&stale, Host::Routed)?;
    let before = context.tracked(&healthy)?;
    agent.terminate()?;
    manifests.remove("gone")?;
    let moved = context.fixture.service(
        "moved",
        12,
        &[Port { node_port: None, ..ports[0] }],
        &[Host::Remote],
    )?;
    manifests.put("moved", &moved)?;
    let agent = context.start_agent()?;
    eventually("all flushed", TIMEOUT, || {
        let all = stale.iter().map(|flow| flow.tracked(context.node()));
        Ok(all.collect::<Result<Vec<_>>>()?.iter().all(Option::is_none))
    })?;
    // Long enough for the second look.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(context.tracked(&healthy)?, before, "as it was");
    context.all_are_answered_by(&healthy, Host::Remote)?;
    assert_eq!(context.tracked(&healthy)?, before, "as it was");
    let status = agent.status()?;
    assert_eq!(status["flushed"].as_u64(), Some(stale.len() as u64), "{status}");
    assert_eq!(status["errors"], serde_json::json!([]), "{status}");
    Ok(())
}

#[test]
fn a_restart_finds_what_became_stale_and_touches_nothing_else() -> Result<()> {
    a_restart_finds_what_became_stale("ct-restart", Vec::new())
}

#[test]
fn so_it_does_with_iptables_legacy() -> Result<()> {
    a_restart_finds_what_became_stale("ct-restart-l", Variant::Legacy.flags())
}

#[test]
fn so_it_does_with_iptables_nft() -> Result<()> {
    a_restart_finds_what_became_stale("ct-restart-n", Variant::Nft.flags())
}
