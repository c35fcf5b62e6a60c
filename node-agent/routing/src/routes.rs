//! Routes, through rtnetlink. In this file: the routes to the other nodes' pods. Planned routes are
//! added to the main table, and other routes of ours are removed from it.
//!
//! A restarted agent, which remembers nothing, recognises its routes by their protocol number and
//! their metric. No other route is changed, even if it leads to the same range or takes the place
//! of a planned one.

mod announced;
mod learned;
mod reconcile;
#[cfg(test)]
mod tests;
mod unserved;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use denizen_route::{
    MAIN, ObservedRoute, PROTOCOL, RejectedRoute, Route, RouteChange, RouteCommand, RouteError,
    RouteKey, RouteTarget, Routes,
};
use ipnetwork::IpNetwork;
use nix::errno::Errno;

pub use self::announced::{AnnouncedRoutes, RouteSync};
pub use self::learned::LearnedRoutes;
use self::reconcile::{commands, wanted};
pub use self::unserved::{TABLE as UNSERVED, Unserved};
use denizen_model::Nodes;
use denizen_plan::{DirectRoutes, NodeNetworks, NotOnLink, direct};

/// The metric of routes to other nodes' pods: above those of the kernel's own routes (0; 256 and
/// 1024 in IPv6), so that they never replace the node's own networks.
pub const METRIC: u32 = 1190;

/// `RTPROT_KERNEL`: routes that come with an address.
const KERNEL: u8 = 2;

/// The routes to other nodes' pods in the kernel.
#[derive(Debug)]
pub struct PodRoutes {
    kernel: Routes,
    /// What was last wanted, if the kernel had all of it.
    programmed: Option<BTreeMap<RouteKey, Route>>,
    /// Changes of these require another sync.
    watched: Watched,
}

#[derive(Debug, Default)]
pub struct Synced {
    /// What is decided.
    pub plan: DirectRoutes,
    /// How many of its routes the kernel has.
    pub routes: usize,
    /// The changes that the kernel rejected, with its reason.
    pub refused: Vec<String>,
    /// How many routes another program had changed, or removed.
    pub repaired: usize,
}

/// What the routes depend on.
#[derive(Debug, Default)]
struct Watched {
    next_hops: BTreeSet<IpAddr>,
    links: BTreeSet<u32>,
}

impl PodRoutes {
    /// Opens the routes of this thread's network namespace.
    pub fn open() -> Result<Self, RouteError> {
        let kernel = Routes::open(PROTOCOL)?;
        Ok(Self { kernel, programmed: None, watched: Watched::default() })
    }

    /// The portid by which notifications name changes by [`Self::sync`].
    pub fn portid(&self) -> u32 {
        self.kernel.portid()
    }

    /// Makes the kernel's routes what these nodes need, whatever they are now.
    ///
    /// # Errors
    ///
    /// [`RouteError`]; the next call starts from what it finds.
    pub fn sync(&mut self, nodes: &Nodes) -> Result<Synced, RouteError> {
        let networks = self.node_networks(nodes)?;
        let plan = direct(nodes, &networks);
        let wanted = wanted(&plan);
        let commands = commands(&wanted, &self.own()?);
        let refused = self.kernel.apply(&commands)?;
        let is_missing = |refused: &&RejectedRoute| match commands[refused.command] {
            RouteCommand::Add(_) | RouteCommand::Replace(_) => true,
            RouteCommand::Remove(_) => false,
        };
        let routes = wanted.len() - refused.iter().filter(is_missing).count();
        let refused: Vec<String> =
            refused.iter().map(|refused| described(&commands[refused.command], refused)).collect();
        let is_repair = self.programmed.as_ref() == Some(&wanted);
        self.programmed = refused.is_empty().then_some(wanted);
        self.watched = Watched {
            next_hops: networks.links.keys().copied().collect(),
            links: networks.links.values().flatten().copied().collect(),
        };
        let repaired = if is_repair { commands.len() } else { 0 };
        Ok(Synced { plan, routes, refused, repaired })
    }

    /// Removes all of them. Returns how many there were.
    pub fn remove(&mut self) -> Result<usize, RouteError> {
        let commands = commands(&BTreeMap::new(), &self.own()?);
        // If another program removes them at the same time, that does no harm.
        self.kernel.apply(&commands)?;
        Ok(commands.len())
    }

    /// Whether this change, by another program or by the kernel, may require other routes.
    pub fn depend_on(&self, change: &RouteChange) -> bool {
        match change {
            RouteChange::Added(route) | RouteChange::Removed(route) => {
                let leads_to = |address: &IpAddr| route.key.destination.contains(*address);
                is_key_of_ours(&route.key)
                    || is_subnet(route)
                    || self.watched.next_hops.iter().any(leads_to)
            }
            RouteChange::Link { index, .. } => self.watched.links.contains(index),
            RouteChange::Lost => true,
        }
    }

    fn own(&mut self) -> Result<Vec<ObservedRoute>, RouteError> {
        let mut routes = self.kernel.own()?;
        routes.retain(|route| is_key_of_ours(&route.key));
        Ok(routes)
    }

    /// This node's networks, as the kernel reports them.
    pub fn node_networks(&mut self, nodes: &Nodes) -> Result<NodeNetworks, RouteError> {
        let mut networks = NodeNetworks::default();
        for route in self.kernel.of(KERNEL)? {
            if let Some(RouteTarget::Local { .. }) = route.target {
                networks.addresses.insert(route.key.destination.ip());
            } else if is_subnet(&route) {
                networks.subnets.insert(route.key.destination);
            }
        }
        for address in nodes.others.values().flat_map(|node| &node.internal) {
            let link = match self.kernel.path(*address)? {
                None => Err(NotOnLink::Nowhere),
                Some(path) if path.is_local => Err(NotOnLink::Here),
                Some(path) => path.gateway.map_or(Ok(path.link), |by| Err(NotOnLink::Gateway(by))),
            };
            networks.links.insert(*address, link);
        }
        Ok(networks)
    }
}

/// Whether a route with this key should be one of ours.
fn is_key_of_ours(key: &RouteKey) -> bool {
    key.table == MAIN && key.metric == METRIC
}

/// Whether this is the route to the subnet of a link.
fn is_subnet(route: &ObservedRoute) -> bool {
    let is_direct = matches!(route.target, Some(RouteTarget::Unicast { gateway: None, .. }));
    route.protocol == KERNEL && is_direct && is_routed(route.key.destination)
}

/// Whether packets to these addresses may leave their link. On every link, IPv6 has routes to
/// link-local and multicast addresses, which may not.
fn is_routed(destination: IpNetwork) -> bool {
    match destination {
        IpNetwork::V4(_) => true,
        IpNetwork::V6(range) => !range.ip().is_unicast_link_local() && !range.ip().is_multicast(),
    }
}

fn described(command: &RouteCommand, refused: &RejectedRoute) -> String {
    let (key, what) = match command {
        RouteCommand::Add(route) => (route.key, "make"),
        RouteCommand::Replace(route) => (route.key, "change"),
        RouteCommand::Remove(key) => (*key, "remove"),
    };
    let why = match (refused.errno, &refused.message) {
        (Errno::EEXIST, _) => "another program has a route in its place".to_owned(),
        (errno, Some(message)) => format!("{} ({message})", errno.desc()),
        (errno, None) => errno.desc().to_owned(),
    };
    format!("cannot {what} the route to {key}: {why}")
}
