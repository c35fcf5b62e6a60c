//! Implements `Backend`: nf_tables' rules and IPVS's virtual servers, in an order that is safe to
//! stop at any point.
//!
//! nf_tables balances a service itself until its virtual server is ready, and again before that
//! virtual server is disturbed. So one `sync` first programs the rules of the last plan and then
//! changes virtual servers. The next `update` makes the rules use the virtual servers that became
//! ready.

use std::collections::BTreeSet;
use std::future::pending;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use denizen_ipvs::{ObservedServer, ServerKey, VirtualServer};
use thiserror::Error;
use tracing::{info, warn};

use super::gate::gate;
use super::host::ServersError;
use super::kernel::Kernel;
use super::servers::{ChangeScope, Servers};
use super::state::{RealState, ServerState};
use crate::nftables::{Nftables, Programmed};
use crate::{Backend, Draining, EndpointConnections, Figures, Repair, Report};
use denizen_model::Protocol;
use denizen_netlink::NetlinkError;
use denizen_nft::NftError;
use denizen_plan::{
    Frontend, FrontendAddress, FrontendKey, Listed, Plan, PlanChanges, PlannedServer, Scheduler,
    Share,
};
use denizen_text::describe;

/// IPVS does not notify of changes. What others removed stays missing until the next
/// resync, while the rules send connections to it.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);

/// When others have removed virtual servers this often, nf_tables balances until the next resync,
/// and again after each further removal.
const CONTENDED: u32 = 3;

#[derive(Debug, Error)]
pub enum IpvsBackendError {
    /// The rules could not be programmed.
    #[error(transparent)]
    Nftables(#[from] NftError),
    /// The virtual servers could not be programmed.
    #[error(transparent)]
    Servers(#[from] ServersError),
}

/// The backend ipvs.
#[derive(Debug)]
pub struct IpvsBackend {
    nftables: Nftables,
    /// The virtual servers, or why IPVS cannot be used: then nf_tables balances everything.
    servers: Result<Servers<Kernel>, String>,
    /// [`Self::servers`] has not been given the plan's virtual servers yet.
    is_new: bool,
    /// The virtual servers that the rules send connections to.
    used: BTreeSet<ServerKey>,
    /// Another [`Backend::sync`] is due.
    is_due: bool,
    /// How often others removed virtual servers, up to [`CONTENDED`]. A resync that finds
    /// them complete resets it.
    foreign_removals: u32,
}

impl IpvsBackend {
    /// Opens nf_tables and IPVS in this thread's network namespace, and reads the virtual servers
    /// of an earlier run. Without IPVS, nf_tables balances everything.
    ///
    /// # Errors
    /// [`NetlinkError`] if nf_tables cannot be opened.
    pub fn open() -> Result<Self, NetlinkError> {
        let mut backend = Self {
            nftables: Nftables::open()?,
            servers: Err(String::new()),
            is_new: true,
            used: BTreeSet::new(),
            is_due: false,
            foreign_removals: 0,
        };
        backend.open_ipvs();
        Ok(backend)
    }

    /// The nf_tables part.
    pub fn nftables(&self) -> &Nftables {
        &self.nftables
    }

    fn open_ipvs(&mut self) {
        self.servers = Kernel::open().and_then(Servers::open).map_err(|error| describe(&error));
        self.is_new = true;
        match &self.servers {
            Ok(_) => info!("IPVS balances what it can"),
            Err(problem) => warn!(problem, "IPVS cannot be used: nf_tables balances everything"),
        }
    }

    fn leave_to_nftables(&mut self) {
        self.foreign_removals -= 1;
        let problem = "another program keeps removing virtual servers".to_owned();
        warn!(problem, "IPVS cannot be used: nf_tables balances everything");
        self.servers = Err(problem);
    }

    /// Gives the plan's virtual servers to [`Self::servers`].
    fn want(&mut self, plan: &Plan, changes: &PlanChanges) {
        let (Ok(servers), Some(planned)) = (&mut self.servers, plan.ipvs()) else { return };
        if changes.node || self.is_new {
            servers.set_sources(plan.node().route_sources.values().copied().collect());
        }
        if changes.pods || self.is_new {
            servers.set_pods(plan.recorded().iter().flat_map(|pod| pod.ips.clone()).collect());
        }
        if plan.services().is_some() {
            servers.complete();
        }
        let all: BTreeSet<FrontendKey>;
        let keys = if std::mem::take(&mut self.is_new) {
            all = planned.servers().keys().copied().collect();
            &all
        } else {
            &changes.virtual_servers
        };
        for key in keys {
            if let Some(server) = server_key(key) {
                let wanted = planned.servers().get(key);
                servers.want(server, wanted.map(|wanted| state(server, wanted)));
            }
        }
    }

    /// Decides again which virtual servers the rules use. Returns those for which that changes.
    fn reconsider(&mut self) -> BTreeSet<ServerKey> {
        let Ok(servers) = &mut self.servers else {
            return std::mem::take(&mut self.used);
        };
        let candidates = servers.readiness_changed().into_iter();
        let used = &mut self.used;
        let differs = |key: &ServerKey| match servers.is_ready(key) {
            true => used.insert(*key),
            false => used.remove(key),
        };
        candidates.filter(differs).collect()
    }

    /// Whether the rules must follow the state of virtual servers, or virtual servers must still be
    /// changed.
    fn has_more(&self) -> bool {
        match &self.servers {
            Ok(servers) => servers.has_more(&self.used) || self.is_new,
            Err(_) => !self.used.is_empty(),
        }
    }

    fn program(&mut self, scope: ChangeScope) -> Result<usize, ServersError> {
        match &mut self.servers {
            Ok(servers) => servers.sync(scope),
            Err(_) => Ok(0),
        }
    }
}

/// The virtual server at a frontend; none at the node's own addresses.
fn server_key(frontend: &FrontendKey) -> Option<ServerKey> {
    match frontend.address {
        FrontendAddress::Ip(ip) => Some(ServerKey {
            at: SocketAddr::new(ip, frontend.port.get()),
            protocol: frontend.protocol.number(),
        }),
        FrontendAddress::Node(_) => None,
    }
}

/// An endpoint that drains, in the plan's terms.
fn draining(server: ServerKey, endpoint: SocketAddr) -> Option<Draining> {
    let protocol = Protocol::from_number(server.protocol)?;
    let (address, port) = (FrontendAddress::Ip(server.at.ip()), server.at.port());
    let frontend = FrontendKey { address, protocol, port: NonZeroU16::new(port)? };
    Some(Draining { frontend, endpoint })
}

/// A planned virtual server in the driver's terms.
fn state(key: ServerKey, planned: &PlannedServer) -> ServerState {
    let Scheduler { method, fallback, hashes_port } = planned.scheduler;
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    let flags =
        flag(fallback, denizen_ipvs::FALLBACK) | flag(hashes_port, denizen_ipvs::PORT_HASHED);
    let weight = |share: &Share| match share {
        Share::Ready => 1,
        Share::Draining => 0,
    };
    let reals = planned.endpoints.iter();
    ServerState {
        server: VirtualServer { key, scheduler: method.name().into(), flags },
        reals: reals.map(|(at, share)| (*at, RealState::wanted(weight(share)))).collect(),
    }
}

/// The frontends of the services that have these virtual servers.
fn frontends_of(plan: &Plan, servers: &BTreeSet<ServerKey>) -> BTreeSet<FrontendKey> {
    let (Some(services), Some(ipvs)) = (plan.services(), plan.ipvs()) else {
        return BTreeSet::new();
    };
    let planned = ipvs.servers().iter();
    let planned =
        planned.filter(|(key, _)| server_key(key).is_some_and(|server| servers.contains(&server)));
    planned
        .flat_map(|(_, server)| services.keys_of(&server.service_port.service))
        .copied()
        .collect()
}

impl Backend for IpvsBackend {
    type Error = IpvsBackendError;

    fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        self.want(plan, changes);
        let differs = self.reconsider();
        let Self { nftables, used, .. } = self;
        let addresses = match &mut self.servers {
            Ok(servers) => servers.take_addresses(),
            Err(_) => Some(BTreeSet::new()),
        };
        if let Some(addresses) = addresses {
            nftables.change_routed_addresses(&addresses);
        }
        let is_used = |key: &FrontendKey| server_key(key).is_some_and(|key| used.contains(&key));
        let programmed: Programmed<'_> = &|frontend| gate(frontend, plan.ipvs(), &is_used);
        nftables.update_as(plan, changes, programmed);
        if !differs.is_empty() {
            let frontends = frontends_of(plan, &differs);
            let changes = PlanChanges { frontends, ..PlanChanges::default() };
            nftables.update_as(plan, &changes, programmed);
        }
        self.is_due = false;
    }

    fn sync(&mut self) -> Result<Repair, IpvsBackendError> {
        let rules = self.nftables.sync();
        let scope = if rules.is_ok() { ChangeScope::Everything } else { ChangeScope::WhatIsSafe };
        let servers = self.program(scope);
        self.is_due = rules.is_ok() && servers.is_ok() && self.has_more();
        let repair = rules?;
        servers?;
        Ok(repair)
    }

    /// A wrong virtual server is not repaired while the rules may send connections there: the next
    /// [`Backend::sync`] does that.
    fn resync(&mut self) -> Result<Repair, IpvsBackendError> {
        let rules = self.nftables.resync();
        match &mut self.servers {
            Ok(_) if self.foreign_removals == CONTENDED => self.leave_to_nftables(),
            Ok(servers) => servers.request_resync(),
            Err(_) => self.open_ipvs(),
        }
        let servers = if self.is_new { Ok(0) } else { self.program(ChangeScope::WhatIsSafe) };
        if self.servers.is_ok() && matches!(servers, Ok(0)) && !self.is_new {
            self.foreign_removals = 0;
        }
        self.is_due = rules.is_ok() && servers.is_ok() && self.has_more();
        let repair = rules?;
        Ok(repair + Repair { elements: servers?, ..Repair::default() })
    }

    fn has_foreign_change(&mut self) -> bool {
        let missing = self.servers.as_mut().map(Servers::misses_next);
        let is_missing = matches!(missing, Ok(Ok(true)));
        self.foreign_removals += u32::from(is_missing);
        is_missing
    }

    fn report(&mut self) -> Report {
        let mut report = self.nftables.report();
        report.is_programmed &= !self.is_due;
        report.resync_interval = RESYNC_INTERVAL;
        match &self.servers {
            Ok(servers) => {
                report.rejected.extend(servers.problems());
                report.draining = servers
                    .draining()
                    .filter_map(|(server, endpoint)| draining(server, endpoint))
                    .collect();
            }
            Err(problem) => report
                .rejected
                .push(format!("IPVS cannot be used, nftables balances everything: {problem}")),
        }
        report
    }

    fn figures(&mut self) -> Figures {
        let mut figures = self.nftables.figures();
        figures.ended = self.servers.as_ref().map(Servers::ended_connections).unwrap_or_default();
        match self.servers.as_mut().map(Servers::read_draining) {
            Ok(Ok(read)) => {
                figures.draining = read
                    .into_iter()
                    .filter_map(|(key, observed)| {
                        let ObservedServer { real, active, inactive, .. } = observed;
                        Some((draining(key, real.at)?, EndpointConnections { active, inactive }))
                    })
                    .collect();
            }
            Ok(Err(error)) => figures.errors.push(describe(&error)),
            // IPVS cannot be used; the report says so.
            Err(_) => {}
        }
        figures
    }

    fn sample_drops(&mut self, on: bool) -> bool {
        self.nftables.sample_drops(on)
    }

    fn rejected(&self, frontend: &Frontend) -> Vec<String> {
        self.nftables.rejected(frontend)
    }

    fn listed(&mut self, server: &FrontendKey) -> Option<Vec<Listed>> {
        let (servers, key) = (self.servers.as_mut().ok()?, server_key(server)?);
        servers.read_listed(&key).ok().filter(|listed| !listed.is_empty())
    }

    async fn wait(&mut self) {
        if !self.is_due {
            pending().await
        }
    }
}
