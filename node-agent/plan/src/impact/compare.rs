//! Compares two plans, profile by profile, and folds rows that are equal.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU16;
use std::rc::Rc;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::compared_plan::{ClassNumber, ComparedPlan, Numbered, SharedNumbers};
use super::end::{ComparedEnd, ComparedEnds};
use super::facts::ImpactInputs;
use super::{AccessChange, Impact, ImpactRow};
use crate::firewall::{ClassKey, PortSet, port_edges};
use crate::{Direction, FirewallPlan, IdentityId, PermittedPorts};
use denizen_model::{Event, Family, PolicyName};

/// A value in each of the two plans: before, and after.
type BeforeAfter<T> = [T; 2];

/// All that decides about an end. Ends with equal profiles have equal access.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Profile {
    family: Family,
    ingress: BeforeAfter<ClassNumber>,
    egress: BeforeAfter<ClassNumber>,
    identity: BeforeAfter<Option<IdentityId>>,
    /// Whether the changed policies apply to ingress to these ends.
    ingress_changes: bool,
    /// Whether the changed policies apply to egress from these ends.
    egress_changes: bool,
}

/// A part of what changes between two profiles. Ports are numbers in [`SharedNumbers::ports`].
#[derive(Debug, Clone, Copy)]
struct ChangePart {
    direction: Direction,
    change: AccessChange,
    ports: usize,
}

/// A [`ChangePart`] with what decides about it: the subject's classes, and the peer's identities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct DecidedPart {
    direction: Direction,
    change: AccessChange,
    ports: usize,
    classes: BeforeAfter<ClassNumber>,
    peer: BeforeAfter<Option<IdentityId>>,
}

/// What folded rows have in common. Ports and deciders are numbers in [`SharedNumbers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct RowKey {
    change: AccessChange,
    direction: Direction,
    ports: usize,
    deciders: BeforeAfter<usize>,
}

/// The row of one subject. Peers and subject are numbers of sets of members.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SubjectRow {
    row: RowKey,
    peers: BTreeSet<usize>,
    subject: usize,
}

/// A row that is the same for several subjects.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FoldedRow {
    row: RowKey,
    peers: BTreeSet<usize>,
    families: BTreeSet<Family>,
}

pub(super) struct PlanComparison<'a> {
    plans: BeforeAfter<ComparedPlan<'a>>,
    shared: SharedNumbers,
    profiles: Vec<Profile>,
    /// The ends with each profile, as indices into [`ComparedEnds::who`].
    members: Vec<BTreeSet<usize>>,
    parts: HashMap<[usize; 4], Rc<[ChangePart]>>,
    decided: HashMap<DecidedPart, Rc<[RowKey]>>,
    /// The peers of each subject, both as profiles.
    rows: BTreeMap<(RowKey, usize), BTreeSet<usize>>,
    ends: ComparedEnds,
    without_address: Vec<denizen_model::PodName>,
    pod_ranges: Vec<IpNetwork>,
}

impl<'a> PlanComparison<'a> {
    pub fn new(
        facts: &ImpactInputs,
        before: &'a FirewallPlan,
        after: &'a FirewallPlan,
        change: &[Event],
    ) -> Self {
        let mut comparison = Self {
            plans: [ComparedPlan::new(before), ComparedPlan::new(after)],
            shared: SharedNumbers::default(),
            profiles: Vec::new(),
            members: Vec::new(),
            parts: HashMap::new(),
            decided: HashMap::new(),
            rows: BTreeMap::new(),
            ends: ComparedEnds::default(),
            without_address: facts.without_address.clone(),
            pod_ranges: facts.pod_ranges.iter().copied().collect(),
        };
        let ends = ComparedEnds::new(facts, [before, after]);
        let changed = ChangedPolicies::new(change);
        let mut profiles = Numbered::default();
        for end in &ends.all {
            let profile = comparison.profile(end, facts, &changed);
            let number = profiles.number(profile);
            if number == comparison.members.len() {
                comparison.members.push(BTreeSet::new());
            }
            comparison.members[number].insert(end.who);
        }
        (comparison.profiles, comparison.ends) = (profiles.into_all(), ends);
        comparison
    }

    fn profile(
        &mut self,
        end: &ComparedEnd,
        facts: &ImpactInputs,
        changed: &ChangedPolicies,
    ) -> Profile {
        let record = end.group.map(|group| &facts.groups[group]);
        let mut of = |direction| {
            let class = |compared: &mut ComparedPlan<'_>| compared.class(record?, direction);
            self.plans.each_mut().map(class)
        };
        let (ingress, egress) = (of(Direction::Ingress), of(Direction::Egress));
        let changes = |classes: BeforeAfter<ClassNumber>| {
            let [before, after] = [0, 1].map(|at| self.plans[at].key(classes[at]));
            before != after || before.is_some_and(|class| changed.concern(class))
        };
        let identity = |compared: &ComparedPlan<'_>| compared.plan.identity_of(end.address?);
        Profile {
            family: end.family,
            ingress,
            egress,
            identity: self.plans.each_ref().map(identity),
            ingress_changes: changes(ingress),
            egress_changes: changes(egress),
        }
    }

    pub fn run(mut self) -> Impact {
        for sender in 0..self.profiles.len() {
            for receiver in 0..self.profiles.len() {
                let (from, to) = (&self.profiles[sender], &self.profiles[receiver]);
                let is_concerned = from.egress_changes || to.ingress_changes;
                // A pod reaches itself.
                let is_one = sender == receiver && self.members[sender].len() == 1;
                if is_concerned && from.family == to.family && !is_one {
                    self.compare(sender, receiver);
                }
            }
        }
        self.folded()
    }

    fn compare(&mut self, sender: usize, receiver: usize) {
        let (from, to) = (self.profiles[sender].clone(), self.profiles[receiver].clone());
        for part in &*self.parts(&from, &to) {
            let ChangePart { direction, change, ports } = *part;
            let (subject, peer, classes, identity) = match direction {
                Direction::Egress => (sender, receiver, from.egress, to.identity),
                Direction::Ingress => (receiver, sender, to.ingress, from.identity),
            };
            let decided = DecidedPart { direction, change, ports, classes, peer: identity };
            for key in &*self.decided(decided) {
                self.rows.entry((*key, subject)).or_default().insert(peer);
            }
        }
    }

    /// What changes between two profiles. If both sides refuse, the sender's side counts.
    fn parts(&mut self, from: &Profile, to: &Profile) -> Rc<[ChangePart]> {
        let shared = &mut self.shared;
        let mut passing = |at: usize| {
            let plan = &mut self.plans[at];
            let sent = plan.passing(from.egress[at], to.identity[at], shared);
            [sent, plan.passing(to.ingress[at], from.identity[at], shared)]
        };
        let ([sent_before, received_before], [sent_after, received_after]) =
            (passing(0), passing(1));
        let key = [sent_before, received_before, sent_after, received_after];
        if let Some(parts) = self.parts.get(&key) {
            return parts.clone();
        }
        let [sent_before, received_before, sent_after, received_after] =
            key.map(|number| shared.ports.get(number).clone());
        let before = sent_before.common(&received_before);
        let after = sent_after.common(&received_after);
        let (lost, gained) = (before.without(&after), after.without(&before));
        let parts = [
            (Direction::Egress, AccessChange::Lost, lost.without(&sent_after)),
            (Direction::Ingress, AccessChange::Lost, lost.common(&sent_after)),
            (Direction::Egress, AccessChange::Gained, gained.without(&sent_before)),
            (Direction::Ingress, AccessChange::Gained, gained.common(&sent_before)),
        ];
        let parts = parts.into_iter().filter(|(_, _, ports)| !ports.is_empty());
        let parts: Rc<[ChangePart]> = parts
            .map(|(direction, change, ports)| {
                let ports = shared.ports.number(ports);
                ChangePart { direction, change, ports }
            })
            .collect();
        self.parts.insert(key, parts.clone());
        parts
    }

    /// A part, cut at the ports where other rules begin to decide.
    fn decided(&mut self, part: DecidedPart) -> Rc<[RowKey]> {
        if let Some(keys) = self.decided.get(&part) {
            return keys.clone();
        }
        let DecidedPart { direction, change, ports, classes, peer } = part;
        let mut edges = BTreeSet::new();
        for at in [0, 1] {
            let plan = &self.plans[at];
            if let Some(class) = plan.key(classes[at]) {
                edges.extend(port_edges(plan.plan, class, peer[at]));
            }
        }
        let mut cut: BTreeMap<BeforeAfter<usize>, PortSet> = BTreeMap::new();
        for (protocol, span) in self.shared.ports.get(ports).cut_at(&edges) {
            let port = NonZeroU16::new(span.0);
            let deciders = [0, 1].map(|at| {
                let decider = self.plans[at].decider(classes[at], peer[at], protocol, port);
                self.shared.deciders.number(decider)
            });
            cut.entry(deciders).or_default().add_span(protocol, span);
        }
        let keys: Rc<[RowKey]> = cut
            .into_iter()
            .map(|(deciders, ports)| {
                let ports = self.shared.ports.number(ports);
                RowKey { change, direction, ports, deciders }
            })
            .collect();
        self.decided.insert(part, keys.clone());
        keys
    }

    /// Folds rows: subjects with the same peers share a row, as do families with the same result.
    fn folded(self) -> Impact {
        let Self { shared, profiles, members, rows, ends, without_address, pod_ranges, .. } = self;
        let mut sets = Numbered::default();
        let sets_of: Vec<usize> =
            members.iter().map(|members| sets.number(members.clone())).collect();
        let mut by_subject: BTreeMap<SubjectRow, BTreeSet<Family>> = BTreeMap::new();
        for ((row, subject), peers) in rows {
            let peers = peers.into_iter().map(|peer| sets_of[peer]).collect();
            let key = SubjectRow { row, peers, subject: sets_of[subject] };
            by_subject.entry(key).or_default().insert(profiles[subject].family);
        }
        let mut folded: BTreeMap<FoldedRow, BTreeSet<usize>> = BTreeMap::new();
        for (SubjectRow { row, peers, subject }, families) in by_subject {
            folded.entry(FoldedRow { row, peers, families }).or_default().insert(subject);
        }
        let row = |(FoldedRow { row, peers, families }, subjects): (_, BTreeSet<usize>)| {
            let RowKey { change, direction, ports, deciders } = row;
            let [before, after] = deciders.map(|number| shared.deciders.get(number).clone());
            ImpactRow {
                change,
                direction,
                subjects: subjects.into_iter().collect(),
                peers: peers.into_iter().collect(),
                ports: PermittedPorts::new(shared.ports.get(ports).clone()),
                families: families.into_iter().collect(),
                before,
                after,
            }
        };
        let families: BTreeSet<Family> = ends.all.iter().map(|end| end.family).collect();
        Impact {
            ends: ends.who,
            families: families.into_iter().collect(),
            rows: folded.into_iter().map(row).collect(),
            profiles: sets.into_all().into_iter().map(|set| set.into_iter().collect()).collect(),
            without_address,
            addresses: ends.addresses,
            pod_ranges,
        }
    }
}

/// The policies that the change is about.
struct ChangedPolicies {
    policies: BTreeSet<PolicyName>,
    tiers: BTreeSet<Arc<str>>,
}

impl ChangedPolicies {
    fn new(change: &[Event]) -> Self {
        let mut changed = Self { policies: BTreeSet::new(), tiers: BTreeSet::new() };
        for event in change {
            if let Event::NetworkPolicy(name, _) = event {
                changed.policies.insert(name.clone());
            }
            if let Event::ClusterNetworkPolicy(name, _) = event {
                changed.tiers.insert(name.clone());
            }
        }
        changed
    }

    /// Whether rules of a class change.
    fn concern(&self, class: &ClassKey) -> bool {
        class.policies.iter().any(|policy| self.policies.contains(policy))
            || class.tiers.iter().flatten().any(|policy| self.tiers.contains(policy))
    }
}
