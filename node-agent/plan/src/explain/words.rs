//! The texts of an explanation, for an operator who knows Kubernetes but not this program.

use std::net::IpAddr;

use denizen_state::redirect::{Redirect, RedirectProtocol, UnmarkedConnection};

use super::{PacketTarget, policy_name};
use crate::{
    Arrival, BridgePort, Detector, Endpoints, Frontend, FrontendKind, Local, PermittedRanges,
};
use denizen_model::TrafficPolicy;

pub(super) const NODE: &str = "the address is one of this node's own, and no interface was named";
pub(super) const ONWARD: &str = "; what the proxy itself, another user or a mark that is skipped \
     sends is not redirected. The proxy connects on, and what follows is that connection to the \
     same destination";
pub(super) const UNKNOWN_SOURCE: &str =
    "; unless skipInboundCidrs has the address of the node that it sees as the source";
const UNUSED_PORT: &str = "the address is a service's cluster IP, but no service has this port; \
     nobody else answers there";
const UNUSED_BY_PINGS: &str = "the address is a service's cluster IP; services have ports, \
     and a ping has none; nobody else answers there";
pub(super) const UNALLOCATED: &str = "cluster IPs are allocated from this range (a ServiceCIDR), \
     and no service has this one; a client that gets no answer tries again, and by then a service \
     may have it";
pub(super) const LOOPBACK: &str = "loopback addresses are for this node alone: if route_localnet \
     is set, a neighbour could reach programs that listen there (CVE-2020-8558)";
const NO_SERVICE: &str =
    "no service has this address, protocol and port; denizen touches services' traffic only";
const NO_PORT: &str =
    "services have ports, and a ping has none; denizen touches services' traffic only";
const SERVICES_OFF: &str = "services are not decided here (--services=off); if another program \
     serves this address, ask again with the endpoint that it chooses, which is what policies see";
pub(super) const ONE_ENDPOINT: &str = "a host port has one endpoint";
pub(super) const FROM_LOOPBACK: &str =
    "a packet from 127.0.0.0/8 cannot leave the node with that source";
pub(super) const ANSWERED_HERE: &str = "the answer comes back through this node";
pub(super) const NO_ENDPOINTS: &str =
    "the service has no usable endpoint; the client should know at once";
pub(super) const NO_LOCAL_ENDPOINT: &str = "the service has endpoints, but none on this node, and \
     policy Local forbids the others; a client that gets no answer tries again and may then be \
     sent to another node";
pub(super) const SOURCE_RANGES: &str = "spec.loadBalancerSourceRanges of the Service; they apply \
     to all clients, this node and its pods included, and are checked first";
pub(super) const REJECTED: &str =
    "the kernel rejected rules of this service, so what happens to the packet is unknown";
pub(super) const OPEN_FAMILY: &str = "spec.loadBalancerSourceRanges restrict each IP family by \
     its own ranges alone, as in kube-proxy";
pub(super) const OWN_ADDRESS: &str = "the address is the node's own; serving it as a cluster IP \
     would take it away from the node";
pub(super) const TOO_MANY_ADDRESSES: &str = "each external IP and load balancer IP has a frontend \
     for each port, and their number is limited";
pub(super) fn not_permitted(kind: FrontendKind) -> String {
    format!(
        "it is in no range of {}, which names those that are served",
        PermittedRanges::flag(kind)
    )
}

pub(super) const AFFINITY: &str = "sessionAffinity ClientIP: a client is remembered for all \
     addresses of the service port, until the time-out after its last new connection";
pub(super) const BY_IPVS: &str = "nftables decides all else about the connection; until the \
     virtual server is in the kernel, nftables chooses, too, at random";
pub(super) const NOT_IPVS: &str = "nftables chooses, not IPVS";
pub(super) const BY_OUTSIDE: &str =
    "by its traffic policy, traffic from outside has other endpoints than the cluster IP";
pub(super) const HASHED: &str = "computed as the kernel does, from its list of real servers";
pub(super) const HASHED_TO_NOBODY: &str =
    "its hash leads to an endpoint that drains, and the scheduler does not fall back";
pub(super) const BY_PORT: &str =
    "the scheduler hashes the client's port, too: ask with --from ADDR:PORT";
pub(super) const DRAINING: &str =
    "the Service no longer selects it; it keeps the connections that it has (weight 0)";
pub(super) const SOURCE_REPLACED: &str = "the source becomes this node's address";
pub(super) const SOURCE_KEPT: &str = "the source stays as it is";
pub(super) const KEPT_LOCAL_POLICY: &str =
    "under policy Local the endpoint is on this node, so the answer comes back through it anyway";
pub(super) const KEPT_LOCAL_POD: &str =
    "the sender is a pod of this node, so the answer comes back through it anyway";
pub(super) const KEPT_NODE_RANGE: &str = "the node's address lies in a range of --detect-local \
     node-cidr, so it counts as a pod's; the answer comes back to this node anyway";
pub(super) const MASQUERADE_ALL: &str =
    "--masquerade-all masquerades connections to every cluster IP";
pub(super) const MASQUERADE_EXTERNAL: &str = "under policy Cluster the endpoint may be on another \
     node, which would answer the client directly, from an address that the client does not know";
pub(super) const MASQUERADE_FOREIGN: &str = "the sender is not a pod of this node; without \
     masquerade the answer might take another way back and would not be translated";
pub(super) const HAIRPIN: (&str, &str) = (
    "if the chosen endpoint is the sender itself (hairpin), the source becomes this node's address",
    "a pod that sees its own address as the client answers itself directly, and the connection hangs",
);
pub(super) const STAYS: (&str, &str) = (
    "if the chosen endpoint is on this host's network, the source stays as it is",
    "an endpoint on the host's network answers through this node anyway",
);
pub(super) const GOES_OUT: &str = "egress masquerade: the destination is in none of the ranges \
     where pods keep their address (nonMasqueradeCIDRs)";

/// Why a cluster IP refuses a packet that is for none of its service's ports.
pub(super) fn unused(transport: PacketTarget) -> &'static str {
    match transport {
        PacketTarget::Port(..) => UNUSED_PORT,
        PacketTarget::Echo => UNUSED_BY_PINGS,
    }
}

/// Why a Service of another proxy is left alone; `is_checked`: its address lies in a ServiceCIDR.
pub(super) fn foreign_service(is_checked: bool) -> &'static str {
    match is_checked {
        true => {
            "the label service.kubernetes.io/service-proxy-name says so; what that proxy does not \
             translate on this node is dropped behind its rules"
        }
        false => "the label service.kubernetes.io/service-proxy-name says so",
    }
}

pub(super) fn no_service(transport: PacketTarget, are_known: bool) -> &'static str {
    match (transport, are_known) {
        (PacketTarget::Port(..), true) => NO_SERVICE,
        (PacketTarget::Port(..), false) => SERVICES_OFF,
        (PacketTarget::Echo, true | false) => NO_PORT,
    }
}

pub(super) fn local(
    from: IpAddr,
    local: &Local<'_>,
    arrival: Option<Arrival<'_>>,
) -> (String, String) {
    let interface = arrival.map_or("an interface that was not named", |arrival| arrival.interface);
    match local {
        Local::Pod(pod) => (
            format!("{from} is pod {pod}, on this node"),
            format!("the state file has this address for packets that come in through {interface}"),
        ),
        Local::Port => (
            format!("{from} counts as a pod of this node"),
            format!(
                "it comes in through a port of {interface}, and --detect-local bridge-port says that pods do"
            ),
        ),
        Local::Bridge(name) => (
            format!("{from} counts as a pod of this node"),
            format!(
                "it comes in through {name}, and --detect-local bridge says that pods are behind it"
            ),
        ),
        Local::Prefix(prefix) => (
            format!("{from} counts as a pod of this node"),
            format!(
                "it comes in through {interface}, and --detect-local interface-prefix says that pods' \
                 interfaces begin with {prefix}"
            ),
        ),
        Local::Range(range) => (
            format!("{from} counts as a pod of this node"),
            format!(
                "the source lies in {range}, and --detect-local node-cidr says that pods' addresses do"
            ),
        ),
    }
}

pub(super) fn foreign(from: IpAddr, arrival: Option<Arrival<'_>>) -> String {
    match arrival {
        Some(Arrival { interface, port: BridgePort::Named(port) }) => {
            format!("{from}, coming in through {port} of {interface}, is not a pod of this node")
        }
        Some(Arrival { interface, .. }) => {
            format!("{from}, coming in through {interface}, is not a pod of this node")
        }
        None => format!("{from} is not a pod of this node"),
    }
}

pub(super) fn not_local(detector: &Detector) -> &'static str {
    match detector {
        Detector::PodState => {
            "the state file records no pod with this address behind this interface"
        }
        Detector::PodPort => {
            "the state file records no pod with this address behind this interface and this port of a bridge"
        }
        Detector::BridgePort => "it does not come in through a port of a bridge",
        Detector::Bridge(_) => "it does not come in through one of the bridges of --detect-local",
        Detector::InterfacePrefix(_) => {
            "its interface begins with none of the prefixes of --detect-local"
        }
        Detector::NodeCidr(_) => "its source lies in none of this node's pod CIDRs",
    }
}

pub(super) fn article(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp | FrontendKind::NodePort | FrontendKind::LoadBalancerIp => "a",
        FrontendKind::ExternalIp => "an",
    }
}

pub(super) fn kind(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "spec.clusterIPs and spec.ports of the Service",
        FrontendKind::NodePort => {
            "spec.ports[].nodePort of the Service, on an address that serves node ports"
        }
        FrontendKind::LoadBalancerIp => "status.loadBalancer.ingress of the Service",
        FrontendKind::ExternalIp => "spec.externalIPs of the Service",
    }
}

pub(super) fn policy(frontend: &Frontend, by_outside: bool) -> String {
    let policy = policy_name(frontend.kind, frontend.policy);
    let only_here = by_outside
        || (frontend.kind == FrontendKind::ClusterIp && frontend.policy == TrafficPolicy::Local);
    if only_here {
        format!("{policy}: endpoints on this node only")
    } else {
        format!("{policy}: any endpoint")
    }
}

pub(super) fn policy_why(frontend: &Frontend, inside: bool) -> &'static str {
    match (frontend.policy, frontend.outside.is_some(), inside) {
        (TrafficPolicy::Cluster, _, _) => "the Service says so",
        (TrafficPolicy::Local, true, true) => {
            "it restricts only traffic from outside; this node and its pods may use every endpoint"
        }
        (TrafficPolicy::Local, _, _) => "the Service says so",
    }
}

pub(super) fn choice(endpoints: &Endpoints) -> &'static str {
    match endpoints.count() {
        1 => "no other endpoint in the service's EndpointSlices is usable",
        _ => "drawn at random for each new connection; the connection then stays there",
    }
}

pub(super) fn affinity(seconds: u32) -> String {
    format!("a client that connected within the last {seconds} s goes to the same endpoint again")
}

/// Maximum number of endpoints that are named.
const SHOWN: usize = 8;

pub(super) fn endpoints(endpoints: &Endpoints) -> String {
    let odds = |n| format!(", 1 in {n} each");
    to_one_of(endpoints, odds)
}

/// The endpoints, if they are not equally likely.
pub(super) fn candidates(endpoints: &Endpoints) -> String {
    to_one_of(endpoints, |_| String::new())
}

fn to_one_of(endpoints: &Endpoints, odds: impl Fn(usize) -> String) -> String {
    let each = endpoints.iter().take(SHOWN).map(|endpoint| {
        let here = if endpoint.local { " (on this node)" } else { "" };
        format!("{}{here}", endpoint.address)
    });
    let list = each.collect::<Vec<_>>().join(", ");
    match endpoints.count() {
        1 => format!("to {list}, the only endpoint"),
        n if n > SHOWN => {
            format!("to one of {n} endpoints{}: {list}, and {} more", odds(n), n - SHOWN)
        }
        n => format!("to one of {n} endpoints{}: {list}", odds(n)),
    }
}

/// Why no rule inside a pod matches.
pub(super) fn no_rule(redirect: &Redirect, connection: &UnmarkedConnection<'_>) -> String {
    match connection.protocol {
        Some(RedirectProtocol::Tcp) => {
            let interfaces = redirect.interfaces.join(", ");
            format!(
                "no rule of the pod matches: TCP is redirected at {interfaces}, as far as ports and \
                 networks are not listed, and in the directions for which the proxy has a port"
            )
        }
        Some(RedirectProtocol::Udp) | None => {
            "no rule of the pod matches: only TCP is redirected".to_owned()
        }
    }
}
