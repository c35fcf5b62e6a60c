//! All front doors of all services: whose each one is.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::decide::{Settings, frontends};
use super::frontend::{Door, Frontend};
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
}

/// What is decided about every door.
#[derive(Debug, Default)]
pub struct Plan {
    /// Every claim on a door, the winner's first.
    claims: HashMap<Door, Vec<Frontend>>,
    doors_of: HashMap<ServiceName, Vec<Door>>,
    /// This node's endpoints, and how many doors lead to each.
    local_endpoints: BTreeMap<IpAddr, usize>,
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

    fn replan(
        &mut self,
        settings: &Settings,
        world: Snapshot<'_>,
        name: &ServiceName,
        touched: &mut Touched,
    ) {
        let slices: Vec<_> = world.slices(name).collect();
        let wanted = match world.service(name) {
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
        let claims = self.claims.entry(door).or_default();
        let mine = |claim: &Frontend| claim.service_port.service == frontend.service_port.service;
        if claims.contains(&frontend) {
            return;
        }
        count(&mut self.local_endpoints, claims.first(), false);
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
        count(&mut self.local_endpoints, claims.first(), true);
        touched.doors.insert(door);
    }

    fn release(&mut self, door: &Door, service: &ServiceName, touched: &mut Touched) {
        let Entry::Occupied(mut entry) = self.claims.entry(*door) else {
            return;
        };
        count(&mut self.local_endpoints, entry.get().first(), false);
        entry
            .get_mut()
            .retain(|claim| claim.service_port.service != *service);
        count(&mut self.local_endpoints, entry.get().first(), true);
        if entry.get().is_empty() {
            entry.remove();
        }
        touched.doors.insert(*door);
    }
}

/// Counts a door's local endpoints in or out.
fn count(counts: &mut BTreeMap<IpAddr, usize>, frontend: Option<&Frontend>, into: bool) {
    let Some(frontend) = frontend else { return };
    let outcomes = [Some(&frontend.inside), frontend.outside.as_ref()];
    let endpoints = outcomes
        .into_iter()
        .flatten()
        .filter_map(|outcome| outcome.endpoints());
    for endpoint in endpoints
        .flat_map(|endpoints| endpoints.iter())
        .filter(|endpoint| endpoint.local)
    {
        let ip = endpoint.address.ip();
        let n = counts.entry(ip).or_insert(0);
        *n = if into { *n + 1 } else { n.saturating_sub(1) };
        if *n == 0 {
            counts.remove(&ip);
        }
    }
}
