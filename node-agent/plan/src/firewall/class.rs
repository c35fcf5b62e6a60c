//! What the pods of each class may do; a class is kept while a pod belongs to it.

use std::collections::BTreeMap;

use super::direction_rules::{DirectionDecision, DirectionRules, Tiered};
use super::identity::{Identities, IdentityId, IdentityKey};
use super::peer::PeerTable;
use super::permission::{ClassKey, Permission, Permissions, PortKey, RuleChanges};
use super::permitted_ports::{PermittedPorts, PortSet};
use super::ports_by_peer::PortsByPeer;
use super::rules::PoliciesInForce;

/// The classes in use.
#[derive(Debug, Default)]
pub(super) struct Classes {
    all: BTreeMap<ClassKey, Class>,
    /// Whether classes came or went since the last [`Self::take_changed`].
    have_changed: bool,
}

#[derive(Debug, Default)]
struct Class {
    /// The number of decisions that name it. At 0, the next [`Classes::update`] removes it.
    users: usize,
    /// `None` until it is needed for the first time.
    access: Option<ClassAccess>,
}

/// What the pods of a class may do.
#[derive(Debug, Default)]
struct ClassAccess {
    /// By NetworkPolicies alone.
    permissions: Permissions,
    /// By policies of any kind, if ClusterNetworkPolicies select the pods.
    by_peer: Option<PortsByPeer>,
    /// What passes between a pod of the class and itself, by the pod's identity.
    itself: BTreeMap<Option<IdentityId>, PermittedPorts>,
}

/// The facts by which classes are decided.
#[derive(Clone, Copy)]
pub(super) struct ClassFacts<'a> {
    pub policies: &'a PoliciesInForce,
    pub identities: &'a Identities,
    pub peers: &'a PeerTable,
}

impl Classes {
    /// Counts a pod with these decisions.
    pub fn acquire(&mut self, decisions: [&DirectionDecision; 2]) {
        for key in decisions.into_iter().filter_map(|decision| decision.class.as_ref()) {
            if !self.all.contains_key(key) {
                self.all.insert(key.clone(), Class::default());
            }
            if let Some(class) = self.all.get_mut(key) {
                self.have_changed |= class.users == 0;
                class.users += 1;
            }
        }
    }

    /// Counts one pod less with these decisions.
    pub fn release(&mut self, decisions: [&DirectionDecision; 2]) {
        for key in decisions.into_iter().filter_map(|decision| decision.class.as_ref()) {
            if let Some(class) = self.all.get_mut(key) {
                class.users -= 1;
                self.have_changed |= class.users == 0;
            }
        }
    }

    /// The classes that decisions name.
    pub fn keys(&self) -> impl Iterator<Item = &ClassKey> + Clone {
        self.all.iter().filter(|(_, class)| class.users > 0).map(|(key, _)| key)
    }

    /// Whether classes came into use, or went out of use, since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.have_changed)
    }

    /// Brings the classes in use up to date, and forgets the others. `identities`: the keys of new
    /// and of removed identities.
    pub fn update(
        &mut self,
        by: ClassFacts<'_>,
        changed: &RuleChanges,
        identities: &[IdentityKey],
    ) {
        self.all.retain(|_, class| class.users > 0);
        for (key, class) in &mut self.all {
            let is_changed = || identities.iter().any(|other| key.may_name(other, by.policies));
            let access = match class.access.take() {
                Some(before) if !changed.concerns(key) => match key.tiers {
                    Some(_) if identities.is_empty() => before,
                    Some(_) => ClassAccess::by_tiers(key, by, before),
                    None if !is_changed() => before,
                    None => ClassAccess::by_policies(key, by),
                },
                Some(_) | None => ClassAccess::of(key, by),
            };
            class.access = Some(access);
        }
    }

    /// What passes between pods of a class and an identity, as the kernel has it.
    pub fn passing(&self, class: &ClassKey, peer: Option<IdentityId>) -> PortSet {
        let access = self.all.get(class).and_then(|class| class.access.as_ref());
        access.map(|access| access.passing(peer)).unwrap_or_default()
    }

    /// What passes in the direction of this decision, for a pod whose address has the identity
    /// `own`.
    pub fn direction_rules(
        &mut self,
        decision: &DirectionDecision,
        by: ClassFacts<'_>,
        own: Option<IdentityId>,
    ) -> DirectionRules {
        let Some(key) = &decision.class else {
            return DirectionRules::new(decision.isolation, Permissions::default(), None);
        };
        let class = self.all.get_mut(key).expect("the decision's pod acquired it");
        let access = class.access.get_or_insert_with(|| ClassAccess::of(key, by));
        let tiered = access.by_peer.clone().map(|by_peer| {
            let itself = access.itself.entry(own).or_insert_with(|| {
                let peer = own.and_then(|id| by.identities.key(id)).cloned().unwrap_or_default();
                let itself = key.itself(by.policies, by.peers, &peer);
                itself.unwrap_or_else(PermittedPorts::none)
            });
            Tiered { by_peer, itself: itself.clone() }
        });
        DirectionRules::new(decision.isolation, access.permissions.clone(), tiered)
    }
}

impl ClassAccess {
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
        if let Some(by_peer) = &self.by_peer {
            return by_peer.of(peer).map(|permitted| permitted.ports().clone()).unwrap_or_default();
        }
        // Permissions are sorted by peer.
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

    /// Decides what passes between a class and its peers. Decisions of `before` about identities in
    /// use are kept.
    fn by_tiers(class: &ClassKey, by: ClassFacts<'_>, before: Self) -> Self {
        let ClassFacts { policies, identities, peers } = by;
        let by_peer = class.by_peer(policies, identities, peers, before.by_peer.as_ref());
        let mut itself = before.itself;
        itself.retain(|id, _| id.is_none_or(|id| identities.key(id).is_some()));
        Self { by_peer, itself, ..Self::default() }
    }
}
