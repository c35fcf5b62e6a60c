//! The hosts of the matrix, with all addresses that they send from.

use std::cell::Cell;
use std::net::{IpAddr, UdpSocket};

use crate::node::cluster::Cluster;
use crate::node::fixture::{Fixture, Host};
use crate::node::netns::Netns;
use crate::node::pod::{Pod, Wiring};
use crate::node::world::host_length;
use anyhow::{Context, Result};
use serde_json::Value;

use super::frontend::{TARGET, TARGETS, external_host, service};
use super::table::DetectedSender;

/// Foreign rules set the mark bit by which denizen's bridge table tells pods' packets, for packets
/// of every sender: neither a sender nor a foreign rule may pass for a pod by this bit.
const MARKED_BY_OTHERS: &str = r"
table bridge others {
    chain prerouting { type filter hook prerouting priority -400; meta mark set meta mark | 0x40; }
}
table inet others {
    chain prerouting {
        type filter hook prerouting priority -400;
        iifname != cni0 meta mark set meta mark | 0x40;
    }
}
";

/// The hosts of the matrix, with all addresses that they send from.
#[derive(Debug)]
pub struct MatrixContext {
    /// The pods and hosts.
    pub fixture: Fixture,
    neighbours: [Pod; 2],
    /// A host that is attached to this node, and is not a pod.
    _external_host: Pod,
    /// The sockets of the endpoints, and of the host behind this node.
    pub(super) listeners: Vec<UdpSocket>,
    /// The next source port that no packet has had yet.
    ports: Cell<u16>,
}

impl MatrixContext {
    /// All hosts and services, without an agent.
    pub fn new(label: &str) -> Result<Self> {
        let fixture = Fixture::on(Cluster::new(label, &Value::Null)?)?;
        let cluster = &fixture.cluster;
        let neighbours = [
            cluster.add_pod("near-bridged", Wiring::Bridged)?,
            cluster.add_pod("near-routed", Wiring::Routed)?,
        ];
        for (neighbour, pod) in neighbours.iter().zip([&fixture.bridged, &fixture.routed]) {
            borrow(&neighbour.netns, &pod.addresses)?;
            borrow(&cluster.world.client, &pod.addresses)?;
        }
        // Packets with a borrowed source, which strict reverse-path filtering would drop, are
        // tested here.
        for interface in ["all", "default", "eth0", "cni0"] {
            cluster.world.node.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "0")?;
        }
        cluster.world.node.nft(MARKED_BY_OTHERS)?;
        let web = service(&fixture, "web", 10, 1, "Cluster")?;
        cluster.manifests.put("web", &web)?;
        cluster.manifests.put("kept", &service(&fixture, "kept", 11, 2, "Local")?)?;
        let all = |netns: &Netns, addresses: &[IpAddr], ports: &[u16]| {
            let both = addresses
                .iter()
                .flat_map(|address| ports.iter().map(move |port| (*address, *port)));
            let listeners =
                netns.run(|| both.map(UdpSocket::bind).collect::<Result<Vec<_>, _>>())?;
            listeners.context("cannot listen")
        };
        let remote = &cluster.world.addresses().remote;
        let mut listeners = all(&cluster.world.remote, remote, &TARGETS)?;
        let netns = Netns::new(&format!("{label}-out"))?;
        let wired = Pod::wire(&cluster.world.node, netns, "out", Wiring::Routed, &external_host())?;
        listeners.extend(all(&wired.netns, &wired.addresses, &[TARGET])?);
        Ok(Self { fixture, neighbours, _external_host: wired, listeners, ports: Cell::new(10_000) })
    }

    /// A source port that no packet had yet.
    pub(super) fn fresh_port(&self) -> u16 {
        self.ports.replace(self.ports.get() + 1)
    }

    fn pod(&self, wiring: Wiring) -> (&Pod, &Pod) {
        match wiring {
            Wiring::Bridged => (&self.fixture.bridged, &self.neighbours[0]),
            Wiring::Routed => (&self.fixture.routed, &self.neighbours[1]),
        }
    }

    /// Where a sender is, which source it writes, and through which interface the node's stack sees
    /// its packets come in.
    pub(super) fn sender(
        &self,
        wiring: Wiring,
        sender: DetectedSender,
        like: IpAddr,
    ) -> Result<(&Netns, IpAddr, Option<String>)> {
        let (pod, neighbour) = self.pod(wiring);
        let pods = pod.address_like(like).context("a pod without an address")?;
        let honest = |who| {
            let (netns, interface) = self.fixture.place(who);
            Ok((netns, self.fixture.address(who, like)?, interface.map(str::to_owned)))
        };
        match sender {
            // The interface is the node's end of the pod's veth, which `explain` recognises as a
            // bridge's port where it is one.
            DetectedSender::Pod => Ok((&pod.netns, pods, Some(pod.host_interface().to_owned()))),
            DetectedSender::Neighbour => {
                Ok((&neighbour.netns, pods, Some(neighbour.host_interface().to_owned())))
            }
            DetectedSender::Remote => honest(Host::Remote),
            DetectedSender::Outside => honest(Host::Outside),
            DetectedSender::Spoofer => {
                Ok((&self.fixture.cluster.world.client, pods, Some("eth0".to_owned())))
            }
            DetectedSender::Node => honest(Host::ThisNode),
        }
    }
}

/// Makes a host able to send from another host's addresses, without telling its neighbours.
fn borrow(netns: &Netns, addresses: &[IpAddr]) -> Result<()> {
    netns.sysctl("net.ipv4.conf.all.arp_announce", "2")?;
    for address in addresses {
        let nodad = if address.is_ipv6() { "nodad" } else { "" };
        netns.ip(&format!("addr add {address}/{} dev lo {nodad}", host_length(*address)))?;
    }
    netns.ip("link set lo up")
}
