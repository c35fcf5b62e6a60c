//! The engine's part of `status`.

use std::net::IpAddr;
use std::time::Duration;

use tracing::warn;

use super::Engine;
use denizen_backend::{Backend, Figures};
use denizen_model::Listing;
use denizen_observe::status::{
    DrainingSince, DrainingStatus, IpvsStatus, LastSync, NetworkPolicyStatus, Status,
};
use denizen_plan::{Conflict, Remark, ServicePlan, Sides};

/// The most remarks of one kind that are shown.
const MOST_REMARKS: usize = 32;

impl<B: denizen_backend::Backend> Engine<B> {
    /// Whether a look that costs hardly anything finds that others removed what is programmed. Then
    /// call [`Self::resync`].
    pub fn is_disturbed(&mut self) -> bool {
        self.backend.is_disturbed()
    }
}

impl<B> Engine<B> {
    /// Remembers when the kernel was programmed last.
    pub fn note_sync(&mut self, sync: LastSync) {
        self.last_sync = Some(sync);
    }

    /// Remembers that what drains, and did not when this was called last, does since then (RFC 3339
    /// in UTC).
    pub fn note_draining(&mut self, at: &str) {
        let mut before = std::mem::take(&mut self.draining);
        for it in &self.report.draining {
            let since = before.remove(it).unwrap_or_else(|| DrainingSince(Some(at.to_owned())));
            self.draining.insert(*it, since);
        }
    }

    /// Remembers that so many stale conntrack entries were deleted.
    pub fn note_flushed(&mut self, entries: usize) {
        self.flushed += entries as u64;
    }

    /// Remembers whether the search for stale entries is running.
    pub fn note_flushing(&mut self, flushing: bool) {
        self.flushing = flushing;
    }

    /// Remembers a repair, and how long it took from the kernel's notification.
    pub fn note_repair(&mut self, took: Duration) {
        self.drift_repaired += 1;
        self.last_repair = Some(took);
    }
}

impl<B: Backend> Engine<B> {
    /// What the agent knows and has programmed. `problems` are the sources'. The caller adds what
    /// the engine does not know, such as the backend's name.
    pub fn status(&mut self, problems: Vec<String>) -> Status {
        let mut errors = problems;
        errors.extend(self.last_error.clone());
        errors.extend(self.firewall_error.clone());
        errors.extend(self.report.contended.clone());
        errors.extend(self.report.rejected.iter().cloned());
        errors.extend(self.lost_health_ports());
        let (wrong, surprising) = self.remarks();
        errors.extend(wrong);
        self.figures = self.backend.figures();
        errors.append(&mut self.figures.errors);
        let network_policy = self.network_policy(&mut errors);
        let Figures { missed_lookups, affinity, .. } = &self.figures;
        let (model, services) = (self.planner.model(), self.planner.plan().services());
        let pods = self.planner.plan().recorded();
        Status {
            redirected_pods: pods.iter().filter(|pod| pod.redirect.is_some()).count(),
            unredirected_pods: 0,
            warnings: affinity.warnings().chain(surprising).collect(),
            backend: String::new(),
            backend_why: String::new(),
            detect_local: self.planner.plan().policy().detector.to_string(),
            synced: self.synced,
            waiting_for: model.owed(Listing::SERVICES).map(|listing| listing.to_string()).collect(),
            pods: model.pods().map_or(0, |pods| pods.pods.len()),
            unrecorded_interfaces: 0,
            routing: None,
            announcements: None,
            bgp: None,
            ipvs: self.ipvs(),
            services: model.service_count(),
            endpoints: services.map_or(0, ServicePlan::endpoint_count),
            generation: self.programmed_pods.as_ref().map(|(_, generation)| generation.0),
            last_sync: self.last_sync.clone(),
            drift_repaired: self.drift_repaired,
            last_repair_milliseconds: self.last_repair.map(|took| took.as_secs_f64() * 1e3),
            missed_lookups: *missed_lookups,
            network_policy_why: String::new(),
            network_policy_engine: None,
            network_policy,
            affinity: affinity.clone(),
            flushed: self.flushed,
            flushing: self.flushing || !self.is_settled(),
            errors,
        }
    }

    fn ipvs(&self) -> Option<IpvsStatus> {
        let ipvs = self.planner.plan().ipvs()?;
        let draining = self.figures.draining.iter().filter_map(|(it, left)| {
            let server = ipvs.servers().get(&it.frontend)?;
            Some(DrainingStatus {
                service: server.service_port.to_string(),
                endpoint: it.endpoint.to_string(),
                since: self.draining.get(it)?.clone(),
                active: left.active,
                inactive: left.inactive,
            })
        });
        Some(IpvsStatus {
            virtual_servers: ipvs.servers().len(),
            carried_by_nftables: ipvs.carried_by_nftables(),
            draining: draining.collect(),
            ended_connections: self.figures.ended,
        })
    }

    fn network_policy(&mut self, errors: &mut Vec<String>) -> Option<NetworkPolicyStatus> {
        let plan = self.planner.plan();
        let decided = plan.firewall()?;
        let firewall = self.firewall.as_mut()?;
        let report = firewall.report(plan);
        errors.extend(report.rejected.into_iter().chain(report.errors));
        let count = |is: fn(&Sides) -> bool| {
            let has = |ip: &IpAddr| decided.sides(*ip).is_some_and(is);
            plan.recorded().iter().filter(|pod| pod.ips.iter().any(has)).count()
        };
        let model = self.planner.model();
        let refused = model.refused().filter(|_| decided.is_left_open());
        let policies = model.cluster().into_iter().flat_map(|cluster| cluster.policies());
        Some(NetworkPolicyStatus {
            waiting_for: model.owed(Listing::FIREWALL).map(|it| it.to_string()).collect(),
            refused: refused.map(|listing| listing.to_string()).collect(),
            policies: decided.policies_in_force(),
            not_understood: policies.filter(|policy| !policy.is_understood).count(),
            isolated: count(Sides::is_isolated),
            pending: count(Sides::is_pending),
            identities: decided.identity_count(),
            elements: report.elements,
            waiting: report.waiting,
            dropped: report.dropped,
            unfiltered_bridges: firewall.without_netfilter().map(str::to_owned).collect(),
        })
    }

    /// The remarks, as errors and as warnings.
    fn remarks(&self) -> (Vec<String>, Vec<String>) {
        let services = self.planner.plan().services().into_iter();
        let (wrong, surprising): (Vec<&Remark>, Vec<&Remark>) =
            services.flat_map(ServicePlan::remarks).partition(|remark| remark.is_error());
        let shown = |remarks: Vec<&Remark>| {
            let more = remarks.len().saturating_sub(MOST_REMARKS);
            let lines = remarks.iter().take(MOST_REMARKS).map(ToString::to_string);
            let more = (more > 0).then(|| format!("and {more} more like these"));
            lines.chain(more).collect()
        };
        (shown(wrong), shown(surprising))
    }
}

/// Warns of a claim that another one has taken.
pub(super) fn warn_of(lost: &Conflict) {
    let Conflict { key, winner, loser } = lost;
    warn!(%key, service = %winner, %loser, "two services claim one address and port");
}
