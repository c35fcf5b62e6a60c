//! From portmap to Denizen and back, while clients connect.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use denizen_tests::agent::{Agent, CNI_CACHE};
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::serve;
use denizen_tests::node::cni::Chain;
use denizen_tests::node::fixture::{Fixture, Host, PORT};
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::packets::load::Load;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};
use denizen_tests::packets::server::Server;
use serde_json::{Value, json};

use denizen_tests::cases::host_ports::context::{TIMEOUT, port, port_at};

/// What portmap writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// The tables of iptables' nft variant.
    Nft,
    /// Legacy iptables.
    Legacy,
    /// nf_tables of its own, which came with its release 1.6.
    Own,
}

impl Variant {
    /// nf_tables, as this portmap can: Debian's releases have one that is older.
    fn newest() -> Result<Self> {
        let mut version = Command::new(binary::cni_plugins().join("portmap"));
        version.env("CNI_COMMAND", "VERSION").stdin(Stdio::null());
        let output: Value = serde_json::from_slice(&checked(&mut version)?.stdout)?;
        let versions = output["supportedVersions"].as_array().context("no versions")?;
        // The version of the specification that this release of the plugins brought, too.
        Ok(if versions.contains(&json!("1.1.0")) { Self::Own } else { Self::Nft })
    }

    fn program(self, family: &str) -> String {
        let name = if self == Self::Legacy { "legacy" } else { "nft" };
        format!("{family}-{name}")
    }
}

/// A node whose list has portmap in front of denizen.
struct Migration {
    fixture: Fixture,
    variant: Variant,
    folder: PathBuf,
    label: String,
}

impl Migration {
    fn new(label: &str, variant: Variant) -> Result<Self> {
        let fixture = Fixture::new(label)?;
        let folder = fixture.cluster.world.subfolder("cni")?;
        let (bin, conf) = (folder.join("bin"), folder.join("net.d"));
        fs::create_dir_all(&bin)?;
        fs::create_dir_all(&conf)?;
        for family in ["iptables", "ip6tables"] {
            symlink(Path::new("/usr/sbin").join(variant.program(family)), bin.join(family))?;
        }
        // portmap takes the first iptables of its PATH.
        let portmap = binary::cni_plugins().join("portmap");
        let script =
            format!("#!/bin/sh\nPATH={}:$PATH exec {}\n", bin.display(), portmap.display());
        fs::write(folder.join("portmap"), script)?;
        fs::set_permissions(folder.join("portmap"), fs::Permissions::from_mode(0o755))?;
        let mut chain = fixture.cluster.chain(Wiring::Bridged).clone().without_denizen();
        let backend = if variant == Variant::Own { "nftables" } else { "iptables" };
        chain.plugins.push(json!({
            "type": "portmap", "capabilities": { "portMappings": true }, "backend": backend,
        }));
        fs::write(conf.join("10-pods.conflist"), chain.conflist())?;
        let migration = Self { fixture, variant, folder, label: label.to_owned() };
        migration.install(&["--once"])?;
        Ok(migration)
    }

    fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    fn list(&self) -> PathBuf {
        self.folder.join("net.d/10-pods.conflist")
    }

    fn install(&self, flags: &[&str]) -> Result<()> {
        let mut install = Command::new(binary::ours("denizen-agent")?);
        install.arg("install-cni").args(flags);
        install.arg("--cni-conf-dir").arg(self.folder.join("net.d"));
        install.arg("--cni-bin-dir").arg(self.folder.join("installed"));
        install.arg("--run-dir").arg(self.fixture.cluster.run_dir());
        let wait = json!({ "waitForAgent": { "timeout": "10s", "onTimeout": "fail" } });
        install.arg("--plugin-config").arg(wait.to_string());
        fs::create_dir_all(self.folder.join("installed"))?;
        self.node().run(|| checked(&mut install)).context("in the node")??;
        Ok(())
    }

    /// The list of now, by which a runtime calls for a pod with these ports.
    fn chain(&self, ports: &Value) -> Result<Chain> {
        let list: Value = serde_json::from_str(&fs::read_to_string(self.list())?)?;
        let mut chain = self.fixture.cluster.chain(Wiring::Bridged).clone();
        chain.plugins = list["plugins"].as_array().context("plugins")?.clone();
        for plugin in &mut chain.plugins {
            if plugin["capabilities"]["portMappings"] == true {
                plugin["runtimeConfig"] = json!({ "portMappings": ports });
            }
            if plugin["type"] == "portmap" {
                plugin["type"] = json!(self.folder.join("portmap"));
            }
        }
        Ok(chain)
    }

    fn kinds(&self) -> Result<Vec<String>> {
        let list: Value = serde_json::from_str(&fs::read_to_string(self.list())?)?;
        let plugins = list["plugins"].as_array().context("plugins")?;
        Ok(plugins.iter().filter_map(|plugin| Some(plugin["type"].as_str()?.to_owned())).collect())
    }

    /// A pod by the list of now, of which the runtime keeps what libcni keeps.
    fn pod(&self, name: &str, ports: &Value) -> Result<(Pod, Server)> {
        let netns = Netns::new(&format!("{}-{name}", self.label))?;
        let pod = Pod::attach(self.node(), netns, name, &self.chain(ports)?)?;
        let (file, mut cached) = pod.cached(pod.netns.path().to_str());
        cached["capabilityArgs"] = json!({ "portMappings": ports });
        fs::create_dir_all(self.cache())?;
        fs::write(self.cache().join(file), cached.to_string())?;
        let all = [(Protocol::Tcp, PORT), (Protocol::Udp, PORT)];
        let server = serve(&pod.netns, &pod.addresses, &all)?;
        Ok((pod, server))
    }

    /// Where libcni keeps results.
    fn cache(&self) -> PathBuf {
        self.fixture.cluster.run_dir().join(CNI_CACHE).join("results")
    }

    /// DEL by the list of now.
    fn end(&self, pod: Pod, ports: &Value) -> Result<()> {
        let (file, _) = pod.cached(None);
        let pod = pod.through(&self.chain(ports)?);
        pod.detach(self.node())?;
        Ok(fs::remove_file(self.cache().join(file))?)
    }

    fn agent(&self, flags: &[&str]) -> Result<Agent> {
        let flags = ["--backend=nftables"].iter().chain(flags);
        self.fixture.cluster.start_agent_with(flags.map(|&flag| flag.to_owned()))
    }

    /// The NAT rules of both families.
    fn rules(&self) -> Result<String> {
        if self.variant == Variant::Own {
            return self.node().output("nft", &["list", "ruleset"]);
        }
        let each = ["iptables", "ip6tables"]
            .map(|family| self.node().output(&self.variant.program(family), &["-t", "nat", "-S"]));
        each.into_iter().collect()
    }

    /// Whether portmap has rules for a container.
    fn has_rules(&self, container: &str) -> Result<bool> {
        let mark = match self.variant {
            Variant::Own => format!("comment \"{container}\""),
            Variant::Nft | Variant::Legacy => format!("id: \\\"{container}\\\""),
        };
        Ok(self.rules()?.contains(&mark))
    }

    /// How many chains of containers there are, or ports of containers.
    fn count(&self) -> Result<usize> {
        let rules = self.rules()?;
        let is_counted = |line: &&str| match self.variant {
            Variant::Own => line.contains(" dnat to ") && line.contains(" comment "),
            Variant::Nft | Variant::Legacy => line.starts_with("-N CNI-DN-"),
        };
        Ok(rules.lines().filter(is_counted).count())
    }

    fn load(&self, number: u16, pod: &Pod) -> Result<Load> {
        // 500 connections a second, as two clients that pause.
        let mut load = Load::with_pause(Duration::from_millis(4));
        for who in [Host::Outside, Host::Routed] {
            let expected = pod.addresses.clone();
            let to = self.fixture.cluster.world.addresses().node.clone();
            let targets = to.into_iter().map(|ip| (SocketAddr::new(ip, number), Protocol::Tcp));
            let is_pod = move |outcome: &Outcome| {
                outcome.endpoint().is_some_and(|endpoint| expected.contains(&endpoint.ip()))
            };
            load.client(self.fixture.place(who).0, targets.collect(), is_pod)?;
        }
        Ok(load)
    }
}

/// A sender of datagrams from one port, each of which must be answered before the next one.
struct Stream {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<Result<Result<usize>>>,
}

impl Stream {
    fn start(migration: &Migration, to: SocketAddr, pod: &Pod) -> Result<Self> {
        let from = migration.fixture.address(Host::Outside, to.ip())?;
        let expected = SocketAddr::new(pod.address_like(to.ip()).context("an address")?, PORT);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let sender = migration.fixture.place(Host::Outside).0.spawn(move || {
            let socket = UdpSocket::bind((from, 0))?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(Duration::from_secs(1)))?;
            let (mut answered, mut line) = (0, [0; 256]);
            while !stopped.load(Ordering::Relaxed) {
                socket.send(b"?")?;
                let length = socket.recv(&mut line).with_context(|| format!("after {answered}"))?;
                let text = String::from_utf8_lossy(&line[..length]).into_owned();
                ensure!(text.contains(&expected.to_string()), "{text}, not {expected}");
                answered += 1;
            }
            Ok(answered)
        })?;
        Ok(Self { stop, sender })
    }

    fn end(self) -> Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        self.sender.join().map_err(|_| anyhow!("the sender panicked"))??
    }
}

fn both(number: u16) -> Value {
    json!([port(number), port_at(number, "udp", "")])
}

fn there_and_back(variant: Variant) -> Result<()> {
    let label = format!("hp-pm{}", variant as u8);
    let migration = Migration::new(&label, variant)?;
    let node = migration.node();
    let before = fs::read_to_string(migration.list())?;
    assert_eq!(migration.kinds()?, ["bridge", "portmap", "denizen"]);
    let agent = migration.agent(&[])?;
    let (stays, _stays) = migration.pod("stays", &both(8080))?;
    let (ends, _ends) = migration.pod("ends", &json!([port(8081)]))?;
    // A pod that ended without portmap's DEL.
    let (dead, _dead) = migration.pod("dead", &json!([port(8082)]))?;
    let dead_id = dead.netns.name().to_owned();
    let (file, _) = dead.cached(None);
    let mut without = migration.chain(&Value::Null)?;
    without.plugins.retain(|plugin| plugin["capabilities"]["portMappings"] != true);
    dead.through(&without).detach(node)?;
    fs::remove_file(migration.cache().join(file))?;
    ensure!(migration.has_rules(&dead_id)? && migration.count()? >= 3, "{}", migration.rules()?);

    let load = migration.load(8080, &stays)?;
    let first = migration.fixture.cluster.world.addresses().node[0];
    let stream = Stream::start(&migration, SocketAddr::new(first, 8080), &stays)?;

    // The agent takes the pods' ports from the runtime's cache.
    ensure!(agent.terminate()?.success());
    let agent = migration.agent(&["--host-ports=on"])?;
    let served = || Ok(agent.status()?["hostPorts"]["askingPods"].as_u64() == Some(2));
    eventually("adopted", TIMEOUT, served).with_context(|| agent.log())?;
    migration.install(&["--once", "--host-ports", "--replace-portmap"])?;
    assert_eq!(migration.kinds()?, ["bridge", "denizen"]);
    eventually("the dead pod's rules are gone", TIMEOUT + TIMEOUT, || {
        Ok(!migration.has_rules(&dead_id)?)
    })
    .with_context(|| agent.log())?;

    let (new, _new) = migration.pod("new", &json!([port(8083)]))?;
    let asks = |number, pod: &Pod| -> Result<()> {
        let to = SocketAddr::new(first, number);
        let from = migration.fixture.address(Host::Outside, first)?;
        let outcome = Probe::tcp(to).from(from).send_in(migration.fixture.place(Host::Outside).0);
        let by = outcome.endpoint().map(|endpoint| endpoint.ip());
        ensure!(by == pod.address_like(first), "{number}: {outcome:?}");
        Ok(())
    };
    asks(8081, &ends)?;
    asks(8083, &new)?;
    // Its DEL calls no portmap.
    let ends_id = ends.netns.name().to_owned();
    ensure!(migration.has_rules(&ends_id)?);
    migration.end(ends, &json!([port(8081)]))?;
    ensure!(!migration.has_rules(&ends_id)?, "{}", migration.rules()?);
    let stays_id = stays.netns.name().to_owned();
    ensure!(migration.has_rules(&stays_id)?, "portmap may come back");

    // And back: first the list, then the agent.
    migration.install(&["--uninstall"])?;
    migration.install(&["--once"])?;
    assert_eq!(fs::read_to_string(migration.list())?, before);
    ensure!(agent.terminate()?.success());
    let mut cleanup = Command::new(binary::ours("denizen-agent")?);
    node.run(|| checked(cleanup.arg("cleanup")))??;
    ensure!(!node.output("nft", &["list", "tables"])?.contains("denizen-host-ports"));
    asks(8080, &stays)?;

    let tally = load.stop()?;
    assert_eq!((tally.failed, tally.lost_once), (0, 0), "{:?}", tally.examples);
    ensure!(tally.answered > 1000, "{tally:?}");
    let answered = stream.end()?;
    ensure!(answered > 1000, "{answered}");
    migration.end(stays, &both(8080))?;
    assert_eq!(migration.count()?, 0, "{}", migration.rules()?);
    Ok(())
}

#[test]
fn nobody_notices_that_denizen_replaces_portmap_with_nf_tables() -> Result<()> {
    there_and_back(Variant::newest()?)
}

#[test]
fn nobody_notices_that_denizen_replaces_portmap_with_legacy_iptables() -> Result<()> {
    there_and_back(Variant::Legacy)
}
