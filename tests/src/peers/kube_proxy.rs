//! The rules of a kube-proxy in iptables mode, and how it writes them: the first full load, partial
//! updates that contain only what changed, and canary chains by which it notices that the tables
//! were flushed. And the rules of its ipvs and nftables modes.

pub mod ipvs;
pub mod nftables;

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use data_encoding::BASE32;
use sha2::{Digest, Sha256};

use crate::kernel::iptables::Variant;
use crate::node::netns::Netns;

/// A TCP service port with endpoints, as kube-proxy sees it in one family.
#[derive(Debug, Clone)]
pub struct Served {
    /// `namespace/name:port`.
    pub name: String,
    /// Its cluster IP and port.
    pub at: SocketAddr,
    /// Its endpoints.
    pub endpoints: Vec<SocketAddr>,
}

/// A kube-proxy that writes IPv4 rules.
#[derive(Debug)]
pub struct KubeProxy<'a> {
    /// The node it is on.
    pub node: &'a Netns,
    /// The tables it writes to.
    pub variant: Variant,
    /// All that it serves.
    pub services: Vec<Served>,
    /// Connections from outside this range are masqueraded.
    pub cluster_cidr: &'a str,
}

/// A cluster CIDR that contains no host.
pub const NOBODY: &str = "100.64.0.0/10";

/// The canary chain: if a table lacks it, somebody has flushed the table.
const CANARY: &str = "KUBE-PROXY-CANARY";

/// The jumps of kube-proxy 1.33, in the order in which it checks for them.
const JUMPS: [(&str, &str, &str, &str); 11] = [
    (
        "filter",
        "INPUT",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\"",
        "KUBE-EXTERNAL-SERVICES",
    ),
    (
        "filter",
        "FORWARD",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\"",
        "KUBE-EXTERNAL-SERVICES",
    ),
    (
        "filter",
        "INPUT",
        "-m comment --comment \"kubernetes health check service ports\"",
        "KUBE-NODEPORTS",
    ),
    (
        "filter",
        "FORWARD",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\"",
        "KUBE-SERVICES",
    ),
    (
        "filter",
        "OUTPUT",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\"",
        "KUBE-SERVICES",
    ),
    ("filter", "FORWARD", "-m comment --comment \"kubernetes forwarding rules\"", "KUBE-FORWARD"),
    (
        "filter",
        "INPUT",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\"",
        "KUBE-PROXY-FIREWALL",
    ),
    (
        "filter",
        "FORWARD",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\"",
        "KUBE-PROXY-FIREWALL",
    ),
    ("nat", "OUTPUT", "-m comment --comment \"kubernetes service portals\"", "KUBE-SERVICES"),
    ("nat", "PREROUTING", "-m comment --comment \"kubernetes service portals\"", "KUBE-SERVICES"),
    (
        "nat",
        "POSTROUTING",
        "-m comment --comment \"kubernetes postrouting rules\"",
        "KUBE-POSTROUTING",
    ),
];

const FILTER: &str = "*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" \
    -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" \
    -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
";

const NAT: &str = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
";

const NAT_RULES: &str = "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" \
    -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
";

impl KubeProxy<'_> {
    /// The first full load, canaries and jumps included.
    pub fn start(&self) -> Result<()> {
        let mangle = format!("*mangle\n:{CANARY} - [0:0]\nCOMMIT\n");
        self.write(&mangle)?;
        let mut text = String::new();
        for table in ["filter", "nat"] {
            text += &format!("*{table}\n:{CANARY} - [0:0]\n");
            for (_, from, tests, to) in JUMPS.iter().filter(|jump| jump.0 == table) {
                text += &format!(":{to} - [0:0]\n-I {from} {tests} -j {to}\n");
            }
            text += "COMMIT\n";
        }
        self.write(&text)?;
        self.sync(&self.services)
    }

    /// A partial update: the chains of `changed` services, and the chains that are always written.
    pub fn sync(&self, changed: &[Served]) -> Result<()> {
        let (mut chains, mut rules) = (String::new(), NAT_RULES.to_owned());
        for served in changed {
            for chain in [vec![served.chain()], served.endpoint_chains()].concat() {
                chains += &format!(":{chain} - [0:0]\n");
            }
            rules += &served.rules(self.cluster_cidr);
        }
        for served in &self.services {
            let (ip, port) = (served.at.ip(), served.at.port());
            let (name, chain) = (&served.name, served.chain());
            rules += &format!(
                "-A KUBE-SERVICES -m comment --comment \"{name} cluster IP\" -m tcp -p tcp -d {ip} \
                 --dport {port} -j {chain}\n"
            );
        }
        rules += "-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this \
                  must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j \
                  KUBE-NODEPORTS\n";
        self.write(&format!("{FILTER}{NAT}{chains}{rules}COMMIT\n"))
    }

    /// Whether its canary chains exist. Without them it would write everything anew.
    pub fn canaries_live(&self) -> Result<bool> {
        let saved = self.variant.dump(self.node)?;
        Ok(saved
            .lines()
            .filter(|line| line.starts_with("iptables ") && line.contains(&format!(":{CANARY} ")))
            .count()
            == 3)
    }

    /// Whether each of its jumps exists exactly once, word for word, and there is no other jump
    /// between the same chains: otherwise it would add its own at its next full load.
    pub fn jumps_stand(&self) -> Result<bool> {
        let saved = self.variant.dump(self.node)?;
        let of = |begin: String, end: String| {
            let lines =
                saved.lines().filter(move |line| line.starts_with(&begin) && line.ends_with(&end));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        Ok(JUMPS.iter().all(|(table, from, tests, to)| {
            let begin = format!("iptables {table}: -A {from} ");
            of(begin.clone(), format!(" -j {to}")) == [format!("{begin}{tests} -j {to}")]
        }))
    }

    fn write(&self, input: &str) -> Result<()> {
        self.variant.restore(self.node, "iptables", input)
    }
}

/// The chain of a TCP service port that is called `namespace/name:port`.
pub fn service_chain(name: &str) -> String {
    format!("KUBE-SVC-{}", hash(&format!("{name}tcp")))
}

impl Served {
    fn chain(&self) -> String {
        service_chain(&self.name)
    }

    fn endpoint_chain(&self, at: &SocketAddr) -> String {
        format!("KUBE-SEP-{}", hash(&format!("{}tcp{at}", self.name)))
    }

    fn endpoint_chains(&self) -> Vec<String> {
        self.endpoints.iter().map(|at| self.endpoint_chain(at)).collect()
    }

    fn rules(&self, cluster_cidr: &str) -> String {
        let (name, chain, at) = (&self.name, self.chain(), self.at);
        let (ip, port) = (at.ip(), at.port());
        let mut rules = format!(
            "-A {chain} -m comment --comment \"{name} cluster IP\" -m tcp -p tcp -d {ip} \
             --dport {port} ! -s {cluster_cidr} -j KUBE-MARK-MASQ\n"
        );
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let left = self.endpoints.len() - index;
            let chance = match left {
                1 => String::new(),
                _ => format!("-m statistic --mode random --probability {:.10} ", 1.0 / left as f64),
            };
            let own: IpAddr = endpoint.ip();
            let to = self.endpoint_chain(endpoint);
            rules += &format!(
                "-A {chain} -m comment --comment \"{name} -> {endpoint}\" {chance}-j {to}\n"
            );
            rules += &format!("-A {to} -m comment --comment {name} -s {own} -j KUBE-MARK-MASQ\n");
            rules += &format!(
                "-A {to} -m comment --comment {name} -m tcp -p tcp -j DNAT --to-destination {endpoint}\n"
            );
        }
        rules
    }
}

fn hash(text: &str) -> String {
    let mut encoded = BASE32.encode(&Sha256::digest(text));
    encoded.truncate(16);
    encoded
}
