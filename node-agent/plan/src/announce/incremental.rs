//! Announcements, decided incrementally: a change decides again only the services that it concerns.
//!
//! The result is that of a fresh start. All claims on a prefix are remembered: when one ends, the
//! next claim takes effect.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::super::{Plan, PlanChanges, ServicePlan};
use super::forbidden::ForbiddenPrefixes;
use super::prefix_claim::PrefixClaim;
use super::services::ServiceAnnouncer;
use super::{
    AnnounceInputs, AnnounceSettings, Announcement, AnnouncementClass, Announcements, Drain,
    DroppedFrontend, PrefixOwner, Withheld, WithheldReason, pods,
};
use denizen_model::{Nodes, ServiceName};

/// What is new in a decision, for the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DecisionChanges {
    pub refused: Vec<(IpNetwork, Withheld)>,
    /// Frontends at announced addresses that drop packets.
    pub dropped: Vec<DroppedFrontend>,
}

/// Who claims prefixes: a Service, or (`None`) this node for itself and its pods.
type PrefixClaimant = Option<ServiceName>;

/// The decisions about announcements, and their inputs.
#[derive(Debug, Default)]
pub struct AnnouncePlan {
    /// `None` before the first decision.
    basis: Option<GlobalInputs>,
    claims_of: BTreeMap<PrefixClaimant, Vec<PrefixClaim>>,
    /// All claims on each prefix, as indices into the claimant's list.
    claims: BTreeMap<IpNetwork, Vec<(PrefixClaimant, usize)>>,
    /// Prefixes that are withheld because of the limit alone.
    surplus: BTreeSet<IpNetwork>,
    decided: Announcements,
}

/// The inputs that concern every service. If one of them differs, everything is decided again.
#[derive(Debug, PartialEq)]
struct GlobalInputs {
    settings: AnnounceSettings,
    nodes: Nodes,
    is_gone: bool,
    drain: Drain,
    ranges: Vec<IpNetwork>,
    protected_addresses: BTreeSet<IpAddr>,
    api: BTreeSet<IpAddr>,
    gateways: BTreeSet<IpAddr>,
    rejects: bool,
}

impl GlobalInputs {
    fn of(by: &AnnounceInputs<'_>, forbidden_prefixes: &ForbiddenPrefixes<'_>) -> Self {
        Self {
            settings: by.settings.clone(),
            nodes: by.nodes.clone(),
            is_gone: by.is_gone,
            drain: by.drain,
            ranges: by.world.service_ranges().collect(),
            protected_addresses: by.plan.node().protected_addresses.clone(),
            api: forbidden_prefixes.api().clone(),
            gateways: by.surveyed.gateways.clone(),
            rejects: by.rejects,
        }
    }
}

/// The services that a change of the plan concerns: those that differ themselves, and those that
/// claim a frontend that differs.
pub fn concerned<'a>(
    plan: &'a Plan,
    changes: &'a PlanChanges,
) -> impl Iterator<Item = &'a ServiceName> {
    let claimants = |services: &'a ServicePlan| {
        changes.frontends.iter().flat_map(|key| services.claimants(key))
    };
    changes.services.iter().chain(plan.services().into_iter().flat_map(claimants))
}

impl AnnouncePlan {
    /// The decisions; `None` before the first one.
    pub fn decided(&self) -> Option<&Announcements> {
        self.basis.as_ref().map(|_| &self.decided)
    }

    /// Whether rules were rejected at the last decision. Each attempt may reject others.
    pub fn has_rejected(&self) -> bool {
        self.basis.as_ref().is_some_and(|basis| basis.rejects)
    }

    /// Decides again about the services that [`concerned`] has named since the last call, or about
    /// everything if `concerned` is `None` or a global input differs.
    pub fn update(
        &mut self,
        by: &AnnounceInputs<'_>,
        concerned: Option<&BTreeSet<ServiceName>>,
    ) -> DecisionChanges {
        let forbidden_prefixes = ForbiddenPrefixes::new(by);
        let basis = GlobalInputs::of(by, &forbidden_prefixes);
        // The backend does not report which rules are no longer rejected.
        let concerned = concerned.filter(|_| !basis.rejects && self.basis.as_ref() == Some(&basis));
        let names = match concerned {
            Some(names) => names.clone(),
            None => {
                let known = self.claims_of.keys().flatten().cloned();
                known.chain(by.world.services().map(|service| service.name.clone())).collect()
            }
        };
        self.basis = Some(basis);
        let mut touched = std::mem::take(&mut self.surplus);
        self.replace(None, pods::claims(by, &forbidden_prefixes), &mut touched);
        let of = ServiceAnnouncer::new(by, &forbidden_prefixes);
        for name in names {
            let service = by.world.service(&name);
            let claims = service.map(|service| of.claims(service)).unwrap_or_default();
            self.replace(Some(name), claims, &mut touched);
        }
        self.decide(&touched, by.settings.most)
    }

    /// Replaces all claims of a claimant. Adds the prefixes of its old and new claims to `touched`.
    fn replace(
        &mut self,
        claimant: PrefixClaimant,
        claims: Vec<PrefixClaim>,
        touched: &mut BTreeSet<IpNetwork>,
    ) {
        let before = self.claims_of.get(&claimant);
        if before.map(Vec::as_slice).unwrap_or_default() == claims {
            return;
        }
        for PrefixClaim { prefix, .. } in before.into_iter().flatten() {
            touched.insert(*prefix);
            if let Entry::Occupied(mut places) = self.claims.entry(*prefix) {
                places.get_mut().retain(|(of, _)| *of != claimant);
                if places.get().is_empty() {
                    places.remove();
                }
            }
        }
        for (place, PrefixClaim { prefix, .. }) in claims.iter().enumerate() {
            touched.insert(*prefix);
            // Nearly every prefix has one claim.
            let places = self.claims.entry(*prefix).or_insert_with(|| Vec::with_capacity(1));
            places.push((claimant.clone(), place));
        }
        match claims.is_empty() {
            true => self.claims_of.remove(&claimant),
            false => self.claims_of.insert(claimant, claims),
        };
    }

    fn decide(&mut self, touched: &BTreeSet<IpNetwork>, most: usize) -> DecisionChanges {
        let (mut withheld_before, mut dropped_before) = (BTreeMap::new(), BTreeMap::new());
        for prefix in touched {
            let decided = &mut self.decided;
            withheld_before
                .extend(decided.withheld.remove(prefix).map(|withheld| (*prefix, withheld)));
            dropped_before.extend(decided.dropped.remove(prefix).map(|all| (*prefix, all)));
            decided.wanted.remove(prefix);
            match self.announcement(prefix).cloned() {
                Some(announcement) => {
                    let dropped = self.dropped(prefix, &announcement);
                    let dropped = Some(dropped).filter(|dropped| !dropped.is_empty());
                    self.decided.dropped.extend(dropped.map(|dropped| (*prefix, dropped)));
                    self.decided.wanted.insert(*prefix, announcement);
                }
                None => {
                    let withheld = self.withheld_claims(prefix).min().cloned();
                    self.decided.withheld.extend(withheld.map(|withheld| (*prefix, withheld)));
                }
            }
        }
        self.limit(most);
        let changed = || touched.union(&self.surplus);
        let withheld = changed().filter_map(|at| Some((*at, self.decided.withheld.get(at)?)));
        let refused = withheld.filter(|(at, withheld)| {
            withheld.reason.needs_action() && withheld_before.get(at) != Some(*withheld)
        });
        let nothing = BTreeSet::new();
        let dropped = changed().filter_map(|at| Some((at, self.decided.dropped.get(at)?)));
        let dropped =
            dropped.flat_map(|(at, all)| all - dropped_before.get(at).unwrap_or(&nothing));
        DecisionChanges {
            refused: refused.map(|(prefix, withheld)| (prefix, withheld.clone())).collect(),
            dropped: dropped.collect(),
        }
    }

    fn about(&self, prefix: &IpNetwork) -> impl Iterator<Item = (&PrefixClaimant, &PrefixClaim)> {
        let places = self.claims.get(prefix).into_iter().flatten();
        places.filter_map(|(claimant, place)| {
            Some((claimant, self.claims_of.get(claimant)?.get(*place)?))
        })
    }

    /// What this node drops at an announced prefix, for all owners.
    fn dropped(&self, prefix: &IpNetwork, by: &Announcement) -> BTreeSet<DroppedFrontend> {
        let announced_for = PrefixOwner::from(by.reason.clone());
        let of_claim = |(claimant, claim): (&PrefixClaimant, &PrefixClaim)| {
            let (service, announced_for) = (claimant.clone(), announced_for.clone());
            claim.dropped.clone().into_iter().filter_map(move |key| {
                let (service, announced_for) = (service.clone()?, announced_for.clone());
                Some(DroppedFrontend { key, service, announced_for })
            })
        };
        self.about(prefix).flat_map(of_claim).collect()
    }

    /// Of two owners of one prefix, the one with the higher class counts, then the first by name.
    fn announcement(&self, prefix: &IpNetwork) -> Option<&Announcement> {
        let wanted = self.about(prefix).filter_map(|(_, claim)| claim.verdict.as_ref().ok());
        wanted.min_by_key(|announcement| (Reverse(announcement.class), &announcement.reason))
    }

    /// Why the prefix is withheld, for each claim that does not permit it. The least is reported:
    /// [`Withheld`] sorts by reason.
    fn withheld_claims(&self, prefix: &IpNetwork) -> impl Iterator<Item = &Withheld> {
        self.about(prefix).filter_map(|(_, claim)| claim.verdict.as_ref().err())
    }

    /// Enforces the limit: pods stay, then the oldest services.
    fn limit(&mut self, most: usize) {
        if self.decided.wanted.len() <= most {
            return;
        }
        let wanted = self.decided.wanted.iter();
        let mut ranked: Vec<_> =
            wanted.map(|(at, announcement)| (rank(announcement), *at)).collect();
        ranked.sort();
        for (_, prefix) in ranked.drain(most..) {
            self.decided.dropped.remove(&prefix);
            if let Some(Announcement { reason, .. }) = self.decided.wanted.remove(&prefix) {
                let over = Withheld {
                    reason: WithheldReason::OverLimit(most),
                    owner: PrefixOwner::from(reason),
                };
                let withheld = self.withheld_claims(&prefix).chain([&over]).min().cloned();
                self.decided.withheld.extend(withheld.map(|withheld| (prefix, withheld)));
                self.surplus.insert(prefix);
            }
        }
    }
}

/// Above the limit, those that sort first stay.
fn rank(announcement: &Announcement) -> (bool, bool, Arc<str>) {
    let Announcement { class, reason, since, .. } = announcement;
    (reason.is_service(), *class != AnnouncementClass::PodRange, since.clone())
}
