//! New pods among peers that keep sending to them: what stands around the tests of a pod's first
//! packets.
//!
//! Pods of namespace `new` and role `new` are isolated for both directions, and may talk to pods of
//! role `friend` alone. Of those, the one on the same node hears nobody but them. So are all pods
//! of namespace `closed`, but that friend does not hear them. No policy selects pods of namespace
//! `open`.

mod listener;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::node::manifest;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::peers::api::{Api, ApiServer};
use denizen_tests::policy::{
    LabelSelector, Labels, NamespaceObject, NetworkPolicy, ObjectMeta, PodIp, PodObject, PodSpec,
    PodStatus, PolicyPeer, PolicyRule, PolicyWorld,
};
use serde_json::Value;

pub use self::listener::{Listener, Newcomer};
use crate::case::labels;
use crate::prober::{Answer, ProbedPort, Prober};
use denizen_tests::node::two_nodes::TwoNodes;
use denizen_tests::packets::recorder::{PORT, Recorder};
use denizen_tests::packets::spray::{Spray, Targets};

/// The node may ask for a new pod's MAC address before the pod hears it, and asks again a second
/// later. TCP too sends again what was lost; a datagram that arrives was the first one.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1800);

/// One who was there before.
pub struct Peer {
    pub name: &'static str,
    pub is_friend: bool,
    pub recorder: Recorder,
    _spray: Spray,
    pub pod: Pod,
}

/// All of them, and both nodes.
pub struct Newcomers {
    /// Friends and foes, on the first node and on the second.
    pub peers: Vec<Peer>,
    pub nodes: TwoNodes,
    /// To whom all peers keep sending.
    pub targets: Targets,
    /// What both agents follow; `None` if they read manifests.
    pub api: Option<ApiServer>,
}

/// One question between a new pod and a peer, and what came of it.
pub struct Exchange<'a> {
    pub peer: &'a Peer,
    /// Whether the new pod asked.
    pub is_out: bool,
    own: IpAddr,
    protocol: Protocol,
    answer: Answer,
}

/// Where the API server listens, on the second node.
const API: &str = "192.168.0.2:6443";

const PEERS: [(&str, bool, usize); 4] = [
    ("friend-here", true, 0),
    ("foe-here", false, 0),
    ("friend-there", true, 1),
    ("foe-there", false, 1),
];

impl Newcomers {
    /// Two nodes with agents that read manifests, the peers, and the policies.
    pub fn new(label: &str, wait: &Value) -> Result<Self> {
        let mut newcomers = Self::prepare(TwoNodes::new(label, wait)?, None)?;
        newcomers.nodes.start_agents(&[])?;
        Ok(newcomers)
    }

    /// The same with agents that follow an API server.
    pub fn with_api(label: &str, wait: &Value) -> Result<Self> {
        let nodes = TwoNodes::new(label, wait)?;
        let folder = nodes.hosts[1].run_dir.join("api");
        std::fs::create_dir_all(&folder)?;
        let api = ApiServer::start(&nodes.hosts[1].netns, API.parse()?, &folder)?;
        for host in &nodes.hosts {
            api.put(&manifest::node(&host.node.name, &host.node.addresses, ""))?;
        }
        let objects = Objects::Kubeconfig(api.kubeconfig().to_owned());
        let mut newcomers = Self::prepare(nodes, Some(api))?;
        for host in &mut newcomers.nodes.hosts {
            host.start_agent(objects.clone(), &[])?;
        }
        Ok(newcomers)
    }

    fn prepare(nodes: TwoNodes, api: Option<ApiServer>) -> Result<Self> {
        let (mut world, mut pods) = (PolicyWorld::default(), Vec::new());
        for (name, is_friend, node) in PEERS {
            let wiring = if is_friend { Wiring::Routed } else { Wiring::Bridged };
            let pod = nodes.attach_without_agent(node, &format!("peers/{name}"), wiring)?;
            let role = if is_friend { "friend" } else { "foe" };
            let labels = labels(&[("role", role), ("name", name)]);
            world.pods.push(object("peers", name, &nodes, node, &pod, labels, true));
            pods.push(pod);
        }
        let targets = Targets::default();
        let peers = PEERS.into_iter().zip(pods).map(|((name, is_friend, _), pod)| {
            let recorder = Recorder::start(&pod.netns)?;
            let _spray = Spray::start(&pod.netns, &targets)?;
            Ok(Peer { name, is_friend, recorder, _spray, pod })
        });
        let peers = peers.collect::<Result<Vec<_>>>()?;
        let newcomers = Self { peers, nodes, targets, api };
        newcomers.put("world", &world)?;
        newcomers.put_namespaces(&[namespace("new")])?;
        newcomers
            .put("policies", &PolicyWorld { policies: policies(), ..PolicyWorld::default() })?;
        Ok(newcomers)
    }

    /// Writes the namespaces: these, and all others but `new`.
    pub fn put_namespaces(&self, namespaces: &[NamespaceObject]) -> Result<()> {
        let others = ["peers", "closed", "open"].map(namespace);
        let namespaces = others.into_iter().chain(namespaces.iter().cloned()).collect();
        self.put("namespaces", &PolicyWorld { namespaces, ..PolicyWorld::default() })
    }

    /// Writes these objects in place of those of this file before.
    pub fn put(&self, file: &str, world: &PolicyWorld) -> Result<()> {
        match &self.api {
            Some(api) => api.put_all(&world.manifests()),
            None => self.nodes.manifests.put(file, &world.manifests()),
        }
    }

    /// Whom the peers send to from now on.
    pub fn aim(&self, change: impl FnOnce(&mut BTreeSet<IpAddr>)) {
        change(&mut self.targets.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The peers send to these no more. What is sent to addresses that are gone fills the kernel's
    /// tables of neighbours, which all namespaces share.
    pub fn aim_no_more_at(&self, addresses: &[IpAddr]) {
        self.aim(|targets| targets.retain(|target| !addresses.contains(target)));
    }

    /// Writes the object of a pod `namespace/name` as the kubelet finds it: without addresses. The
    /// sandbox will be `netns`.
    pub fn announce(&self, pod: &str, netns: &str, role: &str) -> Result<()> {
        let (namespace, name) = pod.split_once('/').context("no namespace")?;
        let pod = PodObject {
            metadata: ObjectMeta {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: format!("uid-{netns}"),
                labels: labels(&[("role", role)]),
                ..ObjectMeta::default()
            },
            spec: PodSpec {
                node_name: self.nodes.hosts[0].node.name.clone(),
                ..PodSpec::default()
            },
            status: PodStatus { phase: "Pending".to_owned(), pod_ips: Vec::new() },
        };
        self.put(&file_of(name), &PolicyWorld { pods: vec![pod], ..PolicyWorld::default() })
    }

    /// Removes the object of pod `name` from the manifests.
    pub fn revoke(&self, name: &str) -> Result<()> {
        self.nodes.manifests.remove(&file_of(name))
    }

    /// The first packets of a new pod, and those of all peers to it.
    fn exchange(&self, newcomer: &Listener) -> Result<Vec<Exchange<'_>>> {
        let own = &newcomer.addresses;
        let protocols = [Protocol::Tcp, Protocol::Udp];
        let each: Vec<_> =
            own.iter().flat_map(|address| protocols.map(|kind| (*address, kind))).collect();
        let question =
            |protocol, to| ProbedPort { protocol: Some(protocol), to: SocketAddr::new(to, PORT) };
        let out = self.peers.iter().flat_map(|peer| {
            let to =
                each.iter().filter_map(|(own, kind)| Some((peer.pod.address_like(*own)?, kind)));
            to.map(|(to, kind)| question(*kind, to))
        });
        newcomer.prober.ask(out.collect(), ANSWER_TIMEOUT)?;
        let mut probers = Vec::new();
        for peer in &self.peers {
            let prober = Prober::start(&peer.pod.netns)?;
            let questions = each.iter().map(|(own, kind)| question(*kind, *own));
            prober.ask(questions.collect(), ANSWER_TIMEOUT)?;
            probers.push(prober);
        }
        let mut all = Vec::new();
        let mut add = |peer, is_out, answers: &[Answer]| {
            for ((own, protocol), answer) in each.iter().zip(answers) {
                let answer = answer.clone();
                all.push(Exchange { peer, is_out, own: *own, protocol: *protocol, answer });
            }
        };
        let answers = newcomer.prober.answers()?;
        for (peer, answers) in self.peers.iter().zip(answers.chunks(each.len())) {
            add(peer, true, answers);
        }
        for (peer, prober) in self.peers.iter().zip(probers) {
            add(peer, false, &prober.answers()?);
        }
        Ok(all)
    }

    /// What of a new pod's first packets, and of those to it, passed or did not pass, unlike
    /// `passes` says.
    pub fn verify(
        &self,
        newcomer: &Listener,
        passes: impl Fn(&Exchange<'_>) -> bool,
    ) -> Result<Vec<String>> {
        let before = neighbours_refused();
        let lost = || {
            let refused = neighbours_refused() - before;
            (refused > 0).then(|| {
                format!(
                    "the kernel's tables of neighbours, which all namespaces share, were full \
                     {refused} times meanwhile (net.ipv6.neigh.default.gc_thresh3)"
                )
            })
        };
        let all = self.exchange(newcomer).with_context(|| lost().unwrap_or_default())?;
        let is_wrong = |exchange: &&Exchange<'_>| {
            exchange.answer != if passes(exchange) { Answer::Answered } else { Answer::Silent }
        };
        let mut wrong: Vec<_> = all.iter().filter(is_wrong).map(ToString::to_string).collect();
        if !wrong.is_empty() {
            wrong.extend(lost());
        }
        Ok(wrong)
    }

    /// What of them passed although it may not.
    pub fn passed(
        &self,
        newcomer: &Listener,
        may_pass: impl Fn(&Exchange<'_>) -> bool,
    ) -> Result<Vec<String>> {
        let all = self.exchange(newcomer)?;
        let passed =
            all.iter().filter(|exchange| exchange.answer != Answer::Silent && !may_pass(exchange));
        Ok(passed.map(ToString::to_string).collect())
    }

    /// What was wrong with the first packets of a new pod that may talk to friends alone, and with
    /// those of all peers to it.
    pub fn first_packets(&self, newcomer: &Listener) -> Result<Vec<String>> {
        let mut wrong = self.verify(newcomer, |exchange| exchange.peer.is_friend)?;
        wrong.extend(self.leaks(newcomer));
        Ok(wrong)
    }

    /// What arrived although it must not: at the new pod, and at those whom it may not reach.
    pub fn leaks(&self, newcomer: &Listener) -> Vec<String> {
        let foes = self.peers.iter().filter(|peer| !peer.is_friend);
        let heard = newcomer.recorder.senders();
        foes.flat_map(|foe| {
            let theirs = foe.pod.addresses.iter().filter(|address| heard.contains(address));
            let arrived = theirs.map(|address| {
                format!("{address} of {} reached {:?}", foe.name, newcomer.addresses)
            });
            let reached = foe.recorder.senders();
            let ours = newcomer.addresses.iter().filter(|address| reached.contains(address));
            let sent = ours
                .map(|address| format!("{} got a packet of {address}", foe.name))
                .collect::<Vec<_>>();
            arrived.chain(sent).collect::<Vec<_>>()
        })
        .collect()
    }
}

impl Newcomers {
    /// Nobody has heard these addresses until now.
    pub fn forget(&self, addresses: &[IpAddr]) {
        self.peers.iter().for_each(|peer| peer.recorder.forget(addresses));
    }
}

impl Exchange<'_> {
    /// Whether the peer may hear it, whatever the new pod's role is.
    pub fn is_heard(&self) -> bool {
        !(self.is_out && self.peer.name == "friend-here")
    }
}

impl fmt::Display for Exchange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, is_out, own, protocol, answer } = self;
        match is_out {
            true => write!(f, "{protocol} from {own} to {}: {answer:?}", peer.name),
            false => write!(f, "{protocol} from {} to {own}: {answer:?}", peer.name),
        }
    }
}

fn file_of(name: &str) -> String {
    format!("pod-{name}")
}

/// A namespace with a label `ns`, which is its name.
pub fn namespace(name: &str) -> NamespaceObject {
    let labels = labels(&[("ns", name)]);
    NamespaceObject {
        metadata: ObjectMeta { name: name.to_owned(), labels, ..ObjectMeta::default() },
    }
}

fn object(
    namespace: &str,
    name: &str,
    nodes: &TwoNodes,
    node: usize,
    pod: &Pod,
    labels: Labels,
    is_running: bool,
) -> PodObject {
    PodObject {
        metadata: ObjectMeta {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{}", pod.netns.name()),
            labels,
            ..ObjectMeta::default()
        },
        spec: PodSpec { node_name: nodes.hosts[node].node.name.clone(), ..PodSpec::default() },
        status: PodStatus {
            phase: if is_running { "Running" } else { "Pending" }.to_owned(),
            pod_ips: pod.addresses.iter().map(|ip| PodIp { ip: *ip }).collect(),
        },
    }
}

/// See the module.
pub fn policies() -> Vec<NetworkPolicy> {
    let all = LabelSelector::default;
    let friends = || PolicyPeer::both(all(), LabelSelector::label("role", "friend"));
    let new =
        || PolicyPeer::both(LabelSelector::label("ns", "new"), LabelSelector::label("role", "new"));
    vec![
        NetworkPolicy::new("new", "friends", LabelSelector::label("role", "new"))
            .ingress([PolicyRule::from([friends()])])
            .egress([PolicyRule::to([friends()])]),
        NetworkPolicy::new("closed", "friends", all())
            .ingress([PolicyRule::from([friends()])])
            .egress([PolicyRule::to([friends()])]),
        NetworkPolicy::new("peers", "new", LabelSelector::label("name", "friend-here"))
            .ingress([PolicyRule::from([new()])]),
    ]
}

/// How often a table of neighbours was full since the machine began: `table_fulls`, the last number
/// of each processor. 0 where the kernel does not show it.
fn neighbours_refused() -> u64 {
    let tables = ["arp_cache", "ndisc_cache"].map(|table| format!("/proc/net/stat/{table}"));
    let text = tables.map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let rows = text.iter().flat_map(|text| text.lines().skip(1));
    let last = rows.filter_map(|row| row.split_whitespace().next_back());
    last.filter_map(|number| u64::from_str_radix(number, 16).ok()).sum()
}

/// An error that shows what was wrong, if anything was: first what must not have arrived.
pub fn nothing_wrong(pods: usize, wrong: &[String]) -> Result<()> {
    let mut lines: Vec<_> = wrong.iter().map(String::as_str).collect();
    lines.sort_by_key(|line| line.ends_with(&format!("{:?}", Answer::Silent)));
    let shown = lines.iter().take(20).copied().collect::<Vec<_>>().join("\n  ");
    ensure!(wrong.is_empty(), "{} wrong of {pods} pods:\n  {shown}", wrong.len());
    Ok(())
}

/// The addresses that come next after these in their ranges.
pub fn next(addresses: &[IpAddr]) -> Result<Vec<IpAddr>> {
    let next = |address: &IpAddr| match address {
        IpAddr::V4(it) => it.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(it) => it.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    };
    addresses.iter().map(|address| next(address).context("the range is used up")).collect()
}
