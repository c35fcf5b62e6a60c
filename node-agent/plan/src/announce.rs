//! What this node announces to the fabric (`--routing-mode table`): the prefixes that it delivers
//! now. Pure.
//!
//! The result depends on the current state alone, never on the history, so an address that two
//! services share cannot leave a stale announcement. What a change does not concern is not computed
//! again.

mod forbidden;
mod incremental;
mod pods;
mod prefix_claim;
mod reason;
mod recorded;
mod services;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use ipnetwork::IpNetwork;

pub use self::incremental::{AnnouncePlan, DecisionChanges, concerned};
pub use self::pods::single_pods;
pub use self::reason::{ForbiddenReason, NodeExclusion, WithheldReason};
pub use self::recorded::{Recorded, newest};
use super::Plan;
use super::services::{Frontend, FrontendKey, FrontendKind};
use denizen_model::{LocalPod, Node, Nodes, ServiceName, Snapshot};

/// What to announce, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnounceSettings {
    pub pods: AnnouncedPods,
    /// The kinds of service addresses: cluster IPs, load balancer IPs, external IPs.
    pub kinds: BTreeSet<FrontendKind>,
    /// Load balancer IPs and external IPs are announced only if one of these contains them.
    pub ranges: Vec<IpNetwork>,
    /// Maximum number of prefixes.
    pub most: usize,
    /// Maximum number of pods that are announced one by one.
    pub most_pods: usize,
    /// Ignore the label `node.kubernetes.io/exclude-from-external-load-balancers`.
    pub ignores_exclusion: bool,
    /// A node with a taint of one of these keys drains.
    pub drain_taints: Vec<String>,
    /// This node's BGP peers.
    pub peers: BTreeSet<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnouncedPods {
    Off,
    /// The Node's podCIDRs.
    NodeCidrs,
    /// Each recorded pod by itself.
    Exact,
    /// The podCIDRs, and each recorded pod outside them.
    Auto,
}

/// Whether, and how far, this node drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// It does not drain.
    No,
    /// Routers should prefer other nodes for services.
    Begun,
    /// Services that other nodes serve as well are withdrawn.
    Over,
}

/// Whether a node drains: it is being deleted, or has a taint that says so.
pub fn is_draining(node: Option<&Node>, settings: &AnnounceSettings) -> bool {
    let is_named = |taint: &Arc<str>| settings.drain_taints.iter().any(|key| **key == **taint);
    node.is_some_and(|node| node.leaving || node.taints.iter().any(is_named))
}

/// The class of a prefix, in the order in which router configurations refer to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnnouncementClass {
    /// A podCIDR of this node.
    PodRange,
    /// A pod outside the podCIDRs.
    Pod,
    /// A pod outside the podCIDRs that was recorded within the last minute: another node may still
    /// announce it.
    FreshPod,
    ClusterIp,
    ExternalIp,
    LoadBalancerIp,
}

impl AnnouncementClass {
    pub const ALL: [Self; 6] = [
        Self::PodRange,
        Self::Pod,
        Self::FreshPod,
        Self::ClusterIp,
        Self::ExternalIp,
        Self::LoadBalancerIp,
    ];

    /// The class of a kind of service address; `None` for node ports, whose addresses are the
    /// node's.
    fn of(kind: FrontendKind) -> Option<Self> {
        match kind {
            FrontendKind::ClusterIp => Some(Self::ClusterIp),
            FrontendKind::NodePort => None,
            FrontendKind::LoadBalancerIp => Some(Self::LoadBalancerIp),
            FrontendKind::ExternalIp => Some(Self::ExternalIp),
        }
    }

    /// The metric of its routes. Routing daemons tell classes apart by it.
    pub fn metric(self, is_draining: bool) -> u32 {
        let class = match self {
            Self::PodRange => 101,
            Self::Pod => 102,
            Self::FreshPod => 98,
            Self::ClusterIp => 103,
            Self::ExternalIp => 104,
            Self::LoadBalancerIp => 105,
        };
        class + if is_draining { 100 } else { 0 }
    }

    /// Its name in status and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodRange => "pod-cidr",
            Self::Pod => "pod",
            Self::FreshPod => "fresh-pod",
            Self::ClusterIp => "cluster-ip",
            Self::ExternalIp => "external-ip",
            Self::LoadBalancerIp => "load-balancer-ip",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    pub class: AnnouncementClass,
    /// This node drains, so routers should prefer others.
    pub is_draining: bool,
    /// Why this node announces it.
    pub reason: AnnouncementReason,
    /// For a single pod: when it was recorded, in seconds since 1970. If two nodes announce it,
    /// routers prefer the newer record.
    pub recorded: Option<NonZeroU32>,
    /// When its Service was created or its pod recorded, RFC 3339 in UTC. Above the limit, the
    /// oldest stay.
    since: Arc<str>,
}

impl Announcement {
    pub fn metric(&self) -> u32 {
        self.class.metric(self.is_draining)
    }

    /// Why it is announced, as text.
    pub fn why(&self) -> String {
        let Self { class, reason, .. } = self;
        match class {
            AnnouncementClass::FreshPod => format!(
                "{reason}; it is new here, so routers prefer this node to another one that still \
                 announces it"
            ),
            AnnouncementClass::PodRange
            | AnnouncementClass::Pod
            | AnnouncementClass::ClusterIp
            | AnnouncementClass::ExternalIp
            | AnnouncementClass::LoadBalancerIp => reason.to_string(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnnouncementReason {
    /// It is one of the Node's podCIDRs.
    PodRange,
    /// It is the address of this pod (or of the attachment with this id, if the pod's name is
    /// unknown).
    Pod(Arc<str>),
    /// It is an address of this Service.
    Service {
        service: ServiceName,
        /// How many ready endpoint addresses serve it.
        ready: usize,
        /// How many of them on this node.
        local: usize,
    },
}

impl AnnouncementReason {
    fn is_service(&self) -> bool {
        match self {
            Self::Service { .. } => true,
            Self::PodRange | Self::Pod(_) => false,
        }
    }
}

impl fmt::Display for AnnouncementReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PodRange => write!(f, "it is a podCIDR of this node"),
            Self::Pod(pod) => write!(f, "it is the address of pod {pod} of this node"),
            Self::Service { service, ready, local } => write!(
                f,
                "it is an address of Service {service}, which has {ready} ready endpoints, \
                 {local} of them on this node"
            ),
        }
    }
}

/// A prefix that somebody may expect to be announced, but is not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Withheld {
    pub reason: WithheldReason,
    /// The owner of the address.
    pub owner: PrefixOwner,
}

/// The owner of a prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PrefixOwner {
    /// This node: it is a podCIDR.
    Node,
    /// A pod of this node.
    Pod(Arc<str>),
    /// A Service.
    Service(ServiceName),
}

impl fmt::Display for PrefixOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => write!(f, "this Node's podCIDR"),
            Self::Pod(pod) => write!(f, "pod {pod}"),
            Self::Service(service) => write!(f, "Service {service}"),
        }
    }
}

/// A frontend at an announced address whose packets this node drops: its policy is Local, and all
/// its endpoints are on other nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DroppedFrontend {
    pub key: FrontendKey,
    pub service: ServiceName,
    /// The owner for whose sake the address is announced.
    pub announced_for: PrefixOwner,
}

impl fmt::Display for DroppedFrontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, service, announced_for } = self;
        write!(
            f,
            "connections to {key} of Service {service} are dropped here: its policy is Local, and \
             no endpoint on this node serves it; the address is announced for {announced_for}"
        )
    }
}

/// The decisions about announcements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Announcements {
    pub wanted: BTreeMap<IpNetwork, Announcement>,
    /// What is not announced, each with the first reason that applies.
    pub withheld: BTreeMap<IpNetwork, Withheld>,
    /// The frontends that drop packets, by announced prefix.
    pub dropped: BTreeMap<IpNetwork, BTreeSet<DroppedFrontend>>,
}

/// Facts about this node's networks that only the kernel has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkSurvey {
    /// The gateways of this node's routes.
    pub gateways: BTreeSet<IpAddr>,
    /// Pod addresses that the kernel does not route to their pod.
    pub undelivered: BTreeSet<IpAddr>,
}

/// The inputs of the decision.
pub struct AnnounceInputs<'a> {
    pub settings: &'a AnnounceSettings,
    /// The plan that is in the kernel, or is about to be programmed.
    pub plan: &'a Plan,
    pub world: Snapshot<'a>,
    pub nodes: &'a Nodes,
    pub is_gone: bool,
    pub drain: Drain,
    pub surveyed: &'a NetworkSurvey,
    /// When the pods with these addresses were recorded.
    pub recorded: &'a BTreeMap<IpAddr, Recorded>,
    /// Whether the backend rejected any rules.
    pub rejects: bool,
    pub is_rejected: &'a dyn Fn(&Frontend) -> bool,
}

impl Announcements {
    /// Why an address is announced or not: by its own prefix, else by a range around it.
    pub fn about(&self, address: IpAddr) -> Option<(IpNetwork, Result<&Announcement, &Withheld>)> {
        let exact = IpNetwork::from(address);
        let wanted = |prefix: &IpNetwork| self.wanted.get(prefix).map(Ok);
        let withheld = |prefix: &IpNetwork| self.withheld.get(prefix).map(Err);
        let at = |prefix: IpNetwork| {
            wanted(&prefix).or_else(|| withheld(&prefix)).map(|found| (prefix, found))
        };
        let around = self.wanted.keys().chain(self.withheld.keys());
        at(exact).or_else(|| around.copied().find(|prefix| prefix.contains(address)).and_then(at))
    }

    /// The announced addresses of services.
    pub fn service_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let of_services =
            self.wanted.iter().filter(|(_, announcement)| announcement.reason.is_service());
        of_services.map(|(prefix, _)| prefix.ip())
    }

    /// The pods with an address that no announcement covers.
    pub fn uncovered<'a>(
        &self,
        pods: &'a [LocalPod],
    ) -> impl Iterator<Item = &'a LocalPod> + use<'a, '_> {
        let ranges = self
            .wanted
            .iter()
            .filter(|(_, announcement)| announcement.class == AnnouncementClass::PodRange);
        let ranges: Vec<IpNetwork> = ranges.map(|(range, _)| *range).collect();
        let is_covered = move |ip: &IpAddr| {
            ranges.iter().any(|range| range.contains(*ip))
                || self.wanted.contains_key(&IpNetwork::from(*ip))
        };
        pods.iter().filter(move |pod| !pod.ips.iter().all(&is_covered))
    }

    /// The withheld prefixes about which an operator or an owner must act
    /// ([`WithheldReason::needs_action`]).
    pub fn refused(&self) -> impl Iterator<Item = (&IpNetwork, &Withheld)> {
        self.withheld.iter().filter(|(_, withheld)| withheld.reason.needs_action())
    }
}

impl From<AnnouncementReason> for PrefixOwner {
    fn from(reason: AnnouncementReason) -> Self {
        match reason {
            AnnouncementReason::PodRange => Self::Node,
            AnnouncementReason::Pod(pod) => Self::Pod(pod),
            AnnouncementReason::Service { service, .. } => Self::Service(service),
        }
    }
}
