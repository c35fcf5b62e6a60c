//! All decisions about virtual servers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::balancer::{Balancer, NotOnIpvs};
use super::scheduler::Scheduler;
use super::server::{PlannedServer, ServerCandidate, ServicePortKey, candidate};
use crate::services::{PlanInputs, listed};
use crate::{
    EgressMasquerade, Frontend, FrontendKey, FrontendKind, Outcome, PlanChanges, ServicePlan,
};
use denizen_model::{Family, LocalPod, Protocol, ServiceName, ServicePortName, Snapshot};

/// The virtual servers, and which frontends lead to them.
///
/// Of service ports that lead to one endpoint, only the oldest is carried by IPVS: nftables
/// balances the others entirely.
#[derive(Debug, Default)]
pub struct IpvsPlan {
    servers: BTreeMap<FrontendKey, Arc<PlannedServer>>,
    candidates: BTreeMap<ServicePortKey, Result<ServerCandidate, NotOnIpvs>>,
    balancers: HashMap<ServicePortKey, Balancer>,
    /// The service ports that claim an endpoint. Nearly every endpoint has one claim.
    claims: HashMap<(SocketAddr, Protocol), Vec<ServicePortKey>>,
    /// Addresses of pods that are no longer recorded, while slices still have them.
    ended: BTreeSet<IpAddr>,
    /// For each family, whether node ports are served on loopback too.
    loopback: [bool; 2],
    egress: EgressMasquerade,
    /// The families in which the node has a source for its own connections.
    sources: BTreeSet<Family>,
}

impl IpvsPlan {
    /// Every virtual server, by the frontend at its cluster IP.
    pub fn servers(&self) -> &BTreeMap<FrontendKey, Arc<PlannedServer>> {
        &self.servers
    }

    /// How many service ports with endpoints, in each family, have no virtual server.
    pub fn carried_by_nftables(&self) -> usize {
        let is_carried = |balancer: &&Balancer| match balancer {
            Balancer::Ipvs(_) | Balancer::Nft(NotOnIpvs::NoEndpoints) => false,
            Balancer::Nft(_) => true,
        };
        self.balancers.values().filter(is_carried).count()
    }

    /// Who chooses among a frontend's endpoints.
    pub fn balancer(&self, frontend: &Frontend) -> Balancer {
        let key = ServicePortKey::of(frontend);
        let by_nft = |reason| Balancer::Nft(reason);
        match (self.balancers.get(&key), self.candidates.get(&key)) {
            (Some(Balancer::Ipvs(server)), Some(Ok(candidate))) => match &frontend.inside {
                Outcome::Reject | Outcome::Drop => by_nft(NotOnIpvs::NoEndpoints),
                Outcome::Forward(to) if *to != candidate.ready => by_nft(NotOnIpvs::OtherEndpoints),
                Outcome::Forward(_) if self.is_on_loopback(frontend) => by_nft(NotOnIpvs::Loopback),
                Outcome::Forward(_) => Balancer::Ipvs(*server),
            },
            (Some(balancer), _) => balancer.clone(),
            (None, _) => by_nft(NotOnIpvs::NoClusterIp),
        }
    }

    fn is_on_loopback(&self, frontend: &Frontend) -> bool {
        frontend.kind == FrontendKind::NodePort && self.loopback[frontend.key.family() as usize]
    }

    /// Updates the recorded pods. Returns the services with endpoints at addresses that came or
    /// went.
    ///
    /// The plugin's DEL is the first sign that a pod has ended. No pod has its address then, so its
    /// connections are ended, too.
    pub(crate) fn change_pods(
        &mut self,
        before: &[LocalPod],
        now: &[LocalPod],
        world: Snapshot<'_>,
    ) -> BTreeSet<ServiceName> {
        let addresses = |pods: &[LocalPod]| -> BTreeSet<IpAddr> {
            pods.iter().flat_map(|pod| pod.ips.iter().copied()).collect()
        };
        let (before, now) = (addresses(before), addresses(now));
        let back: BTreeSet<IpAddr> = self.ended.intersection(&now).copied().collect();
        let left: BTreeSet<IpAddr> = before.difference(&now).copied().collect();
        if left.is_empty() && back.is_empty() {
            return BTreeSet::new();
        }
        let ended: BTreeSet<IpAddr> = self.ended.difference(&back).chain(&left).copied().collect();
        let (mut names, mut listed) = (BTreeSet::new(), BTreeSet::new());
        for service in world.services() {
            let endpoints = world.slices(&service.name).flat_map(|slice| &slice.endpoints);
            for ip in endpoints.map(|endpoint| endpoint.address) {
                if left.contains(&ip) || back.contains(&ip) {
                    names.insert(service.name.clone());
                }
                if ended.contains(&ip) {
                    listed.insert(ip);
                }
            }
        }
        self.ended = listed;
        names
    }

    /// Decides again about these services.
    pub(crate) fn update(
        &mut self,
        mut names: BTreeSet<ServiceName>,
        services: &ServicePlan,
        by: PlanInputs<'_>,
        changes: &mut PlanChanges,
    ) {
        self.loopback = Family::BOTH.map(|family| by.node.node_ports.are_on_loopback(family));
        let sources = by.node.route_sources.keys().copied().collect();
        if self.egress != by.node.egress || self.sources != sources {
            (self.egress, self.sources) = (by.node.egress.clone(), sources);
            names.extend(by.world.services().map(|service| service.name.clone()));
        }
        let mut touched = BTreeSet::new();
        for name in names {
            let mut wanted = self.wanted(&name, services, by);
            let keys: BTreeSet<ServicePortKey> =
                self.known(&name).chain(wanted.keys().cloned()).collect();
            for key in keys {
                let candidate = wanted.remove(&key);
                self.put(key, candidate, &mut touched);
            }
        }
        self.decide(&touched, services, changes);
    }

    /// The service ports of a service at the last decision.
    fn known(&self, name: &ServiceName) -> impl Iterator<Item = ServicePortKey> + '_ {
        let service_port =
            ServicePortName { service: name.clone(), port: "".into(), protocol: Protocol::Tcp };
        let first = ServicePortKey { service_port, family: Family::V4 };
        let name = name.clone();
        let from = self.candidates.range(first..).map(|(key, _)| key);
        from.take_while(move |key| key.service_port.service == name).cloned()
    }

    fn wanted(
        &self,
        name: &ServiceName,
        services: &ServicePlan,
        by: PlanInputs<'_>,
    ) -> BTreeMap<ServicePortKey, Result<ServerCandidate, NotOnIpvs>> {
        let Some(service) = by.world.service(name) else {
            return BTreeMap::new();
        };
        let (scheduler, _) = Scheduler::for_service(by.scheduler, service.scheduler.as_deref());
        let mut frontends: BTreeMap<ServicePortKey, Vec<&Frontend>> = BTreeMap::new();
        let won = services.keys_of(name).iter().filter_map(|key| services.frontend(key));
        for frontend in won.filter(|frontend| frontend.service_port.service == *name) {
            frontends.entry(ServicePortKey::of(frontend)).or_default().push(frontend);
        }
        let candidate = |(key, frontends): (ServicePortKey, Vec<&Frontend>)| {
            let ServicePortName { port, protocol, .. } = &key.service_port;
            let listed = || listed(port, *protocol, key.family, by.world.slices(name));
            let decided = candidate(&frontends, scheduler, listed, &self.ended, by.node);
            (key, decided)
        };
        frontends.into_iter().map(candidate).collect()
    }

    /// Replaces a candidate, and adds to `touched` all candidates that share an endpoint with the
    /// old or the new one.
    fn put(
        &mut self,
        key: ServicePortKey,
        candidate: Option<Result<ServerCandidate, NotOnIpvs>>,
        touched: &mut BTreeSet<ServicePortKey>,
    ) {
        let before = self.candidates.get(&key);
        if before == candidate.as_ref() {
            return;
        }
        for claim in
            before.iter().flat_map(|candidate| candidate.iter()).flat_map(ServerCandidate::claims)
        {
            if let Some(claims) = self.claims.get_mut(&claim) {
                claims.retain(|other| *other != key);
                touched.extend(claims.iter().cloned());
                if claims.is_empty() {
                    self.claims.remove(&claim);
                }
            }
        }
        for claim in candidate
            .iter()
            .flat_map(|candidate| candidate.iter())
            .flat_map(ServerCandidate::claims)
        {
            let claims = self.claims.entry(claim).or_insert_with(|| Vec::with_capacity(1));
            touched.extend(claims.iter().cloned());
            claims.push(key.clone());
        }
        touched.insert(key.clone());
        match candidate {
            Some(candidate) => self.candidates.insert(key, candidate),
            None => self.candidates.remove(&key),
        };
    }

    /// Decides which candidates get a virtual server. All servers are removed before any is added,
    /// since the address of one service port may become that of another in one pass.
    fn decide(
        &mut self,
        touched: &BTreeSet<ServicePortKey>,
        services: &ServicePlan,
        changes: &mut PlanChanges,
    ) {
        let mut before = BTreeMap::new();
        for key in touched {
            if let Some(Balancer::Ipvs(server)) = self.balancers.remove(key) {
                before.insert(server, self.servers.remove(&server));
            }
        }
        for key in touched {
            let keys = services.keys_of(&key.service_port.service).iter();
            let claimed =
                keys.filter(|at| services.frontend(at).is_some_and(|frontend| key.has(frontend)));
            changes.frontends.extend(claimed);
            let Some(candidate) = self.candidates.get(key) else { continue };
            let balancer = match candidate {
                Err(reason) => Balancer::Nft(reason.clone()),
                Ok(candidate) => match self.older(candidate) {
                    Some(shared) => Balancer::Nft(shared),
                    None => {
                        before.entry(candidate.key).or_insert(None);
                        self.servers.insert(candidate.key, candidate.server.clone());
                        Balancer::Ipvs(candidate.key)
                    }
                },
            };
            self.balancers.insert(key.clone(), balancer);
        }
        let differs = before.iter().filter(|(key, was)| self.servers.get(key) != was.as_ref());
        changes.virtual_servers.extend(differs.map(|(key, _)| *key));
    }

    /// Why this candidate gets no virtual server: an older candidate has one of its endpoints.
    fn older(&self, candidate: &ServerCandidate) -> Option<NotOnIpvs> {
        candidate.claims().find_map(|claim| {
            let others = self.claims.get(&claim)?.iter();
            let others = others.filter_map(|key| self.candidates.get(key)?.as_ref().ok());
            let oldest = others.min_by(|a, b| a.rank().cmp(&b.rank()))?;
            let with = &oldest.server.service_port;
            let shared = NotOnIpvs::SharedEndpoint { endpoint: claim.0, with: with.clone() };
            (oldest.key != candidate.key).then_some(shared)
        })
    }
}
