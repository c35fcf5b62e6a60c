//! Pods that send before they are known: their flows to services were masqueraded, and are healed
//! once they are known.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::conntrack::KeptFlow;
use denizen_tests::node::fixture::{Host, service_ips};
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::packets::probe::Protocol;

use super::{ConntrackContext, TIMEOUT};

/// One flow of each protocol and family to the service, from `pod`.
fn flows(pod: &Pod) -> Result<Vec<KeptFlow>> {
    let mut flows = Vec::new();
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        for ip in service_ips(10) {
            let source = pod.address_like(ip).context("an address")?;
            flows.push(KeptFlow::open(&pod.netns, protocol, source, SocketAddr::new(ip, 53))?);
        }
    }
    Ok(flows)
}

/// Whether the endpoint sees each of the flows come from the pod's own address.
fn are_seen(flows: &[KeptFlow], pod: &Pod) -> bool {
    flows.iter().all(|flow| {
        let seen = flow.send().seen();
        seen.is_some_and(|seen| pod.addresses.contains(&seen))
    })
}

#[test]
fn masqueraded_flows_of_a_pod_that_is_found_late_are_healed() -> Result<()> {
    let context = ConntrackContext::new("ct-late")?;
    context.endpoints_are(&[Host::Remote])?;
    let agent = context.start_agent()?;
    let pod = context.fixture.cluster.add_pod_without_denizen("late", Wiring::Routed)?;
    let late = flows(&pod)?;
    for flow in &late {
        let seen = flow.send().seen().with_context(|| format!("{flow:?} is not answered"))?;
        ensure!(!pod.addresses.contains(&seen), "not known yet: masqueraded");
    }
    let others = context.flows()?;
    context.all_are_answered_by(&others, Host::Remote)?;
    let before = context.tracked(&others)?;
    context.fixture.cluster.remember(&pod)?;
    eventually("healed", TIMEOUT, || Ok(are_seen(&late, &pod)))?;
    assert_eq!(context.tracked(&others)?, before, "nobody else's flow was touched");
    drop(agent);
    Ok(())
}

#[test]
fn flows_of_a_pod_whose_interface_was_renamed_are_healed() -> Result<()> {
    let context = ConntrackContext::new("ct-rename")?;
    context.endpoints_are(&[Host::Remote])?;
    let agent = context.start_agent()?;
    let pod = &context.fixture.routed;
    eventually("known", TIMEOUT, || Ok(agent.status()?["pods"] == 2))?;
    // Those that begin between the new name and its record are masqueraded.
    let name = pod.host_interface();
    let mut begun = flows(pod)?;
    for (from, to) in [(name, "renamed0"), ("renamed0", name), (name, "renamed0")] {
        context.node().ip(&format!("link set {from} name {to}"))?;
        let new = flows(pod)?;
        new.iter().for_each(|flow| drop(flow.send()));
        begun.extend(new);
    }
    eventually("healed", TIMEOUT, || Ok(are_seen(&begun, pod)))
}
