//! All front doors of all services: whose each one is.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::decide::{Settings, frontends};
use super::frontend::{Door, Frontend};
use super::health_check::{HealthCheck, HealthChecks};
use crate::model::{Change, ServiceName, ServicePortName, Snapshot};

/// Two service ports claim one door, and one of them gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// What both claim.
    pub door: Door,
    /// Who has it.
    pub winner: ServicePortName,
    /// Who does not.
    pub loser: ServicePortName,
}

/// What an update of the plan touched.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Doors that are decided otherwise now, or are gone.
    pub doors: BTreeSet<Door>,
    /// Claims that were not there before, and lost.
    pub conflicts: Vec<Conflict>,
    /// [`Plan::local_endpoints`] are others now.
    pub local_endpoints: bool,
    /// [`Plan::health_checks`] are others now.
    pub health_checks: bool,
}

/// What is decided about every door.
#[derive(Debug, Default)]
pub struct Plan {
    /// Every claim on a door, the winner's first.
    claims: HashMap<Door, Vec<Frontend>>,
    doors_of: HashMap<ServiceName, Vec<Door>>,
    /// This node's endpoints, and how many doors lead to each.
    local_endpoints: BTreeMap<IpAddr, usize>,
    health_checks: HealthChecks,
}

impl Plan {
    /// Decides anew what `change` touches, and tells which doors came out otherwise.
    pub fn update(&mut self, settings: &Settings, world: Snapshot<'_>, change: &Change) -> Touched {
        let mut touched = Touched::default();
        if change.node {
            let all = world
                .services()
                .map(|s| s.name.clone())
                .chain(self.doors_of.keys().cloned());
            for name in all.collect::<BTreeSet<_>>() {
                self.replan(settings, world, &name, &mut touched);
            }
        } else {
            for name in &change.services {
                self.replan(settings, world, name, &mut touched);
            }
        }
        touched
    }

    /// What is decided about a door.
    pub fn frontend(&self, door: &Door) -> Option<&Frontend> {
        self.claims.get(door).and_then(|claims| claims.first())
    }

    /// Every door's winner, in no order.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.claims.values().filter_map(|claims| claims.first())
    }

    /// The doors that a service claims.
    pub fn doors_of(&self, service: &ServiceName) -> &[Door] {
        self.doors_of.get(service).map(Vec::as_slice).unwrap_or_default()
    }

    /// How many endpoints connections are forwarded to, counted once for each service port.
    pub fn endpoint_count(&self) -> usize {
        let ports: HashMap<&ServicePortName, usize> = self
            .frontends()
            .filter_map(|f| {
                f.inside
                    .endpoints()
                    .map(|endpoints| (&f.service_port, endpoints.count()))
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
        let check = service.and_then(|service| HealthCheck::of(settings, world.node(), service, &slices));
        touched.health_checks |= self.health_checks.put(name, check);
        let wanted = match service {
            Some(service) => frontends(settings, world.node(), service, &slices),
            None => Vec::new(),
        };
        let mut gone: BTreeSet<Door> = self.doors_of.remove(name).into_iter().flatten().collect();
        let doors: Vec<Door> = wanted.iter().map(|frontend| frontend.door).collect();
        for frontend in wanted {
            gone.remove(&frontend.door);
            self.claim(frontend, touched);
        }
        for door in gone {
            self.release(&door, name, touched);
        }
        if !doors.is_empty() {
            self.doors_of.insert(name.clone(), doors);
        }
    }

    /// Puts a service's claim in place of the one it had.
    fn claim(&mut self, frontend: Frontend, touched: &mut Touched) {
        let door = frontend.door;
        // Nearly every door has one claim.
        let claims = self.claims.entry(door).or_insert_with(|| Vec::with_capacity(1));
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
            let loser = if at == 0 {
                claims[1].service_port.clone()
            } else {
                name
            };
            touched.conflicts.push(Conflict { door, winner, loser });
        }
        let after = claims.first();
        touched.local_endpoints |= recount(&mut self.local_endpoints, before.as_ref(), after);
        touched.doors.insert(door);
    }

    fn release(&mut self, door: &Door, service: &ServiceName, touched: &mut Touched) {
        let Entry::Occupied(mut entry) = self.claims.entry(*door) else {
            return;
        };
        let before = entry.get().first().cloned();
        entry
            .get_mut()
            .retain(|claim| claim.service_port.service != *service);
        let after = entry.get().first();
        touched.local_endpoints |= recount(&mut self.local_endpoints, before.as_ref(), after);
        if entry.get().is_empty() {
            entry.remove();
        }
        touched.doors.insert(*door);
    }
}

/// Counts a door's local endpoints: in those of its winner now, out those of the one before. Whether any is
/// new or gone. In first, so that one that stays is neither.
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
