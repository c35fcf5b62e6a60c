//! `conf/kubernetes` as kubelet runs it, with exactly what its manifests grant.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::CNI_CACHE;
use denizen_tests::api::context::ApiContext;
use denizen_tests::api::{Api, ApiServer};
use denizen_tests::cluster::NODE;
use denizen_tests::conf::{built, built_with, folder};
use denizen_tests::containerd::Containerd;
use denizen_tests::containerd::kubelet::{DaemonPod, Kubelet};
use denizen_tests::eventually::observed;
use denizen_tests::fixture::{PORT, Who};
use denizen_tests::http::{Reply, fetch, url};
use denizen_tests::iptables::Variant;
use denizen_tests::manifest::Port;
use denizen_tests::pod::Wiring;
use denizen_tests::probe::Protocol;
use denizen_tests::world::ip;
use serde_json::{Value, json};

use super::PATIENCE;

/// A node on which kubelet runs `conf/kubernetes`, with an API server and containerd, whose chain
/// has no denizen yet.
struct Installation {
    containerd: Containerd,
    chain: PathBuf,
    original: String,
    context: ApiContext<ApiServer>,
}

impl Installation {
    fn new(label: &str) -> Result<Self> {
        let context = ApiContext::own(label)?;
        context.put_node()?;
        context.put_web("web", 10, &[Who::Remote])?;
        let cluster = &context.fixture.cluster;
        let folder = cluster.world.subfolder("containerd")?;
        let chain = Containerd::conf_dir(&folder)?.join("10-pods.conflist");
        let original = cluster.chain(Wiring::Bridged).clone().without_denizen().conflist();
        fs::write(&chain, &original)?;
        let cache = cluster.run_dir().join(CNI_CACHE);
        let mut containerd = Containerd::start(&cluster.world.node, &folder, &cache)?;
        containerd.import_denizen()?;
        containerd.wait_network()?;
        Ok(Self { containerd, chain, original, context })
    }

    /// A kubelet for these objects. Paths that would be the machine's own are the test's.
    fn kubelet(&self, mut objects: Vec<Value>) -> Result<Kubelet<'_>> {
        let cluster = &self.context.fixture.cluster;
        let map = objects.iter_mut().find(|it| it["kind"] == "ConfigMap");
        if let Some(map) = map {
            map["data"]["DENIZEN_API_SERVER"] = self.context.api.url().into();
        }
        let account = self.context.api.folder().to_owned();
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
        let node = &self.context.fixture.cluster.world.node;
        let path = format!("/proc/sys/net/{path}");
        Ok(node.run(|| fs::read_to_string(path))??.trim().to_owned())
    }
}

/// Waits until the agent has programmed everything and has nothing to complain of.
fn until_healthy(pod: &DaemonPod) -> Result<()> {
    let is_healthy = |it: &Value| {
        it["synced"] == true && it["errors"] == json!([]) && it["warnings"] == json!([])
    };
    let now = || Ok(pod.status());
    observed("healthy", PATIENCE, now, |status| status.as_ref().is_ok_and(is_healthy))
        .with_context(|| pod.log("agent"))?
        .map(drop)
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
    let cluster = &node.context.fixture.cluster;
    cluster.world.node.sysctl("net.bridge.bridge-nf-call-iptables", "0")?;
    let pod = node.kubelet(built(&folder().join("kubernetes"))?)?.run("denizen")?;
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
    node.context.until_answered(10, Who::Remote)?;
    let installed = fs::read_to_string(&node.chain)?;
    ensure!(installed.contains("denizen"), "{installed}");
    the_pod_checks_its_node(&node, &pod)?;
    pod.end()?;
    let pod = node.kubelet(built(&folder().join("kubernetes/uninstall"))?)?;
    pod.run("denizen-uninstall")?.end()?;
    assert_eq!(fs::read_to_string(&node.chain)?, node.original);
    assert_eq!(cluster.world.node.output("nft", &["list", "tables"])?, "");
    Ok(())
}

/// As `kubectl exec` runs it: with the container's files, the node's network, and no flags.
fn the_pod_checks_its_node(node: &Installation, pod: &DaemonPod) -> Result<()> {
    let netns = &node.context.fixture.cluster.world.node;
    let well = pod.check()?;
    well.ensure_well()?;
    for (name, reason) in [
        ("cni-configuration", "denizen is the last plugin"),
        ("plugin", "is of this release"),
        ("records", "recorded by the plugin"),
        ("server", "the API server answers"),
        ("rights", "permits all"),
        ("node", "this is Node node-1"),
        ("running", "backend nftables"),
    ] {
        well.ensure(name, "ok", reason)?;
    }
    netns.sysctl("net.ipv4.ip_forward", "0")?;
    pod.check()?.ensure_only("forwarding", "failure", "net.ipv4.ip_forward is 0")?;
    netns.sysctl("net.ipv4.ip_forward", "1")?;
    netns.nft("table ip6 kube-proxy { }")?;
    pod.check()?.ensure_only("service-proxies", "warning", "the nftables table kube-proxy")?;
    netns.nft("delete table ip6 kube-proxy")
}

/// The component `iptables`: node ports answer on 127.0.0.1 too, so the agent sets
/// `route_localnet`, and nothing is left to warn of; nor of all that when the component goes.
#[test]
fn the_daemon_set_with_iptables_serves_node_ports_on_loopback_and_leaves_without_a_trace()
-> Result<()> {
    let node = Installation::new("ctr-ipt")?;
    let fixture = &node.context.fixture;
    let http = [Port::tcp("http", 80, PORT).at_node(30080)];
    let web = fixture.service("web", 10, &http, &[Who::Remote])?;
    web.iter().try_for_each(|object| node.context.api.put(object))?;
    let pod = node.kubelet(built_with("iptables")?)?.run("denizen")?;
    until_healthy(&pod)?;
    assert_eq!(node.setting("ipv4/conf/all/route_localnet")?, "1");
    for to in ["127.0.0.1:30080", "192.168.0.2:30080"] {
        let outcome = fixture.ask(Who::ThisNode, to.parse()?, Protocol::Tcp)?;
        ensure!(outcome.endpoint().is_some(), "{to}: {outcome:?}");
    }
    // Without the component nothing of it is left, though the agent has no NET_RAW any more.
    pod.end()?;
    let pod = node.kubelet(built(&folder().join("kubernetes"))?)?.run("denizen")?;
    let host = &fixture.cluster.world.node;
    let sets = || host.output("ipset", &["list", "-n"]);
    observed("rid of sets", PATIENCE, sets, |sets| !sets.contains("DENIZEN-"))
        .with_context(|| pod.log("agent"))?;
    until_healthy(&pod)?;
    let left = Variant::Nft.dump(host)?;
    ensure!(!left.contains("KUBE-"), "{left}");
    assert_eq!(node.setting("ipv4/conf/all/route_localnet")?, "0");
    Ok(())
}

/// A mount goes on to lead to what was removed on the host: the kubelet must start it again.
#[test]
fn a_container_whose_run_directory_is_removed_is_not_live_until_it_is_started_anew() -> Result<()> {
    let node = Installation::new("ctr-run")?;
    let cluster = &node.context.fixture.cluster;
    let until_live = |status: u16| -> Result<()> {
        let livez = url(ip("127.0.0.1"), 10256, "/livez");
        let ask = || Ok(fetch(&cluster.world.node, &livez, &[]));
        let has_status = |reply: &Result<Reply>| reply.as_ref().is_ok_and(|it| it.status == status);
        observed(&format!("{status} at /livez"), PATIENCE, ask, has_status)?.map(drop)
    };
    let kubelet = node.kubelet(built(&folder().join("kubernetes"))?)?;
    let pod = kubelet.run("denizen")?;
    until_healthy(&pod)?;
    until_live(200)?;
    // The runtime's own cache is in there, and is the test's alone.
    fs::rename(cluster.run_dir().join(CNI_CACHE), cluster.world.folder().join(CNI_CACHE))?;
    fs::remove_dir_all(cluster.run_dir())?;
    until_live(503)?;
    pod.end()?;
    let pod = kubelet.run("denizen")?;
    until_healthy(&pod)?;
    until_live(200)
}
