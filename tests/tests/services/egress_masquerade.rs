//! Egress masquerade of this node's pods, by ip-masq-agent's configuration: out of the ranges they
//! are seen by the node's address, inside them by their own, and nobody else is touched.

mod context;
mod iptables;

use std::fs;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use denizen_tests::agent::programmed;
use denizen_tests::node::cluster::{NODE, serve};
use denizen_tests::node::fixture::{Host, PORT, PROTOCOLS, service_ips};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::world::ip;
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::probe::{Probe, Protocol};

use self::context::{Running, TIMEOUT, outside};

const PODS: [Host; 2] = [Host::Bridged, Host::Routed];

/// Every test with every backend.
macro_rules! tests {
    ($($(#[$story:meta])* $name:ident: $play:expr;)*) => {
        tests!(nftables, Nftables, $($(#[$story])* $name: $play;)*);
        tests!(iptables_legacy, IptablesLegacy, $($(#[$story])* $name: $play;)*);
        tests!(iptables_nft, IptablesNft, $($(#[$story])* $name: $play;)*);
    };
    ($group:ident, $backend:ident, $($(#[$story:meta])* $name:ident: $play:expr;)*) => {
        mod $group {
            use super::*;
            $($(#[$story])* #[test] fn $name() -> Result<()> { $play(Backend::$backend) })*
        }
    };
}

tests! {
    pods_are_seen_by_the_nodes_address_outside_the_ranges_alone: |backend| {
        outside_the_ranges_alone(&Running::new(backend, "egress", "pod-state")?)
    };
    /// What the bridge's table tells is known in the forward hook, too.
    pods_told_apart_by_their_ports_are_seen_by_the_nodes_address_as_well: |backend| {
        outside_the_ranges_alone(&Running::new(backend, "egress-port", "pod-state=port-exact")?)
    };
    pods_on_one_bridge_are_no_exception: neighbours_are_seen_so_too;
    nobody_but_recorded_pods_is_masqueraded: strangers_keep_their_address;
    a_change_of_the_file_is_followed_and_a_bad_one_is_named: the_file_is_followed;
    a_restart_with_a_bad_file_goes_on_with_the_last_good_one: the_last_good_file_holds;
}

fn outside_the_ranges_alone(running: &Running) -> Result<()> {
    for like in service_ips(10) {
        for protocol in PROTOCOLS {
            let at = |ip, port| SocketAddr::new(ip, port);
            for who in PODS {
                let out = at(running.address(Host::Outside, like)?, PORT);
                assert!(running.is_masqueraded(who, out, protocol)?, "{who:?} to {out}/{protocol}");
                let inside = at(running.address(Host::Remote, like)?, PORT);
                assert!(
                    !running.is_masqueraded(who, inside, protocol)?,
                    "{who:?} to {inside}/{protocol}"
                );
                let service = at(like, 80);
                assert!(
                    !running.is_masqueraded(who, service, protocol)?,
                    "{who:?} to {service}/{protocol}"
                );
                // The endpoint counts, not the service's address.
                let far = at(service_ips(20)[usize::from(like.is_ipv6())], 80);
                assert!(running.is_masqueraded(who, far, protocol)?, "{who:?} to {far}/{protocol}");
            }
            let neighbour = at(running.address(Host::Routed, like)?, PORT);
            assert!(
                !running.is_masqueraded(Host::Bridged, neighbour, protocol)?,
                "{neighbour}/{protocol}"
            );
            // The node itself has its own address, and needs no other.
            let out = at(running.address(Host::Outside, like)?, PORT);
            assert!(!running.is_masqueraded(Host::ThisNode, out, protocol)?, "{out}/{protocol}");
            // Who comes from outside sees the pod's answer, and is seen as itself.
            let pod = at(running.address(Host::Bridged, like)?, PORT);
            assert!(!running.is_masqueraded(Host::Outside, pod, protocol)?, "{pod}/{protocol}");
        }
    }
    Ok(())
}

/// Where no range is kept, whom bridge netfilter shows to the rules: a pod's neighbour, by its own
/// address or as a service's endpoint.
fn neighbours_are_seen_so_too(backend: Backend) -> Result<()> {
    let running = Running::new(backend, "egress-near", "pod-state")?;
    let cluster = &running.context.fixture.cluster;
    let near = cluster.add_pod("near", Wiring::Bridged)?;
    let _server = serve(&near.netns, &near.addresses, &[(Protocol::Tcp, PORT)])?;
    let http = [Port::tcp("http", 80, PORT)];
    let mut beside = vec![manifest::service("beside", &service_ips(30), &http)];
    for address in &near.addresses {
        beside.push(manifest::slice("beside", &http, &[(*address, NODE)]));
    }
    programmed(&running.agent, || cluster.manifests.put("beside", &beside), || ())?;
    fs::write(&running.context.config, "nonMasqueradeCIDRs: [2001:db8:ffff::/48]")?;
    for (own, service) in near.addresses.iter().zip(service_ips(30)) {
        for to in [SocketAddr::new(*own, PORT), SocketAddr::new(service, 80)] {
            running.wait_masqueraded(Host::Bridged, to, true)?;
            assert!(running.is_masqueraded(Host::Bridged, to, Protocol::Tcp)?, "{to}");
            assert!(running.is_masqueraded(Host::Routed, to, Protocol::Tcp)?, "{to}");
        }
    }
    Ok(())
}

fn strangers_keep_their_address(backend: Backend) -> Result<()> {
    let running = Running::new(backend, "egress-who", "pod-state")?;
    let node = &running.context.fixture.cluster.world.node;
    for (name, wiring, address) in
        [("b", Wiring::Bridged, "10.10.99.2"), ("r", Wiring::Routed, "172.20.99.2")]
    {
        let netns = Netns::new(&format!("egress-who-{backend:?}-{name}"))?;
        let stranger = Pod::wire(node, netns, name, wiring, &[ip(address)])?;
        let outcome = Probe::tcp(outside()[0]).send_in(&stranger.netns);
        assert_eq!(outcome.seen(), Some(ip(address)), "{outcome:?}");
    }
    Ok(())
}

fn the_file_is_followed(backend: Backend) -> Result<()> {
    let running = Running::new(backend, "egress-file", "pod-state")?;
    for to in outside() {
        assert!(running.is_masqueraded(Host::Routed, to, Protocol::Tcp)?);
    }
    fs::write(&running.context.config, "nonMasqueradeCIDRs: [203.0.113.0/33]")?;
    running.agent.until("named", TIMEOUT, |status| {
        status["errors"].to_string().contains("203.0.113.0/33")
    })?;
    for to in outside() {
        assert!(
            running.is_masqueraded(Host::Routed, to, Protocol::Tcp)?,
            "the last good one holds"
        );
    }
    fs::write(&running.context.config, r#"{"nonMasqueradeCIDRs": ["203.0.113.0/24"]}"#)?;
    let [v4, v6] = outside();
    running.wait_masqueraded(Host::Routed, v4, false)?;
    // No range of IPv6 is named any more, so IPv6 is left alone.
    running.wait_masqueraded(Host::Routed, v6, false)?;
    assert_eq!(running.agent.status()?["errors"], serde_json::json!([]));
    ends_without_a_trace(running)
}

fn the_last_good_file_holds(backend: Backend) -> Result<()> {
    let running = Running::new(backend, "egress-bad", "pod-state")?;
    let Running { backend, context, agent } = running;
    assert!(agent.terminate()?.success());
    fs::write(&context.config, "nonMasqueradeCIDRs: [203.0.113.0/33]")?;
    let agent = context.start(context.flags(backend))?;
    let running = Running { backend, context, agent };
    for to in outside() {
        assert!(running.is_masqueraded(Host::Routed, to, Protocol::Tcp)?, "{to}");
    }
    let inside = SocketAddr::new(running.address(Host::Remote, outside()[0].ip())?, PORT);
    assert!(!running.is_masqueraded(Host::Routed, inside, Protocol::Tcp)?, "{inside}");
    let status = running.agent.status()?["errors"].to_string();
    ensure!(
        status.contains("203.0.113.0/33") && status.contains("the last good file stays in force"),
        "{status}"
    );
    Ok(())
}

/// Without the flag nothing of it is left.
fn ends_without_a_trace(running: Running) -> Result<()> {
    let Running { backend, context, agent } = running;
    ensure!(context.is_programmed(backend)?, "nothing was there");
    assert!(agent.terminate()?.success());
    let _agent = context.start(backend.flags())?;
    ensure!(!context.is_programmed(backend)?, "something is left");
    Ok(())
}
