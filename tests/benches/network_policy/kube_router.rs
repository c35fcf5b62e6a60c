//! The same policies as kube-router renders them: a chain for each pod, for each policy and peer,
//! and a set for each peer. Each change is a full sync, as in kube-router.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use denizen_tests::bench::timing::{Samples, text, timed};
use denizen_tests::node::cni::Namespace;

use crate::cluster::{APPS, Cluster, LOCAL, REPLICAS, local_ip, remote_ip};

/// Two peers of the policy's namespace, and one of every namespace.
const PEERS: u32 = 3;
/// How often everything is written.
const TIMES: usize = 3;
/// Which programs write it.
pub const PROGRAMS: [&str; 2] = ["iptables-nft-restore", "iptables-legacy-restore"];

/// The policies to enforce, in kube-router's terms.
pub struct KubeRouterRules {
    pub policies: u32,
    /// Whether a policy selects a local pod.
    pub selects: Box<dyn Fn(u32, u32) -> bool>,
    /// The addresses of a policy's peer.
    pub members: Box<dyn Fn(u32, u32) -> Vec<Ipv4Addr>>,
}

/// Measures and prints it, for the policies of a cluster.
pub fn report(cluster: Cluster) {
    println!("\n## kube-router's shape for the same, each change\n");
    let Cluster { policies, remote, namespaces, tiers: _ } = cluster;
    let kube_router = KubeRouterRules {
        policies,
        selects: Box::new(move |policy, pod| {
            let app = pod / REPLICAS;
            policy % namespaces == app % namespaces && policy % 3 == app % 3
        }),
        members: Box::new(move |policy, peer| {
            let is_peer = |n: &u32| {
                let app = n / REPLICAS;
                let is_near = peer + 1 == PEERS || app % namespaces == policy % namespaces;
                is_near && app % APPS == (policy + peer) % APPS
            };
            (0..remote).filter(is_peer).map(remote_ip).collect()
        }),
    };
    let (sets, rules) = (kube_router.sets(), kube_router.rules());
    Namespace::new().run(move || {
        for program in PROGRAMS {
            let times: Samples =
                (0..TIMES).map(|_| timed(|| load(program, &sets, &rules)).1).collect();
            println!("{program:<50}{}", text(times.median()));
        }
    });
}

impl KubeRouterRules {
    /// For `ipset restore`.
    pub fn sets(&self) -> String {
        let mut sets = String::new();
        for (policy, peer) in self.peers() {
            let set = format!("KR-{policy}-{peer}");
            let _ = writeln!(sets, "create {set} hash:ip family inet -exist\nflush {set}");
            for member in (self.members)(policy, peer) {
                let _ = writeln!(sets, "add {set} {member}");
            }
        }
        sets
    }

    /// For `iptables-restore`.
    pub fn rules(&self) -> String {
        let mut rules = String::from("*filter\n:KR-FORWARD - [0:0]\n");
        for (policy, peer) in self.peers() {
            let _ = writeln!(rules, ":KR-NP-{policy}-{peer} - [0:0]");
        }
        for pod in 0..LOCAL {
            let _ = writeln!(rules, ":KR-POD-{pod} - [0:0]");
        }
        for (policy, peer) in self.peers() {
            for port in [8080, 9090] {
                let _ = writeln!(
                    rules,
                    "-A KR-NP-{policy}-{peer} -m set --match-set KR-{policy}-{peer} src -p tcp \
                     --dport {port} -j MARK --set-xmark 0x10000/0x10000"
                );
            }
        }
        (0..LOCAL).for_each(|pod| self.add_pod(pod, &mut rules));
        rules.push_str("COMMIT\n");
        rules
    }

    fn add_pod(&self, pod: u32, rules: &mut String) {
        let ip = local_ip(pod);
        let _ = writeln!(
            rules,
            "-A KR-FORWARD -d {ip} -j KR-POD-{pod}\n-A KR-FORWARD -s {ip} -j KR-POD-{pod}\n\
             -A KR-POD-{pod} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
        );
        for policy in (0..self.policies).filter(|policy| (self.selects)(*policy, pod)) {
            for peer in 0..PEERS {
                let _ = writeln!(rules, "-A KR-POD-{pod} -d {ip} -j KR-NP-{policy}-{peer}");
            }
        }
        let _ = writeln!(rules, "-A KR-POD-{pod} -m mark ! --mark 0x10000/0x10000 -j REJECT");
    }

    fn peers(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..self.policies).flat_map(|policy| (0..PEERS).map(move |peer| (policy, peer)))
    }
}

/// Writes sets and rules, in this thread's network namespace.
pub fn load(program: &str, sets: &str, rules: &str) {
    execute("ipset", &["restore", "-exist"], sets);
    execute(program, &["--noflush"], rules);
}

/// Makes forwarded packets traverse the rules.
pub fn hook(program: &str) {
    execute(program, &["--noflush"], "*filter\n-A FORWARD -j KR-FORWARD\nCOMMIT\n");
}

fn execute(program: &str, arguments: &[&str], input: &str) {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().expect("the program is installed");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{program}: {status}");
}
