//! Denizen behind other makers' CNI plugins: pods are detected exactly, services, hairpin, policies
//! and DEL.

mod crio;
mod makers;
mod multus;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_state::{Attachment, AttachmentId, RunDir};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::cluster::{Cluster, NODE, serve};
use denizen_tests::node::fixture::{PORT, service_ips};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::Pod;
use denizen_tests::node::world::host_length;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use denizen_tests::packets::server::Server;
use serde_json::{Value, json};

use makers::Maker;

/// What has not come about by then never will.
const TIMEOUT: Duration = Duration::from_secs(20);

const NODE_PORT: u16 = 30080;

/// A node whose pods a maker's plugin attaches, with an agent.
struct MakersNode {
    maker: Maker,
    label: &'static str,
    cni_data: PathBuf,
    agent: Agent,
    cluster: Cluster,
}

/// A pod that answers. The server ends before the pod does.
struct ServingPod {
    server: Server,
    pod: Pod,
}

fn web() -> [Port; 1] {
    [Port::tcp("http", 80, PORT).at_node(NODE_PORT)]
}

/// The plugin's options: no pod starts before the kernel is programmed for it.
fn waiting() -> Value {
    json!({ "waitForAgent": { "timeout": "20s", "onTimeout": "fail" } })
}

fn peer(app: &str) -> Value {
    json!([{ "podSelector": { "matchLabels": { "app": app } } }])
}

fn policy(app: &str, spec: &Value) -> Value {
    let mut policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "default", "name": app },
        "spec": { "podSelector": { "matchLabels": { "app": app } } },
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        policy["spec"][key] = value.clone();
    }
    policy
}

impl MakersNode {
    fn new(label: &'static str, maker: Maker) -> Result<Self> {
        let cluster = Cluster::new(label, &Value::Null)?;
        let cni_data = cluster.world.subfolder("addresses")?;
        let agent = cluster.start_agent_with(["--network-policy=on", "--host-ports=on"])?;
        Ok(Self { maker, label, cni_data, agent, cluster })
    }

    /// A pod that the maker's plugin attaches and denizen records.
    fn add(&self, name: &'static str, number: u8) -> Result<ServingPod> {
        let node = &self.cluster.world.node;
        self.add_by(name, |netns| {
            let mut pod = self.maker.attach(node, netns, (name, number), &self.cni_data)?;
            pod.record(node, self.cluster.run_dir(), &waiting())?;
            Ok(pod)
        })
    }

    /// The same past denizen's plugin: the runtime alone remembers it.
    fn add_past_denizen(&self, name: &'static str, number: u8) -> Result<ServingPod> {
        let node = &self.cluster.world.node;
        self.add_by(name, |netns| {
            let pod = self.maker.attach(node, netns, (name, number), &self.cni_data)?;
            self.cluster.remember(&pod)?;
            let is_recorded = || {
                let records = self.records()?;
                Ok(records.iter().any(|(id, _)| id.0 == pod.attachment()))
            };
            eventually("adopted", TIMEOUT, is_recorded)?;
            Ok(pod)
        })
    }

    /// A pod that `attach` attaches and has denizen record.
    fn add_by(&self, name: &str, attach: impl FnOnce(Netns) -> Result<Pod>) -> Result<ServingPod> {
        let netns = Netns::new(&format!("{}-{name}", self.label))?;
        self.put_pod(name, &netns, &[])?;
        let pod = attach(netns)?;
        self.is_what_ip_says(&pod)?;
        self.put_pod(name, &pod.netns, &pod.addresses)?;
        let server = serve(&pod.netns, &pod.addresses, &[(Protocol::Tcp, PORT)])?;
        Ok(ServingPod { server, pod })
    }

    /// The API's object of the pod that has this namespace.
    fn put_pod(&self, name: &str, netns: &Netns, ips: &[IpAddr]) -> Result<()> {
        let ips: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": "default", "name": name, "uid": format!("uid-{}", netns.name()),
                "labels": { "app": name },
            },
            "spec": { "nodeName": NODE, "containers": [{ "name": "c" }] },
            "status": { "phase": "Running", "podIPs": ips },
        });
        self.cluster.manifests.put(&format!("pod-{name}"), &[object])
    }

    fn records(&self) -> Result<Vec<(AttachmentId, Attachment)>> {
        let state = RunDir::open(self.cluster.run_dir())?.read()?.context("a state file")?;
        Ok(state.attachments.into_iter().collect())
    }

    /// Holds the pod's record against what the kernel says to `ip`.
    fn is_what_ip_says(&self, pod: &Pod) -> Result<()> {
        let records = self.records()?;
        let found = records.into_iter().find(|(id, _)| id.0 == pod.attachment());
        let record = found.context("no record")?.1;
        let links = |netns: &Netns, link: &str| -> Result<Value> {
            let text = netns.output("ip", &["-json", "address", "show", link])?;
            Ok(serde_json::from_str::<Value>(&text)?[0].take())
        };
        let inside = links(&pod.netns, "eth0")?;
        let addresses = inside["addr_info"].as_array().into_iter().flatten();
        let addresses = addresses.filter(|address| address["scope"] == "global");
        let addresses: BTreeSet<String> =
            addresses.filter_map(|address| address["local"].as_str().map(str::to_owned)).collect();
        let recorded: BTreeSet<String> = record.ips.iter().map(IpAddr::to_string).collect();
        assert_eq!(recorded, addresses);
        assert_eq!(recorded.len(), self.maker.ranges.len(), "{record:?}");
        assert_eq!(json!(record.mac), inside["address"]);
        let host = record.host_interface.context("no interface on the node")?;
        assert_eq!(host.name, pod.host_interface());
        let outside = links(&self.cluster.world.node, &host.name)?;
        assert_eq!(json!(host.index), outside["ifindex"]);
        assert_eq!(json!(host.mac), outside["address"]);
        assert_eq!(json!(host.index), inside["link_index"]);
        assert_eq!(record.bridge.as_deref(), self.maker.bridge);
        Ok(())
    }

    /// The Services `far`, of another node's pod, and `near`, of these pods, with a node port.
    fn put_services(&self, near: &[&ServingPod]) -> Result<Server> {
        let remote = self.cluster.remote_web(&service_ips(10), Port::tcp("http", 80, PORT))?;
        let mut objects = vec![manifest::service("near", &service_ips(11), &web())];
        for is_ipv6 in [false, true] {
            let all = near.iter().flat_map(|serving| &serving.pod.addresses);
            let endpoints: Vec<_> =
                all.filter(|ip| ip.is_ipv6() == is_ipv6).map(|ip| (*ip, NODE)).collect();
            if !endpoints.is_empty() {
                objects.push(manifest::slice("near", &web(), &endpoints));
            }
        }
        self.cluster.manifests.put("near", &objects)?;
        Ok(remote)
    }

    /// Only `b` may connect to `a`, and `b` only to `a`.
    fn put_policies(&self) -> Result<()> {
        let ingress = json!({ "policyTypes": ["Ingress"], "ingress": [{ "from": peer("b") }] });
        let egress = json!({ "policyTypes": ["Egress"], "egress": [{ "to": peer("a") }] });
        let policies = [policy("a", &ingress), policy("b", &egress)];
        self.cluster.manifests.put("policies", &policies)
    }

    /// What comes of a connection of `from`, from its address of the family, to `to`.
    fn of_pod(&self, from: &ServingPod, to: IpAddr, port: u16) -> Result<Outcome> {
        let source = from.pod.address_like(to).context("an address of that family")?;
        Ok(Probe::tcp(SocketAddr::new(to, port)).from(source).send_in(&from.pod.netns))
    }

    fn of_client(&self, to: IpAddr, port: u16) -> Outcome {
        Probe::tcp(SocketAddr::new(to, port)).timeout(SILENCE).send_in(&self.cluster.world.client)
    }

    fn families(&self, pod: &ServingPod) -> impl Iterator<Item = usize> + use<> {
        let all: Vec<_> = pod.pod.addresses.iter().map(|ip| usize::from(ip.is_ipv6())).collect();
        all.into_iter()
    }
}

fn ensure_answered(what: &str, outcome: &Outcome, by: IpAddr, seen: IpAddr) -> Result<()> {
    let found = (outcome.endpoint().map(|endpoint| endpoint.ip()), outcome.seen());
    ensure!(found == (Some(by), Some(seen)), "{what}: {outcome:?}; not {by}, which saw {seen}");
    Ok(())
}

/// Two pods, another one in the place of the first, and everybody else.
fn check_plugin(label: &'static str, maker: Maker) -> Result<()> {
    let node = MakersNode::new(label, maker)?;
    let (first, second) = (node.add("a", 11)?, node.add("b", 12)?);
    let world = &node.cluster.world;
    let _remote = node.put_services(&[&first])?;
    for family in node.families(&first) {
        services(&node, &first, &second, family).with_context(|| format!("family {family}"))?;
    }

    node.put_policies()?;
    for family in node.families(&first) {
        policed(&node, &first, &second, family).with_context(|| format!("family {family}"))?;
    }

    // Another pod gets the addresses of one that ended, and nothing of its policies.
    let addresses = first.pod.addresses.clone();
    let ServingPod { server, pod } = first;
    drop(server);
    let input = pod.input_interface.clone();
    pod.detach(&world.node)?;
    assert_eq!(node.records()?.len(), 1, "one record is left");
    let to = SocketAddr::new(service_ips(10)[usize::from(addresses[0].is_ipv6())], 80);
    let input = Some(input.as_str()).filter(|_| node.maker.bridge.is_some()).unwrap_or("eth0");
    let explained = node.agent.explain(addresses[0], Some(input), to, Protocol::Tcp)?;
    assert!(!explained.local, "{explained:?}");
    node.cluster.manifests.remove("pod-a")?;
    let third = node.add("c", 11)?;
    for family in node.families(&third) {
        let (far, own) = (service_ips(10)[family], own(&third, family)?);
        let remote = world.addresses().remote[family];
        let outcome = node.of_pod(&third, far, 80)?;
        ensure_answered("the next pod's first", &outcome, remote, own)?;
        if third.pod.addresses == addresses {
            let outcome = node.of_client(own, PORT);
            ensure_answered("to the next pod", &outcome, own, world.addresses().client[family])?;
        }
    }
    for serving in [second, third] {
        drop(serving.server);
        serving.pod.detach(&world.node)?;
    }
    assert_eq!(node.records()?, []);
    Ok(())
}

fn own(pod: &ServingPod, family: usize) -> Result<IpAddr> {
    let mut all = pod.pod.addresses.iter().copied();
    all.find(|ip| usize::from(ip.is_ipv6()) == family).context("an address of that family")
}

fn services(
    node: &MakersNode,
    first: &ServingPod,
    second: &ServingPod,
    family: usize,
) -> Result<()> {
    let world = &node.cluster.world;
    let addresses = world.addresses();
    let [far, near] = [10, 11].map(|number| service_ips(number)[family]);
    let (a, b) = (own(first, family)?, own(second, family)?);
    let (remote, client) = (addresses.remote[family], addresses.client[family]);
    eventually("served", TIMEOUT, || Ok(node.of_pod(second, near, 80)?.endpoint().is_some()))?;
    eventually("served", TIMEOUT, || Ok(node.of_pod(second, far, 80)?.endpoint().is_some()))?;

    let of_pod = |from, to, port| node.of_pod(from, to, port);
    ensure_answered("a local pod keeps its address", &of_pod(first, far, 80)?, remote, a)?;
    ensure_answered("also to a neighbour", &of_pod(second, near, 80)?, a, b)?;
    ensure_answered("pods without a service", &of_pod(second, a, PORT)?, a, b)?;
    ensure_answered("a pod of another node", &of_pod(first, remote, PORT)?, remote, a)?;
    let hairpin = of_pod(first, near, 80)?;
    ensure!(hairpin.endpoint().is_some_and(|by| by.ip() == a), "to itself: {hairpin:?}");
    let seen = node.of_client(far, 80).seen().context("a client of the cluster IP")?;
    ensure!(node.cluster.is_nodes(seen)?, "a stranger was seen as {seen}");
    let own_node = addresses.node.iter().find(|ip| usize::from(ip.is_ipv6()) == family);
    let own_node = *own_node.context("an address of the node")?;
    let by_port = node.of_client(own_node, NODE_PORT);
    ensure!(by_port.endpoint().is_some_and(|by| by.ip() == a), "node port: {by_port:?}");
    ensure_answered("a client", &node.of_client(a, PORT), a, client)?;

    // The pod's interface with an address that nobody gave it is a stranger's.
    let stranger: IpAddr = ["198.51.100.9", "fd00:198:51::9"][family].parse()?;
    let length = host_length(stranger);
    first.pod.netns.ip(&format!("addr add {stranger}/{length} dev eth0 nodad"))?;
    let device = &first.pod.input_interface;
    world.node.ip(&format!("route add {stranger}/{length} dev {device}"))?;
    let probe = Probe::tcp(SocketAddr::new(far, 80)).from(stranger).timeout(SILENCE);
    let outcome = probe.send_in(&first.pod.netns);
    let is_own = outcome.seen().is_some_and(|seen| seen == stranger);
    ensure!(!is_own, "an address that nobody recorded is a local pod's: {outcome:?}");
    first.pod.netns.ip(&format!("addr del {stranger}/{length} dev eth0"))?;
    world.node.ip(&format!("route del {stranger}/{length} dev {device}"))
}

fn policed(
    node: &MakersNode,
    first: &ServingPod,
    second: &ServingPod,
    family: usize,
) -> Result<()> {
    let world = &node.cluster.world;
    let [far, near] = [10, 11].map(|number| service_ips(number)[family]);
    let (a, b) = (own(first, family)?, own(second, family)?);
    let remote = world.addresses().remote[family];
    eventually("isolated", TIMEOUT, || Ok(node.of_client(a, PORT) == Outcome::Dropped))?;
    let silent = |netns: &Netns, from: Option<IpAddr>, to: IpAddr, port: u16| {
        let probe = Probe { from, ..Probe::tcp(SocketAddr::new(to, port)) }.timeout(SILENCE);
        let outcome = probe.send_in(netns);
        ensure!(outcome == Outcome::Dropped, "to {to}: {outcome:?}");
        Ok(())
    };
    silent(&world.remote, Some(remote), a, PORT).context("a pod of another node")?;
    silent(&second.pod.netns, Some(b), remote, PORT).context("out of the second")?;
    silent(&second.pod.netns, Some(b), far, 80).context("out of the second, by a service")?;
    ensure_answered("the permitted peer", &node.of_pod(second, a, PORT)?, a, b)?;
    ensure_answered("by a service", &node.of_pod(second, near, 80)?, a, b)?;
    ensure_answered("the first's own", &node.of_pod(first, remote, PORT)?, remote, a)?;
    let of_node = Probe::tcp(SocketAddr::new(a, PORT)).send_in(&world.node);
    ensure!(of_node.endpoint().is_some(), "the pod's own node: {of_node:?}");
    Ok(())
}

#[test]
fn flannel() -> Result<()> {
    check_plugin("by-flannel", makers::flannel())
}

#[test]
fn kindnet_with_ptp() -> Result<()> {
    check_plugin("by-ptp", makers::kindnet_by_ptp())
}

#[test]
fn kindnet() -> Result<()> {
    check_plugin("by-kindnet", makers::kindnet())
}

#[test]
fn calico() -> Result<()> {
    check_plugin("by-calico", makers::calico())
}

/// Calico makes both ends of a veth in the pod, where the node's end has the same low index each
/// time, gives all the same MAC address, and moves them out: a new pod's interface may have index
/// and address of one whose DEL was lost. It is not the old one with another name.
#[test]
fn a_lost_pod_of_calico_is_not_the_next_one() -> Result<()> {
    let node = MakersNode::new("by-lost", makers::calico())?;
    let ServingPod { server, pod } = node.add("lost", 11)?;
    drop(server);
    let lost = node.records()?;
    node.cluster.world.node.ip(&format!("link del {}", pod.host_interface()))?;
    let next = node.add("next", 12)?;
    let index = |record: &Attachment| record.host_interface.as_ref().map(|link| link.index);
    let of_next = |records: Vec<(AttachmentId, Attachment)>| {
        records.into_iter().find(|(id, _)| id.0 == next.pod.attachment())
    };
    let (_, record) = of_next(node.records()?).context("recorded")?;
    assert_eq!(index(&record), index(&lost[0].1), "the kernel gave it the same index");
    observed(
        "the lost pod's record is removed",
        TIMEOUT,
        || node.records(),
        |records| records.len() == 1,
    )?;
    let (_, after) = of_next(node.records()?).context("the next pod's record stays")?;
    assert_eq!(after, record);
    let log = node.agent.log();
    ensure!(!log.contains("renamed"), "{log}");
    Ok(())
}

#[test]
fn aws_vpc() -> Result<()> {
    check_plugin("by-aws", makers::aws_vpc(&["10.99.64.0/24"]))
}

#[test]
fn aws_vpc_with_ipv6() -> Result<()> {
    check_plugin("by-aws6", makers::aws_vpc(&["fd00:10:99::/64"]))
}

/// A pod's second interface is its own too: no policy is evaded through it.
#[test]
fn a_further_interface_of_a_pod_is_judged() -> Result<()> {
    let node = MakersNode::new("by-egress", makers::aws_vpc_with_egress())?;
    let world = &node.cluster.world;
    // As the plugin translates it. What is judged is forwarded before.
    world.node.nft(
        "table ip aws { chain post { type nat hook postrouting priority 100; \
         ip saddr 169.254.172.0/22 oifname eth0 masquerade; }; }",
    )?;
    let pods = [node.add("a", 11)?, node.add_past_denizen("b", 12)?];
    let remote = world.addresses().remote[0];
    let _remote = serve(&world.remote, &[remote], &[(Protocol::Tcp, PORT)])?;
    let out = |serving: &ServingPod| {
        let probe = Probe::tcp(SocketAddr::new(remote, PORT)).timeout(SILENCE);
        probe.send_in(&serving.pod.netns)
    };
    for (serving, (_, record)) in pods.iter().zip(node.records()?) {
        let [further] = &record.further_interfaces[..] else {
            anyhow::bail!("no further interface: {record:?}");
        };
        let name = serving.pod.netns.output("ip", &["-json", "link", "show", "v4if0"])?;
        let inside: Value = serde_json::from_str(&name)?;
        let host = further.host_interface.as_ref().context("an interface on the node")?;
        assert_eq!(json!(host.index), inside[0]["link_index"]);
        assert_eq!(json!(further.mac), inside[0]["address"]);
        assert_eq!((&*further.if_name, further.ips.len()), ("v4if0", 1));
        eventually("by IPv4", TIMEOUT, || Ok(out(serving).endpoint().is_some()))?;
    }
    let status = node.agent.status()?;
    assert_eq!(status["unrecordedInterfaces"], json!(0), "{status}");
    let nothing = |app| policy(app, &json!({ "policyTypes": ["Egress"], "egress": [] }));
    node.cluster.manifests.put("policies", &[nothing("a"), nothing("b")])?;
    for serving in &pods {
        eventually("isolated", TIMEOUT, || Ok(out(serving) == Outcome::Dropped))?;
    }
    let third = node.add("c", 13)?;
    ensure!(out(&third).endpoint().is_some(), "no policy is about this one");
    let range = json!([{ "ipBlock": { "cidr": format!("{remote}/32") } }]);
    let some = json!({ "policyTypes": ["Egress"], "egress": [{ "to": range }] });
    node.cluster.manifests.put("policies", &[policy("a", &some), nothing("c")])?;
    eventually("permitted", TIMEOUT, || Ok(out(&pods[0]).endpoint().is_some()))?;
    eventually("isolated", TIMEOUT, || Ok(out(&third) == Outcome::Dropped))?;
    for serving in pods.into_iter().chain([third]) {
        drop(serving.server);
        serving.pod.detach(&world.node)?;
    }
    // Nobody calls denizen's DEL for a pod that did not come through it.
    eventually("forgotten", TIMEOUT, || Ok(node.records()?.is_empty()))?;
    Ok(())
}

#[test]
fn azure() -> Result<()> {
    check_plugin("by-azure", makers::azure())
}

#[test]
fn cilium_chained() -> Result<()> {
    check_plugin("by-cilium", makers::cilium_chained())
}
