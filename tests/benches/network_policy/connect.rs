//! How long a new connection to a pod takes that policies select: the client in one network
//! namespace, the node in another, the pod in a third.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use denizen_backend::firewall::Firewall;
use denizen_model::{
    Block, Event, Namespaces, NetworkPolicy, Peers, PolicyPeer, PolicyPort, PolicyRule, PortMatch,
    Ports, Protocol, Selector,
};
use denizen_tests::bench::timing::{Samples, text, timed};
use denizen_tests::node::cni::Namespace;
use ipnetwork::IpNetwork;

use crate::cluster::{APPS, Cluster, REPLICAS, app, from, interface, local_ip, remote_ip};
use crate::engine::Engine;
use crate::kube_router::{KubeRouterRules, PROGRAMS, hook, load};
use crate::tiers;

const CONNECTIONS: usize = 3_000;
/// How many policies select the pod.
const SELECTING: [u32; 3] = [0, 10, 100];
/// How many ranges of ports (`endPort`) one policy permits.
const PORT_RANGES: [u16; 2] = [100, 8_000];
/// How many peers one policy permits a range of ports.
const PEERS: [u16; 2] = [100, 8_000];

/// The local pod that is connected to, in the first namespace.
const SERVER: u32 = 1;
/// The Deployment of the client, in the same namespace: only the last policy permits it.
const CLIENT: u32 = 25;

/// Which rules the connections pass.
#[derive(Clone, Copy)]
enum Enforcer {
    None,
    Ours(u32),
    /// One policy with this many ranges of ports.
    PortRanges(u16),
    /// One policy with a range of ports for this many peers.
    Peers(u16),
    /// ClusterNetworkPolicies.
    Tiers(u32),
    KubeRouter(&'static str, u32),
}

/// Measures and prints it.
pub fn report(cluster: Cluster) {
    println!("\n## A connection to a pod, by the policies that select it\n");
    let ours = SELECTING.map(Enforcer::Ours);
    let theirs = PROGRAMS.into_iter().flat_map(|program| {
        SELECTING.into_iter().filter(|n| *n > 0).map(move |n| Enforcer::KubeRouter(program, n))
    });
    let tiers = SELECTING.into_iter().filter(|n| *n > 0).map(Enforcer::Tiers);
    let nodes: Vec<ConnectNode> = [Enforcer::None]
        .into_iter()
        .chain(ours)
        .chain(PORT_RANGES.map(Enforcer::PortRanges))
        .chain(PEERS.map(Enforcer::Peers))
        .chain(tiers)
        .chain(theirs)
        .map(|rules| ConnectNode::new(cluster, rules))
        .collect();
    let mut taken: Vec<Vec<Duration>> = nodes.iter().map(|_| Vec::new()).collect();
    // In turns, so that a disturbance of the machine affects all of them alike.
    for _ in 0..CONNECTIONS {
        for (node, taken) in nodes.iter().zip(&mut taken) {
            taken.push(node.connection());
        }
    }
    let mut of_network_policies = None;
    for (node, taken) in nodes.iter().zip(taken) {
        let samples: Samples = taken.into_iter().collect();
        let median = samples.median();
        if let Enforcer::Ours(_) = node.rules {
            of_network_policies = Some(median);
        }
        let ratio = of_network_policies.filter(|_| matches!(node.rules, Enforcer::Tiers(_)));
        let ratio = ratio.map(|other| median.as_secs_f64() / other.as_secs_f64());
        let ratio = ratio.map(|ratio| format!("  {ratio:.2} of NetworkPolicies'"));
        let [half, most] = [median, samples.quantile(99)].map(text);
        println!("{:<50}p50 {half:>9}  p99 {most:>9}{}", node.what(), ratio.unwrap_or_default());
    }
}

/// A node, its pod, and a client elsewhere.
struct ConnectNode {
    rules: Enforcer,
    /// The tables stay as long as this value does.
    _firewall: Option<Firewall>,
    _namespaces: [Namespace; 2],
    client: Namespace,
    listener: Arc<TcpListener>,
}

impl ConnectNode {
    fn new(cluster: Cluster, rules: Enforcer) -> Self {
        let [node, server, client] = [(); 3].map(|()| Namespace::new());
        wire(
            &node,
            &client,
            "remote",
            Ipv4Addr::new(10, 64, 255, 254),
            remote_ip(CLIENT * REPLICAS),
        );
        let link = interface(SERVER);
        wire(&node, &server, &link, Ipv4Addr::new(10, 1, 255, 254), local_ip(SERVER));
        let firewall = node.run(move || {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("its own setting");
            rules.load(cluster)
        });
        let listener = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8080)).expect("a free port");
        let listener = Arc::new(server.run(listener));
        Self { rules, _firewall: firewall, _namespaces: [node, server], client, listener }
    }

    fn what(&self) -> String {
        match self.rules {
            Enforcer::None => "without any rule".to_owned(),
            Enforcer::Ours(count) => format!("{count} policies"),
            Enforcer::PortRanges(count) => format!("a policy of {count} ranges of ports"),
            Enforcer::Peers(count) => format!("a range of ports for {count} peers"),
            Enforcer::Tiers(count) => format!("{count} ClusterNetworkPolicies of 25 rules"),
            Enforcer::KubeRouter(program, count) => {
                format!("kube-router's shape, {program}, {count}")
            }
        }
    }

    fn connection(&self) -> Duration {
        let listener = self.listener.clone();
        self.client.run(move || {
            let to = SocketAddr::from((local_ip(SERVER), 8080));
            let (stream, took) = timed(|| TcpStream::connect(to));
            let stream = stream.expect("the last policy permits it");
            let (theirs, _) = listener.accept().expect("it connected");
            // The client closes last, so that no port of its own waits.
            drop(theirs);
            drop(stream);
            took
        })
    }
}

impl Enforcer {
    /// Loads the rules in this thread's network namespace.
    fn load(self, cluster: Cluster) -> Option<Firewall> {
        match self {
            Self::None => None,
            Self::Ours(count) => {
                Some(firewall_of(cluster, (0..count).map(|n| selecting(cluster, n, count))))
            }
            Self::PortRanges(count) => Some(firewall_of(cluster, [port_ranges(cluster, count)])),
            Self::Peers(count) => Some(firewall_of(cluster, [range_of_peers(cluster, count)])),
            Self::Tiers(count) => {
                let tiers = (0..count).map(|n| tiers::selecting(n, count, CLIENT % APPS));
                Some(firewall_of(cluster, tiers))
            }
            Self::KubeRouter(program, count) => {
                let kube_router = KubeRouterRules {
                    policies: count,
                    selects: Box::new(|_, pod| pod < REPLICAS),
                    members: Box::new(move |n, peer| match (n + 1 == count, peer) {
                        (true, 0) => vec![remote_ip(CLIENT * REPLICAS)],
                        (_, _) => vec![remote_ip(n)],
                    }),
                };
                load(program, &kube_router.sets(), &kube_router.rules());
                hook(program);
                None
            }
        }
    }
}

/// The cluster's firewall. These policies replace those of the pod's namespace.
fn firewall_of(cluster: Cluster, policies: impl IntoIterator<Item = Event>) -> Firewall {
    let mut facts = cluster.facts();
    facts.retain(|fact| !is_of_the_pods_namespace(cluster, fact));
    facts.extend(policies);
    let mut engine = Engine::new();
    engine.change(facts);
    engine.firewall
}

/// Whether this is a policy of the pod's namespace.
fn is_of_the_pods_namespace(cluster: Cluster, fact: &Event) -> bool {
    matches!(fact, Event::NetworkPolicy(name, _) if *name.namespace == *cluster.namespace(0))
}

/// Policy `n` of `of` that select the server. Only the last one permits the client.
fn selecting(cluster: Cluster, n: u32, of: u32) -> Event {
    let peer = match n + 1 == of {
        true => CLIENT,
        // Any app but the client's.
        false => (CLIENT + 1 + n % (APPS - 1)) % APPS,
    };
    let policy = NetworkPolicy {
        name: cluster.policy_name(cluster.namespaces * (cluster.policies + n)),
        pods: Selector::default(),
        ingress: Some(vec![from(vec![app(Namespaces::Own, peer)])]),
        egress: None,
        is_understood: true,
    };
    Event::NetworkPolicy(policy.name.clone(), Some(policy))
}

/// One policy that permits the client this many ranges of ports, the server's port among them.
fn port_ranges(cluster: Cluster, count: u16) -> Event {
    // Between the ranges are ports that nobody may use, so the ranges cannot be merged.
    let ranges = (1..=count).map(|n| range(8 * n, 8 * n + 2));
    let ranges = ranges.filter(|other| *other != range(8080, 8082));
    let ports: Vec<PolicyPort> = ranges.chain([range(8079, 8081)]).map(entry).collect();
    with_rules(cluster, |rules| rules[0].ports = Ports::These(ports))
}

/// One policy that permits the same range of ports to this many peers, the client among them.
fn range_of_peers(cluster: Cluster, count: u16) -> Event {
    with_rules(cluster, |rules| {
        let client = rules.remove(0).peers;
        let block = |n: u16| {
            let address = Ipv4Addr::from(0xac10_0000 + 2 * u32::from(n));
            let range = IpNetwork::from(IpAddr::from(address));
            Peers::These(vec![PolicyPeer::Block(Block { range, except: Vec::new() })])
        };
        // One rule for each peer.
        let peers = (1..count).map(block).chain([client]).enumerate();
        let ports = Ports::These(vec![entry(range(8079, 8081))]);
        let rule = |(index, peers)| PolicyRule { index, peers, ports: ports.clone() };
        rules.extend(peers.map(rule));
    })
}

fn range(first: u16, last: u16) -> PortMatch {
    let port = |number: u16| NonZeroU16::new(number).expect("not 0");
    PortMatch::Range(port(first), port(last))
}

fn entry(port: PortMatch) -> PolicyPort {
    PolicyPort { protocol: Protocol::Tcp, port }
}

/// The only policy that selects the server. `change` gets its rules, which permit the client.
fn with_rules(cluster: Cluster, change: impl FnOnce(&mut Vec<PolicyRule>)) -> Event {
    let mut event = selecting(cluster, 0, 1);
    if let Event::NetworkPolicy(_, Some(NetworkPolicy { ingress: Some(rules), .. })) = &mut event {
        change(rules);
    }
    event
}

/// Links a host to the node, which is its gateway.
fn wire(node: &Namespace, host: &Namespace, link: &str, gateway: Ipv4Addr, address: Ipv4Addr) {
    let other = host.path().display().to_string();
    node.ip(&format!("link add {link} type veth peer name eth0 netns {other}"));
    node.ip(&format!("address add {gateway}/16 dev {link}"));
    node.ip(&format!("link set {link} up"));
    host.ip(&format!("address add {address}/16 dev eth0"));
    host.ip("link set eth0 up");
    host.ip(&format!("route add default via {gateway}"));
}
