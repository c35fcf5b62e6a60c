//! All decisions about services.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::decide::frontends;
use super::frontend::{Frontend, FrontendAddress, FrontendKey, FrontendKind};
use super::health_check::{HealthCheck, HealthChecks};
use super::plan_inputs::PlanInputs;
use super::remark::{Remark, remarks};
use crate::{NodePlan, PlanChanges};
use denizen_model::{Protocol, ServiceName, ServicePortName, family_of};

/// Two service ports claim one frontend, and one of them gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub key: FrontendKey,
    pub winner: ServicePortName,
    /// The service port that does not get it.
    pub loser: ServicePortName,
}

/// The decisions about all frontends.
#[derive(Debug, Default)]
pub struct ServicePlan {
    /// Every claim on a frontend, the winner's first.
    claims: HashMap<FrontendKey, Vec<Frontend>>,
    keys_of: HashMap<ServiceName, Vec<FrontendKey>>,
    /// This node's endpoints, and how many frontends lead to each.
    local_endpoints: BTreeMap<IpAddr, usize>,
    hairpins: BTreeSet<IpAddr>,
    health_checks: HealthChecks,
    remarks: BTreeMap<ServiceName, Vec<Remark>>,
    /// Remarks about the service ranges.
    range_remarks: Vec<Remark>,
    /// Remarks about health-check node ports that frontends take.
    check_remarks: Vec<Remark>,
}

impl ServicePlan {
    pub fn frontend(&self, key: &FrontendKey) -> Option<&Frontend> {
        self.claims.get(key).and_then(|claims| claims.first())
    }

    /// Every frontend's winner, in no order.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.claims.values().filter_map(|claims| claims.first())
    }

    /// The services that claim a frontend, the winner first.
    pub fn claimants(&self, key: &FrontendKey) -> impl Iterator<Item = &ServiceName> {
        self.claims.get(key).into_iter().flatten().map(|claim| &claim.service_port.service)
    }

    /// The frontends that a service claims.
    pub fn keys_of(&self, service: &ServiceName) -> &[FrontendKey] {
        self.keys_of.get(service).map(Vec::as_slice).unwrap_or_default()
    }

    /// How many endpoints connections are forwarded to, counted once for each service port.
    pub fn endpoint_count(&self) -> usize {
        let ports: HashMap<&ServicePortName, usize> = self
            .frontends()
            .filter_map(|f| {
                f.inside.endpoints().map(|endpoints| (&f.service_port, endpoints.count()))
            })
            .collect();
        ports.values().sum()
    }

    /// The addresses that may reach themselves through a service: those of recorded pods, and of
    /// endpoints on this node.
    pub fn hairpins(&self) -> &BTreeSet<IpAddr> {
        &self.hairpins
    }

    /// What the health-check node ports answer.
    pub fn health_checks(&self) -> &HealthChecks {
        &self.health_checks
    }

    pub fn remarks(&self) -> impl Iterator<Item = &Remark> {
        self.remarks.values().flatten().chain(&self.range_remarks).chain(&self.check_remarks)
    }

    /// The service whose cluster IP is this address of the node, which is therefore not served.
    pub fn claims_own(&self, address: IpAddr) -> Option<&ServiceName> {
        self.remarks().find_map(|remark| match remark {
            Remark::OwnAddress { service, address: ip } if *ip == address => Some(service),
            Remark::OwnAddress { .. }
            | Remark::NotPermitted { .. }
            | Remark::TooManyAddresses { .. }
            | Remark::OpenFamily { .. }
            | Remark::OwnRange { .. }
            | Remark::ShadowedCheck { .. }
            | Remark::UnknownScheduler { .. }
            | Remark::UnknownSchedulerFlag { .. } => None,
        })
    }

    /// The service that asks for this address, if the operator does not permit it.
    pub fn refused(&self, address: IpAddr) -> Option<(&ServiceName, FrontendKind)> {
        self.remarks().find_map(|remark| {
            let Remark::NotPermitted { service, kind, address: rejected } = remark else {
                return None;
            };
            (*rejected == address).then_some((service, *kind))
        })
    }

    /// A service that has this address beside too many others, so that it is not served.
    pub fn left_out(&self, address: IpAddr) -> Option<&ServiceName> {
        self.remarks.keys().find(|service| self.leaves_out(service, address))
    }

    /// Whether this address of a service is not served, because the service has too many.
    pub fn leaves_out(&self, service: &ServiceName, address: IpAddr) -> bool {
        self.remarks.get(service).into_iter().flatten().any(|remark| {
            let Remark::TooManyAddresses { left_out, .. } = remark else { return false };
            left_out.contains(&address)
        })
    }

    /// Plans these services again.
    pub(crate) fn update(
        &mut self,
        names: &BTreeSet<ServiceName>,
        by: PlanInputs<'_>,
        changes: &mut PlanChanges,
    ) {
        for name in names {
            self.replan(name, by, changes);
        }
        self.remark_ranges(by, changes);
        self.remark_checks(by, changes);
        if changes.complete || changes.pods || changes.local_endpoints {
            let pods = by.pods.iter().flat_map(|pod| pod.ips.iter().copied());
            let hairpins = pods.chain(self.local_endpoints.keys().copied()).collect();
            changes.hairpins = self.hairpins != hairpins;
            self.hairpins = hairpins;
        }
    }

    /// Every service with a claim on a frontend.
    pub(crate) fn names(&self) -> impl Iterator<Item = &ServiceName> {
        self.keys_of.keys()
    }

    fn remark_ranges(&mut self, by: PlanInputs<'_>, changes: &mut PlanChanges) {
        let protected_in =
            |range: IpNetwork| by.node.protected_addresses.iter().find(|ip| range.contains(**ip));
        let remarks = by.world.service_ranges().filter_map(|range| {
            protected_in(range).map(|address| Remark::OwnRange { range, address: *address })
        });
        replace(&mut self.range_remarks, remarks.collect(), changes);
    }

    /// Remarks on health-check node ports that the rules of a frontend take over.
    fn remark_checks(&mut self, by: PlanInputs<'_>, changes: &mut PlanChanges) {
        let concerns =
            |key: &FrontendKey| key.protocol == Protocol::Tcp && self.health_checks.have(key.port);
        let differs = changes.health_checks || changes.node || changes.complete;
        if !differs && !changes.frontends.iter().any(concerns) {
            return;
        }
        let remarks = self.health_checks.iter().filter_map(|check| self.shadowed(check, by));
        let remarks = remarks.collect();
        replace(&mut self.check_remarks, remarks, changes);
    }

    fn shadowed(&self, check: &HealthCheck, by: PlanInputs<'_>) -> Option<Remark> {
        let families = || check.local_endpoints.keys();
        let at_node = families().map(|family| FrontendAddress::Node(*family));
        let at_ip = by.node.node_ports.addresses.iter().copied();
        let at_ip = at_ip.filter(|ip| families().any(|family| *family == family_of(*ip)));
        let addresses = at_node.chain(at_ip.map(FrontendAddress::Ip));
        let frontends = addresses.filter_map(|address| {
            self.frontend(&FrontendKey { address, protocol: Protocol::Tcp, port: check.port })
        });
        let frontend = frontends.into_iter().next()?;
        Some(Remark::ShadowedCheck {
            service: check.service.clone(),
            port: check.port,
            key: frontend.key,
            by: frontend.service_port.clone(),
        })
    }

    fn replan(&mut self, name: &ServiceName, by: PlanInputs<'_>, changes: &mut PlanChanges) {
        let PlanInputs { settings, node: NodePlan { protected_addresses, .. }, world, .. } = by;
        let slices: Vec<_> = world.slices(name).collect();
        let service = world.service(name);
        let check =
            service.and_then(|service| HealthCheck::of(settings, world.node(), service, &slices));
        changes.health_checks |= self.health_checks.put(name, check);
        let mut wanted = match service {
            Some(service) => frontends(settings, world.node(), service, &slices),
            None => Vec::new(),
        };
        wanted.retain(|frontend| !takes_protected(frontend, protected_addresses));
        if !by.capabilities.restricts_first {
            wanted.iter_mut().for_each(refuse_first);
        }
        self.remark(name, service.map(|service| remarks(service, by)), changes);
        let keys: Vec<FrontendKey> = wanted.iter().map(|frontend| frontend.key).collect();
        for frontend in wanted {
            self.claim(frontend, changes);
        }
        let before = self.keys_of(name);
        if *before == keys {
            return;
        }
        let stay: BTreeSet<&FrontendKey> = keys.iter().collect();
        let gone = before.iter().filter(|key| !stay.contains(key));
        for key in gone.copied().collect::<Vec<_>>() {
            self.release(&key, name, changes);
        }
        match keys.is_empty() {
            true => self.keys_of.remove(name),
            false => self.keys_of.insert(name.clone(), keys),
        };
    }

    fn remark(
        &mut self,
        name: &ServiceName,
        remarks: Option<Vec<Remark>>,
        changes: &mut PlanChanges,
    ) {
        let before = self.remarks.remove(name).unwrap_or_default();
        let remarks = remarks.unwrap_or_default();
        let new = remarks.iter().filter(|remark| !before.contains(remark));
        changes.remarks.extend(new.cloned());
        if !remarks.is_empty() {
            self.remarks.insert(name.clone(), remarks);
        }
    }

    fn claim(&mut self, frontend: Frontend, changes: &mut PlanChanges) {
        let key = frontend.key;
        // Nearly every frontend has one claim.
        let claims = self.claims.entry(key).or_insert_with(|| Vec::with_capacity(1));
        let mine = |claim: &Frontend| claim.service_port.service == frontend.service_port.service;
        let place = claims.iter().position(mine);
        if place.is_some_and(|place| claims[place] == frontend) {
            return;
        }
        let former = place.map(|place| claims.remove(place));
        let at = claims.partition_point(|claim| claim.rank() < frontend.rank());
        claims.insert(at, frontend);
        if former.is_none() && claims.len() > 1 {
            let winner = claims[0].service_port.clone();
            let loser = claims[at.max(1)].service_port.clone();
            changes.conflicts.push(Conflict { key, winner, loser });
        }
        let before = match place {
            Some(0) => former.as_ref(),
            Some(_) | None => claims.get(usize::from(at == 0)),
        };
        let after = claims.first();
        changes.local_endpoints |= recount(&mut self.local_endpoints, before, after);
        changes.frontends.insert(key);
    }

    fn release(&mut self, key: &FrontendKey, service: &ServiceName, changes: &mut PlanChanges) {
        let Entry::Occupied(mut entry) = self.claims.entry(*key) else {
            return;
        };
        let claims = entry.get_mut();
        let is_its = |claim: &Frontend| claim.service_port.service == *service;
        if let Some(place) = claims.iter().position(is_its) {
            let former = claims.remove(place);
            if place == 0 {
                let after = claims.first();
                changes.local_endpoints |= recount(&mut self.local_endpoints, Some(&former), after);
            }
        }
        if claims.is_empty() {
            entry.remove();
        }
        changes.frontends.insert(*key);
    }
}

/// Replaces the remarks, and notes those that are new.
fn replace(held: &mut Vec<Remark>, remarks: Vec<Remark>, changes: &mut PlanChanges) {
    let new = remarks.iter().filter(|remark| !held.contains(remark));
    changes.remarks.extend(new.cloned());
    *held = remarks;
}

/// Whether it is a cluster IP that the node would lose: nftables handles all ports of a cluster IP.
/// A load balancer IP or an external IP may be the node's own (k3s' ServiceLB does so): they take
/// only the service's ports.
fn takes_protected(frontend: &Frontend, protected_addresses: &BTreeSet<IpAddr>) -> bool {
    match (frontend.kind, frontend.key.address) {
        (FrontendKind::ClusterIp, FrontendAddress::Ip(ip)) => protected_addresses.contains(&ip),
        (_, _) => false,
    }
}

/// For backends that look for endpoints first: without endpoints, every source is refused, even a
/// source that may not use the frontend.
fn refuse_first(frontend: &mut Frontend) {
    frontend.sources.take_if(|_| frontend.inside.endpoints().is_none());
}

/// Counts a frontend's local endpoints: adds those of the new winner, subtracts those of the
/// previous one. Returns whether any is new or gone. It adds first, so that an endpoint that stays
/// is neither.
fn recount(
    counts: &mut BTreeMap<IpAddr, usize>,
    before: Option<&Frontend>,
    after: Option<&Frontend>,
) -> bool {
    let mut differs = false;
    for ip in local_endpoints(after) {
        let n = counts.entry(ip).or_insert(0);
        differs |= *n == 0;
        *n += 1;
    }
    for ip in local_endpoints(before) {
        let n = counts.entry(ip).or_insert(0);
        *n = n.saturating_sub(1);
        if *n == 0 {
            counts.remove(&ip);
            differs = true;
        }
    }
    differs
}

fn local_endpoints(frontend: Option<&Frontend>) -> impl Iterator<Item = IpAddr> {
    let outcomes = frontend
        .into_iter()
        .flat_map(|frontend| [Some(&frontend.inside), frontend.outside.as_ref()]);
    outcomes
        .flatten()
        .filter_map(|outcome| outcome.endpoints())
        .flat_map(|endpoints| endpoints.iter())
        .filter(|endpoint| endpoint.local)
        .map(|endpoint| endpoint.address.ip())
}
