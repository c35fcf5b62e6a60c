//! Whether a pod is isolated, per direction.

use super::IdentityId;
use super::direction::Direction;
use super::permission::{ClassKey, Permissions};
use super::permitted_ports::PermittedPorts;
use super::ports_by_peer::{PeerPorts, PortsByPeer};
use super::tier::{self, AllTiers};
use denizen_model::{
    ClusterFacts, ClusterNetworkPolicy, Labels, LocalPod, NamedPort, NetworkPolicy, PolicyName,
    SortedSet,
};

/// Whether one direction of a pod is restricted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// No policy selects the pod for it: everything passes.
    Open,
    /// Only what is permitted passes.
    Isolated,
    /// It is not known yet whether a policy selects the pod: nothing passes.
    Pending,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectionRules {
    pub isolation: Isolation,
    /// What is permitted; empty unless [`Isolation::Isolated`]. Sorted.
    pub permissions: Permissions,
    /// What passes if ClusterNetworkPolicies select the pod for any direction. Then
    /// [`Self::permissions`] is empty.
    pub tiered: Option<Tiered>,
}

/// One direction of a pod that ClusterNetworkPolicies select.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tiered {
    /// What passes between the pod and its peers, by NetworkPolicies too.
    pub by_peer: PortsByPeer,
    /// What passes between the pod and itself, through a service.
    pub itself: PermittedPorts,
}

impl Tiered {
    /// The permitted ports between the pod and a peer of this identity; `None`: nothing passes.
    pub fn of(&self, identity: Option<IdentityId>) -> Option<&PermittedPorts> {
        self.by_peer.of(identity)
    }

    /// The permitted ports between the pod and each peer, and itself.
    pub fn permitted_sets(&self) -> impl Iterator<Item = &PermittedPorts> {
        self.by_peer.permitted_sets().chain([&self.itself])
    }

    /// Whether something that passed before no longer passes.
    fn is_narrower_than(&self, before: &Self) -> bool {
        let is_narrower = |(id, before): &PeerPorts| {
            // An identity that is gone has no address.
            self.of(*id).is_some_and(|now| now.is_narrower_than(before))
        };
        let mut differing = before.by_peer.beyond(Some(&self.by_peer));
        self.itself.is_narrower_than(&before.itself) || differing.any(is_narrower)
    }
}

impl DirectionRules {
    pub(super) fn new(
        isolation: Isolation,
        permissions: Permissions,
        tiered: Option<Tiered>,
    ) -> Self {
        Self { isolation, permissions, tiered }
    }

    /// Pending: nothing passes.
    pub(super) fn pending() -> Self {
        Self::new(Isolation::Pending, Permissions::default(), None)
    }

    /// Whether something that passed before no longer passes.
    pub(super) fn is_narrower_than(&self, before: &Self) -> bool {
        match (before.isolation, self.isolation) {
            (_, Isolation::Open) | (Isolation::Pending, _) => false,
            (Isolation::Open, Isolation::Isolated | Isolation::Pending) => true,
            (Isolation::Isolated, Isolation::Isolated | Isolation::Pending) => {
                let stays = |permission| self.permissions.binary_search(permission).is_ok();
                match (&before.tiered, &self.tiered) {
                    (None, None) => !before.permissions.iter().all(stays),
                    (Some(before), Some(now)) => now.is_narrower_than(before),
                    (None, Some(_)) | (Some(_), None) => true,
                }
            }
        }
    }
}

/// Both directions of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRules {
    pub ingress: DirectionRules,
    pub egress: DirectionRules,
}

impl PodRules {
    pub fn of(&self, direction: Direction) -> &DirectionRules {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// Whether any direction is pending.
    pub fn is_pending(&self) -> bool {
        Direction::BOTH.iter().any(|direction| self.of(*direction).isolation == Isolation::Pending)
    }

    /// Whether a policy isolates it for any direction.
    pub fn is_isolated(&self) -> bool {
        Direction::BOTH.iter().any(|direction| self.of(*direction).isolation == Isolation::Isolated)
    }

    /// Whether ClusterNetworkPolicies say something about any direction.
    pub fn is_tiered(&self) -> bool {
        Direction::BOTH.iter().any(|direction| self.of(*direction).tiered.is_some())
    }

    /// Whether any direction is restricted.
    pub fn is_restricted(&self) -> bool {
        Direction::BOTH.iter().any(|direction| self.of(*direction).isolation != Isolation::Open)
    }
}

/// The labels and named ports of a recorded pod, from the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodDescription {
    pub labels: Labels,
    pub ports: SortedSet<NamedPort>,
}

impl PodDescription {
    /// `None` unless the API's object is this pod's (by UID).
    pub fn of(pod: &LocalPod, cluster: ClusterFacts<'_>) -> Option<Self> {
        let object = cluster.pod_of(pod)?;
        Some(Self { labels: object.labels.clone(), ports: object.ports.clone() })
    }
}

/// How one direction of a pod is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DirectionDecision {
    pub isolation: Isolation,
    /// The class of its permissions, if it is isolated.
    pub class: Option<ClassKey>,
    /// Whether further policies may select the pod, since its labels are unknown.
    pub is_open_ended: bool,
}

/// How both directions of a recorded pod are decided, by all policies that may select it.
pub(super) fn decisions_of(
    pod: &LocalPod,
    described: Option<&PodDescription>,
    cluster: ClusterFacts<'_>,
    tiers: &AllTiers<'_>,
) -> [DirectionDecision; 2] {
    let decisions = Direction::BOTH.map(|direction| {
        let policies = pod.pod.iter().flat_map(|name| cluster.policies_of(&name.namespace));
        decide(policies, described, direction)
    });
    match &pod.pod {
        Some(name) if !tiers.all.is_empty() => {
            let of_namespace = cluster.namespace_labels(&name.namespace);
            add_tiers(decisions, &tiers.all, &of_namespace, described)
        }
        Some(_) | None => decisions,
    }
}

/// Decides about a pod by the policies of its namespace. While its labels are unknown, only
/// policies for every pod of the namespace certainly select it.
fn decide<'a>(
    policies: impl Iterator<Item = &'a NetworkPolicy>,
    pod: Option<&PodDescription>,
    direction: Direction,
) -> DirectionDecision {
    let isolating = policies.filter(|policy| match direction {
        Direction::Ingress => policy.ingress.is_some(),
        Direction::Egress => policy.egress.is_some(),
    });
    let (mut selecting, mut is_open_ended): (Vec<PolicyName>, bool) = (Vec::new(), false);
    let mut has_names = false;
    for policy in isolating {
        let selects = match pod {
            Some(pod) => policy.pods.selects(&pod.labels),
            None => policy.pods.is_empty(),
        };
        is_open_ended |= !selects && pod.is_none();
        if selects {
            selecting.push(policy.name.clone());
            has_names |= names_ports(policy, direction);
        }
    }
    let isolation = match (selecting.is_empty(), is_open_ended) {
        (false, _) => Isolation::Isolated,
        (true, true) => Isolation::Pending,
        (true, false) => Isolation::Open,
    };
    let ports = pod.filter(|_| has_names && direction == Direction::Ingress);
    let ports = ports.map(|pod| pod.ports.to_vec()).unwrap_or_default();
    let (is_isolated, tiers) = (true, None);
    let class = ClassKey { direction, policies: selecting, ports, is_isolated, tiers };
    let class = (isolation == Isolation::Isolated).then_some(class);
    DirectionDecision { isolation, class, is_open_ended }
}

/// Adds ClusterNetworkPolicies to the decisions about both directions of a pod.
///
/// While a pod's labels are unknown, the NetworkPolicies that certainly select it are applied:
/// further ones could only add permissions. A ClusterNetworkPolicy may deny, so such a pod is
/// pending if any of these may select it.
fn add_tiers(
    decisions: [DirectionDecision; 2],
    tiers: &[&ClusterNetworkPolicy],
    of_namespace: &Labels,
    pod: Option<&PodDescription>,
) -> [DirectionDecision; 2] {
    let selecting = Direction::BOTH.map(|direction| {
        tier::selecting(tiers, of_namespace, pod.map(|pod| &pod.labels), direction)
    });
    if selecting.iter().any(|(_, may_be)| *may_be) {
        let (isolation, class, is_open_ended) = (Isolation::Pending, None, true);
        return decisions.map(|_| DirectionDecision {
            isolation,
            class: class.clone(),
            is_open_ended,
        });
    }
    if selecting.iter().all(|(names, _)| names.is_empty()) {
        return decisions;
    }
    let mut selecting = Direction::BOTH.into_iter().zip(selecting);
    decisions.map(|decision| {
        let (direction, (names, _)) = selecting.next().expect("there are two of each");
        with_tiers(decision, direction, names, tiers, pod)
    })
}

fn with_tiers(
    decision: DirectionDecision,
    direction: Direction,
    names: Vec<std::sync::Arc<str>>,
    tiers: &[&ClusterNetworkPolicy],
    pod: Option<&PodDescription>,
) -> DirectionDecision {
    let by_policies = match decision.isolation {
        Isolation::Pending => return decision,
        Isolation::Open if names.is_empty() => return decision,
        Isolation::Open => None,
        Isolation::Isolated => decision.class,
    };
    let is_isolated = by_policies.is_some();
    let has_names = names.iter().any(|name| {
        let policy = tiers.iter().find(|policy| policy.name == *name);
        policy.is_some_and(|policy| tier::names_ports(policy, direction))
    });
    let (policies, ports) =
        by_policies.map_or_else(Default::default, |class| (class.policies, class.ports));
    let ports = match pod.filter(|_| has_names && direction == Direction::Ingress) {
        Some(pod) => pod.ports.to_vec(),
        None => ports,
    };
    let class = ClassKey { direction, policies, ports, is_isolated, tiers: Some(names) };
    DirectionDecision { isolation: Isolation::Isolated, class: Some(class), ..decision }
}

/// Whether a policy's rules for a direction name ports.
fn names_ports(policy: &NetworkPolicy, direction: Direction) -> bool {
    use denizen_model::{PortMatch, Ports};
    let rules = match direction {
        Direction::Ingress => &policy.ingress,
        Direction::Egress => &policy.egress,
    };
    let ports = rules.iter().flatten().flat_map(|rule| match &rule.ports {
        Ports::All => &[][..],
        Ports::These(ports) => ports,
    });
    ports.into_iter().any(|port| matches!(port.port, PortMatch::Named(_)))
}
