//! Which endpoints of a service port this node may use (kube-proxy's `CategorizeEndpoints`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::outcome::{Endpoint, Endpoints};
use denizen_model::{EndpointState, Family, Protocol, ServicePort, Slice, SliceEndpoint};

/// The endpoints of one service port in one family, sorted by what may use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSelection {
    /// For policy Cluster: the ready ones that the topology hints leave; else the draining ones.
    pub cluster: Option<Endpoints>,
    /// For policy Local: the ready ones on this node; else the draining ones on this node.
    pub local: Option<Endpoints>,
}

/// This node's name and zone.
#[derive(Debug, Clone, Copy)]
pub struct NodeLocation<'a> {
    pub node: &'a str,
    pub zone: Option<&'a str>,
    /// Whether hints for nodes count.
    pub node_hints: bool,
}

impl NodeLocation<'_> {
    /// Whether an endpoint is on this node. An endpoint without a node name is not.
    fn has(&self, endpoint: &SliceEndpoint) -> bool {
        endpoint.node.as_deref() == Some(self.node)
    }
}

/// The addresses on this node that serve `port` and take new connections, in any slice, without
/// falling back to terminating endpoints.
pub fn local_ready<'a>(
    port: &ServicePort,
    family: Family,
    slices: impl Iterator<Item = &'a Slice>,
    here: NodeLocation<'_>,
) -> impl Iterator<Item = IpAddr> {
    ready(port, family, slices, here).filter(|(_, is_local)| *is_local).map(|(ip, _)| ip)
}

/// As [`local_ready`], on all nodes, with whether each is on this one.
pub fn ready<'a>(
    port: &ServicePort,
    family: Family,
    slices: impl Iterator<Item = &'a Slice>,
    here: NodeLocation<'_>,
) -> impl Iterator<Item = (IpAddr, bool)> {
    merged(port, family, slices)
        .into_iter()
        .filter(|(_, e)| e.state == EndpointState::Ready)
        .map(move |(at, e)| (at.ip(), here.has(e)))
}

/// Selects the endpoints of `port` among `slices`, which belong to its service.
pub fn select<'a>(
    port: &ServicePort,
    family: Family,
    slices: impl Iterator<Item = &'a Slice>,
    here: NodeLocation<'_>,
) -> EndpointSelection {
    let all = merged(port, family, slices);
    let is_local = |e: &SliceEndpoint| here.has(e);
    let pick = |state: EndpointState, wanted: &dyn Fn(&SliceEndpoint) -> bool| {
        let picked = all.iter().filter(|(_, e)| e.state == state && wanted(e));
        Endpoints::new(
            picked.map(|(at, e)| Endpoint { address: *at, local: is_local(e) }).collect(),
        )
    };
    let hinted = topology(&all, here);
    EndpointSelection {
        cluster: pick(EndpointState::Ready, &*hinted)
            .or_else(|| pick(EndpointState::Draining, &|_| true)),
        local: pick(EndpointState::Ready, &is_local)
            .or_else(|| pick(EndpointState::Draining, &is_local)),
    }
}

/// The endpoints of `port` among `slices` that serve their existing connections, even if they may
/// not get new ones because of topology or because they are draining.
pub fn serving<'a>(
    port: &ServicePort,
    family: Family,
    slices: impl Iterator<Item = &'a Slice>,
) -> BTreeSet<SocketAddr> {
    let all = merged(port, family, slices).into_iter();
    all.filter(|(_, endpoint)| endpoint.state.serves()).map(|(at, _)| at).collect()
}

/// Every endpoint of a service port that is in one of `slices`, whatever its state.
pub fn listed<'a>(
    port: &str,
    protocol: Protocol,
    family: Family,
    slices: impl Iterator<Item = &'a Slice>,
) -> BTreeSet<SocketAddr> {
    let mut all = BTreeSet::new();
    for slice in slices.filter(|slice| slice.family == family) {
        let ports = slice.ports.iter().filter(|p| *p.name == *port && p.protocol == protocol);
        for port in ports.map(|port| port.port.get()) {
            all.extend(
                slice.endpoints.iter().map(|endpoint| SocketAddr::new(endpoint.address, port)),
            );
        }
    }
    all
}

/// Every endpoint once. One address and port in two slices is one endpoint: a running pod takes
/// precedence over a terminating one that still has its address; otherwise the later slice (by
/// name) counts.
fn merged<'a>(
    port: &ServicePort,
    family: Family,
    slices: impl Iterator<Item = &'a Slice>,
) -> BTreeMap<SocketAddr, &'a SliceEndpoint> {
    let mut all = BTreeMap::new();
    for slice in slices.filter(|slice| slice.family == family) {
        let ports =
            slice.ports.iter().filter(|p| p.name == port.name && p.protocol == port.protocol);
        for slice_port in ports {
            for endpoint in &slice.endpoints {
                let at = SocketAddr::new(endpoint.address, slice_port.port.get());
                let kept = all.entry(at).or_insert(endpoint);
                if kept.terminating || !endpoint.terminating {
                    *kept = endpoint;
                }
            }
        }
    }
    all
}

type Filter<'a> = Box<dyn Fn(&SliceEndpoint) -> bool + 'a>;

/// The ready endpoints that the hints allow for this node: those for it by name, else those for its
/// zone. All, if a ready endpoint has no hint or if no hint names this node or zone: otherwise the
/// few with hints would be overloaded.
fn topology<'a>(all: &BTreeMap<SocketAddr, &SliceEndpoint>, here: NodeLocation<'a>) -> Filter<'a> {
    let names = |hints: &[Arc<str>], place: &str| hints.iter().any(|hint| **hint == *place);
    let ready = || all.values().filter(|e| e.state == EndpointState::Ready);
    if here.node_hints
        && ready().all(|e| !e.node_hints.is_empty())
        && ready().any(|e| names(&e.node_hints, here.node))
    {
        return Box::new(move |e| names(&e.node_hints, here.node));
    }
    match here.zone {
        Some(zone)
            if ready().all(|e| !e.zone_hints.is_empty())
                && ready().any(|e| names(&e.zone_hints, zone)) =>
        {
            Box::new(move |e| names(&e.zone_hints, zone))
        }
        _ => Box::new(|_| true),
    }
}
