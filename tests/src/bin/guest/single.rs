//! A node whose kernel has IPv4 alone.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::agent::{Agent, Objects, Settings};
use denizen_tests::binary;
use denizen_tests::node::cluster::NODE;
use denizen_tests::node::manifest::{self, Manifests, Port};
use denizen_tests::node::netns::{Netns, checked, folder};
use denizen_tests::node::world::ip;
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::probe::{Probe, Protocol};
use denizen_tests::packets::server::Server;

const WEB: Port = Port::tcp("web", 80, 8080);

/// An emulated processor has to load the kernel's modules first.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The node connects to a service of a host beside it; nothing is wrong, and nothing is left
/// behind.
pub(crate) fn every_backend_serves() -> Result<()> {
    let (node, host) = (Netns::new("single")?, Netns::new("single-host")?);
    node.ip(&format!(
        "link add eth0 type veth peer name eth0 netns {}\naddr add 10.9.0.1/24 dev eth0\n\
         link set eth0 up\nlink set lo up\nroute add default via 10.9.0.2",
        host.name()
    ))?;
    host.ip("addr add 10.9.0.2/24 dev eth0\nlink set eth0 up")?;
    let (service, endpoint): (IpAddr, IpAddr) = (ip("172.30.0.10"), ip("10.9.0.2"));
    let _server = Server::at(&host, Protocol::Tcp, SocketAddr::new(endpoint, WEB.target))?;
    let folder = folder()?;
    // tempfile's folders are root's alone, as the run directory must be.
    let run_dir = folder.path().to_owned();
    let manifests = Manifests::in_folder(&run_dir.join("manifests"))?;
    let web = [
        manifest::service("web", &[service], &[WEB]),
        manifest::slice("web", &[WEB], &[(endpoint, NODE)]),
    ];
    manifests.put("web", &web)?;
    for backend in Backend::ALL.into_iter().chain([Backend::Ipvs]) {
        let settings = Settings {
            program: None,
            objects: Objects::Manifests(manifests.folder().to_owned()),
            run_dir: run_dir.clone(),
            node_name: NODE.to_owned(),
            flags: backend.flags(),
        };
        let mut agent = Agent::spawn(&node, settings)?;
        agent.wait_programmed(TIMEOUT)?;
        let outcome = Probe::tcp(SocketAddr::new(service, WEB.port)).send_in(&node);
        ensure!(outcome.endpoint().is_some(), "{backend:?}: {outcome:?}");
        let status = agent.status()?;
        ensure!(status["errors"].as_array().is_some_and(Vec::is_empty), "{backend:?}: {status}");
        agent.terminate()?;
    }
    let mut cleanup = Command::new(binary::ours("denizen-agent")?);
    node.run(|| checked(cleanup.args(["cleanup", "--kube-proxy"])))??;
    Ok(())
}
