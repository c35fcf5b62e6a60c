//! What the pods of each class may do, as long as one is of it.

use std::collections::BTreeMap;

use super::cells::Cells;
use super::function::{Function, PortSet};
use super::identity::{Identities, IdentityId, IdentityKey};
use super::peer::PeerTable;
use super::permission::{ClassKey, Permission, Permissions, PortKey, RuleChanges};
use super::rules::PoliciesInForce;
use super::side::{Side, SideDecision, Tiered};

/// The classes in use.
#[derive(Debug, Default)]
pub(super) struct Classes(BTreeMap<ClassKey, Granted>);

/// What the pods of a class may do.
#[derive(Debug, Default)]
struct Granted {
    /// By NetworkPolicies alone.
    permissions: Permissions,
    /// By policies of any kind, if ClusterNetworkPolicies select the pods.
    cells: Option<Cells>,
    /// What passes between such a pod and itself, by its identity.
    itself: BTreeMap<Option<IdentityId>, Function>,
}

/// What classes are decided by.
#[derive(Clone, Copy)]
pub(super) struct ClassFacts<'a> {
    pub policies: &'a PoliciesInForce,
    pub identities: &'a Identities,
    pub peers: &'a PeerTable,
}

impl Classes {
    /// Brings the classes that decisions name up to date, and forgets the others. `identities` are
    /// those that came or went.
    pub fn update<'a>(
        &mut self,
        decisions: impl Iterator<Item = &'a SideDecision>,
        by: ClassFacts<'_>,
        changed: &RuleChanges,
        identities: &[IdentityKey],
    ) {
        let mut classes = std::mem::take(&mut self.0);
        for class in decisions.filter_map(|decision| decision.class.as_ref()) {
            if self.0.contains_key(class) {
                continue;
            }
            let is_changed = || identities.iter().any(|key| class.may_name(key, by.policies));
            let granted = match classes.remove_entry(class) {
                Some((class, before)) if !changed.concerns(&class) => match class.tiers {
                    Some(_) if identities.is_empty() => (class, before),
                    Some(_) => (class.clone(), Granted::by_tiers(&class, by, before)),
                    None if !is_changed() => (class, before),
                    None => (class.clone(), Granted::by_policies(&class, by)),
                },
                Some(_) | None => (class.clone(), Granted::of(class, by)),
            };
            self.0.extend([granted]);
        }
    }

    /// What passes between pods of a class and an identity, as the kernel has it.
    pub fn passing(&self, class: &ClassKey, peer: Option<IdentityId>) -> PortSet {
        self.0.get(class).map(|granted| granted.passing(peer)).unwrap_or_default()
    }

    /// How an address of a pod is judged whose own identity this is.
    pub fn side(
        &mut self,
        decision: &SideDecision,
        by: ClassFacts<'_>,
        own: Option<IdentityId>,
    ) -> Side {
        let Some(class) = &decision.class else {
            return Side::new(decision.isolation, Permissions::default(), None);
        };
        if !self.0.contains_key(class) {
            self.0.insert(class.clone(), Granted::of(class, by));
        }
        let granted = self.0.get_mut(class).expect("it was just put there");
        let tiered = granted.cells.clone().map(|cells| {
            let itself = granted.itself.entry(own).or_insert_with(|| {
                let key = own.and_then(|id| by.identities.key(id)).cloned().unwrap_or_default();
                let itself = class.itself(by.policies, by.peers, &key);
                itself.unwrap_or_else(Function::none)
            });
            Tiered { cells, itself: itself.clone() }
        });
        Side::new(decision.isolation, granted.permissions.clone(), tiered)
    }
}

impl Granted {
    fn of(class: &ClassKey, by: ClassFacts<'_>) -> Self {
        match class.tiers {
            Some(_) => Self::by_tiers(class, by, Self::default()),
            None => Self::by_policies(class, by),
        }
    }

    fn by_policies(class: &ClassKey, by: ClassFacts<'_>) -> Self {
        let permissions = class.permissions(by.policies, by.identities);
        Self { permissions, ..Self::default() }
    }

    fn passing(&self, peer: Option<IdentityId>) -> PortSet {
        if let Some(cells) = &self.cells {
            return cells.of(peer).map(|function| function.ports().clone()).unwrap_or_default();
        }
        // They are sorted by peer.
        let of = |peer: Option<IdentityId>| {
            let first = self.permissions.partition_point(|permission| permission.peer < peer);
            let from = self.permissions[first..].iter();
            from.take_while(move |permission| permission.peer == peer)
        };
        let mut set = PortSet::default();
        for Permission { ports, .. } in of(None).chain(of(peer).filter(|_| peer.is_some())) {
            match ports {
                PortKey::All => return PortSet::all(),
                PortKey::Protocol(protocol) => set.add_all(*protocol),
                PortKey::Range(protocol, first, last) => set.add(*protocol, *first, *last),
            }
        }
        set
    }

    /// Of identities that are still in use, what was decided `before` stays.
    fn by_tiers(class: &ClassKey, by: ClassFacts<'_>, before: Self) -> Self {
        let ClassFacts { policies, identities, peers } = by;
        let cells = class.cells(policies, identities, peers, before.cells.as_ref());
        let mut itself = before.itself;
        itself.retain(|id, _| id.is_none_or(|id| identities.key(id).is_some()));
        Self { cells, itself, ..Self::default() }
    }
}
