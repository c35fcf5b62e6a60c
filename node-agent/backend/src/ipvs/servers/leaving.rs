//! Removal of unneeded virtual servers, endpoints and addresses, once their connections have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use denizen_ipvs::{IpvsCommand, ObservedServer, RealServer, ServerKey};
use nix::libc;
use tracing::info;

use crate::EndedConnections;
use crate::ipvs::host::{Host, ServersError};
use crate::ipvs::state::{RealState, ServerState};

/// Force removal after 15 resyncs, about 15 minutes: of a virtual server whose connections do not
/// end, and of an endpoint whose pod is not recorded here, so that its end would not be noticed.
const MOST_RESYNCS: u32 = 15;

/// The scheduler that refuses the clients of an endpoint with weight 0.
const REFUSES: &str = "dh";

/// What is to be removed, and the number of the resync at which that began.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// The number of resyncs so far.
    pub resyncs: u32,
    servers: BTreeMap<ServerKey, u32>,
    endpoints: BTreeMap<(ServerKey, SocketAddr), u32>,
    addresses: BTreeMap<IpAddr, u32>,
    /// There may be routes of addresses without virtual servers: compare all.
    pub has_routes: bool,
    /// The addresses of the recorded pods: when one of them ends, its address is missing here.
    pods: BTreeSet<IpAddr>,
    /// Addresses of pods that have ended, until their connections are closed.
    ended: BTreeSet<IpAddr>,
    /// The established connections that ended because their endpoint was removed.
    pub connections: EndedConnections,
}

impl EndedConnections {
    /// Counts the connections of an endpoint that is removed. `pods`: the addresses of pods that
    /// have ended.
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

impl Leaving {
    /// Takes the addresses of the recorded pods. Returns the virtual servers with a draining
    /// endpoint whose pod is no longer recorded: its connections end with the next sync, since the
    /// pod is not there to end them.
    pub fn set_pods(
        &mut self,
        now: BTreeSet<IpAddr>,
        draining: &BTreeMap<ServerKey, BTreeSet<SocketAddr>>,
    ) -> BTreeSet<ServerKey> {
        let Self { pods, ended, .. } = self;
        ended.extend(pods.difference(&now));
        ended.retain(|ip| !now.contains(ip));
        *pods = now;
        let has_ended = |at: &SocketAddr| ended.contains(&at.ip());
        let concerned = draining.iter().filter(|(_, reals)| reals.iter().any(has_ended));
        concerned.map(|(key, _)| *key).collect()
    }

    /// Notes that all connections of pods that have ended are closed.
    pub fn forget_ended(&mut self) {
        self.ended.clear();
    }

    /// The wanted virtual server, with the unwanted endpoints that still have connections: these
    /// get no new connections, and stay until a resync finds them without any. If the pod has
    /// ended, its endpoint is removed at once. If the pod is not recorded here, its end would not
    /// be noticed, so the endpoint is removed after [`MOST_RESYNCS`] in any case. `known`: the
    /// virtual server as the kernel has it.
    pub fn keep_endpoints(
        &mut self,
        host: &mut impl Host,
        known: Option<&ServerState>,
        mut wanted: ServerState,
    ) -> Result<ServerState, ServersError> {
        let key = wanted.server.key;
        let known = known.into_iter().flat_map(|known| &known.reals);
        let gone: BTreeSet<SocketAddr> = known
            .filter(|(at, real)| real.translates && !wanted.reals.contains_key(at))
            .map(|(at, _)| *at)
            .collect();
        let Self { resyncs, endpoints, pods, ended, connections, .. } = self;
        endpoints.retain(|(of, at), _| *of != key || gone.contains(at));
        let is_tcp = key.protocol == libc::IPPROTO_TCP as u8;
        if gone.is_empty() || !is_tcp || &*wanted.server.scheduler == REFUSES {
            return Ok(wanted);
        }
        for observed in host.real_servers(&key)? {
            let (at, left) = (observed.real.at, observed.active + observed.inactive);
            if left == 0 || !gone.contains(&at) {
                continue;
            }
            let since = *endpoints.entry((key, at)).or_insert(*resyncs);
            let is_old = !pods.contains(&at.ip()) && *resyncs - since >= MOST_RESYNCS;
            if ended.contains(&at.ip()) || is_old {
                connections.note(&key, &observed, ended);
            } else {
                wanted.reals.insert(at, RealState::wanted(0));
            }
        }
        Ok(wanted)
    }

    /// The commands for unneeded virtual servers in the kernel (`unwanted`), to which no rule sends
    /// connections. A virtual server with TCP connections gets no new ones, and stays until a
    /// resync finds it without any. Another protocol needs no wait: rules lead later datagrams
    /// elsewhere.
    pub fn removals<'a>(
        &mut self,
        host: &mut impl Host,
        unwanted: impl Iterator<Item = &'a ServerKey>,
    ) -> Result<Vec<IpvsCommand>, ServersError> {
        let Self { resyncs, servers, ended, connections, .. } = self;
        let mut commands = Vec::new();
        for key in unwanted {
            let since = *servers.entry(*key).or_insert(*resyncs);
            let is_tcp = key.protocol == libc::IPPROTO_TCP as u8;
            let reals = if is_tcp { host.real_servers(key)? } else { Vec::new() };
            let is_old = *resyncs - since >= MOST_RESYNCS;
            let (dead, reals): (Vec<_>, Vec<_>) = reals
                .into_iter()
                .partition(|observed| is_old || ended.contains(&observed.real.at.ip()));
            dead.iter().for_each(|observed| connections.note(key, observed, ended));
            if reals.iter().all(|observed| observed.active + observed.inactive == 0) {
                commands.push(IpvsCommand::Remove(*key));
                continue;
            }
            let dead = dead.iter().map(|observed| observed.real.at);
            commands.extend(dead.map(|at| IpvsCommand::RemoveReal(*key, at)));
            let weighed = reals.iter().map(|observed| observed.real);
            let weighed = weighed.filter(|real| real.weight > 0);
            let idle = |real| IpvsCommand::ChangeReal(*key, RealServer { weight: 0, ..real });
            commands.extend(weighed.map(idle));
        }
        Ok(commands)
    }

    /// Which of these `unused` addresses have been without a virtual server of ours since an
    /// earlier resync: their routes can be removed. Until then rules refuse what clients still send
    /// there, so that no client waits for an answer in vain. Also forgets what is not leaving any
    /// more.
    pub fn old_addresses(
        &mut self,
        unused: BTreeSet<IpAddr>,
        is_wanted: impl Fn(&ServerKey) -> bool,
        is_known: impl Fn(&ServerKey) -> bool,
    ) -> Vec<IpAddr> {
        let Self { resyncs, servers, endpoints, addresses, .. } = self;
        servers.retain(|key, _| is_known(key) && !is_wanted(key));
        endpoints.retain(|(key, _), _| is_wanted(key));
        addresses.retain(|ip, _| unused.contains(ip));
        let is_old = |ip: &IpAddr| *addresses.entry(*ip).or_insert(*resyncs) < *resyncs;
        unused.into_iter().filter(is_old).collect()
    }
}
