//! Implements `Host` for the kernel of this network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use denizen_ipvs::{
    Ipvs, IpvsCommand, IpvsError, ObservedServer, RealServer, RejectedCommand, ServerKey, Timeouts,
    VirtualServer,
};
use denizen_route::{Route, RouteKey, RouteTarget, Routes};
use ipnetwork::IpNetwork;
use nix::errno::Errno;
use nix::libc;

use super::host::{Host, ServersError};
use crate::kube_ipvs0;
use crate::sysctl::{IPVS_CONNTRACK, SYSCTLS, value};
use denizen_route::PROTOCOL;

/// The table of the node's own addresses (`RT_TABLE_LOCAL`).
const LOCAL: u32 = libc::RT_TABLE_LOCAL as u32;

/// The index of every namespace's loopback interface (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// IPVS and the routes.
#[derive(Debug)]
pub struct Kernel {
    ipvs: Ipvs,
    routes: Routes,
}

impl Kernel {
    /// Opens the kernel of this thread's network namespace. Sets IPVS's time-outs to connection
    /// tracking's.
    ///
    /// # Errors
    /// [`ServersError`], above all if the kernel has no IPVS, or if connection tracking does not
    /// see its packets.
    pub fn open() -> Result<Self, ServersError> {
        let mut ipvs = Ipvs::open()?;
        if setting(IPVS_CONNTRACK) != Some(1) {
            return Err(ServersError::Untracked);
        }
        let now = ipvs.timeouts()?;
        let wanted = timeouts(now);
        if now != wanted {
            ipvs.set_timeouts(&wanted)?;
        }
        Ok(Self { ipvs, routes: Routes::open(PROTOCOL)? })
    }

    /// Removes all that an earlier run left: the virtual servers, and then the routes of their
    /// addresses, by which another call would recognise them. Returns how many virtual servers were
    /// removed. Those at addresses of kube-proxy's device are left to kube-proxy.
    ///
    /// # Errors
    /// [`ServersError`].
    pub fn cleanup() -> Result<usize, ServersError> {
        let mut routes = Routes::open(PROTOCOL)?;
        let left = own(&mut routes)?;
        let opened = match Ipvs::open() {
            Err(IpvsError::Missing) => None,
            opened => Some(opened?),
        };
        let Some(mut ipvs) = opened else {
            remove(&mut routes, left.into_keys())?;
            return Ok(0);
        };
        let ours = ours(&mut ipvs, &left)?.into_iter();
        let commands: Vec<IpvsCommand> =
            ours.map(|server| IpvsCommand::Remove(server.key)).collect();
        let count = commands.len() - ipvs.apply(&commands)?.len();
        remove(&mut routes, left.into_keys())?;
        Ok(count)
    }

    /// The addresses that an earlier run routed to this node for virtual servers, without those of
    /// kube-proxy's device.
    ///
    /// # Errors
    /// [`ServersError`].
    pub fn routed() -> Result<BTreeSet<IpAddr>, ServersError> {
        let left = own(&mut Routes::open(PROTOCOL)?)?;
        if left.is_empty() {
            return Ok(BTreeSet::new());
        }
        let theirs = kube_ipvs0::addresses().map_err(ServersError::Addresses)?;
        Ok(left.into_keys().filter(|ip| !theirs.contains(ip)).collect())
    }

    /// As [`Self::cleanup`], when another backend serves from now on: a virtual server with
    /// connections gets no new ones, and stays until the next call, so that short connections can
    /// end. Its address's route stays as well. Kube-proxy's virtual servers are left alone here,
    /// too.
    ///
    /// # Errors
    /// [`ServersError::Draining`] if any stays.
    pub fn drain() -> Result<(), ServersError> {
        let mut routes = Routes::open(PROTOCOL)?;
        let left = own(&mut routes)?;
        if left.is_empty() {
            return Ok(());
        }
        let mut ipvs = match Ipvs::open() {
            Err(IpvsError::Missing) => return Self::cleanup().map(drop),
            opened => opened?,
        };
        let (mut idle, mut gone, mut used) = (Vec::new(), Vec::new(), BTreeSet::new());
        for key in ours(&mut ipvs, &left)?.into_iter().map(|server| server.key) {
            let reals = ipvs.real_servers(&key)?;
            let weighed: Vec<RealServer> =
                reals.iter().map(|observed| observed.real).filter(|real| real.weight > 0).collect();
            if !weighed.is_empty()
                && reals.iter().any(|observed| observed.active + observed.inactive > 0)
            {
                used.insert(key.at.ip());
                let idle_real =
                    |real| IpvsCommand::ChangeReal(key, RealServer { weight: 0, ..real });
                idle.extend(weighed.into_iter().map(idle_real));
            } else {
                gone.push(key);
            }
        }
        ipvs.apply(&idle)?;
        ipvs.apply(&gone.into_iter().map(IpvsCommand::Remove).collect::<Vec<_>>())?;
        remove(&mut routes, left.into_keys().filter(|ip| !used.contains(ip)))?;
        match used.len() {
            0 => Ok(()),
            addresses => Err(ServersError::Draining { addresses }),
        }
    }

    /// How many virtual servers are ours.
    ///
    /// # Errors
    /// [`ServersError`].
    pub fn count() -> Result<usize, ServersError> {
        let ours = own(&mut Routes::open(PROTOCOL)?)?;
        if ours.is_empty() {
            return Ok(0);
        }
        let servers = Ipvs::open()?.servers()?.into_iter();
        Ok(servers.filter(|server| ours.contains_key(&server.key.at.ip())).count())
    }

    /// Removes all virtual servers but ours. If an agent runs and plans virtual servers
    /// (`planned`), those are ours: if kube-proxy made one of them, its address gets our route, and
    /// the agent's next resync corrects the rest. Returns how many are ours.
    ///
    /// # Errors
    /// [`ServersError`].
    pub fn remove_foreign(planned: &BTreeSet<ServerKey>) -> Result<usize, ServersError> {
        let mut ipvs = Ipvs::open()?;
        let mut routes = Routes::open(PROTOCOL)?;
        let ours = own(&mut routes)?;
        let servers = ipvs.servers()?.into_iter().map(|server| server.key);
        let (kept, gone): (Vec<_>, Vec<_>) = servers.partition(|key| match planned.is_empty() {
            true => ours.contains_key(&key.at.ip()),
            false => planned.contains(key),
        });
        if kept.is_empty() {
            // This also removes virtual servers that match packets by their mark.
            ipvs.flush()?;
            return Ok(0);
        }
        ipvs.apply(&gone.into_iter().map(IpvsCommand::Remove).collect::<Vec<_>>())?;
        let addresses: BTreeSet<IpAddr> = kept.iter().map(|key| key.at.ip()).collect();
        let new = addresses.into_iter().filter(|ip| !ours.contains_key(ip));
        let route = |ip| denizen_route::RouteCommand::Replace(local(ip, None));
        routes.apply(&new.map(route).collect::<Vec<_>>())?;
        Ok(kept.len())
    }
}

/// Connection tracking's time-outs, where they can be read, so that IPVS and conntrack forget a
/// connection at the same time.
fn timeouts(now: Timeouts) -> Timeouts {
    let seconds = |path, usual| setting(path).map_or(usual, Duration::from_secs);
    Timeouts {
        tcp: seconds("net/netfilter/nf_conntrack_tcp_timeout_established", now.tcp),
        udp: seconds("net/netfilter/nf_conntrack_udp_timeout_stream", now.udp),
        ..now
    }
}

/// A setting of this network namespace, read below [`SYSCTLS`] even if the agent was given another
/// folder of settings.
fn setting(path: &str) -> Option<u64> {
    value(Path::new(SYSCTLS), path).ok()
}

/// Our routes, each address with its source.
fn own(routes: &mut Routes) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, ServersError> {
    let own = routes.own()?.into_iter();
    let ours = own.filter(|route| route.key == key(route.key.destination.ip()));
    let ours = ours.filter(|route| route.target == Some(RouteTarget::Local { link: LOOPBACK }));
    Ok(ours.map(|route| (route.key.destination.ip(), route.source)).collect())
}

/// The virtual servers at the addresses of these routes, without those at addresses of kube-proxy's
/// device.
fn ours(
    ipvs: &mut Ipvs,
    routes: &BTreeMap<IpAddr, Option<IpAddr>>,
) -> Result<Vec<VirtualServer>, ServersError> {
    let theirs = kube_ipvs0::addresses().map_err(ServersError::Addresses)?;
    let is_ours = |server: &VirtualServer| {
        let ip = server.key.at.ip();
        routes.contains_key(&ip) && !theirs.contains(&ip)
    };
    Ok(ipvs.servers()?.into_iter().filter(is_ours).collect())
}

fn remove(
    routes: &mut Routes,
    addresses: impl Iterator<Item = IpAddr>,
) -> Result<(), ServersError> {
    let remove = |ip| denizen_route::RouteCommand::Remove(key(ip));
    // A route that the kernel refuses to remove is already gone.
    routes.apply(&addresses.map(remove).collect::<Vec<_>>())?;
    Ok(())
}

impl Host for Kernel {
    fn servers(&mut self) -> Result<Vec<VirtualServer>, ServersError> {
        Ok(self.ipvs.servers()?)
    }

    fn has(&mut self, key: &ServerKey) -> Result<bool, ServersError> {
        Ok(self.ipvs.has(key)?)
    }

    fn real_servers(&mut self, of: &ServerKey) -> Result<Vec<ObservedServer>, ServersError> {
        Ok(self.ipvs.real_servers(of)?)
    }

    fn apply(&mut self, commands: &[IpvsCommand]) -> Result<Vec<RejectedCommand>, ServersError> {
        Ok(self.ipvs.apply(commands)?)
    }

    fn routes(&mut self) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, ServersError> {
        own(&mut self.routes)
    }

    fn add_routes(
        &mut self,
        routes: &[(IpAddr, IpAddr)],
    ) -> Result<BTreeMap<IpAddr, Errno>, ServersError> {
        let route = |(ip, source): &(IpAddr, IpAddr)| {
            denizen_route::RouteCommand::Replace(local(*ip, Some(*source)))
        };
        let commands: Vec<_> = routes.iter().map(route).collect();
        let refused = self.routes.apply(&commands)?;
        Ok(refused
            .into_iter()
            .map(|rejected| (routes[rejected.command].0, rejected.errno))
            .collect())
    }

    fn remove_routes(&mut self, addresses: &[IpAddr]) -> Result<(), ServersError> {
        remove(&mut self.routes, addresses.iter().copied())
    }
}

/// Our route of an address, and the source that the node's own connections to it have.
fn local(ip: IpAddr, source: Option<IpAddr>) -> Route {
    Route { key: key(ip), target: RouteTarget::Local { link: LOOPBACK }, source, window: None }
}

/// The key of our route of an address. The kernel's own routes have metric 0 and come before it: an
/// address that the node has, too, stays the node's.
fn key(ip: IpAddr) -> RouteKey {
    RouteKey { table: LOCAL, destination: IpNetwork::from(ip), metric: 1 }
}
