//! What a kube-proxy in ipvs mode makes: virtual servers, a device that has their addresses, sets,
//! and the few rules that masquerade.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};

use crate::kernel::iptables::Variant;
use crate::node::netns::Netns;
use crate::node::world::host_length;
use crate::packets::probe::Protocol;

/// The device that makes the services' addresses the node's own.
pub const DEVICE: &str = "kube-ipvs0";

/// A kube-proxy in ipvs mode, of both families.
#[derive(Debug)]
pub struct Ipvs<'a> {
    /// The node it is on.
    pub node: &'a Netns,
    /// The tables it writes to.
    pub variant: Variant,
    /// All that it serves.
    pub servers: Vec<VirtualServer>,
}

/// One address and port of a service.
#[derive(Debug, Clone)]
pub struct VirtualServer {
    /// The frontend.
    pub at: SocketAddr,
    /// The protocol, TCP or UDP.
    pub protocol: Protocol,
    /// Whether the frontend is a port at the node's address.
    pub is_node_port: bool,
    /// The real servers.
    pub endpoints: Vec<SocketAddr>,
}

/// The counters of connections, for each processor.
const STATS: &str = "/proc/thread-self/net/ip_vs_stats_percpu";

/// For each family: the name of iptables' program, ipset's name, and the prefix in sets' names.
const FAMILIES: [(&str, &str, &str); 2] = [("iptables", "inet", ""), ("ip6tables", "inet6", "6-")];

/// The sets and their types; `inet` stands for the family.
const SETS: [(&str, &str); 15] = [
    ("CLUSTER-IP", "hash:ip,port inet"),
    ("LOOP-BACK", "hash:ip,port,ip inet"),
    ("IPVS-IPS", "hash:ip inet"),
    ("EXTERNAL-IP", "hash:ip,port inet"),
    ("EXTERNAL-IP-LOCAL", "hash:ip,port inet"),
    ("LOAD-BALANCER", "hash:ip,port inet"),
    ("LOAD-BALANCER-LOCAL", "hash:ip,port inet"),
    ("LOAD-BALANCER-FW", "hash:ip,port inet"),
    ("LOAD-BALANCER-SOURCE-IP", "hash:ip,port,ip inet"),
    ("LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net inet"),
    ("NODE-PORT-TCP", "bitmap:port range 0-65535"),
    ("NODE-PORT-LOCAL-TCP", "bitmap:port range 0-65535"),
    ("NODE-PORT-UDP", "bitmap:port range 0-65535"),
    ("NODE-PORT-LOCAL-UDP", "bitmap:port range 0-65535"),
    ("HEALTH-CHECK-NODE-PORT", "bitmap:port range 0-65535"),
];

/// Its rules. The cluster CIDR contains no host, so everybody is masqueraded.
const RULES: &str = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-PROXY-CANARY - [0:0]
-I OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-SERVICES -m comment --comment \"Kubernetes service lb portal\" -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES ! -s NOBODY -m comment --comment \"Kubernetes service cluster ip + port for masquerade purpose\" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-NODE-PORT -p tcp -m comment --comment \"Kubernetes nodeport TCP port for masquerade purpose\" -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m comment --comment \"Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose\" -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
:KUBE-PROXY-CANARY - [0:0]
-I INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER
-I INPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-I INPUT -m comment --comment \"kubernetes health check rules\" -j KUBE-NODE-PORT
-I FORWARD -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-I FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-I OUTPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-OUT-FILTER
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NODE-PORT -m comment --comment \"Kubernetes health check node port\" -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
-A KUBE-PROXY-FIREWALL -m comment --comment \"Kubernetes service load balancer ip + port for load balancer with sourceRange\" -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
-A KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
-A KUBE-IPVS-OUT-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-OUT-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
COMMIT
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
";

impl Ipvs<'_> {
    /// Makes everything from nothing, in kube-proxy's order.
    pub fn start(&self) -> Result<()> {
        for (key, value) in
            [("conntrack", "1"), ("expire_nodest_conn", "1"), ("expire_quiescent_template", "1")]
        {
            self.node.sysctl(&format!("net.ipv4.vs.{key}"), value)?;
        }
        self.node.ip(&format!("link add {DEVICE} type dummy"))?;
        self.node.feed("ipset", &["restore"], &self.sets()?)?;
        for (program, family, infix) in FAMILIES {
            let nobody = if family == "inet" { "100.64.0.0/10" } else { "fd00:100:64::/48" };
            let rules = RULES.replace("NOBODY", nobody);
            let named = rules.replace("--match-set KUBE-", &format!("--match-set KUBE-{infix}"));
            self.variant.restore(self.node, program, &named)?;
        }
        let there = self.node.output("ipvsadm", &["--save", "--numeric"])?;
        self.node.feed("ipvsadm", &["--restore"], &self.virtual_servers(&there)?)?;
        self.node.ip(&self.addresses()?)
    }

    fn sets(&self) -> Result<String> {
        let mut text = String::new();
        for (_, family, infix) in FAMILIES {
            for (set, kind) in SETS {
                let kind = kind.replace(" inet", &format!(" family {family} maxelem 65536"));
                // Names of sets have at most 31 characters; kube-proxy also cuts longer ones.
                let name: String = format!("KUBE-{infix}{set}").chars().take(31).collect();
                writeln!(text, "create {name} {kind}")?;
            }
        }
        for server in &self.servers {
            let (ip, port, protocol) =
                (server.at.ip(), server.at.port(), server.protocol.to_string().to_lowercase());
            let infix = if ip.is_ipv4() { "" } else { "6-" };
            if server.is_node_port {
                writeln!(text, "add KUBE-{infix}NODE-PORT-{} {port} -exist", server.protocol)?;
            } else {
                writeln!(text, "add KUBE-{infix}CLUSTER-IP {ip},{protocol}:{port}")?;
                writeln!(text, "add KUBE-{infix}IPVS-IPS {ip} -exist")?;
            }
            for endpoint in &server.endpoints {
                let (ip, port) = (endpoint.ip(), endpoint.port());
                writeln!(text, "add KUBE-{infix}LOOP-BACK {ip},{protocol}:{port},{ip} -exist")?;
            }
        }
        Ok(text)
    }

    /// The commands that lead from the virtual servers `there`, as `ipvsadm` saves them, to these.
    fn virtual_servers(&self, there: &str) -> Result<String> {
        let there: BTreeSet<&str> = there.lines().map(str::trim_end).collect();
        let mut text = String::new();
        let mut put = |add: &str, change: &str, what: &str, how: &str| {
            let begins = format!("{add} {what} ");
            let is_there = there.iter().any(|line| line.starts_with(&begins));
            match there.contains(&*format!("{add} {what} {how}")) {
                true => Ok(()),
                false => writeln!(text, "{} {what} {how}", if is_there { change } else { add }),
            }
        };
        for server in &self.servers {
            let at = match server.protocol {
                Protocol::Tcp => format!("-t {}", server.at),
                Protocol::Udp => format!("-u {}", server.at),
                Protocol::Sctp => anyhow::bail!("no SCTP here"),
            };
            put("-A", "-E", &at, "-s rr")?;
            for endpoint in &server.endpoints {
                put("-a", "-e", &format!("{at} -r {endpoint}"), "-m -w 1")?;
            }
        }
        Ok(text)
    }

    fn addresses(&self) -> Result<String> {
        let mut text = String::new();
        for server in self.servers.iter().filter(|server| !server.is_node_port) {
            let ip = server.at.ip();
            writeln!(text, "addr replace {ip}/{} dev {DEVICE}", host_length(ip))?;
        }
        Ok(text)
    }

    /// See [`taken`].
    pub fn taken(&self) -> Result<u64> {
        taken(self.node)
    }

    /// Whether ipvs still has TCP connections that have ended. When it forgets one, the kernel also
    /// deletes the conntrack entry with the same addresses and ports, even if the connection by
    /// then belongs to somebody else.
    pub fn remembers(&self) -> Result<bool> {
        let text =
            self.node.run(|| std::fs::read_to_string("/proc/thread-self/net/ip_vs_conn"))??;
        let mut connections = text.lines().filter(|line| line.starts_with("TCP"));
        Ok(connections.any(|line| !line.contains(" ESTABLISHED ")))
    }
}

/// [`taken`], or 0 where the kernel has no IPVS.
pub fn taken_if_there(node: &Netns) -> Result<u64> {
    if node.run(|| Path::new(STATS).exists())? { taken(node) } else { Ok(0) }
}

/// How many connections ipvs has got in `node` so far. (The kernel's sums are up to two seconds
/// old; the counters of each processor are not.)
pub fn taken(node: &Netns) -> Result<u64> {
    let text = node.run(|| std::fs::read_to_string(STATS))??;
    let lines = text.lines().skip(2).map(str::trim_start);
    let of_processors = lines.take_while(|line| !line.starts_with('~'));
    let taken =
        of_processors.map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok());
    taken.sum::<Option<u64>>().with_context(|| text.clone())
}
