//! Egress masquerade of this node's pods, by ip-masq-agent's configuration: out of the ranges they are seen by
//! the node's address, inside them by their own, and nobody else is touched.

#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and files; denizen does not"
)]

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::cast::{Cast, PORT, PROTOCOLS, Who, every_protocol, service_ips};
use denizen_tests::cluster::serve;
use denizen_tests::manifest;
use denizen_tests::netns::Netns;
use denizen_tests::pod::{Pod, Wiring};
use denizen_tests::probe::{Probe, Protocol};
use denizen_tests::server::Server;
use denizen_tests::world::ip;

/// The pods of this node and of the other: everything else is elsewhere.
const INSIDE: &str = "\
nonMasqueradeCIDRs:
  - 10.10.0.0/16
  - 172.20.0.0/16
  - 192.168.77.0/24
  - fd00::/16
";

const SOON: Duration = Duration::from_secs(20);
const PODS: [Who; 2] = [Who::Bridged, Who::Routed];

struct Rig {
    cast: Cast,
    agent: Agent,
    config: PathBuf,
    _servers: Vec<Server>,
}

impl Rig {
    fn new(label: &str) -> Result<Self> {
        Self::with(label, "pod-state")
    }

    fn with(label: &str, detect_local: &str) -> Result<Self> {
        let (cast, mut servers) = Cast::new(label)?;
        let world = &cast.cluster.world;
        let ports = PROTOCOLS.map(|protocol| (protocol, PORT));
        servers.push(serve(&world.client, &world.addresses().client, &ports)?);
        let web = cast.service("web", 10, &every_protocol(), &[Who::Remote])?;
        cast.cluster.manifests.put("web", &web)?;
        let [v4, v6] = service_ips(20);
        let out = &world.addresses().client;
        let mut far = vec![manifest::service("far", &[v4, v6], &every_protocol())];
        far.extend(
            out.iter()
                .map(|it| manifest::slice("far", &every_protocol(), &[(*it, "elsewhere")])),
        );
        cast.cluster.manifests.put("far", &far)?;
        let config = world.folder().join("egress.yaml");
        fs::write(&config, INSIDE)?;
        let mut settings = cast.cluster.settings();
        settings
            .flags
            .push(format!("--egress-masquerade-config={}", config.display()));
        settings.flags.push(format!("--detect-local={detect_local}"));
        let agent = Agent::start(&world.node, settings)?;
        Ok(Self {
            cast,
            agent,
            config,
            _servers: servers,
        })
    }

    fn address(&self, of: Who, like: IpAddr) -> Result<IpAddr> {
        self.cast.address(of, like)
    }

    /// Whether `who` is seen by the node's address at `to`; `explain` must say the same.
    fn is_masqueraded(&self, who: Who, to: SocketAddr, protocol: Protocol) -> Result<bool> {
        let outcome = self.cast.ask(who, to, protocol)?;
        let masqueraded = self.cast.was_masqueraded(who, &outcome)?;
        let interface = self.cast.place(who).1;
        let told = self
            .agent
            .explain(self.address(who, to.ip())?, interface, to, protocol)?;
        ensure!(
            told.masquerade == masqueraded,
            "{who:?} to {to}/{protocol}: {outcome:?}, {told:?}"
        );
        Ok(masqueraded)
    }

    fn wait_masqueraded(&self, who: Who, to: SocketAddr, expected: bool) -> Result<()> {
        let started = Instant::now();
        loop {
            let outcome = self.cast.ask(who, to, Protocol::Tcp)?;
            if self.cast.was_masqueraded(who, &outcome)? == expected {
                return Ok(());
            }
            ensure!(
                started.elapsed() < SOON,
                "{who:?} to {to}: {outcome:?}\n{}",
                self.agent.log()
            );
        }
    }
}

fn both(port: u16) -> [SocketAddr; 2] {
    ["203.0.113.2", "2600:5200::1"].map(|text| SocketAddr::new(ip(text), port))
}

#[test]
fn pods_are_seen_by_the_nodes_address_outside_the_ranges_alone() -> Result<()> {
    outside_the_ranges_alone(&Rig::new("egress")?)
}

/// What the bridge's table tells is known in the forward hook, too.
#[test]
fn pods_told_apart_by_their_ports_are_seen_by_the_nodes_address_as_well() -> Result<()> {
    outside_the_ranges_alone(&Rig::with("egress-port", "pod-state=port-exact")?)
}

fn outside_the_ranges_alone(rig: &Rig) -> Result<()> {
    for like in service_ips(10) {
        for protocol in PROTOCOLS {
            let at = |ip, port| SocketAddr::new(ip, port);
            for who in PODS {
                let out = at(rig.address(Who::Outside, like)?, PORT);
                assert!(
                    rig.is_masqueraded(who, out, protocol)?,
                    "{who:?} to {out}/{protocol}"
                );
                let inside = at(rig.address(Who::Remote, like)?, PORT);
                assert!(
                    !rig.is_masqueraded(who, inside, protocol)?,
                    "{who:?} to {inside}/{protocol}"
                );
                let service = at(like, 80);
                assert!(
                    !rig.is_masqueraded(who, service, protocol)?,
                    "{who:?} to {service}/{protocol}"
                );
                // The endpoint counts, not the service's address.
                let far = at(service_ips(20)[usize::from(like.is_ipv6())], 80);
                assert!(
                    rig.is_masqueraded(who, far, protocol)?,
                    "{who:?} to {far}/{protocol}"
                );
            }
            let neighbour = at(rig.address(Who::Routed, like)?, PORT);
            assert!(
                !rig.is_masqueraded(Who::Bridged, neighbour, protocol)?,
                "{neighbour}/{protocol}"
            );
            // Who comes from outside sees the pod's answer, and is seen as itself.
            let pod = at(rig.address(Who::Bridged, like)?, PORT);
            assert!(
                !rig.is_masqueraded(Who::Outside, pod, protocol)?,
                "{pod}/{protocol}"
            );
        }
    }
    Ok(())
}

#[test]
fn nobody_but_recorded_pods_is_masqueraded() -> Result<()> {
    let rig = Rig::new("egress-who")?;
    let node = &rig.cast.cluster.world.node;
    for (name, wiring, address) in [
        ("b", Wiring::Bridged, "10.10.99.2"),
        ("r", Wiring::Routed, "172.20.99.2"),
    ] {
        let netns = Netns::new(&format!("egress-who-{name}"))?;
        let stranger = Pod::wire(node, netns, name, wiring, &[ip(address)])?;
        let outcome = Probe::tcp(both(PORT)[0]).ask_in(&stranger.netns);
        assert_eq!(outcome.seen(), Some(ip(address)), "{outcome:?}");
    }
    Ok(())
}

#[test]
fn a_change_of_the_file_is_followed_and_a_bad_one_is_named() -> Result<()> {
    let rig = Rig::new("egress-file")?;
    for to in both(PORT) {
        assert!(rig.is_masqueraded(Who::Routed, to, Protocol::Tcp)?);
    }
    fs::write(&rig.config, "nonMasqueradeCIDRs: [203.0.113.0/33]")?;
    let started = Instant::now();
    while !rig.agent.status()?["errors"]
        .to_string()
        .contains("203.0.113.0/33")
    {
        ensure!(started.elapsed() < SOON, "{}", rig.agent.status()?);
    }
    for to in both(PORT) {
        assert!(
            rig.is_masqueraded(Who::Routed, to, Protocol::Tcp)?,
            "the last good one holds"
        );
    }
    fs::write(&rig.config, r#"{"nonMasqueradeCIDRs": ["203.0.113.0/24"]}"#)?;
    let [v4, v6] = both(PORT);
    rig.wait_masqueraded(Who::Routed, v4, false)?;
    // No range of IPv6 is named any more, so IPv6 is left alone.
    rig.wait_masqueraded(Who::Routed, v6, false)?;
    assert_eq!(rig.agent.status()?["errors"], serde_json::json!([]));
    // Without the flag nothing of it is left.
    assert!(rig.agent.terminate()?.success());
    let _agent = rig.cast.cluster.start_agent()?;
    let tables = rig
        .cast
        .cluster
        .world
        .node
        .output("nft", &["list", "table", "ip", "denizen"])?;
    assert!(!tables.contains("hook forward"), "{tables}");
    Ok(())
}
