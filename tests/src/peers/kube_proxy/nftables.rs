//! The tables of a kube-proxy in nftables mode: a chain for each service and each endpoint, and
//! maps that lead to them.

use std::fmt::Write as _;

use anyhow::Result;

use super::{KubeProxy, Served, hash};

/// What is there without any service. The checks come before its own translation, or behind it; a
/// packet to a cluster IP that nobody has translated by then is refused.
const BASE: &str = "add table ip kube-proxy { comment \"rules for kube-proxy\"; }
add set ip kube-proxy cluster-ips { type ipv4_addr; }
add set ip kube-proxy nodeport-ips { type ipv4_addr; }
add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
add map ip kube-proxy service-nodeports { type inet_proto . inet_service : verdict; }
add map ip kube-proxy no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
add map ip kube-proxy firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
add chain ip kube-proxy mark-for-masquerade
add rule ip kube-proxy mark-for-masquerade mark set mark or 0x4000
add chain ip kube-proxy masquerading
add rule ip kube-proxy masquerading mark and 0x4000 == 0 return
add rule ip kube-proxy masquerading mark set mark xor 0x4000
add rule ip kube-proxy masquerading masquerade fully-random
add chain ip kube-proxy firewall-check
add rule ip kube-proxy firewall-check ip daddr . meta l4proto . th dport vmap @firewall-ips
add chain ip kube-proxy reject-chain
add rule ip kube-proxy reject-chain reject
add chain ip kube-proxy service-endpoints-check
add rule ip kube-proxy service-endpoints-check ip daddr . meta l4proto . th dport vmap @no-endpoint-services
add chain ip kube-proxy cluster-ips-check
add rule ip kube-proxy cluster-ips-check ip daddr @cluster-ips reject
add chain ip kube-proxy services
add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
add rule ip kube-proxy services ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
add chain ip kube-proxy filter-prerouting { type filter hook prerouting priority -110; }
add rule ip kube-proxy filter-prerouting ct state new jump firewall-check
add chain ip kube-proxy filter-input { type filter hook input priority -110; }
add rule ip kube-proxy filter-input ct state new jump service-endpoints-check
add chain ip kube-proxy filter-forward { type filter hook forward priority -110; }
add rule ip kube-proxy filter-forward ct state new jump service-endpoints-check
add rule ip kube-proxy filter-forward ct state new jump cluster-ips-check
add chain ip kube-proxy filter-output { type filter hook output priority -110; }
add rule ip kube-proxy filter-output ct state new jump service-endpoints-check
add rule ip kube-proxy filter-output ct state new jump firewall-check
add chain ip kube-proxy filter-output-post-dnat { type filter hook output priority -90; }
add rule ip kube-proxy filter-output-post-dnat ct state new jump cluster-ips-check
add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -100; }
add rule ip kube-proxy nat-prerouting jump services
add chain ip kube-proxy nat-output { type nat hook output priority -100; }
add rule ip kube-proxy nat-output jump services
add chain ip kube-proxy nat-postrouting { type nat hook postrouting priority 100; }
add rule ip kube-proxy nat-postrouting jump masquerading
";

impl KubeProxy<'_> {
    /// The first full load in nftables mode: everything in one transaction.
    pub fn start_nftables(&self) -> Result<()> {
        let mut text = BASE.to_owned();
        for served in &self.services {
            served.add_to(&mut text)?;
        }
        self.node.nft(&text)
    }

    /// What `kube-proxy --cleanup` does to them.
    pub fn remove_nftables(&self) -> Result<()> {
        self.node.nft("delete table ip kube-proxy\n")
    }
}

impl Served {
    /// A cluster CIDR in which nobody is: everybody is masqueraded.
    fn add_to(&self, text: &mut String) -> std::fmt::Result {
        let (ip, port) = (self.at.ip(), self.at.port());
        let chain = format!("service-{}-{}", hash(&self.name), self.name.replace(':', "/tcp/"));
        let mut choices = Vec::new();
        for (slot, endpoint) in self.endpoints.iter().enumerate() {
            let (own, own_port) = (endpoint.ip(), endpoint.port());
            let to = format!("endpoint-{}-{own}/{own_port}", hash(&format!("{chain}{endpoint}")));
            writeln!(
                text,
                "add chain ip kube-proxy {to}\n\
                 add rule ip kube-proxy {to} ip saddr {own} jump mark-for-masquerade\n\
                 add rule ip kube-proxy {to} meta l4proto tcp dnat to {endpoint}"
            )?;
            choices.push(format!("{slot} : goto {to}"));
        }
        writeln!(
            text,
            "add chain ip kube-proxy {chain}\n\
             add rule ip kube-proxy {chain} ip daddr {ip} tcp dport {port} ip saddr != 100.64.0.0/10 jump mark-for-masquerade\n\
             add rule ip kube-proxy {chain} numgen random mod {} vmap {{ {} }}\n\
             add element ip kube-proxy cluster-ips {{ {ip} }}\n\
             add element ip kube-proxy service-ips {{ {ip} . tcp . {port} : goto {chain} }}",
            choices.len(),
            choices.join(", ")
        )
    }
}
