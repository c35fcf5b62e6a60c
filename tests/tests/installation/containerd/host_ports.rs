//! Host ports as containerd passes them on.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::PORT;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};
use denizen_tests::peers::containerd::{PortMapping, SandboxConfig};
use serde_json::json;

use super::ContainerdNode;

const HOST_PORT: u16 = 54321;

/// Kubernetes' two cases of conformance: pods of one node with one host port, and another hostIP or
/// another protocol. kubelet passes on ports without a host port, too.
#[test]
fn one_port_with_other_addresses_and_protocols() -> Result<()> {
    let node = ContainerdNode::new("ctr-ports")?;
    let agent = node.cluster.start_agent_with(["--host-ports=on"])?;
    node.install_as(json!({ "hostPorts": {} }))?;
    let cri = node.containerd.cri()?;
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    let cases = [
        ("localhost", "127.0.0.1", tcp),
        ("by-ip", "192.168.0.2", tcp),
        ("by-udp", "192.168.0.2", udp),
    ];
    let (mut servers, mut pods) = (Vec::new(), Vec::new());
    for (name, host_ip, protocol) in cases {
        let mapping = |host_port: u16, host_ip: &str| PortMapping {
            protocol: i32::from(protocol == udp),
            container_port: PORT.into(),
            host_port: host_port.into(),
            host_ip: host_ip.to_owned(),
        };
        let mut config = SandboxConfig::new(name);
        config.port_mappings = vec![mapping(HOST_PORT, host_ip), mapping(0, "")];
        let sandbox = cri.run_sandbox_as(config)?;
        let record = node.records()?.remove(&sandbox).context("it is recorded")?;
        ensure!(record.host_ports.len() == 1 && !record.host_ports_adopted, "{record:?}");
        let netns = node.containerd.pod_netns(record.netns.as_deref().context("a namespace")?)?;
        servers.push(serve(&netns, &record.ips, &[(tcp, PORT), (udp, PORT)])?);
        pods.push((sandbox, record));
    }
    let world = &node.cluster.world;
    for ((_, host_ip, protocol), (_, record)) in cases.iter().zip(&pods) {
        let to = SocketAddr::new(ip(host_ip), HOST_PORT);
        let from = if to.ip().is_loopback() { &world.node } else { &world.client };
        let outcome = Probe { protocol: *protocol, ..Probe::tcp(to) }.send_in(from);
        let by = outcome.endpoint().context("answered")?;
        ensure!(record.ips.contains(&by.ip()) && by.port() == PORT, "{to}: {outcome:?}");
    }
    assert_eq!(agent.status()?["hostPorts"]["conflicts"], json!([]));
    for (sandbox, _) in pods {
        cri.stop_sandbox(&sandbox)?;
        cri.remove_sandbox(&sandbox)?;
    }
    let to = SocketAddr::new(ip("192.168.0.2"), HOST_PORT);
    assert_eq!(Probe::tcp(to).send_in(&world.client), Outcome::Refused);
    Ok(())
}
