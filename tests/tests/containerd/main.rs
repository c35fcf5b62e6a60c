//! A real container runtime makes the pods: containerd, told by CRI as kubelet tells it.

#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and files and execute programs; denizen does not"
)]

mod first_deployment;

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_shared::state::Attachment;
use denizen_shared::store::RunDir;
use denizen_tests::agent::{Agent, CNI_CACHE};
use denizen_tests::api::stage::Stage;
use denizen_tests::api::{Api, ApiServer};
use denizen_tests::binary;
use denizen_tests::cast::{PORT, Who, service_ips};
use denizen_tests::cluster::{Cluster, NODE};
use denizen_tests::conf::{built, built_with_iptables, folder};
use denizen_tests::containerd::Containerd;
use denizen_tests::containerd::kubelet::{DaemonPod, Kubelet};
use denizen_tests::effort;
use denizen_tests::http::{fetch, url};
use denizen_tests::iptables::Variant;
use denizen_tests::manifest::Port;
use denizen_tests::netns::checked;
use denizen_tests::pod::Wiring;
use denizen_tests::probe::{Outcome, Probe, Protocol};
use denizen_tests::server::Server;
use denizen_tests::world::ip;
use serde_json::{Value, json};

/// What has not happened by then never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node with containerd, whose chain is as a CNI plugin's installer leaves it: without denizen yet.
struct Node {
    containerd: Containerd,
    folder: PathBuf,
    cluster: Cluster,
    _web: Server,
}

impl Node {
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
        Ok(Self {
            containerd,
            folder,
            cluster,
            _web: web,
        })
    }

    /// As an operator puts denizen into the chain; the ADD of a pod that cannot be programmed fails.
    fn install(&self) -> Result<()> {
        let wait = json!({ "waitForAgent": { "timeout": "30s", "onTimeout": "fail" } });
        let mut install = Command::new(binary::ours("denizen-agent")?);
        install.args(["install-cni", "--once"]);
        install
            .arg("--cni-conf-dir")
            .arg(Containerd::conf_dir(&self.folder)?);
        install
            .arg("--cni-bin-dir")
            .arg(Containerd::bin_dir(&self.folder)?);
        install.arg("--run-dir").arg(self.cluster.run_dir());
        checked(install.arg("--plugin-config").arg(wait.to_string()))?;
        // containerd takes a changed configuration within moments, and says nothing of it.
        let cri = self.containerd.cri()?;
        self.until("containerd goes by the new chain", || {
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
        let by_sandbox = records.into_values().map(|it| (it.container_id.clone(), it));
        Ok(by_sandbox.collect())
    }

    /// The first packets that a pod sends, and whether each is a local pod's: not masqueraded.
    fn first_packets(&self, record: &Attachment) -> Result<Vec<Outcome>> {
        let netns = record.netns.as_deref().context("a record names the namespace")?;
        let ask = |ip: IpAddr| {
            let probe = Probe::tcp(SocketAddr::new(ip, 80));
            self.containerd.run_in_pod(netns, || probe.ask())
        };
        service_ips(10).into_iter().map(ask).collect()
    }

    fn until(&self, what: &str, mut so: impl FnMut() -> Result<bool>) -> Result<()> {
        let started = Instant::now();
        while !so()? {
            ensure!(started.elapsed() < PATIENCE, "never: {what}");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn pods(agent: &Agent) -> Result<u64> {
    let status = agent.status()?;
    status["pods"].as_u64().with_context(|| format!("{status}"))
}

#[test]
fn a_pod_is_recorded_known_from_its_first_packet_and_crossed_out() -> Result<()> {
    let node = Node::new("ctr-one")?;
    let agent = node.cluster.start_agent()?;
    node.install()?;
    let cri = node.containerd.cri()?;
    for round in 0..effort::times(10, 2) {
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
        let told: Vec<IpAddr> = cri
            .addresses(&sandbox)?
            .iter()
            .map(|it| it.parse())
            .collect::<Result<_, _>>()?;
        assert_eq!(record.ips, told, "what kubelet is told is what is recorded");
        assert_eq!(pods(&agent)?, 1);
        cri.stop_sandbox(&sandbox)?;
        assert!(node.records()?.is_empty(), "DEL crossed it out");
        cri.remove_sandbox(&sandbox)?;
        node.until("the agent forgets it", || Ok(pods(&agent)? == 0))?;
    }
    assert_eq!(agent.status()?["errors"], json!([]));
    let log = node.containerd.log();
    let complaints: Vec<_> = log
        .lines()
        .filter(|line| line.contains("denizen\" failed"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    Ok(())
}

#[test]
fn thirty_pods_at_once_are_all_known_and_all_crossed_out() -> Result<()> {
    const PODS: usize = 30;
    let node = Node::new("ctr-thirty")?;
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
        pods.into_iter()
            .try_for_each(|pod| pod.join().expect("it does not panic"))
    })?;
    assert!(node.records()?.is_empty());
    node.until("the agent forgets them", || Ok(pods(&agent)? == 0))?;
    assert_eq!(agent.status()?["errors"], json!([]));
    Ok(())
}

/// A live node is switched over: containerd's own cache tells of its pods, and its DEL, which goes by the old chain, is
/// made good for.
#[test]
fn pods_that_containerd_made_before_are_adopted_and_pruned() -> Result<()> {
    let node = Node::new("ctr-adopt")?;
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
    node.until("its record is pruned", || Ok(node.records()?.is_empty()))?;
    node.until("the agent forgets it", || Ok(pods(&agent)? == 0))
}

/// A node on which kubelet runs `conf/kubernetes`, with an API server and containerd, whose chain has no
/// denizen yet.
struct Installation {
    containerd: Containerd,
    chain: PathBuf,
    original: String,
    stage: Stage<ApiServer>,
}

impl Installation {
    fn new(label: &str) -> Result<Self> {
        let stage = Stage::own(label)?;
        stage.put_node()?;
        stage.put_web("web", 10, &[Who::Remote])?;
        let cluster = &stage.cast.cluster;
        let folder = cluster.world.subfolder("containerd")?;
        let chain = Containerd::conf_dir(&folder)?.join("10-pods.conflist");
        let original = cluster
            .chain(Wiring::Bridged)
            .clone()
            .without_denizen()
            .conflist();
        fs::write(&chain, &original)?;
        let cache = cluster.run_dir().join(CNI_CACHE);
        let mut containerd = Containerd::start(&cluster.world.node, &folder, &cache)?;
        containerd.import_denizen()?;
        containerd.wait_network()?;
        Ok(Self {
            containerd,
            chain,
            original,
            stage,
        })
    }

    /// A kubelet for these objects. Paths that would be the machine's own are the test's.
    fn kubelet(&self, mut objects: Vec<Value>) -> Result<Kubelet<'_>> {
        let cluster = &self.stage.cast.cluster;
        let map = objects.iter_mut().find(|it| it["kind"] == "ConfigMap");
        if let Some(map) = map {
            map["data"]["DENIZEN_API_SERVER"] = self.stage.api.url().into();
        }
        let account = self.stage.api.folder().to_owned();
        fs::write(account.join("namespace"), "kube-system")?;
        let folder = cluster.world.subfolder("containerd")?;
        Ok(Kubelet {
            containerd: &self.containerd,
            objects,
            node_name: NODE,
            paths: BTreeMap::from([
                ("/run/denizen", cluster.run_dir().to_owned()),
                ("/etc/cni/net.d", Containerd::conf_dir(&folder)?),
                ("/opt/cni/bin", Containerd::bin_dir(&folder)?),
            ]),
            account,
        })
    }

    fn setting(&self, path: &str) -> Result<String> {
        let node = &self.stage.cast.cluster.world.node;
        let path = format!("/proc/sys/net/{path}");
        Ok(node.run(|| fs::read_to_string(path))??.trim().to_owned())
    }
}

/// Waits until the agent has programmed everything and has nothing to complain of.
fn until_healthy(pod: &DaemonPod) -> Result<()> {
    let started = Instant::now();
    loop {
        let status = pod.status();
        let is_healthy =
            |it: &Value| it["synced"] == true && it["errors"] == json!([]) && it["warnings"] == json!([]);
        if status.as_ref().is_ok_and(is_healthy) {
            return Ok(());
        }
        ensure!(
            started.elapsed() < PATIENCE,
            "not healthy: {status:?}\n{}",
            pod.log("agent")
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// The capabilities of a container's first process, as the kernel counts them.
fn effective(pod: &DaemonPod, container: &str) -> Result<u64> {
    let status = pod.exec(container, &["cat", "/proc/1/status"])?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    Ok(u64::from_str_radix(line.context("no CapEff")?.trim(), 16)?)
}

/// `conf/kubernetes`, then `conf/kubernetes/uninstall`, with no container that is privileged.
#[test]
fn the_daemon_set_installs_programs_sets_up_the_kernel_and_is_taken_away() -> Result<()> {
    const NET_ADMIN: u64 = 1 << 12;
    let node = Installation::new("ctr-daemon")?;
    let cluster = &node.stage.cast.cluster;
    cluster
        .world
        .node
        .sysctl("net.bridge.bridge-nf-call-iptables", "0")?;
    let pod = node
        .kubelet(built(&folder().join("kubernetes"))?)?
        .run("denizen")?;
    until_healthy(&pod)?;
    assert_eq!(effective(&pod, "agent")?, NET_ADMIN);
    assert_eq!(effective(&pod, "install-cni")?, 0);
    let account = ["ls", "/var/run/secrets/kubernetes.io/serviceaccount"];
    assert!(pod.exec("agent", &account)?.contains("token"));
    ensure!(pod.exec("install-cni", &account).is_err(), "it has a token");
    for (path, wanted) in [
        ("bridge/bridge-nf-call-iptables", "1"),
        ("netfilter/nf_conntrack_tcp_timeout_established", "86400"),
        ("netfilter/nf_conntrack_tcp_timeout_close_wait", "3600"),
        ("ipv4/conf/all/route_localnet", "0"),
    ] {
        assert_eq!(node.setting(path)?, wanted, "{path}");
    }
    node.stage.until_answered(10, Who::Remote)?;
    let installed = fs::read_to_string(&node.chain)?;
    ensure!(installed.contains("denizen"), "{installed}");
    pod.end()?;
    let pod = node.kubelet(built(&folder().join("kubernetes/uninstall"))?)?;
    pod.run("denizen-uninstall")?.end()?;
    assert_eq!(fs::read_to_string(&node.chain)?, node.original);
    assert_eq!(cluster.world.node.output("nft", &["list", "tables"])?, "");
    Ok(())
}

/// The component `iptables`: node ports answer on 127.0.0.1 too, so the agent sets `route_localnet`, and
/// nothing is left to warn of; nor of all that when the component goes.
#[test]
fn the_daemon_set_with_iptables_serves_node_ports_on_loopback_and_leaves_without_a_trace() -> Result<()> {
    let node = Installation::new("ctr-ipt")?;
    let cast = &node.stage.cast;
    let http = [Port::tcp("http", 80, PORT).at_node(30080)];
    let web = cast.service("web", 10, &http, &[Who::Remote])?;
    web.iter().try_for_each(|object| node.stage.api.put(object))?;
    let pod = node.kubelet(built_with_iptables()?)?.run("denizen")?;
    until_healthy(&pod)?;
    assert_eq!(node.setting("ipv4/conf/all/route_localnet")?, "1");
    for to in ["127.0.0.1:30080", "192.168.0.2:30080"] {
        let outcome = cast.ask(Who::ThisNode, to.parse()?, Protocol::Tcp)?;
        ensure!(outcome.endpoint().is_some(), "{to}: {outcome:?}");
    }
    // Without the component nothing of it is left, though the agent has no NET_RAW any more.
    pod.end()?;
    let pod = node
        .kubelet(built(&folder().join("kubernetes"))?)?
        .run("denizen")?;
    let host = &cast.cluster.world.node;
    let started = Instant::now();
    while host.output("ipset", &["list", "-n"])?.contains("DENIZEN-") {
        ensure!(started.elapsed() < PATIENCE, "{}", pod.log("agent"));
        thread::sleep(Duration::from_millis(100));
    }
    until_healthy(&pod)?;
    let left = Variant::Nft.dump(host)?;
    ensure!(!left.contains("KUBE-"), "{left}");
    assert_eq!(node.setting("ipv4/conf/all/route_localnet")?, "0");
    Ok(())
}

/// A mount goes on to lead to what was removed on the host: the kubelet is told to start it anew.
#[test]
fn a_container_whose_run_directory_is_removed_is_not_live_until_it_is_started_anew() -> Result<()> {
    let node = Installation::new("ctr-run")?;
    let cluster = &node.stage.cast.cluster;
    let until_live = |status: u16| -> Result<()> {
        let livez = url(ip("127.0.0.1"), 10256, "/livez");
        let started = Instant::now();
        loop {
            match fetch(&cluster.world.node, &livez, &[]) {
                Ok(reply) if reply.status == status => return Ok(()),
                other => ensure!(started.elapsed() < PATIENCE, "not {status}: {other:?}"),
            }
            thread::sleep(Duration::from_millis(100));
        }
    };
    let kubelet = node.kubelet(built(&folder().join("kubernetes"))?)?;
    let pod = kubelet.run("denizen")?;
    until_healthy(&pod)?;
    until_live(200)?;
    // The runtime's own cache is in there, and is the test's alone.
    fs::rename(
        cluster.run_dir().join(CNI_CACHE),
        cluster.world.folder().join(CNI_CACHE),
    )?;
    fs::remove_dir_all(cluster.run_dir())?;
    until_live(503)?;
    pod.end()?;
    let pod = kubelet.run("denizen")?;
    until_healthy(&pod)?;
    until_live(200)
}
