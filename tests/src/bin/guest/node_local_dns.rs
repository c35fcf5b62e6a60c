//! Beside NodeLocal DNSCache: it has the cluster IP of the cluster's DNS on a dummy device of the
//! node, and leaves packets to it untracked, so that no service proxy translates them.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use denizen_tests::node::cluster::serve;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::probe::Protocol;
use serde_json::{Value, json};

/// The number of the cluster's DNS among [`service_ips`].
const DNS: u8 = 10;
const DNS_PORT: u16 = 53;
/// The hosts whose questions the cache answers.
const CLIENTS: [Host; 3] = [Host::Bridged, Host::Routed, Host::ThisNode];
const PROTOCOLS: [Protocol; 2] = [Protocol::Udp, Protocol::Tcp];

fn dns(fixture: &Fixture) -> Result<Vec<Value>> {
    let ports = [
        Port::tcp("dns", DNS_PORT, PORT).over(Protocol::Udp),
        Port::tcp("dns-tcp", DNS_PORT, PORT),
    ];
    let range = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": { "name": "kubernetes" },
        "spec": { "cidrs": ["172.30.0.0/16", "fd00:172:30::/112"] },
    });
    Ok([vec![range], fixture.service("dns", DNS, &ports, &[Host::Remote])?].concat())
}

/// What the cache sets up, as `setupNetworking` of its node-cache does.
fn install(node: &Netns) -> Result<()> {
    let [v4, v6] = service_ips(DNS);
    node.ip(&format!(
        "link add nodelocaldns type dummy\naddr add {v4}/32 dev nodelocaldns\n\
         addr add {v6}/128 dev nodelocaldns nodad\nlink set nodelocaldns up"
    ))?;
    for (family, ip) in [("ip", v4), ("ip6", v6)] {
        node.nft(&format!(
            "table {family} nodelocaldns {{
                chain prerouting {{
                    type filter hook prerouting priority raw
                    {family} daddr {ip} meta l4proto {{ tcp, udp }} th dport {DNS_PORT} notrack
                }}
                chain output {{
                    type filter hook output priority raw
                    {family} daddr {ip} meta l4proto {{ tcp, udp }} th dport {DNS_PORT} notrack
                    {family} saddr {ip} meta l4proto {{ tcp, udp }} th sport {DNS_PORT} notrack
                }}
            }}"
        ))?;
    }
    Ok(())
}

fn remove(node: &Netns) -> Result<()> {
    node.ip("link del nodelocaldns")?;
    node.nft("delete table ip nodelocaldns\ndelete table ip6 nodelocaldns")
}

/// Everyone's questions are answered by the cache, or by the remote pod that is the DNS.
fn answered(fixture: &Fixture, by_cache: bool) -> Result<()> {
    for to in service_ips(DNS).map(|ip| SocketAddr::new(ip, DNS_PORT)) {
        let remote = SocketAddr::new(fixture.address(Host::Remote, to.ip())?, PORT);
        let expected = if by_cache { to } else { remote };
        for (who, protocol) in CLIENTS.iter().flat_map(|who| PROTOCOLS.map(|way| (*who, way))) {
            let outcome = fixture.probe(who, to, protocol)?;
            ensure!(
                outcome.endpoint() == Some(expected),
                "{who:?} to {to} over {protocol:?}: {outcome:?}, not {expected}"
            );
        }
    }
    Ok(())
}

/// The cache answers while it is there, and denizen before and afterwards.
fn comes_and_goes(label: &str, flags: &[&str]) -> Result<()> {
    let fixture = Fixture::new(label)?;
    fixture.cluster.manifests.put("dns", &dns(&fixture)?)?;
    let agent = fixture.cluster.start_agent_with(flags.iter().copied())?;
    answered(&fixture, false)?;
    let node = &fixture.cluster.world.node;
    install(node)?;
    let cache = serve(node, &service_ips(DNS), &PROTOCOLS.map(|way| (way, DNS_PORT)))?;
    answered(&fixture, true)?;
    let errors = &agent.status()?["errors"];
    ensure!(*errors == json!([]), "{errors}");
    drop(cache);
    remove(node)?;
    answered(&fixture, false)
}

pub(crate) fn beside_nftables() -> Result<()> {
    comes_and_goes("dns-nftables", &[])
}

pub(crate) fn beside_iptables() -> Result<()> {
    comes_and_goes("dns-iptables", &["--backend=iptables", "--iptables-variant=nft"])
}
