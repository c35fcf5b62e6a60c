//! The real agent, started with kube-proxy's own file.

use anyhow::{Context, Result};
use denizen_tests::agent::Agent;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::packets::probe::Protocol;
use std::net::SocketAddr;

const KUBE_PROXY: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.0.0.0/8
mode: nftables
nftables: {masqueradeAll: true, syncPeriod: 30s}
metricsBindAddress: ''
";

#[test]
fn kube_proxys_file_is_gone_by_and_a_flag_beats_it() -> Result<()> {
    let fixture = Fixture::new("config")?;
    let ports = [Port::tcp("http", 80, PORT)];
    let web = fixture.service("web", 10, &ports, &[Host::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    let file = fixture.cluster.run_dir().join("kube-proxy.conf");
    std::fs::write(&file, KUBE_PROXY)?;
    let to = SocketAddr::new(service_ips(10)[0], 80);
    let config = format!("--config={}", file.display());
    for (flag, masqueraded) in [(None, true), (Some("--masquerade-all=false"), false)] {
        let mut settings = fixture.cluster.settings();
        settings.flags.push(config.clone());
        settings.flags.extend(flag.map(str::to_owned));
        let agent = Agent::start(&fixture.cluster.world.node, settings)?;
        let outcome = fixture.probe(Host::Routed, to, Protocol::Tcp)?;
        assert_eq!(fixture.was_masqueraded(Host::Routed, &outcome)?, masqueraded, "{flag:?}");
        let log = agent.log();
        let ignored = |field: &str| {
            let mut lines = log.lines();
            lines.find(|line| line.contains("WARN") && line.contains(field)).map(str::to_owned)
        };
        let warning = ignored("clusterCIDR").with_context(|| log.clone())?;
        assert!(warning.contains("line 3, clusterCIDR"), "{warning}");
        assert!(ignored("nftables.syncPeriod").is_some(), "{log}");
        assert_eq!(agent.status()?["detectLocal"], "pod-state");
        agent.terminate()?;
    }
    Ok(())
}
