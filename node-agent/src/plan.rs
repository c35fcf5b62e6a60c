//! Decisions: what becomes of a packet at every frontend of every service, and who is local.
//!
//! Pure, and no word of any backend: every backend and `explain` read the same [`Plan`].

mod node;
mod services;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use self::node::own_addresses;
pub use self::node::{
    Arrival, Detector, Local, MarkBit, NodePortAddresses, NodeSide, Port, node_port_addresses,
};
use self::services::remarks;
pub use self::services::{
    Endpoint, Endpoints, Frontend, FrontendAddress, FrontendKey, FrontendKind, HealthCheck,
    HealthChecks, HealthPorts, Masquerade, Outcome, Remark, Selection, Settings, Whereabouts,
    frontends, select, serving,
};
use crate::model::{Change, ServiceName, ServicePortName, Snapshot};

/// Two service ports claim one frontend, and one of them gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// What both claim.
    pub key: FrontendKey,
    /// Who has it.
    pub winner: ServicePortName,
    /// Who does not.
    pub loser: ServicePortName,
}

/// What an update of the plan touched.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Frontends that are decided otherwise now, or are gone.
    pub keys: BTreeSet<FrontendKey>,
    /// Claims that were not there before, and lost.
    pub conflicts: Vec<Conflict>,
    /// [`Plan::local_endpoints`] are others now.
    pub local_endpoints: bool,
    /// [`Plan::health_checks`] are others now.
    pub health_checks: bool,
    /// Remarks that did not hold before.
    pub remarks: Vec<Remark>,
}

/// What is decided about every frontend.
#[derive(Debug, Default)]
pub struct Plan {
    /// Every claim on a frontend, the winner's first.
    claims: HashMap<FrontendKey, Vec<Frontend>>,
    keys_of: HashMap<ServiceName, Vec<FrontendKey>>,
    /// This node's endpoints, and how many frontends lead to each.
    local_endpoints: BTreeMap<IpAddr, usize>,
    health_checks: HealthChecks,
    /// The node's own addresses.
    own: BTreeSet<IpAddr>,
    remarks: BTreeMap<ServiceName, Vec<Remark>>,
    /// The same about the ranges that cluster IPs come from.
    range_remarks: Vec<Remark>,
}

impl Plan {
    /// Decides anew what `change` touches, and tells which frontends came out otherwise.
    pub fn update(&mut self, settings: &Settings, world: Snapshot<'_>, change: &Change) -> Touched {
        let mut touched = Touched::default();
        let mut names = change.services.clone();
        if change.node || change.addresses {
            names.extend(self.own_are(own_addresses(world.node(), world.addresses()), world));
        }
        if change.node {
            names.extend(world.services().map(|service| service.name.clone()));
            names.extend(self.keys_of.keys().cloned());
        }
        for name in names {
            self.replan(settings, world, &name, &mut touched);
        }
        self.remark_ranges(world, &mut touched);
        touched
    }

    /// The node's own addresses are these; the services whose cluster IPs begin or cease to be
    /// among them.
    fn own_are(&mut self, own: BTreeSet<IpAddr>, world: Snapshot<'_>) -> Vec<ServiceName> {
        let before = std::mem::replace(&mut self.own, own);
        let differing: BTreeSet<&IpAddr> = before.symmetric_difference(&self.own).collect();
        if differing.is_empty() {
            return Vec::new();
        }
        let concerned = world
            .services()
            .filter(|service| service.cluster_ips.iter().any(|ip| differing.contains(ip)));
        concerned.map(|service| service.name.clone()).collect()
    }

    fn remark_ranges(&mut self, world: Snapshot<'_>, touched: &mut Touched) {
        let own_in = |range: IpNetwork| self.own.iter().find(|ip| range.contains(**ip));
        let remarks = world.service_ranges().filter_map(|range| {
            own_in(range).map(|address| Remark::OwnRange { range, address: *address })
        });
        let remarks: Vec<Remark> = remarks.collect();
        let new = remarks.iter().filter(|it| !self.range_remarks.contains(it));
        touched.remarks.extend(new.cloned());
        self.range_remarks = remarks;
    }

    /// What owners should know.
    pub fn remarks(&self) -> impl Iterator<Item = &Remark> {
        self.remarks.values().flatten().chain(&self.range_remarks)
    }

    /// The service that has one of the node's own addresses as its cluster IP, where it is not
    /// served.
    pub fn claims_own(&self, address: IpAddr) -> Option<&ServiceName> {
        self.remarks().find_map(|remark| match remark {
            Remark::OwnAddress { service, address: ip } if *ip == address => Some(service),
            Remark::OwnAddress { .. } | Remark::OpenFamily { .. } | Remark::OwnRange { .. } => None,
        })
    }

    /// The ranges that cluster IPs come from, but for those with one of the node's own addresses in
    /// them.
    pub fn service_ranges(&self, world: Snapshot<'_>) -> impl Iterator<Item = IpNetwork> {
        let has_own = |range: &IpNetwork| self.own.iter().any(|ip| range.contains(*ip));
        world.service_ranges().filter(move |range| !has_own(range))
    }

    /// What is decided about a frontend.
    pub fn frontend(&self, key: &FrontendKey) -> Option<&Frontend> {
        self.claims.get(key).and_then(|claims| claims.first())
    }

    /// Every frontend's winner, in no order.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.claims.values().filter_map(|claims| claims.first())
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

    /// The addresses of this node's endpoints.
    pub fn local_endpoints(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.local_endpoints.keys().copied()
    }

    /// What the health-check node ports answer.
    pub fn health_checks(&self) -> &HealthChecks {
        &self.health_checks
    }

    fn replan(
        &mut self,
        settings: &Settings,
        world: Snapshot<'_>,
        name: &ServiceName,
        touched: &mut Touched,
    ) {
        let slices: Vec<_> = world.slices(name).collect();
        let service = world.service(name);
        let check =
            service.and_then(|service| HealthCheck::of(settings, world.node(), service, &slices));
        touched.health_checks |= self.health_checks.put(name, check);
        let mut wanted = match service {
            Some(service) => frontends(settings, world.node(), service, &slices),
            None => Vec::new(),
        };
        wanted.retain(|frontend| !self.takes_own(frontend));
        self.remark(name, service.map(|service| remarks(service, &self.own)), touched);
        let mut gone: BTreeSet<FrontendKey> =
            self.keys_of.remove(name).into_iter().flatten().collect();
        let keys: Vec<FrontendKey> = wanted.iter().map(|frontend| frontend.key).collect();
        for frontend in wanted {
            gone.remove(&frontend.key);
            self.claim(frontend, touched);
        }
        for key in gone {
            self.release(&key, name, touched);
        }
        if !keys.is_empty() {
            self.keys_of.insert(name.clone(), keys);
        }
    }

    /// Whether it is a cluster IP that the node would lose: with nftables, all its ports. A load
    /// balancer's and an external IP may be the node's own (k3s' ServiceLB does so): they take the
    /// service's ports alone.
    fn takes_own(&self, frontend: &Frontend) -> bool {
        match (frontend.kind, frontend.key.address) {
            (FrontendKind::ClusterIp, FrontendAddress::Ip(ip)) => self.own.contains(&ip),
            (_, _) => false,
        }
    }

    fn remark(&mut self, name: &ServiceName, remarks: Option<Vec<Remark>>, touched: &mut Touched) {
        let before = self.remarks.remove(name).unwrap_or_default();
        let remarks = remarks.unwrap_or_default();
        let new = remarks.iter().filter(|remark| !before.contains(remark));
        touched.remarks.extend(new.cloned());
        if !remarks.is_empty() {
            self.remarks.insert(name.clone(), remarks);
        }
    }

    /// Puts a service's claim in place of the one it had.
    fn claim(&mut self, frontend: Frontend, touched: &mut Touched) {
        let key = frontend.key;
        // Nearly every frontend has one claim.
        let claims = self.claims.entry(key).or_insert_with(|| Vec::with_capacity(1));
        let mine = |claim: &Frontend| claim.service_port.service == frontend.service_port.service;
        if claims.contains(&frontend) {
            return;
        }
        let before = claims.first().cloned();
        let is_new = !claims.iter().any(mine);
        claims.retain(|claim| !mine(claim));
        let name = frontend.service_port.clone();
        let at = claims.partition_point(|claim| claim.rank() < frontend.rank());
        claims.insert(at, frontend);
        if is_new && claims.len() > 1 {
            let winner = claims[0].service_port.clone();
            let loser = if at == 0 { claims[1].service_port.clone() } else { name };
            touched.conflicts.push(Conflict { key, winner, loser });
        }
        let after = claims.first();
        touched.local_endpoints |= recount(&mut self.local_endpoints, before.as_ref(), after);
        touched.keys.insert(key);
    }

    fn release(&mut self, key: &FrontendKey, service: &ServiceName, touched: &mut Touched) {
        let Entry::Occupied(mut entry) = self.claims.entry(*key) else {
            return;
        };
        let before = entry.get().first().cloned();
        entry.get_mut().retain(|claim| claim.service_port.service != *service);
        let after = entry.get().first();
        touched.local_endpoints |= recount(&mut self.local_endpoints, before.as_ref(), after);
        if entry.get().is_empty() {
            entry.remove();
        }
        touched.keys.insert(*key);
    }
}

/// Counts a frontend's local endpoints: in those of its winner now, out those of the one before.
/// Whether any is new or gone. In first, so that one that stays is neither.
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
