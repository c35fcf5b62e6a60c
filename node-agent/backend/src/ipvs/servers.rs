//! Brings the kernel's virtual servers to the desired state, and knows which of them may be used.

mod leaving;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;

use denizen_ipvs::{IpvsCommand, ObservedServer, RejectedCommand, ServerKey, VirtualServer};
use nix::errno::Errno;
use tracing::{debug, warn};

use super::host::{Host, ServersError};
use super::state::{Order, RealState, ServerState, note, subject};
use crate::EndedConnections;
use denizen_plan::Listed;
use leaving::Leaving;

/// Used in place of a scheduler that the kernel does not have.
const FALLBACK_SCHEDULER: &str = "rr";

/// The schedulers whose tables depend on the order of real servers.
const HASHING: [&str; 3] = ["mh", "sh", "dh"];

/// How often the kernel is read again if it changes meanwhile.
const TRIES: usize = 3;

/// Which changes may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeScope {
    Everything,
    /// Only those that disturb no virtual server that rules may send connections to: these rules
    /// have not been replaced.
    WhatIsSafe,
}

/// The desired virtual servers, and what is known of the kernel's.
///
/// IPVS has no names. A virtual server is ours if its address has a route of ours, which has a
/// protocol number of our own. So a route is added before the first virtual server of its address,
/// and removed after the last one. A virtual server that another program adds at such an address
/// while we run is not ours, unless it is wanted: then we overwrite it. All other virtual servers
/// are foreign: none is changed or removed, and if one has the key of a desired virtual server, the
/// desired one is not programmed.
#[derive(Debug)]
pub struct Servers<H> {
    host: H,
    wanted: BTreeMap<ServerKey, ServerState>,
    /// [`Self::wanted`] is complete. Until then nothing is removed.
    is_complete: bool,
    /// For each family, the source of the node's own connections.
    sources: Vec<IpAddr>,
    known: BTreeMap<ServerKey, ServerState>,
    /// The virtual servers that were ours when the kernel was last read, and those that we tried to
    /// add since. `None` before the first read.
    ours_or_tried: Option<BTreeSet<ServerKey>>,
    /// The real servers of [`Self::known`] that get no new connections.
    draining: BTreeMap<ServerKey, BTreeSet<SocketAddr>>,
    routes: BTreeMap<IpAddr, Option<IpAddr>>,
    foreign: BTreeSet<ServerKey>,
    /// The kernel's state is not known: nothing was read yet, or something failed.
    is_unknown: bool,
    /// Virtual servers that may differ from the kernel's state.
    due: BTreeSet<ServerKey>,
    /// Virtual servers that may have become ready, or have ceased to be.
    readiness_changed: BTreeSet<ServerKey>,
    /// The addresses of [`Self::take_addresses`] may have changed.
    addresses_changed: bool,
    refused: BTreeMap<ServerKey, Errno>,
    /// Schedulers that the kernel does not have.
    missing: BTreeSet<Arc<str>>,
    leaving: Leaving,
    /// The virtual server that [`Self::misses_next`] checked last.
    checked_last: Option<ServerKey>,
}

impl<H: Host> Servers<H> {
    /// Reads the kernel's virtual servers. None is desired yet.
    ///
    /// # Errors
    /// [`ServersError`].
    pub fn open(host: H) -> Result<Self, ServersError> {
        let mut servers = Self {
            host,
            wanted: BTreeMap::new(),
            is_complete: false,
            sources: Vec::new(),
            known: BTreeMap::new(),
            ours_or_tried: None,
            draining: BTreeMap::new(),
            routes: BTreeMap::new(),
            foreign: BTreeSet::new(),
            is_unknown: true,
            due: BTreeSet::new(),
            readiness_changed: BTreeSet::new(),
            addresses_changed: false,
            refused: BTreeMap::new(),
            missing: BTreeSet::new(),
            leaving: Leaving::default(),
            checked_last: None,
        };
        servers.observe()?;
        Ok(servers)
    }

    /// Changes the desired state of a virtual server; `None`: there should be none.
    pub fn want(&mut self, key: ServerKey, server: Option<ServerState>) {
        match server {
            Some(server) => self.wanted.insert(key, server),
            None => self.wanted.remove(&key),
        };
        self.refused.remove(&key);
        self.addresses_changed |= !self.routes.contains_key(&key.at.ip());
        self.due.insert(key);
        self.readiness_changed.insert(key);
    }

    /// Declares that all desired virtual servers are known from now on.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Sets the sources of the node's own connections, one of each family. The kernel removes a
    /// route together with its source address, so the routes are read again.
    pub fn set_sources(&mut self, sources: Vec<IpAddr>) {
        self.sources = sources;
        self.is_unknown = true;
    }

    /// Makes the next change read the kernel first, and try again what the kernel refused.
    pub fn request_resync(&mut self) {
        self.is_unknown = true;
        self.leaving.resyncs += 1;
        self.missing.clear();
    }

    /// Checks one virtual server that the kernel should have, the next one at each call. Returns
    /// whether others removed it.
    ///
    /// # Errors
    /// [`ServersError`].
    pub fn misses_next(&mut self) -> Result<bool, ServersError> {
        let behind = self.checked_last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.known.range((behind, Bound::Unbounded)).next();
        self.checked_last = next.or_else(|| self.known.first_key_value()).map(|(key, _)| *key);
        self.checked_last.map_or(Ok(false), |key| Ok(!self.host.has(&key)?))
    }

    /// Whether new connections may be sent to a virtual server: the kernel has it as it is wanted,
    /// it has an endpoint, and its address is local.
    pub fn is_ready(&self, key: &ServerKey) -> bool {
        let (Some(wanted), Some(known)) = (self.wanted.get(key), self.known.get(key)) else {
            return false;
        };
        let answers = |(at, state): (&SocketAddr, &RealState)| {
            state.serves() && wanted.reals.get(at).is_some_and(|wanted| wanted.serves())
        };
        known.server == self.schedulable(wanted).server
            && known.reals.iter().any(answers)
            && self.has_route(key.at.ip())
            && !self.refused.contains_key(key)
    }

    /// The virtual servers that may have become ready, or have ceased to be, since the last call.
    pub fn readiness_changed(&mut self) -> BTreeSet<ServerKey> {
        std::mem::take(&mut self.readiness_changed)
    }

    /// Whether the rules, which use these virtual servers now, must change, or a [`Self::sync`] of
    /// everything is due.
    pub fn has_more(&self, used: &BTreeSet<ServerKey>) -> bool {
        let differs = |key: &ServerKey| self.is_ready(key) != used.contains(key);
        self.readiness_changed.iter().any(differs)
            || (self.is_complete && (self.addresses_changed || !self.due.is_empty()))
    }

    /// The addresses that are local for virtual servers, or are about to be; `None` if they are
    /// unchanged since the last call, or not all desired virtual servers are known: another backend
    /// may serve until then, and what it serves at addresses of an earlier run must not be refused.
    pub fn take_addresses(&mut self) -> Option<BTreeSet<IpAddr>> {
        if !self.is_complete {
            return None;
        }
        let wanted = self.wanted.keys().map(|key| key.at.ip());
        let all = || self.routes.keys().copied().chain(wanted).collect();
        std::mem::take(&mut self.addresses_changed).then(all)
    }

    /// What could not be programmed, as text.
    pub fn problems(&self) -> Vec<String> {
        let refused = self.refused.iter();
        let refused = refused.map(|(key, errno)| format!("virtual server {key}: {errno}"));
        // Iterates over the few foreign ones: this is called after every change.
        let occupied = self.foreign.iter().filter(|key| self.wanted.contains_key(key));
        let occupied =
            occupied.map(|key| format!("virtual server {key}: another program has made one"));
        let missing = self.missing.iter().map(|name| {
            format!("scheduler {name}: the kernel has none, {FALLBACK_SCHEDULER} is used instead")
        });
        refused.chain(occupied).chain(missing).collect()
    }

    /// Programs what is due. Returns the number of changes.
    ///
    /// # Errors
    /// [`ServersError`]. What could not be programmed is tried again by the next call.
    pub fn sync(&mut self, scope: ChangeScope) -> Result<usize, ServersError> {
        let mut changes = 0;
        for _ in 0..TRIES {
            if self.is_unknown {
                self.observe()?;
            }
            // If anything fails, the kernel's state is not known.
            self.is_unknown = true;
            let (count, is_as_known) = self.attempt(scope)?;
            changes += count;
            self.is_unknown = !is_as_known;
            if is_as_known {
                return Ok(changes);
            }
        }
        Err(ServersError::Disturbed)
    }

    /// Takes the addresses of the recorded pods. The connections of a pod that is no longer
    /// recorded end with the next [`Self::sync`]: the pod is not there to end them.
    pub fn set_pods(&mut self, now: BTreeSet<IpAddr>) {
        self.due.extend(self.leaving.set_pods(now, &self.draining));
    }

    /// The established connections that ended because their endpoint was removed.
    pub fn ended_connections(&self) -> EndedConnections {
        self.leaving.connections
    }

    /// The real servers that get no new connections, each with its virtual server.
    pub fn draining(&self) -> impl Iterator<Item = (ServerKey, SocketAddr)> + '_ {
        self.draining.iter().flat_map(|(key, reals)| reals.iter().map(|at| (*key, *at)))
    }

    /// Reads the connections that the real servers of [`Self::draining`] still have.
    ///
    /// # Errors
    /// [`ServersError`].
    pub fn read_draining(&mut self) -> Result<Vec<(ServerKey, ObservedServer)>, ServersError> {
        let mut read = Vec::new();
        for (key, draining) in &self.draining {
            let reals = self.host.real_servers(key)?.into_iter();
            let reals = reals.filter(|observed| draining.contains(&observed.real.at));
            read.extend(reals.map(|real| (*key, real)));
        }
        Ok(read)
    }

    /// Reads a virtual server's real servers, in the kernel's order, if it [`Self::is_ready`].
    ///
    /// # Errors
    /// [`ServersError`].
    pub fn read_listed(&mut self, key: &ServerKey) -> Result<Vec<Listed>, ServersError> {
        let reals = if self.is_ready(key) { self.host.real_servers(key)? } else { Vec::new() };
        Ok(reals.into_iter().map(|observed| (observed.real.at, observed.real.weight)).collect())
    }

    /// Notes which real servers of a virtual server get no new connections.
    fn note_draining(&mut self, key: ServerKey) {
        let reals = self.known.get(&key).into_iter().flat_map(|state| &state.reals);
        let draining: BTreeSet<SocketAddr> =
            reals.filter(|(_, real)| real.weight == 0).map(|(at, _)| *at).collect();
        match draining.is_empty() {
            true => self.draining.remove(&key),
            false => self.draining.insert(key, draining),
        };
    }

    fn observe(&mut self) -> Result<(), ServersError> {
        self.routes = self.host.routes()?;
        let servers = self.host.servers()?;
        let (ours, foreign): (Vec<_>, Vec<_>) = servers.into_iter().partition(|server| {
            let is_wanted = self.wanted.contains_key(&server.key);
            // The kernel removes a route with its source.
            let is_ours_or_tried =
                self.ours_or_tried.as_ref().is_some_and(|keys| keys.contains(&server.key));
            let may_be = is_wanted || self.ours_or_tried.is_none();
            is_ours_or_tried || (may_be && self.routes.contains_key(&server.key.at.ip()))
        });
        self.foreign = foreign.into_iter().map(|server| server.key).collect();
        self.known.clear();
        for server in ours {
            let reals = self.host.real_servers(&server.key)?;
            let reals =
                reals.into_iter().map(|observed| (observed.real.at, observed.into())).collect();
            self.known.insert(server.key, ServerState { server, reals });
        }
        self.ours_or_tried = Some(self.known.keys().copied().collect());
        self.draining.clear();
        let all: Vec<ServerKey> = self.known.keys().copied().collect();
        all.into_iter().for_each(|key| self.note_draining(key));
        self.refused.clear();
        self.due = self.wanted.keys().chain(self.known.keys()).copied().collect();
        self.readiness_changed.extend(&self.due);
        self.addresses_changed = true;
        self.leaving.has_routes = true;
        self.is_unknown = false;
        Ok(())
    }

    /// Returns the number of changes, and whether the kernel was as expected.
    fn attempt(&mut self, scope: ChangeScope) -> Result<(usize, bool), ServersError> {
        let due = std::mem::take(&mut self.due);
        let (wanted, unwanted): (BTreeSet<ServerKey>, BTreeSet<ServerKey>) =
            due.into_iter().partition(|key| self.wanted.contains_key(key));
        let wanted = wanted.into_iter().filter(|key| !self.foreign.contains(key)).collect();
        self.ours_or_tried.get_or_insert_default().extend(&wanted);
        let mut changes = self.add_routes(&wanted)?;
        let (mut now, mut later) = (Vec::new(), unwanted);
        for key in wanted {
            let (known, wanted) = (self.known.get(&key), self.schedulable(&self.wanted[&key]));
            let state = self.leaving.keep_endpoints(&mut self.host, known, wanted)?;
            if scope == ChangeScope::WhatIsSafe
                && known.is_some_and(|known| known.server != state.server)
            {
                later.insert(key);
            } else if self.has_route(key.at.ip()) {
                let order = self.order(&state.server);
                now.extend(state.commands_from(known, order));
            }
        }
        changes += now.len();
        let mut is_as_known = self.apply(&now)?;
        if scope == ChangeScope::WhatIsSafe || !self.is_complete {
            self.due.extend(later);
        } else {
            self.leaving.has_routes |= !later.is_empty();
            let unwanted = later.iter().filter(|key| self.known.contains_key(key));
            let gone = self.leaving.removals(&mut self.host, unwanted)?;
            changes += gone.len();
            is_as_known &= self.apply(&gone)?;
            changes += self.remove_routes()?;
            if is_as_known {
                self.leaving.forget_ended();
            }
        }
        Ok((changes, is_as_known))
    }

    /// Executes these commands. Returns whether the kernel was as expected.
    fn apply(&mut self, commands: &[IpvsCommand]) -> Result<bool, ServersError> {
        if commands.is_empty() {
            return Ok(true);
        }
        let refused: BTreeMap<usize, Errno> = self
            .host
            .apply(commands)?
            .into_iter()
            .map(|RejectedCommand { command, errno }| (command, errno))
            .collect();
        let mut is_as_known = true;
        for (index, command) in commands.iter().enumerate() {
            let key = subject(command);
            self.readiness_changed.insert(key);
            match refused.get(&index) {
                None => note(&mut self.known, command),
                // The kernel refused the virtual server, so its real servers cannot be added.
                Some(_) if self.refused.contains_key(&key) => {}
                Some(errno) => is_as_known &= self.note_refusal(command, *errno),
            }
        }
        let changed: BTreeSet<ServerKey> = commands.iter().map(subject).collect();
        changed.into_iter().for_each(|key| self.note_draining(key));
        debug!(commands = commands.len(), refused = refused.len(), "virtual servers changed");
        Ok(is_as_known)
    }

    /// Notes a refusal. Returns whether the kernel's state is still as known. If not, the caller
    /// reads it and tries again.
    fn note_refusal(&mut self, command: &IpvsCommand, errno: Errno) -> bool {
        let key = subject(command);
        match (command, errno) {
            (IpvsCommand::Add(server) | IpvsCommand::Change(server), Errno::ENOENT)
                if &*server.scheduler != FALLBACK_SCHEDULER =>
            {
                warn!(scheduler = %server.scheduler, "the kernel has no such scheduler");
                self.missing.insert(server.scheduler.clone());
                self.due.insert(key);
                // The caller tries again at once, with the fallback scheduler.
                false
            }
            (_, Errno::EEXIST | Errno::ESRCH | Errno::ENOENT) => false,
            (_, errno) => {
                warn!(server = %key, %errno, "the kernel refuses a virtual server");
                self.refused.insert(key, errno);
                true
            }
        }
    }

    /// Makes the addresses of these virtual servers local.
    fn add_routes(&mut self, of: &BTreeSet<ServerKey>) -> Result<usize, ServersError> {
        let addresses: BTreeSet<IpAddr> = of.iter().map(|key| key.at.ip()).collect();
        let missing = addresses.into_iter().filter(|ip| !self.has_route(*ip));
        let routes: Vec<(IpAddr, IpAddr)> =
            missing.filter_map(|ip| Some((ip, self.source(ip)?))).collect();
        if routes.is_empty() {
            return Ok(0);
        }
        let refused = self.host.add_routes(&routes)?;
        for (ip, source) in &routes {
            let keys = of.range(at(*ip));
            self.readiness_changed.extend(keys.clone());
            match refused.get(ip) {
                None => drop(self.routes.insert(*ip, Some(*source))),
                Some(errno) => {
                    warn!(address = %ip, %errno, "the kernel refuses a service's route");
                    self.refused.extend(keys.map(|key| (*key, *errno)));
                }
            }
        }
        Ok(routes.len())
    }

    /// Removes the routes of addresses that have been without a virtual server of ours since an
    /// earlier resync.
    fn remove_routes(&mut self) -> Result<usize, ServersError> {
        if !std::mem::take(&mut self.leaving.has_routes) {
            return Ok(0);
        }
        let Self { wanted, known, routes, .. } = self;
        let used: BTreeSet<IpAddr> =
            wanted.keys().chain(known.keys()).map(|key| key.at.ip()).collect();
        let unused = routes.keys().filter(|ip| !used.contains(ip)).copied().collect();
        let is_in = |servers: &BTreeMap<ServerKey, ServerState>, key: &_| servers.contains_key(key);
        let old =
            self.leaving.old_addresses(unused, |key| is_in(wanted, key), |key| is_in(known, key));
        if !old.is_empty() {
            self.host.remove_routes(&old)?;
            self.routes.retain(|ip, _| !old.contains(ip));
            self.addresses_changed = true;
        }
        Ok(old.len())
    }

    fn source(&self, like: IpAddr) -> Option<IpAddr> {
        self.sources.iter().copied().find(|ip| ip.is_ipv4() == like.is_ipv4())
    }

    fn has_route(&self, ip: IpAddr) -> bool {
        self.source(ip).is_some_and(|source| self.routes.get(&ip) == Some(&Some(source)))
    }

    /// The order in which real servers are added. If the scheduler hashes clients, it is the same
    /// on all nodes, so that they choose alike. Otherwise each node has its own, so that nodes
    /// begin with different endpoints.
    fn order(&self, of: &VirtualServer) -> Order {
        match (HASHING.contains(&&*of.scheduler), self.source(of.key.at.ip())) {
            (false, Some(node)) => Order::OfNode(node),
            (true, _) | (false, None) => Order::ByAddress,
        }
    }

    /// The desired state, with a scheduler that the kernel has.
    fn schedulable(&self, wanted: &ServerState) -> ServerState {
        let mut wanted = wanted.clone();
        if self.missing.contains(&wanted.server.scheduler) {
            wanted.server.scheduler = FALLBACK_SCHEDULER.into();
            wanted.server.flags = 0;
        }
        wanted
    }
}

/// The range of keys of the virtual servers at an address.
fn at(ip: IpAddr) -> RangeInclusive<ServerKey> {
    let key = |port, protocol| ServerKey { at: SocketAddr::new(ip, port), protocol };
    key(0, 0)..=key(u16::MAX, u8::MAX)
}
