//! What the pod firewall costs: `cargo bench -p denizen-tests --bench network_policy`, as root.
//!
//! 250 pods of this node, 100 policies, 10,000 pods of other nodes, through the agent's own plan and
//! firewall, in a network namespace that is made here; next to kube-router's shape (a chain for each
//! pod and each policy, with a set for each selector) through `ipset restore` and
//! `iptables-restore`, which it executes for every change. It prints, and asserts no time.

#![expect(
    clippy::disallowed_methods,
    reason = "a bench reads the clock and executes the programs that it compares with"
)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use denizen_agent::firewall::Firewall;
use denizen_agent::model::{
    ClusterPod, Event, Labels, Listing, LocalPod, Namespace, Namespaces, NetworkPolicy, Operator,
    Peer, Peers, PodName, PodSet, PolicyName, PolicyPort, PolicyRule, PortMatch, Ports, Protocol,
    Requirement, SandboxUids, Selector,
};
use denizen_agent::plan::{
    Capabilities, Detector, FirewallSettings, NodePortAddresses, NodeSide, Planner, Policy,
    Settings,
};
use denizen_nft::Kernel;
use denizen_state::{AttachmentId, Epoch, Generation};
use denizen_tests::cni;

const LOCAL: u32 = 250;
const POLICIES: u32 = 100;
const REMOTE: u32 = 10_000;
const NAMESPACES: u32 = 25;
/// Pods of one Deployment.
const REPLICAS: u32 = 20;
/// How often each change is made; the median counts.
const TIMES: u32 = 101;

fn main() -> ExitCode {
    if !std::env::args().any(|word| word == "--bench") {
        println!("not run: this is a bench, and `cargo test` builds it only");
        return ExitCode::SUCCESS;
    }
    println!("\n## {LOCAL} local pods, {POLICIES} policies, {REMOTE} remote pods\n");
    cni::Namespace::new().run(ours);
    cni::Namespace::new().run(theirs);
    ExitCode::SUCCESS
}

fn namespace(n: u32) -> String {
    format!("team-{}", n % NAMESPACES)
}

fn remote_ip(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 64, 0, 0)) + n))
}

fn local_ip(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 1, 0, 0)) + n))
}

fn labels(n: u32) -> Labels {
    let app = n / REPLICAS;
    Labels::from_iter([
        ("app", format!("app-{}", app % 40)),
        ("tier", format!("tier-{}", app % 3)),
        ("pod-template-hash", format!("{app:08x}")),
    ])
}

fn pod_name(kind: &str, n: u32) -> PodName {
    PodName { namespace: namespace(n / REPLICAS).into(), name: format!("{kind}-{n}").into() }
}

fn pod(kind: &str, n: u32, ip: IpAddr, is_here: bool) -> Event {
    let name = pod_name(kind, n);
    let here = is_here.then(|| SandboxUids { uid: format!("{n}").into(), config_hash: None });
    let pod = ClusterPod {
        name: name.clone(),
        labels: labels(n),
        ips: [ip].into(),
        ports: [].into(),
        created: 0,
        here,
    };
    Event::ClusterPod(name, Some(pod))
}

fn is(key: &str, value: String) -> Selector {
    let operator = Operator::In([value.into()].into());
    Selector { requirements: [Requirement { key: key.into(), operator }].into() }
}

/// Ingress from two apps of the namespace and one of every namespace, to two ports; egress to the
/// namespace, and to DNS anywhere.
fn policy(n: u32) -> Event {
    let name = PolicyName { namespace: namespace(n).into(), name: format!("policy-{n}").into() };
    let port = |protocol, number: u16| {
        let number = number.try_into().expect("not 0");
        PolicyPort { protocol, port: PortMatch::Range(number, number) }
    };
    let pods = |namespaces, pods| Peer::Pods { namespaces, pods };
    let app = |n: u32| is("app", format!("app-{}", n % 40));
    let ingress = PolicyRule {
        index: 0,
        peers: Peers::These(vec![
            pods(Namespaces::Own, app(n)),
            pods(Namespaces::Own, app(n + 1)),
            pods(Namespaces::Selected(Selector::default()), app(n + 2)),
        ]),
        ports: Ports::These(vec![port(Protocol::Tcp, 8080), port(Protocol::Tcp, 9090)]),
    };
    let own = PolicyRule {
        index: 0,
        peers: Peers::These(vec![pods(Namespaces::Own, Selector::default())]),
        ports: Ports::All,
    };
    let dns = Ports::These(vec![port(Protocol::Udp, 53), port(Protocol::Tcp, 53)]);
    let dns = PolicyRule { index: 1, peers: Peers::All, ports: dns };
    let policy = NetworkPolicy {
        name: name.clone(),
        pods: is("tier", format!("tier-{}", n % 3)),
        ingress: Some(vec![ingress]),
        is_understood: true,
        egress: Some(vec![own, dns]),
    };
    Event::NetworkPolicy(name, Some(policy))
}

fn recorded(count: u32, generation: u64) -> Event {
    let pod = |n: u32| LocalPod {
        id: AttachmentId(format!("{n:064x}/eth0")),
        pod: Some(pod_name("local", n)),
        uid: Some(format!("{n}").into()),
        interface: format!("veth{n}").into(),
        port: None,
        shares_interface: false,
        ips: vec![local_ip(n)],
        added_at: "2026-11-20T12:00:00Z".into(),
        adopted: false,
    };
    let version = Some((Epoch("e".into()), Generation(generation)));
    Event::Pods(PodSet { version, pods: (0..count).map(pod).collect() })
}

struct Ours {
    planner: Planner,
    firewall: Firewall,
}

impl Ours {
    fn new() -> Self {
        let policy = Policy {
            settings: Settings {
                node_name: "node-1".into(),
                masquerade_all: false,
                node_hints: true,
            },
            detector: Detector::default(),
            node_ports: NodePortAddresses::Primary,
            node_side: NodeSide::default(),
            services: true,
            firewall: Some(FirewallSettings::default()),
        };
        let able = Capabilities {
            unused_addresses: true,
            guards_loopback_first: true,
            restricts_first: true,
        };
        let firewall = Firewall::new(Kernel::open().expect("netlink, as root"));
        Self { planner: Planner::new(policy, able), firewall }
    }

    /// From the fact to the kernel's acknowledgement; of that, what the kernel took.
    fn change(&mut self, events: Vec<Event>) -> (Duration, Duration) {
        let begun = Instant::now();
        self.planner.apply(events);
        let changes = self.planner.update();
        self.firewall.update(self.planner.plan(), &changes);
        let decided = Instant::now();
        self.firewall.sync(self.planner.plan()).expect("the kernel takes it");
        (begun.elapsed(), decided.elapsed())
    }
}

fn shown(what: &str, mut costs: Vec<(Duration, Duration)>) {
    costs.sort_unstable();
    let (whole, kernel) = costs[costs.len() / 2];
    println!("{what:<52}{:>10.3} ms, of it written in {:.3} ms", ms(whole), ms(kernel));
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn ours() {
    let mut ours = Ours::new();
    let mut facts: Vec<Event> = (0..NAMESPACES)
        .map(|n| {
            let name: std::sync::Arc<str> = namespace(n).into();
            let labels = Labels::from_iter([("team", format!("{n}"))]);
            Event::Namespace(name.clone(), Some(Namespace { name, labels, is_ending: false }))
        })
        .collect();
    facts.extend((0..POLICIES).map(policy));
    facts.extend((0..REMOTE).map(|n| pod("remote", n, remote_ip(n), false)));
    facts.extend((0..=LOCAL).map(|n| pod("local", n, local_ip(n), true)));
    facts.push(recorded(LOCAL, 1));
    facts.extend(Listing::FIREWALL.map(Event::Listed));
    let before = resident();
    shown("cold start", vec![ours.change(facts)]);
    println!("{:<52}{:>10.1} MB", "resident memory, more than before", resident() - before);
    let report = ours.firewall.report(ours.planner.plan());
    println!("{:<52}{:>10}", "elements", report.elements);
    let at = |n: u32| REMOTE + n;
    let mut run = |what: &str, change: &dyn Fn(u32) -> Vec<Event>| {
        let costs = (0..TIMES).map(|n| ours.change(change(n))).collect();
        shown(what, costs);
    };
    run("one remote pod more", &|n| vec![pod("remote", at(n), remote_ip(at(n)), false)]);
    run("one remote pod fewer", &|n| vec![Event::ClusterPod(pod_name("remote", at(n)), None)]);
    run("one local pod more or fewer", &|n| vec![recorded(LOCAL + (n + 1) % 2, u64::from(n) + 2)]);
    run("one remote pod's labels", &|n| {
        let Event::ClusterPod(name, Some(pod)) = pod("remote", 7, remote_ip(7), false) else {
            return Vec::new();
        };
        let labels = labels(if n % 2 == 0 { 7 + REPLICAS } else { 7 });
        vec![Event::ClusterPod(name, Some(ClusterPod { labels, ..pod }))]
    });
    let look = |ours: &mut Ours, is_disturbed: bool| {
        if is_disturbed {
            ours.firewall.disturbed();
        }
        let begun = Instant::now();
        ours.firewall.resync(ours.planner.plan()).expect("the kernel answers");
        (begun.elapsed(), begun.elapsed())
    };
    for (what, is_disturbed) in
        [("a look while nobody else commits", false), ("a look after others' changes", true)]
    {
        shown(what, (0..TIMES).map(|_| look(&mut ours, is_disturbed)).collect());
    }
    let mut run = |what: &str, change: &dyn Fn(u32) -> Vec<Event>| {
        let costs = (0..TIMES).map(|n| ours.change(change(n))).collect();
        shown(what, costs);
    };
    run("one policy more or fewer", &|n| match (n % 2, policy(POLICIES)) {
        (0, more) => vec![more],
        (_, Event::NetworkPolicy(name, _)) => vec![Event::NetworkPolicy(name, None)],
        (_, _) => Vec::new(),
    });
}

fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1e3
}

/// kube-router's shape for the same: a full sync, as for every change.
fn theirs() {
    let mut sets = String::new();
    let mut rules = String::from("*filter\n:KR-FORWARD - [0:0]\n");
    let members = |app: u32, of: Option<u32>| {
        (0..REMOTE).filter(move |n| {
            let is_app = n / REPLICAS % 40 == app % 40;
            is_app && of.is_none_or(|of| n / REPLICAS % NAMESPACES == of % NAMESPACES)
        })
    };
    for n in 0..POLICIES {
        for (peer, of) in [(n, Some(n)), (n + 1, Some(n)), (n + 2, None)] {
            let set = format!("KR-{n}-{}", peer - n);
            let _ = writeln!(sets, "create {set} hash:ip family inet -exist");
            let _ = writeln!(sets, "flush {set}");
            for member in members(peer, of) {
                let _ = writeln!(sets, "add {set} {}", remote_ip(member));
            }
            let _ = writeln!(rules, ":KR-NP-{n}-{} - [0:0]", peer - n);
        }
    }
    for n in 0..LOCAL {
        let _ = writeln!(rules, ":KR-POD-{n} - [0:0]");
    }
    for n in 0..POLICIES {
        for peer in 0..3 {
            for port in [8080, 9090] {
                let _ = writeln!(
                    rules,
                    "-A KR-NP-{n}-{peer} -m set --match-set KR-{n}-{peer} src -p tcp --dport {port} -j MARK --set-xmark 0x10000/0x10000"
                );
            }
        }
    }
    for n in 0..LOCAL {
        let ip = local_ip(n);
        let _ = writeln!(
            rules,
            "-A KR-FORWARD -d {ip} -j KR-POD-{n}\n-A KR-FORWARD -s {ip} -j KR-POD-{n}"
        );
        let _ =
            writeln!(rules, "-A KR-POD-{n} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
        let of_namespace = (0..POLICIES).filter(|p| p % NAMESPACES == n / REPLICAS % NAMESPACES);
        for policy in of_namespace.filter(|policy| policy % 3 == n / REPLICAS % 3) {
            for peer in 0..3 {
                let _ = writeln!(rules, "-A KR-POD-{n} -d {ip} -j KR-NP-{policy}-{peer}");
            }
        }
        let _ = writeln!(rules, "-A KR-POD-{n} -m mark ! --mark 0x10000/0x10000 -j REJECT");
    }
    rules.push_str("COMMIT\n");
    println!();
    for program in ["iptables-nft-restore", "iptables-legacy-restore"] {
        let mut times: Vec<Duration> = (0..3)
            .map(|_| {
                let begun = Instant::now();
                run("ipset", &["restore", "-exist"], &sets);
                run(program, &["--noflush"], &rules);
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        let what = format!("kube-router's shape, each change, {program}");
        println!("{what:<66}{:>10.1} ms", ms(times[1]));
    }
}

fn run(program: &str, args: &[&str], input: &str) {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program is installed");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{program}: {status}");
}
