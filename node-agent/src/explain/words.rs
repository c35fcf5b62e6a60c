//! The words of an explanation: for an operator, who knows Kubernetes and not this program.

use std::net::IpAddr;

use super::policy_name;
use crate::model::TrafficPolicy;
use crate::plan::{Arrival, Detector, Endpoints, Frontend, FrontendKind, Local, Port};

pub(super) const NODE: &str = "the address is one of this node's own, and no interface was named";
pub(super) const UNUSED_PORT: &str = "the address is a service's cluster IP, but no service has this port; nobody else answers there";
pub(super) const UNALLOCATED: &str = "cluster IPs are allocated from this range (a ServiceCIDR), and no service \
     has this one; a client that gets no answer tries again, and the service may be there by then";
pub(super) const LOOPBACK: &str = "loopback addresses are for this node alone: where route_localnet is set, a neighbour \
                                   could reach what listens there (CVE-2020-8558)";
pub(super) const NO_SERVICE: &str =
    "no service has this address, protocol and port; denizen touches services' traffic only";
pub(super) const NO_ENDPOINTS: &str =
    "the service has no endpoint that could be used; the client should know at once";
pub(super) const NO_LOCAL_ENDPOINT: &str = "the service has endpoints, but none on this node, and policy Local \
     forbids the others; a client that gets no answer tries again and may then be sent to another node";
pub(super) const SOURCE_RANGES: &str = "spec.loadBalancerSourceRanges of the Service; they bind everybody, this \
     node and its pods included, and come before anything else";
pub(super) const REJECTED: &str =
    "rules for it are not in the kernel, which rejected them: what happens is not known";
pub(super) const OPEN_FAMILY: &str = "spec.loadBalancerSourceRanges restrict each IP family by its own ranges \
     alone, as in kube-proxy";
pub(super) const OWN_ADDRESS: &str =
    "as a cluster IP the node would lose the address, so it is not served there";
pub(super) const AFFINITY: &str = "sessionAffinity ClientIP: a client is remembered, whichever address of the \
     service port it used, until so long after its last new connection";
pub(super) const SOURCE_REPLACED: &str = "the source becomes this node's address";
pub(super) const SOURCE_KEPT: &str = "the source stays as it is";
pub(super) const KEPT_LOCAL_POLICY: &str =
    "under policy Local the endpoint is on this node, so the answer comes back through it anyway";
pub(super) const KEPT_LOCAL_POD: &str =
    "the sender is a pod of this node, so the answer comes back through it anyway";
pub(super) const KEPT_NODE_RANGE: &str = "the node's address lies in a range of --detect-local node-cidr, so it \
     counts as a pod's; the answer comes back to this node anyway";
pub(super) const MASQUERADE_ALL: &str = "masqueradeAll asks for it at every cluster IP";
pub(super) const MASQUERADE_EXTERNAL: &str = "under policy Cluster the endpoint may be on another node, which \
     would answer the client directly, from an address it does not know";
pub(super) const MASQUERADE_FOREIGN: &str = "the sender is not a pod of this node; without it the answer might \
     take another way back, and nobody would translate it";
pub(super) const HAIRPIN: (&str, &str) = (
    "when the pod itself is chosen, the source becomes this node's address",
    "a pod that saw its own address as the client would answer itself directly, and the connection would hang",
);
pub(super) const STAYS: (&str, &str) = (
    "when this node itself is chosen, the source stays as it is",
    "an endpoint in the node's own network answers through it anyway",
);
pub(super) const GOES_OUT: &str = "egress masquerade: the destination lies in none of the ranges where pods \
     keep their address (nonMasqueradeCIDRs)";

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
        Some(Arrival { interface, port: Port::Named(port) }) => {
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

pub(super) fn policy(frontend: &Frontend, bound: bool) -> String {
    let policy = policy_name(frontend.kind, frontend.policy);
    let only_here = bound
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
            "it binds what comes from elsewhere; this node and its pods may use every endpoint"
        }
        (TrafficPolicy::Local, _, _) => "the Service says so",
    }
}

pub(super) fn choice(endpoints: &Endpoints) -> &'static str {
    match endpoints.count() {
        1 => "the service's EndpointSlices name no other that could be used",
        _ => "drawn at random for each new connection; the connection then stays there",
    }
}

pub(super) fn affinity(seconds: u32) -> String {
    format!("a client that came within the last {seconds} s goes to the endpoint that it had")
}

pub(super) fn endpoints(endpoints: &Endpoints) -> String {
    const SHOWN: usize = 8;
    let each = endpoints.iter().take(SHOWN).map(|endpoint| {
        let here = if endpoint.local { " (on this node)" } else { "" };
        format!("{}{here}", endpoint.address)
    });
    let list = each.collect::<Vec<_>>().join(", ");
    match endpoints.count() {
        1 => format!("to {list}, the only endpoint"),
        n if n > SHOWN => {
            format!("to one of {n} endpoints, 1 in {n} each: {list}, and {} more", n - SHOWN)
        }
        n => format!("to one of {n} endpoints, 1 in {n} each: {list}"),
    }
}
