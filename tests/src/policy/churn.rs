//! Labels, policies and pods change many times a second, while permitted clients connect and
//! forbidden ones try to.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::node::manifest::Manifests;
use crate::node::netns::Netns;
use crate::node::pod::{Pod, Wiring};
use crate::node::two_nodes::TwoNodes;
use crate::packets::probe::{Probe, Protocol::Tcp};
use crate::packets::recorder::{PORT, Recorder};
use crate::packets::spray::{Spray, Targets};
use crate::policy::{
    ClusterNetworkPolicy, LabelSelector, Labels, NamespaceObject, NetworkPolicy, ObjectMeta, PodIp,
    PodSpec, PodStatus, PolicyPeer, PolicyPort, PolicyRule, PolicyWorld,
};

/// A client's timeout: long enough for three retransmissions of a SYN.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);

/// Role, node and wiring of each pod.
const PODS: [(&str, usize, Wiring); 5] = [
    ("client", 0, Wiring::Bridged),
    ("server", 0, Wiring::Routed),
    ("server", 1, Wiring::Bridged),
    ("stranger", 0, Wiring::Bridged),
    ("stranger", 1, Wiring::Routed),
];

/// How long each of them pauses.
#[derive(Debug, Clone, Copy)]
pub struct Pauses {
    /// Between two changes, if the machine is fast enough.
    pub changes: Duration,
    /// Between two connections of the client.
    pub client: Duration,
    /// Between two datagrams of the strangers.
    pub strangers: Duration,
}

/// The kind of policies that permit only clients to reach servers, and clients to reach only
/// servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChurnedKind {
    /// NetworkPolicies.
    OfNamespace,
    /// ClusterNetworkPolicies: sometimes of tier Admin alone, sometimes of both tiers.
    OfCluster,
}

/// The result.
#[derive(Debug)]
pub struct Churned {
    /// How often something was changed.
    pub changes: usize,
    /// How many connections were made, all of them permitted.
    pub made: usize,
    /// Connections that were not made in time, with the reason.
    pub refused: Vec<String>,
    /// Forbidden senders that reached a server.
    pub leaked: Vec<String>,
    /// How long the slowest connection took.
    pub slowest: Duration,
    /// Segments that the client's kernel sent again.
    pub sent_again: u64,
}

impl Churned {
    /// An error unless all connections of permitted clients were made, at least `made`, and nobody
    /// else reached a server.
    pub fn check(&self, made: usize) -> Result<()> {
        eprintln!("{self:?}");
        ensure!(self.refused.is_empty() && self.leaked.is_empty(), "{self:?}");
        ensure!(self.made >= made, "{self:?}");
        Ok(())
    }
}

/// Runs on two nodes with agents; something changes again and again for `duration`.
pub fn run(label: &str, kind: ChurnedKind, pauses: Pauses, duration: Duration) -> Result<Churned> {
    let mut nodes = TwoNodes::new(label, &Value::Null)?;
    let attach = |(number, (role, node, wiring)): (usize, &(&str, usize, Wiring))| {
        nodes.attach(*node, &format!("x/{role}-{number}"), *wiring)
    };
    let pods = PODS.iter().enumerate().map(attach).collect::<Result<Vec<_>>>()?;
    let churn = Churn { manifests: nodes.manifests.clone(), kind, pods: &pods };
    churn.begin()?;
    nodes.start_agents(&[])?;
    nodes.settled(|_, _| true)?;
    let servers = [&pods[1], &pods[2]];
    let addresses: Vec<_> =
        servers.iter().flat_map(|server| server.addresses.iter().copied()).collect();
    let recorders =
        servers.iter().map(|server| Recorder::start(&server.netns)).collect::<Result<Vec<_>>>()?;
    let targets = Targets::default();
    targets.lock().expect("nobody panicked").extend(&addresses);
    let _strangers = [&pods[3], &pods[4]]
        .map(|pod| Spray::every(pauses.strangers, &pod.netns, &targets))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let over = AtomicBool::new(false);
    let (changes, Connected { made, refused, slowest }) = thread::scope(|scope| -> Result<_> {
        let clients =
            scope.spawn(|| pods[0].netns.run(|| connect(&addresses, pauses.client, &over)));
        let changes = churn.go_on(pauses.changes, duration);
        over.store(true, Ordering::Relaxed);
        let connected = clients.join().expect("a client does not panic")?;
        Ok((changes?, connected))
    })?;
    let sent_again = retransmitted(&pods[0].netns)?;
    let mut leaked = Vec::new();
    for (recorder, server) in recorders.iter().zip(servers) {
        let heard = recorder.senders();
        let strangers = pods[3..].iter().flat_map(|pod| &pod.addresses);
        let reached = strangers.filter(|address| heard.contains(address));
        leaked.extend(reached.map(|address| format!("{address} reached {:?}", server.addresses)));
    }
    Ok(Churned { changes, made, refused, leaked, slowest, sent_again })
}

#[derive(Debug, Default)]
struct Connected {
    made: usize,
    refused: Vec<String>,
    slowest: Duration,
}

/// Connects to one server after the other until `over` is set.
fn connect(servers: &[IpAddr], pause: Duration, over: &AtomicBool) -> Connected {
    let mut connected = Connected::default();
    // A new port each time. If the server's kernel has not seen the end of an earlier connection,
    // it refuses a second one from the same port (`tcp_timewait_state_process`).
    let ports = (2000..60_000).cycle();
    for (port, server) in ports.flat_map(|port| servers.iter().map(move |to| (port, to))) {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let started = Instant::now();
        let to = SocketAddr::new(*server, PORT);
        let probe = Probe { port, timeout: CONNECT_TIMEOUT, ..Probe::tcp(to) };
        match probe.connect() {
            Ok(stream) => {
                connected.made += 1;
                let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            }
            Err(error) => connected.refused.push(format!("{server}: {error}")),
        }
        connected.slowest = connected.slowest.max(started.elapsed());
        thread::sleep(pause);
    }
    connected
}

/// How many segments a namespace's TCP has retransmitted.
fn retransmitted(netns: &Netns) -> Result<u64> {
    let text = netns.run(|| fs::read_to_string("/proc/thread-self/net/snmp"))??;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let names = lines.next().context("no names")?.split(' ');
    let mut values = names.zip(lines.next().context("no values")?.split(' '));
    let (_, value) = values.find(|(name, _)| *name == "RetransSegs").context("not counted")?;
    Ok(value.parse()?)
}

/// Makes the changes.
struct Churn<'a> {
    manifests: Manifests,
    kind: ChurnedKind,
    pods: &'a [Pod],
}

impl Churn<'_> {
    /// Writes what always holds: clients alone reach servers, and clients reach only servers.
    fn begin(&self) -> Result<()> {
        let metadata = ObjectMeta { name: "x".to_owned(), ..ObjectMeta::default() };
        let namespaces = vec![NamespaceObject { metadata }];
        let world = PolicyWorld { namespaces, ..PolicyWorld::default() };
        self.manifests.put("namespace", &world.manifests())?;
        for number in 0..PODS.len() {
            self.put_pod(number, 0)?;
        }
        self.put_policies(0)
    }

    /// Changes something after each `pause`; returns how many changes were made.
    fn go_on(&self, pause: Duration, duration: Duration) -> Result<usize> {
        let started = Instant::now();
        let mut changes = 0;
        while started.elapsed() < duration {
            changes += 1;
            match changes % 4 {
                0 => self.put_policies(changes)?,
                1 => self.put_other_policy(changes)?,
                2 => self.put_elsewhere(changes)?,
                _ => self.put_pod(changes / 4 % PODS.len(), changes)?,
            }
            let due = pause * u32::try_from(changes)?;
            thread::sleep(due.saturating_sub(started.elapsed()));
        }
        Ok(changes)
    }

    /// Changes a pod's label that some policies select by, so the pod gets another identity.
    fn put_pod(&self, number: usize, change: usize) -> Result<()> {
        let (role, node, _) = PODS[number];
        let noise = ["a", "b", "c"][change % 3];
        let pod = &self.pods[number];
        let uid = format!("uid-{}", pod.netns.name());
        let name = format!("{role}-{number}");
        let labels = labels(role, noise);
        let object = object(&name, &uid, labels, node, &pod.addresses);
        self.put(&name, PolicyWorld { pods: vec![object], ..PolicyWorld::default() })
    }

    /// Rewrites the two policies that matter: the same meaning in other words.
    fn put_policies(&self, change: usize) -> Result<()> {
        let world = match self.kind {
            ChurnedKind::OfNamespace => policies(change),
            ChurnedKind::OfCluster => {
                PolicyWorld { tiers: tiers(change), ..PolicyWorld::default() }
            }
        };
        self.put("policies", world)
    }

    /// Adds or removes a policy that permits nobody here.
    fn put_other_policy(&self, change: usize) -> Result<()> {
        let mut world = PolicyWorld::default();
        match self.kind {
            _ if change % 8 >= 4 => {}
            ChurnedKind::OfNamespace => {
                let nobody = PolicyPeer::pods(LabelSelector::label("noise", "none"));
                let servers = LabelSelector::label("role", "server");
                let policy = NetworkPolicy::new("x", "other", servers);
                world.policies.push(policy.ingress([PolicyRule::from([nobody])]));
            }
            ChurnedKind::OfCluster => {
                let nobody = pods(&json!({ "noise": "none" }));
                let subject = pods(&json!({ "role": "server" }));
                let policy = ClusterNetworkPolicy::new("Admin", 0, "other", subject);
                world.tiers.push(policy.ingress([json!({ "action": "Pass", "from": [nobody] })]));
            }
        }
        self.put("other", world)
    }

    /// Adds and removes pods of another node.
    fn put_elsewhere(&self, change: usize) -> Result<()> {
        let address = |number: usize| -> Vec<IpAddr> {
            let number = (number % 250) as u8;
            vec![[10, 13, 0, number].into(), [0xfd00, 13, 0, 0, 0, 0, 0, number.into()].into()]
        };
        let pods = (0..5).map(|number| {
            let number = change + number;
            let name = format!("elsewhere-{}", number % 250);
            let labels = labels("client", ["a", "b", "c"][number % 3]);
            object(&name, "", labels, 1, &address(number))
        });
        self.put("elsewhere", PolicyWorld { pods: pods.collect(), ..PolicyWorld::default() })
    }

    fn put(&self, file: &str, world: PolicyWorld) -> Result<()> {
        self.manifests.put(file, &world.manifests())
    }
}

/// The two policies that matter: always the same meaning, in words that depend on `change`.
fn policies(change: usize) -> PolicyWorld {
    let role = |role: &str| LabelSelector::label("role", role);
    let noisy = |value: &str| {
        let mut selector = role("client");
        selector.match_labels.insert("noise".to_owned(), value.to_owned());
        PolicyPeer::pods(selector)
    };
    let mut from = match change % 2 {
        0 => vec![PolicyPeer::pods(role("client"))],
        _ => vec![noisy("a"), noisy("b"), noisy("c")],
    };
    from.rotate_left(change % 3 % 2);
    let ports =
        [PolicyPort::number(Tcp, PORT), PolicyPort::number(Tcp, 8080 + (change % 100) as u16)];
    let server = NetworkPolicy::new("x", "server", role("server"))
        .ingress([PolicyRule::from(from).at(ports)]);
    let client = NetworkPolicy::new("x", "client", role("client"))
        .egress([PolicyRule::to([PolicyPeer::pods(role("server"))])]);
    PolicyWorld { policies: vec![server, client], ..PolicyWorld::default() }
}

/// The same as ClusterNetworkPolicies. What tier Admin passes on, tier Baseline decides alike.
fn tiers(change: usize) -> Vec<ClusterNetworkPolicy> {
    let role = |role: &str| pods(&json!({ "role": role }));
    let clients = match change % 2 {
        0 => vec![role("client")],
        _ => ["a", "b", "c"].map(|noise| pods(&json!({ "role": "client", "noise": noise }))).into(),
    };
    let others = json!({ "namespaces": {} });
    let port = |port| json!({ "tcp": { "destinationPort": { "number": port } } });
    let accept = |action: &str| {
        let ports = [port(PORT), port(8080 + (change % 100) as u16)];
        json!({ "action": action, "from": clients, "protocols": ports })
    };
    let deny = json!({ "action": "Deny", "from": [others] });
    let priority = (change % 7) as u16;
    let admin = |action| {
        ClusterNetworkPolicy::new("Admin", priority, "server", role("server"))
            .ingress([accept(action), deny.clone()])
    };
    let behind = ClusterNetworkPolicy::new("Baseline", 0, "server-behind", role("server"))
        .ingress([accept("Accept"), deny.clone()]);
    let client = ClusterNetworkPolicy::new("Admin", 9, "client", role("client")).egress([
        json!({ "action": "Accept", "to": [role("server")] }),
        json!({ "action": "Deny", "to": [others] }),
    ]);
    match change % 3 {
        0 => vec![admin("Accept"), client],
        _ => vec![admin("Pass"), behind, client],
    }
}

/// Pods of every namespace with these labels, as peer or subject.
fn pods(labels: &Value) -> Value {
    json!({ "pods": { "podSelector": { "matchLabels": labels } } })
}

fn labels(role: &str, noise: &str) -> Labels {
    [("role", role), ("noise", noise)].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn object(
    name: &str,
    uid: &str,
    labels: Labels,
    node: usize,
    addresses: &[IpAddr],
) -> crate::policy::PodObject {
    crate::policy::PodObject {
        metadata: ObjectMeta {
            namespace: "x".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            labels,
            ..ObjectMeta::default()
        },
        spec: PodSpec { node_name: format!("node-{}", node + 1), ..PodSpec::default() },
        status: PodStatus {
            phase: "Running".to_owned(),
            pod_ips: addresses.iter().map(|ip| PodIp { ip: *ip }).collect(),
        },
    }
}
