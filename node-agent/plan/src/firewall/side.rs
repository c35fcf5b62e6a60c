//! Whether a pod is isolated, per direction.

use super::permission::{ClassKey, Permissions};
use super::rules::Direction;
use denizen_model::{Labels, NamedPort, NetworkPolicy, PolicyName};

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
pub struct Side {
    pub isolation: Isolation,
    /// What is permitted; empty unless [`Isolation::Isolated`]. Sorted.
    pub permissions: Permissions,
}

impl Side {
    pub(super) fn new(isolation: Isolation, permissions: Permissions) -> Self {
        Self { isolation, permissions }
    }

    /// Nothing passes until more is known.
    pub(super) fn pending() -> Self {
        Self::new(Isolation::Pending, Permissions::default())
    }

    /// Whether something passed before that does not pass now.
    pub(super) fn is_narrower_than(&self, before: &Self) -> bool {
        match (before.isolation, self.isolation) {
            (_, Isolation::Open) | (Isolation::Pending, _) => false,
            (Isolation::Open, Isolation::Isolated | Isolation::Pending) => true,
            (Isolation::Isolated, Isolation::Isolated | Isolation::Pending) => {
                let stays = |permission| self.permissions.binary_search(permission).is_ok();
                !before.permissions.iter().all(stays)
            }
        }
    }
}

/// Both directions of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sides {
    /// What reaches it.
    pub ingress: Side,
    /// What it reaches.
    pub egress: Side,
}

impl Sides {
    pub fn of(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// Whether nothing is known yet.
    pub fn is_pending(&self) -> bool {
        Direction::BOTH.iter().any(|side| self.of(*side).isolation == Isolation::Pending)
    }

    /// Whether a policy isolates it for any direction.
    pub fn is_isolated(&self) -> bool {
        Direction::BOTH.iter().any(|side| self.of(*side).isolation == Isolation::Isolated)
    }

    /// Whether any direction is restricted.
    pub fn is_restricted(&self) -> bool {
        Direction::BOTH.iter().any(|side| self.of(*side).isolation != Isolation::Open)
    }
}

/// What the API says of a recorded pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    pub labels: Labels,
    pub ports: std::sync::Arc<[NamedPort]>,
}

/// How one direction of a pod is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SideDecision {
    pub isolation: Isolation,
    /// The class of its permissions, if it is isolated.
    pub class: Option<ClassKey>,
    /// Whether policies beyond the known ones may select it.
    pub is_open_ended: bool,
}

/// Decides about a pod by the policies of its namespace. While its labels are unknown, only
/// policies for every pod of the namespace certainly select it.
pub(super) fn decide<'a>(
    policies: impl Iterator<Item = &'a NetworkPolicy>,
    pod: Option<&Described>,
    direction: Direction,
) -> SideDecision {
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
    let class = ClassKey { direction, policies: selecting, ports };
    let class = (isolation == Isolation::Isolated).then_some(class);
    SideDecision { isolation, class, is_open_ended }
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
