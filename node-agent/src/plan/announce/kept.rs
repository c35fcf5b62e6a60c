//! What is decided, kept from change to change: a change decides anew only what it concerns.
//!
//! The result is that of a fresh start. The claims of all owners on a prefix are kept, so that the
//! end of one reveals the others.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::super::{Changes, Plan, ServicePlan};
use super::forbidden::Forbidding;
use super::services::Of;
use super::{
    AnnounceSettings, Announcement, Announcements, Announcing, Class, Drain, Owner, Silent, WhyNot,
    pods,
};
use crate::model::{Nodes, ServiceName};

/// What becomes of a prefix, for the sake of one owner.
pub(super) type Verdict = Result<Announcement, Silent>;

/// Who claims prefixes: a Service, or (none) this node for itself and its pods.
type Claimant = Option<ServiceName>;

/// All that is decided about announcements, and what it was decided by.
#[derive(Debug, Default)]
pub struct AnnouncePlan {
    /// `None` before the first decision.
    basis: Option<Basis>,
    verdicts: BTreeMap<Claimant, Vec<(IpNetwork, Verdict)>>,
    /// All verdicts on each prefix: their places among the claimant's.
    claims: BTreeMap<IpNetwork, Vec<(Claimant, usize)>>,
    /// What is not announced for being too much, and for nothing else.
    surplus: BTreeSet<IpNetwork>,
    decided: Announcements,
}

/// What the decision about every service depends on, beside its own facts, endpoints and frontends.
#[derive(Debug, PartialEq)]
struct Basis {
    settings: AnnounceSettings,
    nodes: Nodes,
    is_gone: bool,
    drain: Drain,
    ranges: Vec<IpNetwork>,
    own: BTreeSet<IpAddr>,
    api: BTreeSet<IpAddr>,
    gateways: BTreeSet<IpAddr>,
    rejects: bool,
}

impl Basis {
    fn of(by: &Announcing<'_>, forbidding: &Forbidding<'_>) -> Self {
        Self {
            settings: by.settings.clone(),
            nodes: by.nodes.clone(),
            is_gone: by.is_gone,
            drain: by.drain,
            ranges: by.world.service_ranges().collect(),
            own: by.plan.node().own.clone(),
            api: forbidding.api().clone(),
            gateways: by.surveyed.gateways.clone(),
            rejects: by.rejects,
        }
    }
}

/// The services that a change of the plan concerns: those that differ themselves, and those that
/// claim frontends which differ.
pub fn concerned<'a>(
    plan: &'a Plan,
    changes: &'a Changes,
) -> impl Iterator<Item = &'a ServiceName> {
    let claimants = |services: &'a ServicePlan| {
        changes.frontends.iter().flat_map(|key| services.claimants(key))
    };
    changes.services.iter().chain(plan.services().into_iter().flat_map(claimants))
}

impl AnnouncePlan {
    /// What is decided; `None` before the first decision.
    pub fn decided(&self) -> Option<&Announcements> {
        self.basis.as_ref().map(|_| &self.decided)
    }

    /// Whether rules were rejected when it was decided. They may be others after each attempt.
    pub fn has_rejected(&self) -> bool {
        self.basis.as_ref().is_some_and(|basis| basis.rejects)
    }

    /// Decides anew: about services that [`concerned`] has named since the last time, or about
    /// everything if that is not known or if more differs. Returns what is refused and was not
    /// before.
    pub fn update(
        &mut self,
        by: &Announcing<'_>,
        concerned: Option<&BTreeSet<ServiceName>>,
    ) -> Vec<(IpNetwork, Silent)> {
        let forbidding = Forbidding::new(by);
        let basis = Basis::of(by, &forbidding);
        // Nobody tells which rules are rejected, one by one.
        let concerned = concerned.filter(|_| !basis.rejects && self.basis.as_ref() == Some(&basis));
        let names = match concerned {
            Some(names) => names.clone(),
            None => {
                let known = self.verdicts.keys().flatten().cloned();
                known.chain(by.world.services().map(|service| service.name.clone())).collect()
            }
        };
        self.basis = Some(basis);
        let mut touched = std::mem::take(&mut self.surplus);
        self.replace(None, pods::verdicts(by, &forbidding), &mut touched);
        let of = Of::new(by, &forbidding);
        for name in names {
            let service = by.world.service(&name);
            let verdicts = service.map(|service| of.verdicts(service)).unwrap_or_default();
            self.replace(Some(name), verdicts, &mut touched);
        }
        self.settle(&touched, by.settings.most)
    }

    /// Replaces all verdicts of a claimant. Adds the prefixes that they were and are about.
    fn replace(
        &mut self,
        claimant: Claimant,
        verdicts: Vec<(IpNetwork, Verdict)>,
        touched: &mut BTreeSet<IpNetwork>,
    ) {
        let before = self.verdicts.get(&claimant);
        if before.map(Vec::as_slice).unwrap_or_default() == verdicts {
            return;
        }
        for (prefix, _) in before.into_iter().flatten() {
            touched.insert(*prefix);
            if let Entry::Occupied(mut claims) = self.claims.entry(*prefix) {
                claims.get_mut().retain(|(of, _)| *of != claimant);
                if claims.get().is_empty() {
                    claims.remove();
                }
            }
        }
        for (place, (prefix, _)) in verdicts.iter().enumerate() {
            touched.insert(*prefix);
            // Nearly every prefix has one claim.
            let claims = self.claims.entry(*prefix).or_insert_with(|| Vec::with_capacity(1));
            claims.push((claimant.clone(), place));
        }
        match verdicts.is_empty() {
            true => self.verdicts.remove(&claimant),
            false => self.verdicts.insert(claimant, verdicts),
        };
    }

    fn settle(&mut self, touched: &BTreeSet<IpNetwork>, most: usize) -> Vec<(IpNetwork, Silent)> {
        let mut before = BTreeMap::new();
        for prefix in touched {
            before.extend(self.decided.silent.remove(prefix).map(|silent| (*prefix, silent)));
            self.decided.wanted.remove(prefix);
            match self.announcement(prefix).cloned() {
                Some(announcement) => drop(self.decided.wanted.insert(*prefix, announcement)),
                None => {
                    let silent = self.silents(prefix).min().cloned();
                    self.decided.silent.extend(silent.map(|silent| (*prefix, silent)));
                }
            }
        }
        self.limit(most);
        let changed = touched.union(&self.surplus);
        let silent = changed.filter_map(|at| Some((*at, self.decided.silent.get(at)?)));
        let new = silent.filter(|(at, it)| it.why.is_refusal() && before.get(at) != Some(*it));
        new.map(|(prefix, silent)| (prefix, silent.clone())).collect()
    }

    fn about(&self, prefix: &IpNetwork) -> impl Iterator<Item = &Verdict> {
        let claims = self.claims.get(prefix).into_iter().flatten();
        claims.filter_map(|(claimant, place)| Some(&self.verdicts.get(claimant)?.get(*place)?.1))
    }

    /// Of two owners of one prefix, the one with the higher class counts, then the first by name.
    fn announcement(&self, prefix: &IpNetwork) -> Option<&Announcement> {
        let wanted = self.about(prefix).filter_map(|verdict| verdict.as_ref().ok());
        wanted.min_by_key(|it| (Reverse(it.class), &it.because))
    }

    /// Of several reasons, the first one counts.
    fn silents(&self, prefix: &IpNetwork) -> impl Iterator<Item = &Silent> {
        self.about(prefix).filter_map(|verdict| verdict.as_ref().err())
    }

    /// Takes away what is too much: pods stay, then the oldest services.
    fn limit(&mut self, most: usize) {
        if self.decided.wanted.len() <= most {
            return;
        }
        let wanted = self.decided.wanted.iter();
        let mut ranked: Vec<_> = wanted.map(|(at, it)| (rank(it), *at)).collect();
        ranked.sort();
        for (_, prefix) in ranked.drain(most..) {
            if let Some(Announcement { because, .. }) = self.decided.wanted.remove(&prefix) {
                let over = Silent { why: WhyNot::OverLimit(most), owner: Owner::from(because) };
                let silent = self.silents(&prefix).chain([&over]).min().cloned();
                self.decided.silent.extend(silent.map(|silent| (prefix, silent)));
                self.surplus.insert(prefix);
            }
        }
    }
}

/// Those with the lowest one stay if there are too many.
fn rank(announcement: &Announcement) -> (bool, bool, Arc<str>) {
    let Announcement { class, because, since, .. } = announcement;
    (because.is_service(), *class != Class::PodRange, since.clone())
}
