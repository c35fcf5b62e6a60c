//! Multus: a pod's default network and a second one. Multus runs the plugins of each by libcni. Its
//! own program is not in Debian: its calls are replayed as its source has them (`CmdAdd`, `CmdDel`
//! and `delPlugins` of `pkg/multus`, `ChrootExec` of `pkg/server`), with real plugins.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{anyhow, bail};
use denizen_tests::node::cni::{CNI_VERSION, Call, Chain, NodeNamespace, POD_INTERFACE, Refusal};
use denizen_tests::node::pod::{MadeByHand, addresses_of};

use super::makers::{Links, Maker, flannel};
use super::*;

/// The link of the node that macvlan interfaces are on, and the host at its other end.
const LAN: &str = "lan0";
const LAN_HOST: [&str; 2] = ["10.66.0.200", "fd00:66::200"];

/// The pods' addresses in the second network.
const SECOND: [&str; 2] = ["10.66.0.0/24", "fd00:66::/64"];

/// The name of Multus' own network, which is the one that the runtime knows.
const RUNTIMES_NETWORK: &str = "multus-cni-network";

/// Whose process runs the plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Multus' own, which the runtime starts for each call.
    Thin,
    /// A daemon's in a container, which changes its root to the node's.
    Thick,
}

/// A node whose runtime calls Multus.
struct MultusNode {
    mode: Mode,
    node: MakersNode,
    lan: Netns,
    /// Where the daemon's container has the node's root.
    root: PathBuf,
}

/// The attachment of a pod to one network.
struct Attached {
    network: Chain,
    call: Call,
    /// What ADD returned; `None` if it failed.
    result: Option<Value>,
}

/// A pod with a second interface, at whose addresses it answers too.
struct MultusPod {
    _second_server: Server,
    second: Vec<IpAddr>,
    attached: Vec<Attached>,
    serving: ServingPod,
}

impl NodeNamespace for MultusNode {
    fn start(&self, mut command: Command) -> Child {
        let node = &self.node.cluster.world.node;
        match self.mode {
            Mode::Thin => {
                // The folder that Multus is configured with comes before the runtime's.
                let path = command.get_envs().find(|(name, _)| *name == "CNI_PATH");
                let path = path.and_then(|(_, path)| path?.to_str()).unwrap_or_default();
                let path = format!("/opt/cni/bin:{path}");
                command.env("CNI_PATH", path).env("INVOCATION_ID", "of-the-runtime");
                node.start(command)
            }
            Mode::Thick => {
                let script = r#"mount --rbind / "$0" && exec chroot "$0" "$@""#;
                let mut daemon = Command::new("unshare");
                daemon.args(["--mount", "--propagation", "slave", "sh", "-c", script]);
                daemon.arg(&self.root).arg(command.get_program());
                daemon.env_clear();
                daemon.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
                daemon.env("KUBERNETES_SERVICE_HOST", "10.96.0.1").env("MULTUS_NODE_NAME", NODE);
                daemon.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                node.start(daemon)
            }
        }
    }
}

impl MultusNode {
    fn new(label: &'static str, mode: Mode) -> Result<Self> {
        let node = MakersNode::new(label, Maker { version: CNI_VERSION, ..flannel() })?;
        let lan = Netns::new(&format!("{label}-lan"))?;
        node.cluster.world.node.ip(&format!(
            "link add {LAN} type veth peer name {LAN} netns {}\nlink set {LAN} up",
            lan.name()
        ))?;
        let [v4, v6] = LAN_HOST;
        lan.ip(&format!(
            "link set {LAN} up\naddr add {v4}/24 dev {LAN}\naddr add {v6}/64 dev {LAN} nodad"
        ))?;
        let root = node.cluster.world.subfolder("hostroot")?;
        Ok(Self { mode, node, lan, root })
    }

    /// The default network: flannel's, as its plugin configures Debian's `bridge`.
    fn default_network(&self) -> Result<Chain> {
        let Links::Plugin(first) = self.node.maker.links else { bail!("flannel has a plugin") };
        Ok(self.node.maker.network(first, &self.node.cni_data))
    }

    /// A network that a NetworkAttachmentDefinition describes, by `plugin`. It has the way to the
    /// client.
    fn second_network(&self, mut plugin: Value) -> Chain {
        let client = &self.node.cluster.world.addresses().client;
        let routes = client.iter().map(|ip| json!({ "dst": format!("{ip}/{}", host_length(*ip)) }));
        plugin["ipam"] = json!({
            "type": "host-local", "dataDir": self.node.cni_data,
            "ranges": SECOND.map(|subnet| json!([{ "subnet": subnet }])),
            "routes": if plugin["type"] == "ptp" { routes.collect() } else { Vec::new() },
        });
        Chain::new("second", vec![plugin])
    }

    fn recorded(&self, network: Chain) -> Chain {
        network.then_denizen(self.node.cluster.run_dir(), &waiting())
    }

    /// What Multus says of a pod to the plugins of its network of this number.
    fn call(&self, netns: &Netns, name: &str, number: usize) -> Call {
        let (container, netns) = (netns.name(), netns.path());
        let by_runtime = Call::of_pod(container, name, &netns);
        let own = by_runtime.args.replace("IgnoreUnknown=1", "IgnoreUnknown=true");
        let args = match self.mode {
            // What Multus was called with follows.
            Mode::Thin => format!("{own};{}", by_runtime.args),
            Mode::Thick => {
                own.replace(&format!("INFRA_CONTAINER_ID={container}"), "INFRA_CONTAINER_ID=")
            }
        };
        let interface = if number == 0 { POD_INTERFACE.to_owned() } else { format!("net{number}") };
        Call { interface, args, ..by_runtime }
    }

    /// ADD of each network in its order. If one fails, it is undone like those before it.
    fn add(&self, netns: &Netns, name: &str, networks: &[Chain]) -> Result<Vec<Attached>> {
        let mut attached = Vec::new();
        for (number, network) in networks.iter().enumerate() {
            let call = self.call(netns, name, number);
            let added = network.add(self, &call);
            let (result, refusal) =
                added.map_or_else(|no| (None, Some(no)), |yes| (Some(yes), None));
            attached.push(Attached { network: network.clone(), call, result });
            if let Some(refusal) = refusal {
                // An error of DEL counts for nothing here.
                let _ = self.del(&attached);
                bail!("{}: {refusal}", network.name);
            }
        }
        Ok(attached)
    }

    /// DEL of each network, the last one first. Goes on after an error, and returns the last one.
    fn del(&self, attached: &[Attached]) -> Result<(), Refusal> {
        let mut done = Ok(());
        for Attached { network, call, result } in attached.iter().rev() {
            done = network.del(self, call, result.as_ref()).and(done);
        }
        done
    }

    /// A pod with this host port, whose ADD the runtime remembers.
    fn remembered(
        &self,
        name: &'static str,
        networks: &[Chain],
        host_port: u16,
    ) -> Result<(Pod, Vec<Attached>)> {
        let netns = Netns::new(&format!("{}-{name}", self.node.label))?;
        let attached = self.add(&netns, name, networks)?;
        let pod = Pod::made_by_hand(netns, name, CNI_VERSION, bridged(&attached[0])?);
        let pod = pod.through(&Chain::new(RUNTIMES_NETWORK, Vec::new()));
        let ports = json!([{ "hostPort": host_port, "containerPort": PORT, "protocol": "tcp" }]);
        let capabilities = json!({ "portMappings": ports });
        self.node.cluster.remember_with(&pod, &capabilities)?;
        Ok((pod, attached))
    }

    /// A pod in the default network and a second one.
    fn pod(&self, name: &'static str, networks: &[Chain]) -> Result<MultusPod> {
        let mut attached = Vec::new();
        let serving = self.node.add_by(name, |netns| {
            attached = self.add(&netns, name, networks)?;
            Ok(Pod::made_by_hand(netns, name, CNI_VERSION, bridged(&attached[0])?))
        })?;
        let second = attached[1].result.as_ref().map(addresses_of).context("added")?;
        assert_eq!(second.len(), SECOND.len());
        let netns = &serving.pod.netns;
        let second_server = serve(netns, &second, &[(Protocol::Tcp, PORT)])?;
        Ok(MultusPod { _second_server: second_server, second, attached, serving })
    }
}

/// What `bridge` made.
fn bridged(attached: &Attached) -> Result<MadeByHand> {
    let result = attached.result.clone().context("added")?;
    let name = |number: usize| {
        let name = result["interfaces"][number]["name"].as_str();
        name.map(str::to_owned).context("a bridge and its port")
    };
    let (input_interface, host_interface) = (name(0)?, name(1)?);
    Ok(MadeByHand { host_interface, input_interface, result })
}

impl MultusPod {
    fn second(&self, family: usize) -> IpAddr {
        self.second[family]
    }

    fn goes_through_node(&self) -> bool {
        self.attached[1].network.plugins[0]["type"] == "ptp"
    }

    /// Connects from the second interface.
    fn ask(&self, to: IpAddr, port: u16) -> Outcome {
        let source = self.second(usize::from(to.is_ipv6()));
        let probe = Probe::tcp(SocketAddr::new(to, port)).from(source).timeout(SILENCE);
        probe.send_in(&self.serving.pod.netns)
    }

    /// Holds the record of the second interface against what the kernel says to `ip`.
    fn second_is_what_ip_says(&self, node: &MakersNode) -> Result<()> {
        let Attached { network, call, .. } = &self.attached[1];
        let records = node.records()?;
        let id = AttachmentId::new(&call.container, &call.interface);
        let found = records.into_iter().find(|(found, _)| *found == id).map(|(_, record)| record);
        assert_eq!(found.is_some(), network.plugins.len() == 2, "{found:?}");
        let Some(record) = found else { return Ok(()) };
        assert_eq!((record.ips, record.network), (self.second.clone(), network.name.clone()));
        let named = record.pod.context("the pod's name")?;
        assert_eq!(Some(&named.uid.context("its UID")?), Some(&format!("uid-{}", call.container)));
        let inside: Value = serde_json::from_str(
            &self.serving.pod.netns.output("ip", &["-json", "link", "show", &call.interface])?,
        )?;
        assert_eq!(json!(record.mac), inside[0]["address"]);
        let host = record.host_interface.map(|host| json!(host.index));
        let expected = self.goes_through_node().then(|| inside[0]["link_index"].clone());
        assert_eq!(host, expected);
        Ok(())
    }
}

/// Two pods with two interfaces each, and one whose second interface cannot be made.
fn check_plugin(label: &'static str, mode: Mode, plugin: &Value, is_recorded: bool) -> Result<()> {
    let multus = MultusNode::new(label, mode)?;
    let node = &multus.node;
    let mut second_network = multus.second_network(plugin.clone());
    if is_recorded {
        second_network = multus.recorded(second_network);
    }
    let networks = [multus.recorded(multus.default_network()?), second_network];
    let (first, second) = (multus.pod("a", &networks)?, multus.pod("b", &networks)?);
    for pod in [&first, &second] {
        pod.second_is_what_ip_says(node)?;
    }
    let _remote = node.put_services(&[&first.serving])?;
    let goes_through_node = first.goes_through_node();
    for family in [0, 1] {
        services(node, &first.serving, &second.serving, family)
            .with_context(|| format!("family {family}"))?;
        if goes_through_node {
            let client = node.cluster.world.addresses().client[family];
            let outcome = node.of_client(first.second(family), PORT);
            ensure_answered("a client", &outcome, first.second(family), client)?;
            ensure!(second.ask(client, PORT) != Outcome::Dropped, "a way out");
        }
    }
    node.put_policies()?;
    for family in [0, 1] {
        policed(node, &first.serving, &second.serving, family)
            .with_context(|| format!("family {family}"))?;
        over_second(&multus, [&first, &second], family, goes_through_node && is_recorded)
            .with_context(|| format!("family {family} of the second network"))?;
    }
    a_failed_add_leaves_no_record(&multus, &networks)?;

    let per_pod = if is_recorded { 2 } else { 1 };
    assert_eq!(node.records()?.len(), 2 * per_pod);
    multus.del(&first.attached).map_err(|refusal| anyhow!("DEL: {refusal}"))?;
    assert_eq!(node.records()?.len(), per_pod);
    // The namespace is gone, and the runtime names none.
    let mut attached = second.attached;
    drop((second._second_server, second.serving));
    attached.iter_mut().for_each(|attached| attached.call.netns = None);
    multus.del(&attached).map_err(|refusal| anyhow!("DEL: {refusal}"))?;
    assert_eq!(node.records()?, []);
    Ok(())
}

/// What becomes of connections over the second network, where policies hold on it or not.
fn over_second(
    multus: &MultusNode,
    [first, second]: [&MultusPod; 2],
    family: usize,
    is_policed: bool,
) -> Result<()> {
    let world = &multus.node.cluster.world;
    let (a, b) = (first.second(family), second.second(family));
    ensure_answered("the permitted peer", &second.ask(a, PORT), a, b)?;
    let client = world.addresses().client[family];
    let of_client = multus.node.of_client(a, PORT);
    let of_second = second.ask(client, PORT);
    if is_policed {
        ensure!(of_client == Outcome::Dropped, "a client: {of_client:?}");
        ensure!(of_second == Outcome::Dropped, "out of the second: {of_second:?}");
        let of_node = Probe::tcp(SocketAddr::new(a, PORT)).send_in(&world.node);
        ensure!(of_node.endpoint().is_some(), "the pod's own node: {of_node:?}");
    } else if first.goes_through_node() {
        ensure_answered("a client", &of_client, a, client)?;
        ensure!(of_second != Outcome::Dropped, "out of the second: {of_second:?}");
    } else {
        // The node does not see these packets.
        let host: IpAddr = LAN_HOST[family].parse()?;
        let outcome = Probe::tcp(SocketAddr::new(a, PORT)).send_in(&multus.lan);
        ensure_answered("a host of that network", &outcome, a, host)?;
    }
    Ok(())
}

/// Multus calls DEL of the network that failed and of those before it, also if one DEL fails: that
/// of Debian's `macvlan` does where its master is missing.
fn a_failed_add_leaves_no_record(multus: &MultusNode, networks: &[Chain; 2]) -> Result<()> {
    let before = multus.node.records()?;
    let missing = multus.second_network(json!({ "type": "macvlan", "master": "missing" }));
    let networks = [networks[0].clone(), multus.recorded(missing)];
    let netns = Netns::new(&format!("{}-failed", multus.node.label))?;
    multus.node.put_pod("failed", &netns, &[])?;
    let failed = multus.add(&netns, "failed", &networks).map(drop);
    let error = failed.err().context("there is no such link")?.to_string();
    ensure!(error.contains("Link not found"), "{error}");
    assert_eq!(multus.node.records()?, before);
    let links = netns.output("ip", &["link"])?;
    ensure!(!links.contains(POD_INTERFACE), "{links}");
    Ok(())
}

#[test]
fn thin_with_macvlan() -> Result<()> {
    check_plugin("mt-macv", Mode::Thin, &json!({ "type": "macvlan", "master": LAN }), false)
}

#[test]
fn thick_with_recorded_macvlan() -> Result<()> {
    check_plugin("mt-macr", Mode::Thick, &json!({ "type": "macvlan", "master": LAN }), true)
}

#[test]
fn thin_with_ptp() -> Result<()> {
    check_plugin("mt-ptpn", Mode::Thin, &json!({ "type": "ptp" }), false)
}

#[test]
fn thin_with_recorded_ptp() -> Result<()> {
    check_plugin("mt-ptp", Mode::Thin, &json!({ "type": "ptp" }), true)
}

#[test]
fn thick_with_recorded_ptp() -> Result<()> {
    check_plugin("mt-ptpt", Mode::Thick, &json!({ "type": "ptp" }), true)
}

/// The runtime keeps one result, that of the default network, by the name of Multus' own network.
/// Multus keeps its results elsewhere.
#[test]
fn a_pod_from_before_is_adopted_on_its_default_network() -> Result<()> {
    let multus = MultusNode::new("mt-before", Mode::Thin)?;
    let second = multus.second_network(json!({ "type": "ptp" }));
    let networks = [multus.default_network()?, second];
    let (pod, attached) = multus.remembered("before", &networks, 8080)?;
    let records = observed(
        "adopted",
        TIMEOUT,
        || Ok(multus.node.records().unwrap_or_default()),
        |records| !records.is_empty(),
    )?;
    let [(id, record)] = &records[..] else { bail!("{records:?}") };
    assert_eq!((&*id.0, record.adopted), (&*pod.attachment(), true));
    assert_eq!(record.bridge.as_deref(), multus.node.maker.bridge);
    multus.node.is_what_ip_says(&pod)?;
    answers_at_host_port(&multus, &pod, 8080)?;
    // Who wants the second one known chains denizen in its network.
    let second = attached[1].result.as_ref().context("added")?;
    let second = second["interfaces"][0]["name"].as_str().context("a veth")?;
    let warnings = || Ok(multus.node.agent.status()?["warnings"].to_string());
    observed("it is reported", TIMEOUT, warnings, |warnings| warnings.contains(second))?;
    Ok(())
}

/// The plugin's entry does not ask for host ports yet. The record has the name of the network that
/// Multus delegates to, and the runtime's result that of Multus' own.
#[test]
fn host_ports_of_a_recorded_pod_are_adopted() -> Result<()> {
    let multus = MultusNode::new("mt-ports", Mode::Thick)?;
    let networks = [multus.recorded(multus.default_network()?)];
    let (pod, _) = multus.remembered("recorded", &networks, 8081)?;
    answers_at_host_port(&multus, &pod, 8081)?;
    let [(_, record)] = &multus.node.records()?[..] else { bail!("one record") };
    ensure!(record.host_ports_adopted && !record.adopted, "{record:?}");
    assert_ne!(record.network, RUNTIMES_NETWORK);
    Ok(())
}

fn answers_at_host_port(multus: &MultusNode, pod: &Pod, port: u16) -> Result<()> {
    let _server = serve(&pod.netns, &pod.addresses, &[(Protocol::Tcp, PORT)])?;
    let addresses = multus.node.cluster.world.addresses();
    for family in [0, 1] {
        let node = addresses.node[family];
        let expected = (pod.address_like(node).context("both families")?, PORT).into();
        let outcome = || Ok(multus.node.of_client(node, port));
        let answered = |outcome: &Outcome| outcome.endpoint() == Some(expected);
        observed("the host port leads to the pod", TIMEOUT, outcome, answered)?;
    }
    Ok(())
}
