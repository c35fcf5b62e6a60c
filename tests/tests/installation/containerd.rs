//! A real container runtime makes the pods: containerd, called by CRI as kubelet calls it.

mod first_deployment;
mod host_ports;
mod installation;
mod redirect;
mod speaker;

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_state::{Attachment, RunDir};
use denizen_tests::agent::{Agent, CNI_CACHE};
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::fixture::{PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::checked;
use denizen_tests::node::pod::Wiring;
use denizen_tests::packets::probe::{Outcome, Probe};
use denizen_tests::packets::server::Server;
use denizen_tests::peers::containerd::Containerd;
use denizen_tests::peers::containerd::kubelet::DaemonPod;
use denizen_tests::test_length;
use serde_json::{Value, json};

/// What has not happened by then never will.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A node with containerd, whose chain is as a CNI plugin's installer leaves it: without denizen
/// yet.
struct ContainerdNode {
    containerd: Containerd,
    folder: PathBuf,
    cluster: Cluster,
    _web: Server,
}

impl ContainerdNode {
    fn new(label: &str) -> Result<Self> {
        let cluster = Cluster::new(label, &Value::Null)?;
        let web = cluster.remote_web(&service_ips(10), Port::tcp("http", 80, PORT))?;
        let folder = cluster.world.subfolder("containerd")?;
        let chain = cluster.chain(Wiring::Bridged).clone().without_denizen();
        let conf_dir = Containerd::conf_dir(&folder)?;
        fs::write(conf_dir.join("10-pods.conflist"), chain.conflist())?;
        let cache = cluster.run_dir().join(CNI_CACHE);
        let mut containerd = Containerd::start(&cluster.world.node, &folder, &cache)?;
        containerd.wait_network()?;
        Ok(Self { containerd, folder, cluster, _web: web })
    }

    /// As an operator puts denizen into the chain; the ADD of a pod that cannot be programmed
    /// fails.
    fn install(&self) -> Result<()> {
        self.install_as(json!({}))
    }

    /// The same with more in the plugin's configuration.
    fn install_as(&self, mut configuration: Value) -> Result<()> {
        configuration["waitForAgent"] = json!({ "timeout": "30s", "onTimeout": "fail" });
        let mut install = Command::new(binary::ours("denizen-agent")?);
        install.args(["install-cni", "--once"]);
        install.arg("--cni-conf-dir").arg(Containerd::conf_dir(&self.folder)?);
        install.arg("--cni-bin-dir").arg(Containerd::bin_dir(&self.folder)?);
        install.arg("--run-dir").arg(self.cluster.run_dir());
        checked(install.arg("--plugin-config").arg(configuration.to_string()))?;
        // containerd takes a changed configuration within moments, and says nothing of it.
        let cri = self.containerd.cri()?;
        eventually("containerd goes by the new chain", TIMEOUT, || {
            let probe = cri.run_sandbox("is-it-there")?;
            let is_there = self.records()?.contains_key(&probe);
            cri.stop_sandbox(&probe)?;
            cri.remove_sandbox(&probe)?;
            Ok(is_there)
        })
    }

    /// The records, by sandbox.
    fn records(&self) -> Result<BTreeMap<String, Attachment>> {
        let state = RunDir::open(self.cluster.run_dir())?.read()?;
        let records = state.map(|state| state.attachments).unwrap_or_default();
        let by_sandbox = records.into_values().map(|record| (record.container_id.clone(), record));
        Ok(by_sandbox.collect())
    }

    /// The first packets that a pod sends, and whether each is a local pod's: not masqueraded.
    fn first_packets(&self, record: &Attachment) -> Result<Vec<Outcome>> {
        let netns = record.netns.as_deref().context("a record names the namespace")?;
        let ask = |ip: IpAddr| {
            let probe = Probe::tcp(SocketAddr::new(ip, 80));
            self.containerd.run_in_pod(netns, || probe.send())
        };
        service_ips(10).into_iter().map(ask).collect()
    }
}

/// The capabilities of a container's first process, as the kernel counts them.
fn effective(pod: &DaemonPod, container: &str) -> Result<u64> {
    let status = fs::read_to_string(pod.process(container)?.join("status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    Ok(u64::from_str_radix(line.context("no CapEff")?.trim(), 16)?)
}

fn pods(agent: &Agent) -> Result<u64> {
    let status = agent.status()?;
    status["pods"].as_u64().with_context(|| format!("{status}"))
}

#[test]
fn a_pod_is_recorded_known_from_its_first_packet_and_crossed_out() -> Result<()> {
    let node = ContainerdNode::new("ctr-one")?;
    let agent = node.cluster.start_agent()?;
    node.install()?;
    let cri = node.containerd.cri()?;
    for round in 0..test_length::times(10, 2) {
        let name = format!("web-{round}");
        let sandbox = cri.run_sandbox(&name)?;
        let record = node.records()?.remove(&sandbox).context("it is recorded")?;
        let seen: Vec<_> = node.first_packets(&record)?.iter().map(Outcome::seen).collect();
        for (ip, seen) in service_ips(10).into_iter().zip(seen) {
            let own = record.ips.iter().find(|own| own.is_ipv4() == ip.is_ipv4());
            assert_eq!(seen.as_ref(), own, "its own address: {record:?}");
        }
        let pod = record.pod.clone().context("containerd names the pod")?;
        assert_eq!((pod.name, pod.uid), (name.clone(), Some(format!("uid-{name}"))));
        assert_eq!(record.bridge.as_deref(), Some("cni0"));
        let output: Vec<IpAddr> = cri
            .addresses(&sandbox)?
            .iter()
            .map(|address| address.parse())
            .collect::<Result<_, _>>()?;
        assert_eq!(record.ips, output, "what kubelet gets is what is recorded");
        assert_eq!(pods(&agent)?, 1);
        cri.stop_sandbox(&sandbox)?;
        assert!(node.records()?.is_empty(), "DEL crossed it out");
        cri.remove_sandbox(&sandbox)?;
        eventually("the agent forgets it", TIMEOUT, || Ok(pods(&agent)? == 0))?;
    }
    assert_eq!(agent.status()?["errors"], json!([]));
    let log = node.containerd.log();
    let complaints: Vec<_> = log.lines().filter(|line| line.contains("denizen\" failed")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    Ok(())
}

#[test]
fn thirty_pods_at_once_are_all_known_and_all_crossed_out() -> Result<()> {
    const PODS: usize = 30;
    let node = ContainerdNode::new("ctr-thirty")?;
    let agent = node.cluster.start_agent()?;
    node.install()?;
    let (start, all_are_there) = (Barrier::new(PODS), Barrier::new(PODS));
    let one = |number: usize| -> Result<()> {
        let cri = node.containerd.cri();
        start.wait();
        let made = cri.and_then(|cri| Ok((cri.run_sandbox(&format!("p{number}"))?, cri)));
        let asked = made.and_then(|(sandbox, cri)| {
            let record = node.records()?.remove(&sandbox).context("it is not recorded")?;
            let outcomes = node.first_packets(&record)?;
            let all = outcomes
                .iter()
                .all(|outcome| outcome.seen().is_some_and(|seen| record.ips.contains(&seen)));
            Ok((sandbox, cri, all, outcomes))
        });
        // Whoever failed too: nobody waits for ever.
        all_are_there.wait();
        let (sandbox, cri, all, outcomes) = asked?;
        cri.stop_sandbox(&sandbox)?;
        cri.remove_sandbox(&sandbox)?;
        ensure!(all, "pod {number} was not known: {outcomes:?}");
        Ok(())
    };
    thread::scope(|scope| -> Result<()> {
        let pods: Vec<_> = (0..PODS).map(|number| scope.spawn(move || one(number))).collect();
        pods.into_iter().try_for_each(|pod| pod.join().expect("it does not panic"))
    })?;
    assert!(node.records()?.is_empty());
    eventually("the agent forgets them", TIMEOUT, || Ok(pods(&agent)? == 0))?;
    assert_eq!(agent.status()?["errors"], json!([]));
    Ok(())
}

/// A live node is switched over: containerd's own cache tells of its pods, and its DEL, which goes
/// by the old chain, is made good for.
#[test]
fn pods_that_containerd_made_before_are_adopted_and_pruned() -> Result<()> {
    let node = ContainerdNode::new("ctr-adopt")?;
    let cri = node.containerd.cri()?;
    let old = cri.run_sandbox("old")?;
    let agent = node.cluster.start_agent()?;
    let record = node.records()?.remove(&old).context("it is adopted")?;
    assert!(record.adopted);
    assert_eq!(record.pod.as_ref().map(|pod| pod.name.as_str()), Some("old"));
    for outcome in node.first_packets(&record)? {
        let seen = outcome.seen().with_context(|| format!("{outcome:?}"))?;
        assert!(record.ips.contains(&seen), "{outcome:?}");
    }
    node.install()?;
    cri.stop_sandbox(&old)?;
    cri.remove_sandbox(&old)?;
    eventually("its record is pruned", TIMEOUT, || Ok(node.records()?.is_empty()))?;
    eventually("the agent forgets it", TIMEOUT, || Ok(pods(&agent)? == 0))
}
