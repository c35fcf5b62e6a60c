//! Announcements, as routes of a table in which no packet is looked up: routing daemons read it
//! (`ip route show table 219`), and the metric says what each route is. The window of a single
//! pod's route, which has no effect where no packet is looked up, says when the pod was recorded:
//! no other attribute that routing daemons read is a free number.
//!
//! The table is the announcement: what is in it stays announced while no agent runs, and a
//! restarted agent compares it with its plan.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use denizen_route::{
    LOCAL, MAIN, ObservedRoute, RejectedRoute, Route, RouteChange, RouteCommand, RouteError,
    RouteKey, RouteTarget, Routes,
};
use ipnetwork::IpNetwork;
use nix::net::if_::if_nametoindex;

use super::learned::BIRD;
use super::reconcile::commands;
use super::{KERNEL, described, is_subnet};
use denizen_model::LocalPod;
use denizen_plan::{AnnouncementReason, Announcements, NetworkSurvey};
use denizen_route::PROTOCOL;

/// The metric of the routes for unused addresses of this node's podCIDRs: behind every other route.
pub const UNUSED_METRIC: u32 = 20_000;

/// BIRD's protocol and `RTPROT_BGP`: routes from the fabric may change all the time, and do not
/// matter here.
const LEARNED: [u8; 2] = [BIRD, 186];

/// The announcements in the kernel.
#[derive(Debug)]
pub struct AnnouncedRoutes {
    kernel: Routes,
    table: u32,
    /// Our routes as last seen or made; `None` before the first read, and after a change by another
    /// program.
    known: Option<Vec<ObservedRoute>>,
    /// What was last wanted, if the kernel had all of it.
    programmed: Option<BTreeMap<RouteKey, Route>>,
    /// What the last read found of foreign routes.
    foreign: ForeignRoutes,
}

/// Foreign routes and rules that concern the table.
#[derive(Debug, Default)]
struct ForeignRoutes {
    subnets: BTreeSet<IpNetwork>,
    gateways: BTreeSet<IpAddr>,
    problems: Vec<String>,
    /// Packets are looked up in the table.
    is_used: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteSync {
    /// The wanted prefixes that are in the table.
    pub prefixes: BTreeSet<IpNetwork>,
    /// What is wrong: changes that the kernel rejected, foreign routes in the table, rules that
    /// lead to it.
    pub errors: Vec<String>,
    /// How many announcements are new, or differ from before.
    pub added: usize,
    /// How many routes another program had changed, or removed.
    pub repaired: usize,
}

impl AnnouncedRoutes {
    /// Opens the announcements of this thread's network namespace.
    pub fn open(table: u32) -> Result<Self, RouteError> {
        let kernel = Routes::open(PROTOCOL)?;
        Ok(Self { kernel, table, known: None, programmed: None, foreign: ForeignRoutes::default() })
    }

    /// The portid by which notifications name our own changes.
    pub fn portid(&self) -> u32 {
        self.kernel.portid()
    }

    /// Another program may have changed what the announcements depend on: the next sync reads
    /// again.
    pub fn note_foreign_change(&mut self) {
        self.known = None;
    }

    /// Asks the kernel for this node's gateways, and whether it delivers these pods' addresses.
    pub fn survey(&mut self, pods: &[(&LocalPod, IpAddr)]) -> Result<NetworkSurvey, RouteError> {
        self.ensure_known()?;
        let mut undelivered: BTreeSet<IpAddr> = pods.iter().map(|(_, address)| *address).collect();
        for (pod, address) in pods {
            let path = self.kernel.path(*address)?;
            let link = if_nametoindex(&*pod.interface).ok();
            let is_delivered = path.is_some_and(|path| {
                !path.is_local && path.gateway.is_none() && Some(path.link) == link
            });
            // If several records have the address, one that gets the packets is enough: the others
            // may have ended.
            if is_delivered {
                undelivered.remove(address);
            }
        }
        Ok(NetworkSurvey { gateways: self.foreign.gateways.clone(), undelivered })
    }

    /// Withdraws what is no longer wanted, and adds nothing: this comes before the rules go.
    ///
    /// # Errors
    ///
    /// [`RouteError`]; the next call starts from what it finds.
    pub fn withdraw(&mut self, wanted: &Announcements) -> Result<(), RouteError> {
        let is_unwanted = |route: &&ObservedRoute| {
            route.key.table != MAIN && !wanted.wanted.contains_key(&route.key.destination)
        };
        let known = self.ensure_known()?;
        let removed: Vec<RouteCommand> =
            known.iter().filter(is_unwanted).map(|route| RouteCommand::Remove(route.key)).collect();
        self.apply(&removed).map(drop)
    }

    /// Makes the table what is wanted: this comes after the rules are in the kernel. A prefix whose
    /// metric changes has both routes for a moment, so no router sees a withdrawal.
    ///
    /// # Errors
    ///
    /// [`RouteError`]; the next call starts from what it finds.
    pub fn sync(&mut self, wanted: &Announcements) -> Result<RouteSync, RouteError> {
        self.ensure_known()?;
        let wanted = match self.foreign.is_used {
            true => BTreeMap::new(),
            false => self.routes(wanted),
        };
        let commands = commands(&wanted, self.known.as_deref().unwrap_or_default());
        let is_repair = self.programmed.as_ref() == Some(&wanted);
        let refused = self.apply(&commands)?;
        let is_new = |command: &&RouteCommand| match command {
            RouteCommand::Add(route) | RouteCommand::Replace(route) => {
                route.key.table == self.table
            }
            RouteCommand::Remove(_) => false,
        };
        let is_done = refused.is_empty() && !is_repair;
        let added = if is_done { commands.iter().filter(is_new).count() } else { 0 };
        let errors = [self.foreign.problems.clone(), refused.clone()].concat();
        self.programmed = refused.is_empty().then_some(wanted);
        let table = self.table;
        let announced = self.ensure_known()?.iter().filter(|route| route.key.table == table);
        Ok(RouteSync {
            prefixes: announced.map(|route| route.key.destination).collect(),
            errors,
            added,
            repaired: if is_repair { commands.len() } else { 0 },
        })
    }

    /// Whether a change by another program, or by the kernel, may concern the announcements.
    pub fn depend_on(change: &RouteChange, table: u32) -> bool {
        match change {
            RouteChange::Added(route) | RouteChange::Removed(route) => {
                let is_learned = LEARNED.contains(&route.protocol);
                route.key.table == table || (route.key.table == MAIN && !is_learned)
            }
            RouteChange::Link { .. } => false,
            RouteChange::Lost => true,
        }
    }

    /// Removes the announcements of any run, whichever table it used. Returns how many there were.
    pub fn remove_all() -> Result<usize, RouteError> {
        let mut kernel = Routes::open(PROTOCOL)?;
        let own: Vec<_> = kernel.own()?.into_iter().filter(is_ours).collect();
        // If another program removes them at the same time, that does no harm.
        kernel.apply(&commands(&BTreeMap::new(), &own))?;
        Ok(own.len())
    }

    /// The routes for these announcements, and those that go with them.
    fn routes(&self, wanted: &Announcements) -> BTreeMap<RouteKey, Route> {
        let announced = wanted.wanted.iter().map(|(prefix, announcement)| {
            let key =
                RouteKey { table: self.table, destination: *prefix, metric: announcement.metric() };
            let window = announcement.recorded;
            (key, Route { key, target: RouteTarget::Blackhole, source: None, window })
        });
        // Without this route, packets to unused addresses of a podCIDR would go back to the router,
        // in a loop. It is in the main table, so `unreachable`: a client gets an answer at once.
        let ranges = wanted
            .wanted
            .iter()
            .filter(|(_, announcement)| announcement.reason == AnnouncementReason::PodRange);
        let is_routed = |range: &IpNetwork| {
            let covers = |subnet: &IpNetwork| {
                subnet.prefix() <= range.prefix() && subnet.contains(range.network())
            };
            self.foreign.subnets.iter().any(covers)
        };
        let unused = ranges.filter(|(range, _)| !is_routed(range));
        let unused = unused.map(|(range, _)| {
            let key = RouteKey { table: MAIN, destination: *range, metric: UNUSED_METRIC };
            (key, Route { key, target: RouteTarget::Unreachable, source: None, window: None })
        });
        announced.chain(unused).collect()
    }

    /// Our routes: those known, or else read from the kernel.
    fn ensure_known(&mut self) -> Result<&[ObservedRoute], RouteError> {
        if self.known.is_none() {
            let (mut own, table) = (self.kernel.own()?, self.table);
            own.retain(is_ours);
            let rules = self.kernel.rules()?;
            let leading = rules.iter().filter(|rule| rule.table == table);
            let leading = leading.map(|rule| {
                format!(
                    "nothing is announced: routing rule {} (`ip rule`) leads to table {table}, so packets \
                     to what is announced would be dropped there",
                    rule.priority
                )
            });
            let foreign = self.kernel.in_table(table)?;
            let foreign = foreign.iter().filter(|route| !is_ours(route)).map(|route| {
                format!(
                    "table {table} is for announcements alone, and another program (protocol {}) has the \
                     route to {} in it: it stays, and may be announced",
                    route.protocol, route.key
                )
            });
            let mut problems: BTreeSet<String> = leading.collect();
            let is_used = !problems.is_empty();
            problems.extend(foreign);
            let subnets = self.kernel.of(KERNEL)?.into_iter().filter(is_subnet);
            self.foreign = ForeignRoutes {
                subnets: subnets.map(|route| route.key.destination).collect(),
                gateways: self.kernel.gateways(MAIN)?,
                problems: problems.into_iter().collect(),
                is_used,
            };
            self.known = Some(own);
        }
        Ok(self.known.as_deref().unwrap_or_default())
    }

    /// Returns the changes that the kernel rejected.
    fn apply(&mut self, commands: &[RouteCommand]) -> Result<Vec<String>, RouteError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let mut known = self.known.take().unwrap_or_default();
        let refused = self.kernel.apply(commands)?;
        if !refused.is_empty() {
            // The kernel's state was not as expected: the next call reads it.
            let text = |refused: &RejectedRoute| described(&commands[refused.command], refused);
            return Ok(refused.iter().map(text).collect());
        }
        let touched: BTreeSet<RouteKey> = commands.iter().map(key).collect();
        known.retain(|route| !touched.contains(&route.key));
        known.extend(commands.iter().filter_map(|command| match *command {
            RouteCommand::Add(Route { key, target, source, window })
            | RouteCommand::Replace(Route { key, target, source, window }) => {
                let target = Some(target);
                Some(ObservedRoute { key, protocol: PROTOCOL, target, source, window })
            }
            RouteCommand::Remove(_) => None,
        }));
        self.known = Some(known);
        Ok(Vec::new())
    }
}

/// The key of the route that a command changes.
fn key(command: &RouteCommand) -> RouteKey {
    match command {
        RouteCommand::Add(route) | RouteCommand::Replace(route) => route.key,
        RouteCommand::Remove(key) => *key,
    }
}

/// Whether a route is an announcement, or goes with one. With the same protocol number, the backend
/// ipvs has routes in the table of local addresses, and `PodRoutes` in the main one.
fn is_ours(route: &ObservedRoute) -> bool {
    let is_elsewhere = route.key.table != MAIN && route.key.table != LOCAL;
    let is_announced = is_elsewhere && route.target == Some(RouteTarget::Blackhole);
    let is_unused = route.key.table == MAIN && route.key.metric == UNUSED_METRIC;
    route.protocol == PROTOCOL && (is_announced || is_unused)
}
