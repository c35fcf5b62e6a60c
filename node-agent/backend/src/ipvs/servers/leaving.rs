//! What becomes of virtual servers and endpoints that nobody wants any more, and of the addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use denizen_ipvs::{IpvsCommand, ObservedServer, RealServer, ServerKey};
use nix::libc;
use tracing::info;

use super::Servers;
use crate::EndedConnections;
use crate::ipvs::host::{Host, ServersError};
use crate::ipvs::state::{RealState, ServerState};

/// For as many looks, a quarter of an hour, a virtual server stays for connections that do not end,
/// and an endpoint of which nobody says that its pod has ended.
const MOST_LOOKS: u32 = 15;

/// The scheduler that refuses the clients of an endpoint with weight 0.
const REFUSES: &str = "dh";

/// What goes, and the look since when.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Counts looks.
    pub looks: u32,
    servers: BTreeMap<ServerKey, u32>,
    endpoints: BTreeMap<(ServerKey, SocketAddr), u32>,
    addresses: BTreeMap<IpAddr, u32>,
    /// There may be routes of addresses without virtual servers. All are compared then.
    pub has_routes: bool,
    /// The addresses of the recorded pods: when one of them ends, its address is missing here.
    pods: BTreeSet<IpAddr>,
    /// Those that have ended, until their connections have, too.
    ended: BTreeSet<IpAddr>,
    connections: EndedConnections,
}

impl EndedConnections {
    /// Notes those that an endpoint still has, which is removed. `pods` have ended.
    fn note(&mut self, key: &ServerKey, endpoint: &ObservedServer, pods: &BTreeSet<IpAddr>) {
        let (at, open) = (endpoint.real.at, endpoint.active);
        if open == 0 {
            return;
        }
        let (count, why) = match pods.contains(&at.ip()) {
            true => (&mut self.pod_ended, "its pod has ended"),
            false => (&mut self.timed_out, "a quarter of an hour is over"),
        };
        *count += u64::from(open);
        info!(server = %key, endpoint = %at, open, why, "an endpoint's connections end");
    }
}

impl<H: Host> Servers<H> {
    /// The established connections that ended because their endpoint was removed.
    pub fn ended_connections(&self) -> EndedConnections {
        self.leaving.connections
    }

    /// Takes the addresses of the recorded pods. The connections of one that is no longer among
    /// them end with the next [`Self::sync`]: nobody is there to end them.
    pub fn set_pods(&mut self, now: BTreeSet<IpAddr>) {
        let Leaving { pods, ended, .. } = &mut self.leaving;
        ended.extend(pods.difference(&now));
        ended.retain(|ip| !now.contains(ip));
        *pods = now;
        let has_ended = |at: &SocketAddr| ended.contains(&at.ip());
        let concerned = self.draining.iter().filter(|(_, reals)| reals.iter().any(has_ended));
        self.due.extend(concerned.map(|(key, _)| *key));
    }

    /// All connections of pods that have ended are ended.
    pub(super) fn forget_ended(&mut self) {
        self.leaving.ended.clear();
    }

    /// A virtual server as it is wanted, and the endpoints with connections that are not wanted any
    /// more: they get no new ones, and stay until a look finds them without. An endpoint goes at
    /// once when its pod has ended. If that would not be known, since nobody has recorded it here,
    /// it goes after [`MOST_LOOKS`] in any case.
    pub(super) fn with_leaving(
        &mut self,
        mut wanted: ServerState,
    ) -> Result<ServerState, ServersError> {
        let key = wanted.server.key;
        let known = self.known.get(&key).into_iter().flat_map(|known| &known.reals);
        let gone: BTreeSet<SocketAddr> = known
            .filter(|(at, real)| real.translates && !wanted.reals.contains_key(at))
            .map(|(at, _)| *at)
            .collect();
        let Leaving { looks, endpoints, pods, ended, connections, .. } = &mut self.leaving;
        endpoints.retain(|(of, at), _| *of != key || gone.contains(at));
        let is_tcp = key.protocol == libc::IPPROTO_TCP as u8;
        if gone.is_empty() || !is_tcp || &*wanted.server.scheduler == REFUSES {
            return Ok(wanted);
        }
        for observed in self.host.real_servers(&key)? {
            let (at, left) = (observed.real.at, observed.active + observed.inactive);
            if left == 0 || !gone.contains(&at) {
                continue;
            }
            let since = *endpoints.entry((key, at)).or_insert(*looks);
            let is_old = !pods.contains(&at.ip()) && *looks - since >= MOST_LOOKS;
            if ended.contains(&at.ip()) || is_old {
                connections.note(&key, &observed, ended);
            } else {
                wanted.reals.insert(at, RealState::wanted(0));
            }
        }
        Ok(wanted)
    }

    /// What is to be done about virtual servers that are not wanted, and that rules send nobody to.
    /// One with TCP connections gets no new ones, until a look finds it without. Whoever goes on to
    /// send datagrams is led elsewhere by rules, so there is nothing to wait for.
    pub(super) fn removals(
        &mut self,
        unwanted: &BTreeSet<ServerKey>,
    ) -> Result<Vec<IpvsCommand>, ServersError> {
        let mut commands = Vec::new();
        for key in unwanted.iter().filter(|key| self.known.contains_key(key)) {
            let Leaving { looks, servers, ended, connections, .. } = &mut self.leaving;
            let since = *servers.entry(*key).or_insert(*looks);
            let is_tcp = key.protocol == libc::IPPROTO_TCP as u8;
            let reals = if is_tcp { self.host.real_servers(key)? } else { Vec::new() };
            let is_old = *looks - since >= MOST_LOOKS;
            let (dead, reals): (Vec<_>, Vec<_>) =
                reals.into_iter().partition(|it| is_old || ended.contains(&it.real.at.ip()));
            dead.iter().for_each(|it| connections.note(key, it, ended));
            if reals.iter().all(|it| it.active + it.inactive == 0) {
                commands.push(IpvsCommand::Remove(*key));
                continue;
            }
            commands.extend(dead.iter().map(|it| IpvsCommand::RemoveReal(*key, it.real.at)));
            let weighed = reals.iter().map(|it| it.real).filter(|real| real.weight > 0);
            let idle = |real| IpvsCommand::ChangeReal(*key, RealServer { weight: 0, ..real });
            commands.extend(weighed.map(idle));
        }
        Ok(commands)
    }

    /// Removes the routes of addresses that have been without a virtual server of ours since an
    /// earlier look. Until then rules refuse what clients still send there, so that they need not
    /// wait for an answer.
    pub(super) fn remove_routes(&mut self) -> Result<usize, ServersError> {
        if !std::mem::take(&mut self.leaving.has_routes) {
            return Ok(0);
        }
        let used: BTreeSet<IpAddr> =
            self.wanted.keys().chain(self.known.keys()).map(|key| key.at.ip()).collect();
        let Leaving { looks, servers, endpoints, addresses, .. } = &mut self.leaving;
        servers.retain(|key, _| self.known.contains_key(key) && !self.wanted.contains_key(key));
        endpoints.retain(|(key, _), _| self.wanted.contains_key(key));
        let unused: BTreeSet<IpAddr> =
            self.routes.keys().filter(|ip| !used.contains(ip)).copied().collect();
        addresses.retain(|ip, _| unused.contains(ip));
        let is_old = |ip: &IpAddr| *addresses.entry(*ip).or_insert(*looks) < *looks;
        let old: Vec<IpAddr> = unused.into_iter().filter(is_old).collect();
        if !old.is_empty() {
            self.host.remove_routes(&old)?;
            self.routes.retain(|ip, _| !old.contains(ip));
            self.has_moved = true;
        }
        Ok(old.len())
    }
}
