//! The state of a virtual server, desired or observed, and the commands that lead from one to the
//! other. Pure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use denizen_ipvs::{IpvsCommand, ObservedServer, RealServer, ServerKey, VirtualServer};

/// A virtual server with its real servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerState {
    /// Its key, its scheduler and the scheduler's flags.
    pub server: VirtualServer,
    pub reals: BTreeMap<SocketAddr, RealState>,
}

/// A real server, by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RealState {
    /// Its share of new connections.
    pub weight: u32,
    /// As in [`ObservedServer`]. Always true of a desired server.
    pub translates: bool,
}

impl RealState {
    /// A desired real server.
    pub fn wanted(weight: u32) -> Self {
        Self { weight, translates: true }
    }

    /// Whether new connections reach it.
    pub fn serves(self) -> bool {
        self.weight > 0 && self.translates
    }
}

/// The order in which real servers are added. The kernel inserts each in front of the others, and
/// schedulers begin with the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    ByAddress,
    /// In an order of its own for each node: it depends on this address of the node.
    OfNode(IpAddr),
}

impl Order {
    fn rank(self, at: &SocketAddr) -> u64 {
        let Self::OfNode(node) = self else { return 0 };
        let mut hasher = DefaultHasher::new();
        (node, at).hash(&mut hasher);
        hasher.finish()
    }
}

impl From<ObservedServer> for RealState {
    fn from(observed: ObservedServer) -> Self {
        Self { weight: observed.real.weight, translates: observed.translates }
    }
}

impl ServerState {
    /// A virtual server without real servers.
    pub fn new(server: VirtualServer) -> Self {
        Self { server, reals: BTreeMap::new() }
    }

    /// The commands that lead from `now`, the kernel's state, to this one. Real servers are added
    /// before others are removed, so that there is always one for new connections. A real server
    /// with weight 0 that the kernel does not have has no connections to keep, and is not added.
    pub fn commands_from(&self, now: Option<&Self>, order: Order) -> Vec<IpvsCommand> {
        let key = self.server.key;
        let header = match now {
            None => Some(IpvsCommand::Add(self.server.clone())),
            Some(now) if now.server != self.server => {
                Some(IpvsCommand::Change(self.server.clone()))
            }
            Some(_) => None,
        };
        let nothing = BTreeMap::new();
        let now = now.map_or(&nothing, |now| &now.reals);
        let real =
            |at: &SocketAddr, state: &RealState| RealServer { at: *at, weight: state.weight };
        let new = self.reals.iter().filter(|(at, state)| state.weight > 0 && !now.contains_key(at));
        let mut new: Vec<_> = new.collect();
        new.sort_by_key(|(at, _)| order.rank(at));
        let new = new.into_iter().map(|(at, state)| IpvsCommand::AddReal(key, real(at, state)));
        let other = self
            .reals
            .iter()
            .filter(|(at, state)| now.get(at).is_some_and(|observed| observed != *state));
        let other = other.map(|(at, state)| IpvsCommand::ChangeReal(key, real(at, state)));
        let gone = now.keys().filter(|at| !self.reals.contains_key(at));
        let gone = gone.map(|at| IpvsCommand::RemoveReal(key, *at));
        header.into_iter().chain(new).chain(other).chain(gone).collect()
    }
}

/// Notes that the kernel has done this command.
pub fn note(known: &mut BTreeMap<ServerKey, ServerState>, command: &IpvsCommand) {
    match command {
        IpvsCommand::Add(server) => {
            known.insert(server.key, ServerState::new(server.clone()));
        }
        IpvsCommand::Change(server) => {
            if let Some(state) = known.get_mut(&server.key) {
                state.server = server.clone();
            }
        }
        IpvsCommand::Remove(key) => {
            known.remove(key);
        }
        IpvsCommand::AddReal(key, real) | IpvsCommand::ChangeReal(key, real) => {
            if let Some(state) = known.get_mut(key) {
                state.reals.insert(real.at, RealState::wanted(real.weight));
            }
        }
        IpvsCommand::RemoveReal(key, at) => {
            if let Some(state) = known.get_mut(key) {
                state.reals.remove(at);
            }
        }
    }
}

/// The virtual server that a command is about.
pub fn subject(command: &IpvsCommand) -> ServerKey {
    match command {
        IpvsCommand::Add(server) | IpvsCommand::Change(server) => server.key,
        IpvsCommand::Remove(key)
        | IpvsCommand::AddReal(key, _)
        | IpvsCommand::ChangeReal(key, _)
        | IpvsCommand::RemoveReal(key, _) => *key,
    }
}
