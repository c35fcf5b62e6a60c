//! The facts of a cluster, as the agent's sources would send them: Deployments of twenty pods, each
//! in one of the namespaces, and policies in these namespaces.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use denizen_model::{
    ClusterPod, Event, Labels, Listing, LocalPod, Namespace, Namespaces, NetworkPolicy, Operator,
    OwnPodFacts, Peers, PodName, PodSet, PolicyName, PolicyPeer, PolicyPort, PolicyRule, PortMatch,
    Ports, Protocol, Requirement, Selector,
};
use denizen_state::{AttachmentId, Epoch, Generation};

use crate::tiers;

/// Pods of one Deployment.
pub const REPLICAS: u32 = 20;
/// Different values of the label `app`.
pub const APPS: u32 = 40;
/// Pods of this node.
pub const LOCAL: u32 = 250;

/// How large a cluster is.
#[derive(Debug, Clone, Copy)]
pub struct Cluster {
    /// Namespaces. Not a multiple of [`APPS`], so that each has pods of many apps.
    pub namespaces: u32,
    pub policies: u32,
    /// ClusterNetworkPolicies.
    pub tiers: u32,
    /// Pods of other nodes.
    pub remote: u32,
}

impl Cluster {
    /// The namespace of a Deployment, or of a policy.
    pub fn namespace(self, n: u32) -> String {
        format!("team-{}", n % self.namespaces)
    }

    /// All facts of the cluster; every list is complete.
    pub fn facts(self) -> Vec<Event> {
        let mut facts: Vec<Event> =
            (0..self.namespaces).map(|n| self.namespace_object(n)).collect();
        facts.extend((0..self.policies).map(|n| self.policy(n)));
        facts.extend((0..self.tiers).map(|n| self.tier_policy(n)));
        facts.extend(self.pods("remote", 0, self.remote));
        facts.extend(self.pods("local", 0, LOCAL + 1));
        facts.push(self.recorded(LOCAL, 1));
        facts.extend(Listing::FIREWALL.map(Event::Listed));
        facts
    }

    fn namespace_object(self, n: u32) -> Event {
        let name: Arc<str> = self.namespace(n).into();
        let labels = Labels::from_iter([("team", format!("{n}"))]);
        Event::Namespace(name.clone(), Some(Namespace { name, labels, is_ending: false }))
    }

    /// Pods from one number up to another. Pods of a Deployment share their strings, as they do
    /// when the source sends them.
    pub fn pods(self, kind: &str, from: u32, to: u32) -> Vec<Event> {
        let mut events = Vec::new();
        for app in from / REPLICAS..to.div_ceil(REPLICAS) {
            let (namespace, labels) = (Arc::from(self.namespace(app)), labels(app));
            for n in (app * REPLICAS).max(from)..((app + 1) * REPLICAS).min(to) {
                let name = PodName { namespace: Arc::clone(&namespace), name: name(kind, n) };
                events.push(pod(name, labels.clone(), n, kind == "local"));
            }
        }
        events
    }

    /// The name of a pod of a Deployment.
    pub fn pod_name(self, kind: &str, app: u32, n: u32) -> PodName {
        PodName { namespace: self.namespace(app).into(), name: name(kind, n) }
    }

    /// A remote pod of a Deployment.
    pub fn remote_pod(self, app: u32, n: u32) -> Event {
        pod(self.pod_name("remote", app, n), labels(app), n, false)
    }

    /// The name of a policy.
    pub fn policy_name(self, n: u32) -> PolicyName {
        PolicyName { namespace: self.namespace(n).into(), name: format!("policy-{n}").into() }
    }

    /// A policy that permits ingress from two apps of its namespace and from one app in every
    /// namespace, to two ports; and egress to its namespace, and to DNS anywhere.
    pub fn policy(self, n: u32) -> Event {
        let every = Namespaces::Selected(Selector::default());
        let peers = vec![app(Namespaces::Own, n), app(Namespaces::Own, n + 1), app(every, n + 2)];
        let all = PolicyPeer::Pods { namespaces: Namespaces::Own, pods: Selector::default() };
        let own = PolicyRule { index: 0, peers: Peers::These(vec![all]), ports: Ports::All };
        let dns = Ports::These(vec![port(Protocol::Udp, 53), port(Protocol::Tcp, 53)]);
        let dns = PolicyRule { index: 1, peers: Peers::All, ports: dns };
        let policy = NetworkPolicy {
            name: self.policy_name(n),
            pods: is("tier", format!("tier-{}", n % 3)),
            ingress: Some(vec![from(peers)]),
            is_understood: true,
            egress: Some(vec![own, dns]),
        };
        Event::NetworkPolicy(policy.name.clone(), Some(policy))
    }

    /// A ClusterNetworkPolicy.
    pub fn tier_policy(self, n: u32) -> Event {
        let policy = tiers::policy(self, n);
        Event::ClusterNetworkPolicy(policy.name.clone(), Some(policy))
    }

    /// This many pods of this node, as the plugin recorded them.
    pub fn recorded(self, count: u32, generation: u64) -> Event {
        let pod = |n: u32| LocalPod {
            id: AttachmentId(format!("{n:064x}/eth0")),
            pod: Some(self.pod_name("local", n / REPLICAS, n)),
            uid: Some(format!("{n}").into()),
            interface: interface(n).into(),
            port: None,
            bridge: None,
            ips: vec![local_ip(n).into()],
            vlan_port: None,
            mac: None,
            added_at: "2026-11-20T12:00:00Z".into(),
            adopted: false,
            host_ports: Vec::new(),
            redirect: None,
        };
        let version = Some((Epoch("e".into()), Generation(generation)));
        Event::Pods(PodSet { version, pods: (0..count).map(pod).collect() })
    }
}

/// The node's end of a local pod's link.
pub fn interface(n: u32) -> String {
    format!("veth{n}")
}

/// The address of a pod of another node.
pub fn remote_ip(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 64, 0, 0)) + n)
}

/// The address of a pod of this node.
pub fn local_ip(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 1, 0, 0)) + n)
}

/// The address of a pod's node: a node other than this one has 30 pods.
fn node_ip(n: u32, is_here: bool) -> IpAddr {
    let node = if is_here { 0 } else { 1 + n / 30 };
    Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 16, 0, 0)) + node).into()
}

/// The labels of a Deployment's pods.
fn labels(app: u32) -> Labels {
    Labels::from_iter([
        ("app", format!("app-{}", app % APPS)),
        ("tier", format!("tier-{}", app % 3)),
        ("pod-template-hash", format!("{app:08x}")),
    ])
}

fn name(kind: &str, n: u32) -> Arc<str> {
    format!("{kind}-{n}").into()
}

fn pod(name: PodName, labels: Labels, n: u32, is_here: bool) -> Event {
    let ip = if is_here { local_ip(n) } else { remote_ip(n) };
    let pod = ClusterPod {
        labels,
        ips: [IpAddr::V4(ip)].into(),
        host_ips: [node_ip(n, is_here)].into(),
        here: is_here.then(|| OwnPodFacts::new(format!("{n}").into()).into()),
        ..ClusterPod::named(name.clone())
    };
    Event::ClusterPod(name, Some(pod.into()))
}

/// A selector for what has this label.
pub fn is(key: &str, value: String) -> Selector {
    let operator = Operator::In([value.into()].into());
    Selector { requirements: [Requirement { key: key.into(), operator }].into() }
}

/// The pods of an app, as a peer.
pub fn app(namespaces: Namespaces, n: u32) -> PolicyPeer {
    PolicyPeer::Pods { namespaces, pods: is("app", format!("app-{}", n % APPS)) }
}

fn port(protocol: Protocol, number: u16) -> PolicyPort {
    let number = number.try_into().expect("not 0");
    PolicyPort { protocol, port: PortMatch::Range(number, number) }
}

/// An ingress rule for these peers, to two ports.
pub fn from(peers: Vec<PolicyPeer>) -> PolicyRule {
    let ports = Ports::These(vec![port(Protocol::Tcp, 8080), port(Protocol::Tcp, 9090)]);
    PolicyRule { index: 0, peers: Peers::These(peers), ports }
}
