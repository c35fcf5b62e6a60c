//! What becomes of a packet by what kube-proxy's nftables mode does: a short account of its own,
//! which shares nothing with the plan. Where denizen means to do otherwise, so does this, and says
//! so in a line that begins with "Unlike kube-proxy".

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::cluster::{Endpoint, FrontendKind, Port, ports, within};
use super::place::HERE;
use super::world::World;
use denizen_tests::oracle::reader::{Arrival, ReadFate};

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Node,
    LocalPod,
    Other,
}

/// A world, and a packet in it.
struct PacketQuestion<'a> {
    world: &'a World,
    packet: &'a Arrival,
    v4: bool,
    sender: Sender,
}

/// What may become of the packet, each with whether it is masqueraded; and whether a local pod sent
/// it.
pub fn expected(world: &World, packet: &Arrival) -> (BTreeSet<(ReadFate, bool)>, bool) {
    let question = PacketQuestion {
        world,
        packet,
        v4: packet.destination.is_ipv4(),
        sender: match packet.interface {
            None => Sender::Node,
            Some(_) if is_local(world, packet) => Sender::LocalPod,
            Some(_) => Sender::Other,
        },
    };
    (question.fates(), question.sender == Sender::LocalPod)
}

/// Whether the detector takes a packet for a local pod's.
///
/// Unlike in kube-proxy, pods are detected by their records, a mode takes a list of values, and a
/// detector without a range for a family counts nobody of that family as local.
fn is_local(world: &World, packet: &Arrival) -> bool {
    let interface = packet.interface.as_deref().unwrap_or_default();
    let mode = world.flags.iter().find_map(|flag| flag.strip_prefix("--detect-local="));
    let values = |text: &'static str| {
        mode.and_then(|mode| mode.strip_prefix(text)).map(|list| list.split(','))
    };
    if let Some(mut bridges) = values("bridge=") {
        return bridges.any(|bridge| bridge == interface);
    }
    if let Some(mut prefixes) = values("interface-prefix=") {
        return prefixes.any(|prefix| interface.starts_with(prefix));
    }
    if let Some(mut ranges) = values("node-cidr=") {
        return ranges.any(|range| within(range, packet.source));
    }
    if mode == Some("node-cidr") {
        let ranges = world.node.as_ref().map(|node| &node["spec"]["podCIDRs"]);
        let mut ranges =
            ranges.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        return ranges.any(|range| within(range, packet.source));
    }
    let is =
        |pod: &super::world::Pod| pod.interface() == interface && pod.ips.contains(&packet.source);
    world.pods.iter().any(is)
}

impl<'a> PacketQuestion<'a> {
    fn has_flag(&self, flag: &str) -> bool {
        self.world.flags.iter().any(|has| has == flag)
    }

    fn fates(&self) -> BTreeSet<(ReadFate, bool)> {
        let ip = self.packet.destination.ip();
        let Arrival { destination, protocol, .. } = *self.packet;
        // Unlike kube-proxy, whether or not anything here has set route_localnet.
        if self.sender != Sender::Node && self.v4 && ip.is_loopback() {
            return BTreeSet::from([(ReadFate::Drop, false)]);
        }
        if let Some((kind, port)) = self.winner((Some(ip), protocol, destination.port())) {
            return self.through(kind, port);
        }
        let cluster_ips = ports(self.world, self.v4).into_iter().flat_map(|port| port.addresses());
        let is_cluster_ip =
            cluster_ips.into_iter().any(|address| address == (FrontendKind::ClusterIp, ip));
        let mut ranges =
            self.world.ranges.iter().flat_map(|range| range["spec"]["cidrs"].as_array());
        let in_range = ranges.any(|cidrs| {
            cidrs.iter().any(|cidr| cidr.as_str().is_some_and(|cidr| within(cidr, ip)))
        });
        let fate = match (is_cluster_ip, in_range, self.node_port()) {
            (true, ..) => ReadFate::Reject,
            (false, true, _) => ReadFate::Drop,
            (false, false, Some(port)) => return self.through(FrontendKind::NodePort, port),
            (false, false, None) => ReadFate::Untouched,
        };
        BTreeSet::from([(fate, false)])
    }

    /// The service port that has this address (or the node's) and port as its own.
    ///
    /// Unlike kube-proxy, whose last one written wins: cluster IPs win over load balancer IPs,
    /// those over external IPs; then the older service wins, then the first by name.
    fn winner(&self, frontend: FrontendTuple) -> Option<(FrontendKind, Port<'a>)> {
        let all = ports(self.world, self.v4).into_iter();
        let frontends = all
            .flat_map(|port| frontends(port).into_iter().map(move |(kind, at)| (kind, at, port)));
        let here = frontends.filter(|(_, at, _)| *at == frontend);
        here.min_by_key(|(kind, _, port)| port.rank(*kind)).map(|(kind, _, port)| (kind, port))
    }

    fn node_port(&self) -> Option<Port<'a>> {
        let Arrival { destination, protocol, .. } = *self.packet;
        let found = self.winner((None, protocol, destination.port()));
        found.map(|(_, port)| port).filter(|_| self.serves_node_ports(destination.ip()))
    }

    /// Unlike kube-proxy, a family without a range opens nothing, and without a Node object every
    /// address that somebody outside could mean is a primary one.
    fn serves_node_ports(&self, ip: IpAddr) -> bool {
        let World { flags, addresses, .. } = self.world;
        let interface =
            addresses.iter().find(|(address, _)| *address == ip).map(|(_, interface)| *interface);
        let ranges = flags.iter().find_map(|flag| flag.strip_prefix("--nodeport-addresses="));
        if let Some(ranges) = ranges {
            return interface.is_some()
                && !ip.is_loopback()
                && ranges.split(',').any(|range| within(range, ip));
        }
        let named = self.node_addresses();
        match named.iter().find(|address| address.is_ipv4() == self.v4) {
            Some(primary) => *primary == ip,
            None => interface.is_some_and(|interface| {
                let of_pods = self.world.pods.iter().any(|pod| pod.interface() == interface);
                !ip.is_loopback() && !of_pods && !within("fe80::/10", ip)
            }),
        }
    }

    /// What the Node object says, internal addresses first.
    fn node_addresses(&self) -> Vec<IpAddr> {
        let listed = self.world.node.iter().flat_map(|node| node["status"]["addresses"].as_array());
        let listed: Vec<&Value> = listed.flatten().collect();
        let of = |kind: &str| {
            let of_kind = listed.iter().filter(|entry| entry["type"] == kind);
            of_kind
                .filter_map(|entry| entry["address"].as_str()?.parse().ok())
                .collect::<Vec<IpAddr>>()
        };
        [of("InternalIP"), of("ExternalIP")].concat()
    }

    fn through(&self, kind: FrontendKind, port: Port<'_>) -> BTreeSet<(ReadFate, bool)> {
        if kind == FrontendKind::LoadBalancerIp && !self.may_enter(port) {
            return BTreeSet::from([(ReadFate::Drop, false)]);
        }
        let all = port.endpoints(self.world, self.v4);
        let cluster = self.cluster_set(&all);
        let local = one_of(&all, |endpoint| endpoint.local);
        let external_local =
            kind != FrontendKind::ClusterIp && port.is_local("externalTrafficPolicy");
        let stays = match kind {
            FrontendKind::ClusterIp => port.is_local("internalTrafficPolicy"),
            FrontendKind::NodePort | FrontendKind::LoadBalancerIp | FrontendKind::ExternalIp => {
                external_local && self.sender == Sender::Other
            }
        };
        let chosen = if stays { &local } else { &cluster };
        let masquerade = match kind {
            FrontendKind::ClusterIp => self.has_flag("--masquerade-all") || !self.counts_as_local(),
            FrontendKind::NodePort | FrontendKind::LoadBalancerIp | FrontendKind::ExternalIp
                if external_local =>
            {
                !stays && !self.counts_as_local()
            }
            FrontendKind::NodePort | FrontendKind::LoadBalancerIp | FrontendKind::ExternalIp => {
                true
            }
        };
        if chosen.is_empty() {
            let elsewhere = stays && !cluster.is_empty();
            return BTreeSet::from([(
                if elsewhere { ReadFate::Drop } else { ReadFate::Reject },
                false,
            )]);
        }
        let fate = |at: &SocketAddr| (ReadFate::Forward(*at), self.is_masqueraded(*at, masquerade));
        chosen.iter().map(fate).collect()
    }

    /// The node itself counts as local only where its source address alone decides, and is in a
    /// pods' range.
    fn counts_as_local(&self) -> bool {
        let by_range =
            self.world.flags.iter().any(|flag| flag.starts_with("--detect-local=node-cidr"));
        self.sender == Sender::LocalPod || (by_range && is_local(self.world, self.packet))
    }

    /// An endpoint that calls itself always is; what is delivered on this node never reaches
    /// postrouting.
    ///
    /// Unlike kube-proxy, a recorded pod is known to be here, whatever its slices say.
    fn is_masqueraded(&self, endpoint: SocketAddr, masquerade: bool) -> bool {
        let World { pods, addresses, .. } = self.world;
        if self.sender != Sender::Node && addresses.iter().any(|(own, _)| *own == endpoint.ip()) {
            return false;
        }
        let itself = endpoint.ip() == self.packet.source;
        let recorded = pods.iter().any(|pod| pod.ips.contains(&endpoint.ip()));
        masquerade || (itself && (recorded || self.is_local_endpoint(endpoint.ip())))
    }

    /// Whether any service port forwards to this address as an endpoint of this node.
    fn is_local_endpoint(&self, address: IpAddr) -> bool {
        let all = ports(self.world, self.v4);
        let mut winners = all
            .iter()
            .flat_map(|port| frontends(*port))
            .filter_map(|(_, frontend)| self.winner(frontend));
        winners.any(|(kind, port)| {
            let all = port.endpoints(self.world, self.v4);
            let (cluster, local) =
                (self.cluster_set(&all), one_of(&all, |endpoint| endpoint.local));
            let used = match kind {
                FrontendKind::ClusterIp if port.is_local("internalTrafficPolicy") => local,
                FrontendKind::NodePort
                | FrontendKind::LoadBalancerIp
                | FrontendKind::ExternalIp
                    if port.is_local("externalTrafficPolicy") =>
                {
                    [cluster, local].concat()
                }
                FrontendKind::ClusterIp
                | FrontendKind::NodePort
                | FrontendKind::LoadBalancerIp
                | FrontendKind::ExternalIp => cluster,
            };
            used.iter().any(|at| at.ip() == address && all[at].local)
        })
    }

    /// Who may use the load balancer's address.
    fn may_enter(&self, port: Port<'_>) -> bool {
        let Some(ranges) = port.source_ranges(self.v4) else {
            return true;
        };
        let contains = |ip: IpAddr| ranges.iter().any(|range| within(range, ip));
        let itself = self.packet.source == self.packet.destination.ip();
        contains(self.packet.source) || (itself && self.node_addresses().into_iter().any(contains))
    }

    /// Ready endpoints, as far as the hints leave them to this node; else those that still serve.
    fn cluster_set(&self, all: &BTreeMap<SocketAddr, Endpoint>) -> Vec<SocketAddr> {
        let ready = || all.values().filter(|endpoint| endpoint.ready);
        let zone = self.world.node.as_ref().and_then(|node| {
            node["metadata"]["labels"]["topology.kubernetes.io/zone"].as_str().map(str::to_owned)
        });
        let gated = self.has_flag("--feature-gates=PreferSameTrafficDistribution=false");
        let here = |endpoint: &Endpoint| endpoint.nodes.iter().any(|node| node == HERE);
        let near =
            |endpoint: &Endpoint| endpoint.zones.iter().any(|name| Some(name) == zone.as_ref());
        if !gated && ready().all(|endpoint| !endpoint.nodes.is_empty()) && ready().any(here) {
            return one_of(all, here);
        }
        if ready().all(|endpoint| !endpoint.zones.is_empty()) && ready().any(near) {
            return one_of(all, near);
        }
        one_of(all, |_| true)
    }
}

/// An address, or the node's; a protocol; a port.
type FrontendTuple = (Option<IpAddr>, u8, u16);

/// Everything that leads to a service port.
fn frontends(port: Port<'_>) -> Vec<(FrontendKind, FrontendTuple)> {
    let (protocol, number) = (port.protocol(), port.number("port").unwrap_or_default());
    let own = port.addresses().into_iter().map(|(kind, ip)| (kind, (Some(ip), protocol, number)));
    let at_node =
        port.number("nodePort").map(|number| (FrontendKind::NodePort, (None, protocol, number)));
    own.chain(at_node).collect()
}

/// The ready ones among these endpoints; else those that still serve.
fn one_of(
    all: &BTreeMap<SocketAddr, Endpoint>,
    among: impl Fn(&Endpoint) -> bool,
) -> Vec<SocketAddr> {
    let pick = |usable: &dyn Fn(&Endpoint) -> bool| -> Vec<SocketAddr> {
        let picked = all.iter().filter(|(_, endpoint)| usable(endpoint) && among(endpoint));
        picked.map(|(at, _)| *at).collect()
    };
    let ready = pick(&|endpoint| endpoint.ready);
    if ready.is_empty() { pick(&|endpoint| !endpoint.ready && endpoint.last_resort) } else { ready }
}
