//! Decisions: what happens to packets at services' frontends, at host ports and in the pod
//! firewall, which packets come from local pods, and what is routed and announced.
//!
//! Pure, and the same for every backend: backends and `explain` read one [`Plan`] and decide
//! nothing. What a backend cannot do is an input ([`Capabilities`]).

mod announce;
pub mod conntrack;
mod direct;
pub mod explain;
mod firewall;
// Not behind a feature: for tests, all crates that depend on this one would be compiled again.
#[doc(hidden)]
pub mod fixture;
mod host_ports;
pub mod impact;
mod ipvs;
mod node;
mod planner;
mod pod_ranges;
mod policy;
mod services;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use denizen_state::AttachmentId;
use jiff::Timestamp;

pub use self::announce::{
    AnnounceInputs, AnnouncePlan, AnnounceSettings, AnnouncedPods, Announcement, AnnouncementClass,
    AnnouncementReason, Announcements, DecisionChanges, Drain, DroppedFrontend, ForbiddenReason,
    NetworkSurvey, NodeExclusion, PrefixOwner, Recorded, Withheld, WithheldReason, concerned,
    is_draining, newest, single_pods,
};
pub use self::direct::{
    DirectRoutes, NextHop, NodeNetworks, NotOnLink, RejectedRange, WhyRejected, direct,
};
pub use self::firewall::{
    AddressRange, AllPodsReason, Decider, Direction, DirectionRules, ExcessPolicy, FirewallChanges,
    FirewallPlan, FirewallSettings, IdentityChange, IdentityId, IfRefused, Isolation, KnownPods,
    PeerPorts, Permission, PermittedPorts, PodNeeds, PodRules, PodRulesChange, PolicyFlow,
    PolicyRejection, PolicyResult, PolicyStep, PolicyTie, PortKey, PortSpan, PortsByPeer,
    TierDecider, TierStep, Tiered, ToNode,
};
pub use self::host_ports::{
    HostPortChanges, HostPortKey, HostPortPlace, HostPortPlan, HostPortRemark, HostPortSettings,
    ServedHostPort, TakenPort,
};
pub use self::ipvs::{
    Balancer, HashTable, Hashed, IpvsPlan, Listed, Method, NotOnIpvs, PlannedServer, Scheduler,
    ServicePortKey, Share,
};
pub use self::node::{
    Arrival, BridgePort, Detection, Detector, EgressMasquerade, Local, LocalTest, MarkBit,
    NodePlan, NodePortAddresses, NodePorts, NodeSide, SeenAs, node_port_addresses,
};
pub use self::planner::Planner;
pub use self::policy::{Capabilities, Policy};
use self::services::PlanInputs;
pub use self::services::{
    Conflict, Endpoint, EndpointSelection, Endpoints, Frontend, FrontendAddress, FrontendKey,
    FrontendKind, HealthCheck, HealthChecks, HealthPorts, Masquerade, NodeLocation, Outcome,
    PermittedRanges, Remark, ServicePlan, Settings, frontends, select, serving,
};
use denizen_model::{
    Family, Listing, LocalPod, Model, ModelChange, PodSet, ServiceName, Snapshot, differing_pods,
};

/// What differs from the plan before.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PlanChanges {
    /// [`Plan::pods`] differ, or are known for the first time.
    pub pods: bool,
    /// Recorded pods that are new, differ, or are gone.
    pub records: BTreeSet<AttachmentId>,
    /// [`Plan::node`] differs.
    pub node: bool,
    /// [`Plan::services`] are known for the first time.
    pub complete: bool,
    /// Frontends that are new, differ, or are gone.
    pub frontends: BTreeSet<FrontendKey>,
    /// [`IpvsPlan::servers`] that are new, differ, or are gone.
    pub virtual_servers: BTreeSet<FrontendKey>,
    /// [`ServicePlan::hairpins`] differ.
    pub hairpins: bool,
    /// [`ServicePlan::health_checks`] differ.
    pub health_checks: bool,
    /// This node's endpoints differ.
    pub local_endpoints: bool,
    /// Services whose own facts or endpoints differ, whatever that changed. (When a draining
    /// endpoint ends, no frontend differs.)
    pub services: BTreeSet<ServiceName>,
    /// When the facts changed that are planned now, and their slices' families: for the latency
    /// metric.
    pub triggers: Vec<(Family, Timestamp)>,
    /// What differs in [`Plan::firewall`].
    pub firewall: FirewallChanges,
    /// What differs in [`Plan::host_ports`].
    pub host_ports: HostPortChanges,
    /// A NetworkPolicy differs, whatever that changed.
    pub network_policies: bool,
    /// A ClusterNetworkPolicy differs, whatever that changed.
    pub cluster_network_policies: bool,
    /// Conflicts that are new.
    pub conflicts: Vec<Conflict>,
    /// Remarks that are new.
    pub remarks: Vec<Remark>,
}

impl PlanChanges {
    /// The changes from an empty plan to this one.
    pub fn from_nothing(plan: &Plan) -> Self {
        let known = plan.services.is_some();
        let frontends = plan.services.iter().flat_map(ServicePlan::frontends);
        Self {
            pods: plan.pods.is_some(),
            records: plan.recorded().iter().map(|pod| pod.id.clone()).collect(),
            node: true,
            complete: known,
            frontends: frontends.map(|frontend| frontend.key).collect(),
            virtual_servers: plan
                .ipvs()
                .iter()
                .flat_map(|ipvs| ipvs.servers().keys())
                .copied()
                .collect(),
            hairpins: known,
            health_checks: known,
            local_endpoints: known,
            ..Self::default()
        }
    }
}

/// All decisions.
///
/// Its parts become known independently: pods are programmed while services are unknown, and the
/// other way round.
#[derive(Debug)]
pub struct Plan {
    policy: Policy,
    capabilities: Capabilities,
    node: NodePlan,
    pods: Option<Arc<PodSet>>,
    services: Option<ServicePlan>,
    ipvs: Option<IpvsPlan>,
    firewall: Option<FirewallPlan>,
    host_ports: Option<HostPortPlan>,
    waiting_for: Vec<Listing>,
}

impl Plan {
    /// A plan before any fact is known.
    pub fn new(policy: Policy, capabilities: Capabilities) -> Self {
        let node = NodePlan::new(&policy, capabilities, None, &[], None);
        let waiting_for = Listing::SERVICES.into();
        let of_firewall = |settings| FirewallPlan::new(settings, &policy.pod_ranges);
        let firewall = policy.firewall.map(of_firewall);
        let ipvs = capabilities.balances_by_ipvs.then(IpvsPlan::default);
        Self {
            policy,
            capabilities,
            node,
            pods: None,
            services: None,
            ipvs,
            firewall,
            host_ports: None,
            waiting_for,
        }
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    pub fn node(&self) -> &NodePlan {
        &self.node
    }

    /// This node's pods; `None` while the state file could not be read yet.
    pub fn pods(&self) -> Option<&PodSet> {
        self.pods.as_deref()
    }

    /// The recorded pods; none while the state file could not be read yet.
    pub fn recorded(&self) -> &[LocalPod] {
        recorded(&self.pods)
    }

    /// A recorded attachment.
    pub fn attachment(&self, id: &AttachmentId) -> Option<&LocalPod> {
        // Recorded pods are sorted by id.
        let pods = self.recorded();
        pods.get(pods.binary_search_by(|pod| pod.id.cmp(id)).ok()?)
    }

    /// The bridges on which pods are restricted.
    pub fn restricted_bridges(&self) -> BTreeSet<Arc<str>> {
        let is_restricted = |ip: &IpAddr| {
            let pod_rules = self.firewall().and_then(|firewall| firewall.pod_rules(*ip));
            pod_rules.is_some_and(PodRules::is_restricted)
        };
        let bridged = self.recorded().iter().filter(|pod| pod.port.is_some());
        let restricted = bridged.filter(|pod| pod.ips.iter().any(is_restricted));
        restricted.map(|pod| pod.interface.clone()).collect()
    }

    /// The bridges with recorded pods, while policies are in force.
    pub fn guarded_bridges(&self) -> BTreeSet<Arc<str>> {
        let is_enforced = self.firewall().is_some_and(FirewallPlan::is_enforced);
        let pods = self.recorded().iter().filter(|_| is_enforced);
        pods.filter_map(|pod| pod.bridge.clone()).collect()
    }

    /// The bridges of restricted pods in VLANs, which are cut off from their neighbours: IP rules
    /// do not see the frames that a bridge forwards within a VLAN.
    pub fn bridges_cut_off_in_vlans(&self) -> BTreeSet<Arc<str>> {
        let is_restricted =
            |pod: &&LocalPod| self.firewall().is_some_and(|firewall| firewall.is_restricted(pod));
        let pods = self.recorded().iter().filter(|pod| pod.is_in_vlan()).filter(is_restricted);
        pods.filter_map(|pod| pod.bridge.clone()).collect()
    }

    /// The decisions about services; `None` while services, their endpoints or the node are not
    /// fully known. (A plan made from half a picture would delete rules that are still wanted.)
    pub fn services(&self) -> Option<&ServicePlan> {
        self.services.as_ref()
    }

    /// The decisions about virtual servers; `None` if the backend has none. Empty while services
    /// are unknown.
    pub fn ipvs(&self) -> Option<&IpvsPlan> {
        self.ipvs.as_ref()
    }

    /// The decisions about which pods may talk to which; `None` if the pod firewall is off.
    pub fn firewall(&self) -> Option<&FirewallPlan> {
        self.firewall.as_ref()
    }

    /// What is decided about host ports; `None` if another program serves them, and while pods or
    /// this node's addresses are not known.
    pub fn host_ports(&self) -> Option<&HostPortPlan> {
        self.host_ports.as_ref()
    }

    /// Which first lists [`Self::services`] wait for.
    pub fn waiting_for(&self) -> &[Listing] {
        &self.waiting_for
    }

    /// Where the health-check node ports are served, and what they answer; `None` while services
    /// are not known.
    pub fn health_ports(&self) -> Option<HealthPorts> {
        let services = self.services()?;
        Some(HealthPorts {
            addresses: self.node.node_ports.listening(),
            checks: services.health_checks().by_port().0,
        })
    }

    /// Decides again what `change` concerns, and removes from `change` what is decided.
    fn update(&mut self, model: &Model, change: &mut ModelChange) -> PlanChanges {
        self.waiting_for = model.owed(Listing::SERVICES).collect();
        let world = model.snapshot();
        let mut changes = PlanChanges {
            pods: change.pods,
            complete: world.is_some() && self.services.is_none(),
            ..PlanChanges::default()
        };
        let mut concerned = BTreeSet::new();
        let former_pods = self.pods.clone();
        if change.pods {
            let before = std::mem::replace(&mut self.pods, model.pods().cloned());
            let differing = differing_pods(recorded(&before), recorded(&self.pods)).into_iter();
            let differing = differing.filter_map(|(was, is)| Some(is.or(was)?.id.clone()));
            changes.records = differing.collect();
            if let (Some(ipvs), Some(world)) = (&mut self.ipvs, world) {
                concerned = ipvs.change_pods(recorded(&before), recorded(&self.pods), world);
            }
        }
        if let Some(firewall) = &mut self.firewall {
            changes.network_policies = !change.network_policies.is_empty();
            changes.cluster_network_policies = !change.cluster_network_policies.is_empty();
            changes.firewall = firewall.update(model, self.pods.as_deref(), change);
        }
        change.clear_firewall_inputs();
        let links_changed = change.addresses;
        let moved = match changes.complete || change.is_about_node() {
            true => self.update_node(model, &mut changes),
            false => BTreeSet::new(),
        };
        match world {
            Some(world) => {
                self.update_services(world, std::mem::take(change), &moved, &mut changes);
                self.update_ipvs(world, concerned, &mut changes);
            }
            // The rest waits until all first lists are complete.
            None => (change.pods, change.egress) = (false, false),
        }
        self.update_host_ports(model, recorded(&former_pods), links_changed, &mut changes);
        changes
    }

    /// Decides about host ports that a change touches, as soon as it is known where they are
    /// served.
    fn update_host_ports(
        &mut self,
        model: &Model,
        former_pods: &[LocalPod],
        links_changed: bool,
        changes: &mut PlanChanges,
    ) {
        let (Some(settings), Some(pods)) = (self.policy.host_ports, &self.pods) else {
            return;
        };
        if model.owed([Listing::Addresses]).next().is_some() {
            return;
        }
        let is_first = self.host_ports.is_none();
        let host_ports = self.host_ports.get_or_insert_default();
        changes.host_ports = host_ports.update(&host_ports::HostPortInputs {
            settings,
            former_pods: if is_first { &[] } else { former_pods },
            pods: &pods.pods,
            links: model.addresses(),
            links_changed: links_changed || is_first,
            services: self.services.as_ref(),
            awaits_services: self.policy.services && self.services.is_none(),
            frontends: &changes.frontends,
            node_ports: &self.node.node_ports,
        });
    }

    /// Returns the addresses that begin or cease to be the node's own.
    fn update_node(&mut self, model: &Model, changes: &mut PlanChanges) -> BTreeSet<IpAddr> {
        let (policy, pods, world) = (&self.policy, self.recorded(), model.snapshot());
        let node = NodePlan::new(policy, self.capabilities, model.egress(), pods, world);
        changes.node = self.node != node;
        let before = std::mem::replace(&mut self.node, node);
        before
            .protected_addresses
            .symmetric_difference(&self.node.protected_addresses)
            .copied()
            .collect()
    }

    fn update_services(
        &mut self,
        world: Snapshot<'_>,
        change: ModelChange,
        moved: &BTreeSet<IpAddr>,
        changes: &mut PlanChanges,
    ) {
        let mut names = Cow::Borrowed(&change.services);
        if change.node || changes.complete {
            let names = names.to_mut();
            names.extend(world.services().map(|service| service.name.clone()));
            names.extend(self.services.iter().flat_map(ServicePlan::names).cloned());
        }
        if !moved.is_empty() {
            let concerned = world
                .services()
                .filter(|service| service.cluster_ips.iter().any(|ip| moved.contains(ip)));
            names.to_mut().extend(concerned.map(|service| service.name.clone()));
        }
        let mut services = self.services.take().unwrap_or_default();
        services.update(&names, self.surroundings(world), changes);
        self.services = Some(services);
        changes.services = change.services;
        changes.triggers = change.triggers;
    }

    fn surroundings<'a>(&'a self, world: Snapshot<'a>) -> PlanInputs<'a> {
        PlanInputs {
            settings: &self.policy.settings,
            capabilities: self.capabilities,
            node: &self.node,
            pods: self.recorded(),
            world,
            scheduler: self.policy.scheduler,
        }
    }

    /// Decides again about the virtual servers of changed services, and of `names`.
    fn update_ipvs(
        &mut self,
        world: Snapshot<'_>,
        mut names: BTreeSet<ServiceName>,
        changes: &mut PlanChanges,
    ) {
        let (Some(mut ipvs), Some(services)) = (self.ipvs.take(), &self.services) else {
            return;
        };
        names.extend(changes.services.iter().cloned());
        let claimants = changes.frontends.iter().flat_map(|key| services.claimants(key));
        names.extend(claimants.cloned());
        ipvs.update(names, services, self.surroundings(world), changes);
        self.ipvs = Some(ipvs);
    }
}

fn recorded(pods: &Option<Arc<PodSet>>) -> &[LocalPod] {
    pods.as_ref().map(|set| &*set.pods).unwrap_or_default()
}
