//! `conf/kubernetes` as kubelet runs it, with exactly what its manifests grant.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use denizen_state::RunDir;
use denizen_tests::agent::CNI_CACHE;
use denizen_tests::conf::{built, built_with, containers_of, folder};
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::cluster::NODE;
use denizen_tests::node::fixture::{Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::pod::Wiring;
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{Reply, fetch, url};
use denizen_tests::packets::load::Load;
use denizen_tests::packets::long_connection::{self, LongConnection};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::peers::api::context::ApiContext;
use denizen_tests::peers::api::{Api, ApiServer};
use denizen_tests::peers::containerd::kubelet::{DaemonPod, Kubelet};
use denizen_tests::peers::containerd::{ContainerImage, Containerd, DENIZEN};
use serde_json::{Value, json};

use super::speaker::{self, Speaker};
use super::{TIMEOUT, effective};

/// Another name of the image: a release to upgrade to.
const NEXT: &str = "docker.io/library/denizen:next";

/// A node on which kubelet runs `conf/kubernetes`, with an API server and containerd, whose chain
/// has no denizen yet.
struct Installation {
    containerd: Containerd,
    chain: PathBuf,
    original: String,
    context: ApiContext<ApiServer>,
}

impl Installation {
    fn new(label: &str, image: ContainerImage) -> Result<Self> {
        let context = ApiContext::own(label)?;
        context.put_node()?;
        context.put_web("web", 10, &[Host::Remote])?;
        let cluster = &context.fixture.cluster;
        let folder = cluster.world.subfolder("containerd")?;
        let chain = Containerd::conf_dir(&folder)?.join("10-pods.conflist");
        let original = cluster.chain(Wiring::Bridged).clone().without_denizen().conflist();
        fs::write(&chain, &original)?;
        let cache = cluster.run_dir().join(CNI_CACHE);
        let mut containerd = Containerd::start(&cluster.world.node, &folder, &cache)?;
        containerd.import_denizen(image)?;
        containerd.wait_network()?;
        Ok(Self { containerd, chain, original, context })
    }

    /// A kubelet for these objects. Paths that would be the machine's own are the test's.
    fn kubelet(&self, mut objects: Vec<Value>) -> Result<Kubelet<'_>> {
        let cluster = &self.context.fixture.cluster;
        let is_settings = |object: &&mut Value| {
            object["kind"] == "ConfigMap" && object["metadata"]["name"] == "denizen"
        };
        if let Some(map) = objects.iter_mut().find(is_settings) {
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
                ("/run/denizen/bird", cluster.run_dir().join("bird")),
                ("/etc/cni/net.d", Containerd::conf_dir(&folder)?),
                ("/opt/cni/bin", Containerd::bin_dir(&folder)?),
            ]),
            account,
        })
    }

    /// Asks what kubelet asks of these objects' containers.
    fn probes_succeed(&self, objects: &[Value]) -> Result<()> {
        let daemon_set = objects.iter().find(|object| object["kind"] == "DaemonSet");
        for container in containers_of(daemon_set.context("no DaemonSet")?) {
            for probe in ["readinessProbe", "livenessProbe"] {
                let Value::Object(get) = &container[probe]["httpGet"] else { continue };
                let text = |name| get.get(name).and_then(Value::as_str).context("a text");
                let port = get.get("port").and_then(Value::as_u64).context("a port")?;
                let url = url(text("host")?.parse()?, u16::try_from(port)?, text("path")?);
                let reply = fetch(&self.context.fixture.cluster.world.node, &url, &[])?;
                assert_eq!(reply.status, 200, "{probe}: {reply:?}");
            }
        }
        Ok(())
    }

    fn kernel_is_set_up(&self) -> Result<()> {
        for (path, wanted) in [
            ("bridge/bridge-nf-call-iptables", "1"),
            ("netfilter/nf_conntrack_tcp_timeout_established", "86400"),
            ("netfilter/nf_conntrack_tcp_timeout_close_wait", "3600"),
            ("ipv4/conf/all/route_localnet", "0"),
        ] {
            assert_eq!(self.setting(path)?, wanted, "{path}");
        }
        Ok(())
    }

    /// Waits until a pod that containerd makes is recorded by the plugin, not by the agent later.
    fn until_pods_are_recorded(&self) -> Result<()> {
        let cri = self.containerd.cri()?;
        let run_dir = RunDir::open(self.context.fixture.cluster.run_dir())?;
        eventually("containerd calls the plugin", TIMEOUT, || {
            let sandbox = cri.run_sandbox("probe")?;
            let records = run_dir.read()?.map(|state| state.attachments).unwrap_or_default();
            cri.stop_sandbox(&sandbox)?;
            cri.remove_sandbox(&sandbox)?;
            Ok(records.values().any(|record| record.container_id == sandbox && !record.adopted))
        })
    }

    /// A connection through a service that stays open, and clients that connect all the time.
    fn clients(&self) -> Result<(LongConnection, Load)> {
        let fixture = &self.context.fixture;
        let echo = [Port::tcp("echo", 7, long_connection::ECHO)];
        self.context.api.put_all(&fixture.service("echo", 11, &echo, &[Host::Routed])?)?;
        for address in &fixture.routed.addresses {
            long_connection::serve(&fixture.routed.netns, *address)?;
        }
        let to = SocketAddr::new(service_ips(11)[0], 7);
        let open = || Ok(LongConnection::open(&fixture.bridged.netns, to));
        let lasting = observed("connected", TIMEOUT, open, Result::is_ok)??;
        let mut load = Load::default();
        for who in [Host::Bridged, Host::Routed, Host::Outside] {
            let web = service_ips(10).map(|ip| (SocketAddr::new(ip, 80), Protocol::Tcp));
            load.client(fixture.place(who).0, web.into(), |outcome| outcome.endpoint().is_some())?;
        }
        Ok((lasting, load))
    }

    fn setting(&self, path: &str) -> Result<String> {
        let node = &self.context.fixture.cluster.world.node;
        let path = format!("/proc/sys/net/{path}");
        Ok(node.run(|| fs::read_to_string(path))??.trim().to_owned())
    }
}

/// Waits until the agent has programmed everything and has nothing to complain of.
fn until_healthy(pod: &DaemonPod) -> Result<()> {
    until(pod, "healthy", |status| {
        status["synced"] == true && status["errors"] == json!([]) && status["warnings"] == json!([])
    })
}

fn until(pod: &DaemonPod, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
    let now = || Ok(pod.status());
    observed(what, TIMEOUT, now, |status| status.as_ref().is_ok_and(&is_so))
        .with_context(|| pod.log("agent"))?
        .map(drop)
}

/// One capability, and one token: the agent's.
fn has_what_it_is_granted(pod: &DaemonPod) -> Result<()> {
    const NET_ADMIN: u64 = 1 << 12;
    const TOKEN: &str = "root/var/run/secrets/kubernetes.io/serviceaccount/token";
    for (container, capabilities, has_token) in
        [("agent", NET_ADMIN, true), ("install-cni", 0, false)]
    {
        assert_eq!(effective(pod, container)?, capabilities, "{container}");
        assert_eq!(pod.process(container)?.join(TOKEN).exists(), has_token, "{container}");
    }
    Ok(())
}

/// Has the DaemonSets' containers made from [`NEXT`].
fn rename_image(objects: &mut [Value]) -> Result<()> {
    for daemon_set in objects.iter_mut().filter(|object| object["kind"] == "DaemonSet") {
        let spec = &mut daemon_set["spec"]["template"]["spec"];
        for container in spec["containers"].as_array_mut().context("containers")? {
            container["image"] = NEXT.into();
        }
    }
    Ok(())
}

/// `conf/kubernetes`, an upgrade, by which BIRD comes, then `conf/kubernetes/uninstall`, with no
/// container that is privileged.
#[test]
fn the_daemon_set_installs_is_upgraded_under_load_and_is_taken_away() -> Result<()> {
    let node = Installation::new("ctr-daemon", ContainerImage::Bird)?;
    let fixture = &node.context.fixture;
    fixture.cluster.world.node.sysctl("net.bridge.bridge-nf-call-iptables", "0")?;
    // Where the plugin of the image looks for the agent.
    node.containerd.bind(fixture.cluster.run_dir(), "/run/denizen")?;
    let objects = built(&folder().join("kubernetes"))?;
    let old = node.kubelet(objects.clone())?.run("denizen")?;
    until_healthy(&old)?;
    has_what_it_is_granted(&old)?;
    node.probes_succeed(&objects)?;
    node.kernel_is_set_up()?;
    node.context.until_answered(10, Host::Remote)?;
    node.until_pods_are_recorded()?;

    node.containerd.tag(DENIZEN, NEXT)?;
    let mut objects = speaker::objects()?;
    rename_image(&mut objects)?;
    node.context.put_node_with(&[speaker::POD_CIDR])?;
    let (mut lasting, load) = node.clients()?;
    old.end()?;
    lasting.still_alive()?;
    let kubelet = node.kubelet(objects)?;
    let new = kubelet.run("denizen")?;
    until(&new, "synced", |status| status["synced"] == true)?;
    node.until_pods_are_recorded()?;
    let tally = load.stop()?;
    ensure!(tally.answered > 100 && tally.failed + tally.lost_once == 0, "{tally:?}");
    lasting.still_alive()?;

    let speaker = Speaker::start(&fixture.cluster.world, &kubelet)?;
    until_healthy(&new)?;
    speaker.speaks()?;
    let installed = fs::read_to_string(&node.chain)?;
    ensure!(installed.contains("denizen"), "{installed}");
    the_pod_checks_its_node(&node, &new)?;
    speaker.end()?;
    a_foreign_speaker_is_found(&node, &new)?;
    new.end()?;
    let uninstall = node.kubelet(built(&folder().join("kubernetes/uninstall"))?)?;
    uninstall.run("denizen-uninstall")?.end()?;
    assert_eq!(fs::read_to_string(&node.chain)?, node.original);
    assert_eq!(fixture.cluster.world.node.output("nft", &["list", "tables"])?, "");
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

/// The agent's container may not listen at that port itself.
fn a_foreign_speaker_is_found(node: &Installation, pod: &DaemonPod) -> Result<()> {
    let netns = &node.context.fixture.cluster.world.node;
    let _listener = netns.run(|| TcpListener::bind("0.0.0.0:179"))??;
    let found = pod.check_with(&["--config=/etc/denizen/routing/config.yaml"])?;
    found.ensure("announcing", "failure", "another program listens at port 179")
}

/// The component `iptables`: node ports answer on 127.0.0.1 too, so the agent sets
/// `route_localnet`, and nothing is left to warn of; nor of all that when the component goes.
#[test]
fn the_daemon_set_with_iptables_serves_node_ports_on_loopback_and_leaves_without_a_trace()
-> Result<()> {
    let node = Installation::new("ctr-ipt", ContainerImage::Iptables)?;
    let fixture = &node.context.fixture;
    let http = [Port::tcp("http", 80, PORT).at_node(30080)];
    let web = fixture.service("web", 10, &http, &[Host::Remote])?;
    web.iter().try_for_each(|object| node.context.api.put(object))?;
    let pod = node.kubelet(built_with("iptables")?)?.run("denizen")?;
    until_healthy(&pod)?;
    assert_eq!(node.setting("ipv4/conf/all/route_localnet")?, "1");
    for to in ["127.0.0.1:30080", "192.168.0.2:30080"] {
        let outcome = fixture.probe(Host::ThisNode, to.parse()?, Protocol::Tcp)?;
        ensure!(outcome.endpoint().is_some(), "{to}: {outcome:?}");
    }
    // Without the component nothing of it is left, though the agent has no NET_RAW any more.
    pod.end()?;
    let pod = node.kubelet(built(&folder().join("kubernetes"))?)?.run("denizen")?;
    let host = &fixture.cluster.world.node;
    let sets = || host.output("ipset", &["list", "-n"]);
    observed("rid of sets", TIMEOUT, sets, |sets| !sets.contains("DENIZEN-"))
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
    let node = Installation::new("ctr-run", ContainerImage::Nftables)?;
    let cluster = &node.context.fixture.cluster;
    let until_live = |status: u16| -> Result<()> {
        let livez = url(ip("127.0.0.1"), 10256, "/livez");
        let ask = || Ok(fetch(&cluster.world.node, &livez, &[]));
        let has_status =
            |reply: &Result<Reply>| reply.as_ref().is_ok_and(|reply| reply.status == status);
        observed(&format!("{status} at /livez"), TIMEOUT, ask, has_status)?.map(drop)
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
