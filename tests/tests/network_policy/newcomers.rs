//! New pods among peers that keep sending to them: what stands around the tests of a pod's first
//! packets.
//!
//! Pods of namespace `new` are isolated for both directions, and may talk to pods of role `friend`
//! alone. Of those, the one on the same node hears nobody but them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::pod::{Pod, Wiring};
use denizen_tests::policy::{
    Labels, Metadata, Namespace, NetworkPolicy, Peer as PolicyPeer, PodIp, PodSpec, PodStatus,
    Rule, Selector, World,
};
use denizen_tests::probe::Protocol;
use serde_json::Value;

use crate::case::labels;
use crate::nodes::Nodes;
use crate::prober::{Answer, Prober, Question};
use crate::recorder::{PORT, Recorder};
use crate::spray::{Spray, Targets};

/// The node may ask for a new pod's MAC address before the pod hears it, and asks again a second
/// later. TCP too sends again what was lost; a datagram that arrives was the first one.
const PATIENCE: Duration = Duration::from_millis(1800);

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
    pub nodes: Nodes,
    /// To whom all peers keep sending.
    pub targets: Targets,
}

/// A pod that has just been added.
pub struct Newcomer {
    recorder: Recorder,
    prober: Prober,
    pub pod: Pod,
}

const PEERS: [(&str, bool, usize); 4] = [
    ("friend-here", true, 0),
    ("foe-here", false, 0),
    ("friend-there", true, 1),
    ("foe-there", false, 1),
];

impl Newcomers {
    /// Two nodes with agents, the peers, and the policies.
    pub fn new(label: &str, wait: &Value) -> Result<Self> {
        let nodes = Nodes::new(label, wait)?;
        let (mut world, mut pods) = (World::default(), Vec::new());
        for (name, is_friend, node) in PEERS {
            let wiring = if is_friend { Wiring::Routed } else { Wiring::Bridged };
            let pod = nodes.attach_without_agent(node, &format!("peers/{name}"), wiring)?;
            let role = if is_friend { "friend" } else { "foe" };
            let labels = labels(&[("role", role), ("name", name)]);
            world.pods.push(object("peers", name, &nodes, node, &pod, labels, true));
            pods.push(pod);
        }
        world.namespaces = ["peers", "new"].map(namespace).into();
        nodes.manifests.put("world", &world.manifests())?;
        let policies = World { policies: policies(), ..World::default() };
        nodes.manifests.put("policies", &policies.manifests())?;
        let targets = Targets::default();
        let peers = PEERS.into_iter().zip(pods).map(|((name, is_friend, _), pod)| {
            let recorder = Recorder::start(&pod.netns)?;
            let _spray = Spray::start(&pod.netns, &targets)?;
            Ok(Peer { name, is_friend, recorder, _spray, pod })
        });
        let peers = peers.collect::<Result<Vec<_>>>()?;
        let mut newcomers = Self { peers, nodes, targets };
        newcomers.nodes.start_agents(&[])?;
        Ok(newcomers)
    }

    /// Whom the peers send to from now on.
    pub fn aim(&self, change: impl FnOnce(&mut BTreeSet<IpAddr>)) {
        change(&mut self.targets.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Writes the object of pod `new/<name>` as the kubelet finds it: without addresses. The
    /// sandbox will be `netns`.
    pub fn announce(&self, name: &str, netns: &str, role: &str) -> Result<()> {
        let pod = denizen_tests::policy::Pod {
            metadata: Metadata {
                namespace: "new".to_owned(),
                name: name.to_owned(),
                uid: format!("uid-{netns}"),
                labels: labels(&[("role", role)]),
                ..Metadata::default()
            },
            spec: PodSpec {
                node_name: self.nodes.hosts[0].node.name.clone(),
                ..PodSpec::default()
            },
            status: PodStatus { phase: "Pending".to_owned(), pod_ips: Vec::new() },
        };
        let world = World { pods: vec![pod], ..World::default() };
        self.nodes.manifests.put(&format!("pod-{name}"), &world.manifests())
    }

    /// The first packets of a new pod, and those of all peers to it; what was wrong with them.
    pub fn first_packets(&self, newcomer: &Newcomer) -> Result<Vec<String>> {
        let own = &newcomer.pod.addresses;
        let to = |address: &IpAddr| {
            [Protocol::Tcp, Protocol::Udp].map(|protocol| Question {
                protocol: Some(protocol),
                to: SocketAddr::new(*address, PORT),
            })
        };
        let of = |peer: &Peer| {
            let theirs: Vec<_> = own.iter().filter_map(|it| peer.pod.address_like(*it)).collect();
            theirs.iter().flat_map(to).collect::<Vec<_>>()
        };
        newcomer.prober.ask(self.peers.iter().flat_map(of).collect())?;
        let mut others = Vec::new();
        for peer in &self.peers {
            let prober = Prober::start(&peer.pod.netns, PATIENCE)?;
            prober.ask(own.iter().flat_map(to).collect())?;
            others.push(prober);
        }
        let mut wrong = Vec::new();
        // Behind `ptp`, which announces no IPv6 address, the node may learn a pod's MAC address only
        // a second after ADD, with and without a firewall. What is sent to the pod meanwhile waits in
        // a queue that is shorter than what all peers together send.
        let is_routed = newcomer.pod.input_interface == newcomer.pod.host_interface();
        let may_be_lost = |own: &IpAddr, kind: &str| is_routed && own.is_ipv6() && kind == "UDP";
        let mut judge = |answer: &Answer, is_friend: bool, own: &IpAddr, kind: &str, what| {
            let expected = if is_friend { Answer::Answered } else { Answer::Silent };
            let is_lost = *answer == Answer::Silent && may_be_lost(own, kind);
            if *answer != expected && !is_lost {
                wrong.push(format!("{kind} {what}: {answer:?}"));
            }
        };
        let answers = newcomer.prober.answers()?;
        let kinds: Vec<_> =
            own.iter().flat_map(|it| ["TCP", "UDP"].map(|name| (it, name))).collect();
        for (peer, answers) in self.peers.iter().zip(answers.chunks(kinds.len())) {
            for (answer, (own, kind)) in answers.iter().zip(&kinds) {
                judge(answer, peer.is_friend, own, kind, format!("from {own} to {}", peer.name));
            }
        }
        for (peer, prober) in self.peers.iter().zip(others) {
            for (answer, (own, kind)) in prober.answers()?.iter().zip(&kinds) {
                judge(answer, peer.is_friend, own, kind, format!("from {} to {own}", peer.name));
            }
        }
        wrong.extend(self.leaks(newcomer));
        Ok(wrong)
    }

    /// What arrived although it must not: at the new pod, and at those whom it may not reach.
    pub fn leaks(&self, newcomer: &Newcomer) -> Vec<String> {
        let foes = self.peers.iter().filter(|peer| !peer.is_friend);
        let heard = newcomer.recorder.senders();
        foes.flat_map(|foe| {
            let theirs = foe.pod.addresses.iter().filter(|it| heard.contains(it));
            let arrived = theirs
                .map(|it| format!("{it} of {} reached {:?}", foe.name, newcomer.pod.addresses));
            let reached = foe.recorder.senders();
            let ours = newcomer.pod.addresses.iter().filter(|it| reached.contains(it));
            let sent =
                ours.map(|it| format!("{} got a packet of {it}", foe.name)).collect::<Vec<_>>();
            arrived.chain(sent).collect::<Vec<_>>()
        })
        .collect()
    }
}

impl Newcomers {
    /// Nobody was heard until now.
    pub fn forget(&self, newcomer: &Newcomer) {
        let all = self.peers.iter().map(|peer| &peer.recorder).chain([&newcomer.recorder]);
        all.for_each(Recorder::forget);
    }

    /// What the new pod reaches of a peer although it must not.
    pub fn reached(&self, newcomer: &Newcomer, peer: &str) -> Result<Vec<String>> {
        let peer = self.peers.iter().find(|it| it.name == peer).context("no such peer")?;
        let questions = newcomer.pod.addresses.iter().filter_map(|own| {
            let to = SocketAddr::new(peer.pod.address_like(*own)?, PORT);
            Some([Protocol::Tcp, Protocol::Udp].map(Some).map(|protocol| Question { protocol, to }))
        });
        newcomer.prober.ask(questions.flatten().collect())?;
        let answers = newcomer.prober.answers()?.into_iter();
        let wrong = answers.filter(|answer| *answer != Answer::Silent);
        Ok(wrong.map(|answer| format!("it asked {}: {answer:?}", peer.name)).collect())
    }
}

impl Newcomer {
    /// What listens in a pod whose ADD has returned.
    pub fn start(pod: Pod) -> Result<Self> {
        let recorder = Recorder::start(&pod.netns)?;
        let prober = Prober::start(&pod.netns, PATIENCE)?;
        Ok(Self { recorder, prober, pod })
    }

    /// Ends what listens in it, as a runtime ends containers before it calls DEL.
    pub fn end(self) -> Pod {
        self.pod
    }
}

fn namespace(name: &str) -> Namespace {
    let labels = labels(&[("ns", name)]);
    Namespace { metadata: Metadata { name: name.to_owned(), labels, ..Metadata::default() } }
}

fn object(
    namespace: &str,
    name: &str,
    nodes: &Nodes,
    node: usize,
    pod: &Pod,
    labels: Labels,
    is_running: bool,
) -> denizen_tests::policy::Pod {
    denizen_tests::policy::Pod {
        metadata: Metadata {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{}", pod.netns.name()),
            labels,
            ..Metadata::default()
        },
        spec: PodSpec { node_name: nodes.hosts[node].node.name.clone(), ..PodSpec::default() },
        status: PodStatus {
            phase: if is_running { "Running" } else { "Pending" }.to_owned(),
            pod_ips: pod.addresses.iter().map(|ip| PodIp { ip: *ip }).collect(),
        },
    }
}

/// See the module.
fn policies() -> Vec<NetworkPolicy> {
    let all = Selector::default;
    let friends = || PolicyPeer::both(all(), Selector::label("role", "friend"));
    let new = || PolicyPeer::both(Selector::label("ns", "new"), Selector::label("role", "new"));
    vec![
        NetworkPolicy::new("new", "friends", Selector::label("role", "new"))
            .ingress([Rule::from([friends()])])
            .egress([Rule::to([friends()])]),
        NetworkPolicy::new("peers", "new", Selector::label("name", "friend-here"))
            .ingress([Rule::from([new()])]),
    ]
}

/// An error that shows what was wrong, if anything was.
pub fn nothing_wrong(pods: usize, wrong: &[String]) -> Result<()> {
    let shown = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n  ");
    ensure!(wrong.is_empty(), "{} wrong of {pods} pods:\n  {shown}", wrong.len());
    Ok(())
}

/// The addresses that come next after these in their ranges.
pub fn next(addresses: &[IpAddr]) -> Result<Vec<IpAddr>> {
    let next = |address: &IpAddr| match address {
        IpAddr::V4(it) => it.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(it) => it.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    };
    addresses.iter().map(|it| next(it).context("the range is used up")).collect()
}
