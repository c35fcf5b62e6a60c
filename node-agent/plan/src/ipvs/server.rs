//! Virtual servers as they are planned.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::balancer::NotOnIpvs;
use super::scheduler::Scheduler;
use crate::{Endpoint, Endpoints, Frontend, FrontendKey, FrontendKind, NodePlan, SeenAs};
use denizen_model::{Family, Protocol, ServicePortName, SessionAffinity};

/// One service port in one family. It has at most one virtual server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortKey {
    pub service_port: ServicePortName,
    pub family: Family,
}

impl ServicePortKey {
    /// The service port of a frontend.
    pub fn of(frontend: &Frontend) -> Self {
        let service_port = frontend.service_port.clone();
        Self { service_port, family: frontend.key.family() }
    }

    /// Whether a frontend belongs to it.
    pub(super) fn has(&self, frontend: &Frontend) -> bool {
        self.service_port == frontend.service_port && self.family == frontend.key.family()
    }
}

/// Which connections an endpoint gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Share {
    /// New ones: weight 1.
    Ready,
    /// No new connections, but existing ones stay: weight 0. The endpoint is in the slices, but not
    /// selected. A real server that exists is kept; none is added.
    Draining,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
        })
    }
}

/// A virtual server. Its address, protocol and port are those of a cluster IP's frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedServer {
    pub service_port: ServicePortName,
    pub scheduler: Scheduler,
    /// The endpoints, including those that only keep existing connections. An endpoint whose pod
    /// has ended (the plugin's DEL) is not among them: its connections end.
    pub endpoints: BTreeMap<SocketAddr, Share>,
}

/// A virtual server as decided from its own service alone, before services with the same endpoints
/// are considered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerCandidate {
    pub key: FrontendKey,
    pub ready: Endpoints,
    pub server: Arc<PlannedServer>,
    created: Arc<str>,
}

impl ServerCandidate {
    /// Of two candidates with one endpoint, the one that sorts first gets a virtual server: the
    /// older service, then the first by name, on every node and after every restart.
    pub fn rank(&self) -> impl Ord + '_ {
        (self.created.is_empty(), &self.created, &self.server.service_port)
    }

    /// Every endpoint that gets new connections.
    pub fn claims(&self) -> impl Iterator<Item = (SocketAddr, Protocol)> + '_ {
        self.ready.iter().map(|endpoint| (endpoint.address, self.key.protocol))
    }
}

/// Decides about a service port by the frontends that it has here.
pub(super) fn candidate(
    frontends: &[&Frontend],
    scheduler: Scheduler,
    in_slices: impl FnOnce() -> BTreeSet<SocketAddr>,
    ended: &BTreeSet<IpAddr>,
    node: &NodePlan,
) -> Result<ServerCandidate, NotOnIpvs> {
    let of_cluster = frontends.iter().filter(|frontend| frontend.kind == FrontendKind::ClusterIp);
    let main = of_cluster.min_by_key(|frontend| frontend.key).ok_or(NotOnIpvs::NoClusterIp)?;
    let ready = main.inside.endpoints().ok_or(NotOnIpvs::NoEndpoints)?;
    match main.affinity {
        SessionAffinity::None => {}
        SessionAffinity::ClientIp { .. } => return Err(NotOnIpvs::Affinity),
    }
    let family = main.key.family();
    node.route_sources.get(&family).ok_or(NotOnIpvs::NoSource(family))?;
    let addresses = || ready.iter().map(|endpoint| endpoint.address);
    let hides = |at: &SocketAddr| node.egress.seen_as(at.ip()) == Some(SeenAs::Node);
    if let Some(hidden) = addresses().find(hides) {
        return Err(NotOnIpvs::Egress(hidden));
    }
    let mut endpoints: BTreeMap<SocketAddr, Share> = BTreeMap::new();
    // IPVS does not see the end of a UDP flow, nor count the flow as active: at a draining endpoint
    // it would stay for as long as its client sends.
    if main.key.protocol == Protocol::Tcp && scheduler.method.supports_weight_0() {
        endpoints.extend(in_slices().into_iter().map(|at| (at, Share::Draining)));
    }
    endpoints.retain(|at, _| !ended.contains(&at.ip()));
    // The address may since have been given to another pod, on another node.
    let is_served =
        |endpoint: &&Endpoint| !endpoint.local || !ended.contains(&endpoint.address.ip());
    let served = ready.iter().filter(is_served).map(|endpoint| (endpoint.address, Share::Ready));
    endpoints.extend(served);
    let service_port = main.service_port.clone();
    let server = PlannedServer { service_port, scheduler, endpoints };
    let (ready, created) = (ready.clone(), main.created.clone());
    Ok(ServerCandidate { key: main.key, ready, server: server.into(), created })
}
