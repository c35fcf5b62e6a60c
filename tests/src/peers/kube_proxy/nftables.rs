//! The table of a kube-proxy in nftables mode: a chain for each service and each endpoint, and maps
//! that lead to them.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::Result;

use super::{KubeProxy, Served, hash};

/// The table without any service. The filter chains run before kube-proxy's DNAT or after it; a
/// packet to a cluster IP that is still not translated then is rejected.
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

/// The first full load, in one transaction.
pub fn start(proxy: &KubeProxy<'_>) -> Result<()> {
    let mut text = BASE.to_owned();
    for served in &proxy.services {
        add_to(served, &mut text)?;
    }
    proxy.node.nft(&text)
}

/// Replaces a service's endpoints: adds new chains, and empties those of removed endpoints. (They
/// are deleted a second later, in another transaction.)
pub fn replace(proxy: &KubeProxy<'_>, before: &Served, now: &Served) -> Result<()> {
    let mut text = String::new();
    for endpoint in &now.endpoints {
        add_endpoint_to(now, &mut text, endpoint)?;
    }
    writeln!(text, "flush chain ip kube-proxy {}", chain(now))?;
    add_rules_to(now, &mut text)?;
    for gone in before.endpoints.iter().filter(|gone| !now.endpoints.contains(gone)) {
        writeln!(text, "flush chain ip kube-proxy {}", endpoint_chain(before, gone))?;
    }
    proxy.node.nft(&text)
}

/// Removes the table, as `kube-proxy --cleanup` does.
pub fn remove(proxy: &KubeProxy<'_>) -> Result<()> {
    proxy.node.nft("delete table ip kube-proxy\n")
}

fn chain(served: &Served) -> String {
    format!("service-{}-{}", hash(&served.name), served.name.replace(':', "/tcp/"))
}

fn endpoint_chain(served: &Served, endpoint: &SocketAddr) -> String {
    let (ip, port) = (endpoint.ip(), endpoint.port());
    let hash = hash(&format!("{}{endpoint}", chain(served)));
    format!("endpoint-{hash}-{ip}/{port}")
}

fn add_to(served: &Served, text: &mut String) -> std::fmt::Result {
    let (ip, port) = (served.at.ip(), served.at.port());
    for endpoint in &served.endpoints {
        add_endpoint_to(served, text, endpoint)?;
    }
    let chain = chain(served);
    writeln!(text, "add chain ip kube-proxy {chain}")?;
    add_rules_to(served, text)?;
    writeln!(
        text,
        "add element ip kube-proxy cluster-ips {{ {ip} }}\n\
         add element ip kube-proxy service-ips {{ {ip} . tcp . {port} : goto {chain} }}"
    )
}

/// Adds the chain of an endpoint, or empties it if it exists.
fn add_endpoint_to(served: &Served, text: &mut String, endpoint: &SocketAddr) -> std::fmt::Result {
    let (own, to) = (endpoint.ip(), endpoint_chain(served, endpoint));
    writeln!(
        text,
        "add chain ip kube-proxy {to}\n\
         flush chain ip kube-proxy {to}\n\
         add rule ip kube-proxy {to} ip saddr {own} jump mark-for-masquerade\n\
         add rule ip kube-proxy {to} meta l4proto tcp dnat to {endpoint}"
    )
}

/// Adds the rules of a service. The cluster CIDR contains no host, so everybody is masqueraded.
fn add_rules_to(served: &Served, text: &mut String) -> std::fmt::Result {
    let (ip, port, chain) = (served.at.ip(), served.at.port(), chain(served));
    let choice = |(slot, endpoint): (usize, &SocketAddr)| {
        format!("{slot} : goto {}", endpoint_chain(served, endpoint))
    };
    let choices: Vec<String> = served.endpoints.iter().enumerate().map(choice).collect();
    writeln!(
        text,
        "add rule ip kube-proxy {chain} ip daddr {ip} tcp dport {port} \
         ip saddr != 100.64.0.0/10 jump mark-for-masquerade\n\
         add rule ip kube-proxy {chain} numgen random mod {} vmap {{ {} }}",
        choices.len(),
        choices.join(", ")
    )
}
