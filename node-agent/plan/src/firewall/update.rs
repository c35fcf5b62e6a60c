//! Updates the firewall's plan after a change of facts. Each step decides again only what the steps
//! before it changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::address::{AddressClaimant, BlockLookup, ClusterClaimant};
use super::address_key::{key_of_range, keys_of_nodes, ranges_of_pods};
use super::blocks::{AddressRange, Piece, pieces};
use super::class::ClassFacts;
use super::direction_rules::{DirectionRules, PodDescription, PodRules, decisions_of};
use super::group::{GroupFacts, GroupId, GroupKey};
use super::identity::IdentityKey;
use super::narrowed::narrowed;
use super::peer::PeerScope;
use super::permission::RuleChanges;
use super::subjects::FirewallPod;
use super::tier::AllTiers;
use super::{
    Blocks, FirewallChanges, FirewallPlan, IdentityChange, IfRefused, PodRulesChange, own_addresses,
};
use denizen_model::{
    ClusterFacts, LocalPod, Model, ModelChange, PodByName, PodName, PodSet, PolicyName,
    node_addresses_in,
};
use denizen_state::AttachmentId;

/// The plan being updated, and the changes so far.
pub(super) struct FirewallUpdate<'a> {
    plan: &'a mut FirewallPlan,
    changes: FirewallChanges,
}

impl<'a> FirewallUpdate<'a> {
    pub(super) fn new(plan: &'a mut FirewallPlan) -> Self {
        Self { plan, changes: FirewallChanges::default() }
    }

    /// Decides again what `change` concerns.
    pub(super) fn run(
        mut self,
        model: &Model,
        recorded: Option<&PodSet>,
        change: &ModelChange,
    ) -> FirewallChanges {
        let was = self.plan.state();
        if change.addresses {
            self.plan.link_addresses = model.addresses().iter().map(|on| on.address).collect();
        }
        self.update_surroundings(model, change);
        let recorded = recorded.map(|set| &*set.pods).unwrap_or_default();
        self.plan.update_needs(model, recorded, change);
        // With `auto`, what may be read is enforced, and status reports the problem.
        let without_tiers = || match self.plan.settings.if_refused {
            IfRefused::Open => model.cluster_without_tiers(),
            IfRefused::Pending => None,
        };
        match model.cluster().or_else(without_tiers) {
            Some(cluster) => self.update_known(cluster, recorded, change),
            None => {
                let is_refused = model.refused().next().is_some();
                self.plan.left_open =
                    is_refused && self.plan.settings.if_refused == IfRefused::Open;
                self.update_unknown(recorded, change);
            }
        }
        self.changes.state = was != self.plan.state();
        self.changes
    }

    fn update_surroundings(&mut self, model: &Model, change: &ModelChange) {
        if change.node_addresses {
            let before = std::mem::replace(&mut self.plan.nodes, model.node_addresses().collect());
            for ip in before.symmetric_difference(&self.plan.nodes) {
                match self.plan.addresses.is_claimed(*ip) {
                    true => _ = self.plan.addresses.touched.insert(*ip),
                    false => self.changes.taken.push((*ip, self.plan.nodes.contains(ip))),
                }
            }
            let in_ranges = model.pod_ranges().flat_map(node_addresses_in).collect();
            self.changes.surroundings |=
                before != self.plan.nodes || in_ranges != self.plan.node_addresses_in_ranges;
            self.plan.node_addresses_in_ranges = in_ranges;
        }
        if change.links && self.plan.links != *model.links() {
            self.plan.links = model.links().clone();
            self.changes.surroundings = true;
        }
    }

    /// While policies are unknown, new pods are pending. Pods that were recorded before this agent
    /// started stay as an earlier run left them.
    fn update_unknown(&mut self, recorded: &[LocalPod], change: &ModelChange) {
        if !change.pods && !change.refused {
            return;
        }
        let now = || recorded.iter().map(|pod| pod.id.clone()).collect();
        let earlier = self.plan.earlier.get_or_insert_with(now);
        let is_new = |pod: &&LocalPod| !earlier.contains(&pod.id) && !pod.adopted;
        let added_since_start = recorded.iter().filter(is_new).filter(|_| !self.plan.left_open);
        let pending =
            PodRules { ingress: DirectionRules::pending(), egress: DirectionRules::pending() };
        let ips = added_since_start.filter(|pod| pod.pod.is_some()).flat_map(|pod| &pod.ips);
        let ips: BTreeSet<IpAddr> = ips.copied().collect();
        let all: BTreeSet<IpAddr> = self.plan.pod_rules.keys().chain(&ips).copied().collect();
        let pod_rules = all.into_iter().map(|ip| (ip, ips.contains(&ip).then(|| pending.clone())));
        self.set_pod_rules(pod_rules.collect());
    }

    fn update_known(
        &mut self,
        cluster: ClusterFacts<'_>,
        recorded: &[LocalPod],
        change: &ModelChange,
    ) {
        let is_first = !std::mem::replace(&mut self.plan.known, true);
        self.plan.left_open = false;
        self.plan.any_policy = cluster.policies().next().is_some() || cluster.has_tiers();
        self.plan.are_all_confined = cluster.has_evadable_tiers();
        // The first time, the claims of all pods are updated: their names need not be copied.
        let mut names = if is_first { BTreeSet::new() } else { change.cluster_pods.clone() };
        let touched = self.update_subjects(cluster, recorded, change, is_first, &mut names);
        match is_first {
            true => cluster.pods().for_each(|pod| self.update_claims(&pod.name, cluster)),
            false => names.iter().for_each(|name| self.update_claims(name, cluster)),
        }
        let policies_changed = is_first || !change.network_policies.is_empty();
        let policies_changed = policies_changed || !change.cluster_network_policies.is_empty();
        let changed = match policies_changed | self.plan.classes.take_changed() {
            true => self.update_rules(cluster),
            false => RuleChanges::default(),
        };
        let given = self.update_owners();
        let before = self.plan.pod_ranges;
        let blocks_changed = self.update_identities(cluster, change);
        let identities = self.plan.identities.take_changes();
        self.changes.forgotten = identities.gone;
        // What passes between a pod and itself depends on its own identity.
        let is_own = |change: &IdentityChange<IpAddr>| self.plan.owners.contains_key(&change.of);
        let are_renamed = self.plan.has_tiers() && self.changes.identities.iter().any(is_own);
        let concerns_all = !changed.is_empty() || !identities.keys.is_empty() || are_renamed;
        if concerns_all {
            self.update_classes(&changed, &identities.keys);
        }
        self.update_pod_rules(given, (!concerns_all).then_some(&touched));
        self.note_narrowed(is_first || blocks_changed || self.plan.pod_ranges != before);
    }

    /// Notes the addresses whose established connections may be forbidden now ([`narrowed`]), and
    /// those of departed pods.
    fn note_narrowed(&mut self, all: bool) {
        match self.plan.is_enforced() {
            true => {
                let gone = self.changes.pod_rules.iter().filter(|change| change.after.is_none());
                self.changes.departed.extend(gone.map(|change| change.address));
            }
            false => self.changes.departed.clear(),
        }
        self.changes.narrowed = narrowed(self.plan, &self.changes, all);
    }

    /// Updates the recorded pods. Returns those to decide about again. Adds to `names` the pods
    /// whose claims by their API objects may differ.
    fn update_subjects(
        &mut self,
        cluster: ClusterFacts<'_>,
        recorded: &[LocalPod],
        change: &ModelChange,
        is_first: bool,
        names: &mut BTreeSet<PodName>,
    ) -> BTreeSet<AttachmentId> {
        let mut touched = BTreeSet::new();
        if change.pods || is_first {
            let is_gone =
                |id: &&AttachmentId| recorded.binary_search_by(|pod| pod.id.cmp(id)).is_err();
            let gone = self.plan.subjects.ids().filter(is_gone);
            for id in gone.cloned().collect::<Vec<_>>() {
                names.extend(self.remove_subject(&id, cluster));
                touched.insert(id);
            }
        }
        // Most changes in a cluster are of pods of other nodes.
        let are_recorded = || names.iter().any(|name| self.plan.subjects.has(name));
        if !is_first && !change.may_change_selection() && !are_recorded() {
            return touched;
        }
        let of_policies: BTreeSet<_> =
            change.network_policies.iter().map(|policy| &policy.namespace).collect();
        let tiers = AllTiers { all: cluster.tiers() };
        for pod in recorded {
            let is_other =
                || self.plan.subjects.get(&pod.id).is_none_or(|subject| !subject.is(pod));
            let is_named = || {
                pod.pod.as_ref().is_some_and(|name| {
                    names.contains(name) || of_policies.contains(&name.namespace)
                })
            };
            if is_first || change.pods && is_other() || is_named() || tiers.are_changed(pod, change)
            {
                self.update_subject(pod, cluster, &tiers);
                names.extend(pod.pod.clone());
                touched.insert(pod.id.clone());
            }
        }
        touched
    }

    fn remove_subject(&mut self, id: &AttachmentId, cluster: ClusterFacts<'_>) -> Option<PodName> {
        let subject = self.plan.subjects.remove(id)?;
        self.plan.classes.release(subject.decisions());
        self.disclaim(id, &subject);
        subject.group.into_iter().for_each(|group| self.plan.groups.release(group));
        // From now on another pod may have the address, although the API still shows it as this
        // pod's.
        let name = subject.pod?;
        if let Some(here) = cluster.pod(&name).and_then(|pod| pod.here.as_ref()) {
            self.plan.departed.insert(name.clone(), here.uid.clone());
        }
        Some(name)
    }

    fn update_subject(&mut self, pod: &LocalPod, cluster: ClusterFacts<'_>, tiers: &AllTiers<'_>) {
        let before = self.plan.subjects.remove(&pod.id);
        let described = PodDescription::of(pod, cluster)
            // A pod runs while it is recorded, even if its object is gone.
            .or_else(|| {
                before.as_ref().filter(|subject| subject.uid == pod.uid)?.described.clone()
            });
        if let Some(before) = &before {
            self.plan.classes.release(before.decisions());
            self.disclaim(&pod.id, before);
        }
        let group = pod.pod.as_ref().zip(described.as_ref()).map(|(name, described)| {
            self.plan.groups.acquire(GroupKey {
                namespace: name.namespace.clone(),
                labels: described.labels.clone(),
                ports: described.ports.clone(),
            })
        });
        let additional = cluster
            .pod_of(pod)
            .and_then(|object| Some(object.here.as_ref()?.additional.clone()))
            .or_else(|| before.as_ref().map(|subject| subject.additional.clone()))
            .filter(|_| self.plan.knows_owners())
            .unwrap_or_default();
        let ips: Vec<IpAddr> = own_addresses(pod).collect();
        self.claim(pod, [&ips, &additional], group);
        // After the new claims, so that a group that stays keeps its id.
        if let Some(group) = before.and_then(|before| before.group) {
            self.plan.groups.release(group);
        }
        let [ingress, egress] = decisions_of(pod, described.as_ref(), cluster, tiers);
        self.plan.classes.acquire([&ingress, &egress]);
        let subject = FirewallPod {
            pod: pod.pod.clone(),
            uid: pod.uid.clone(),
            ips,
            additional,
            added_at: pod.added_at.clone(),
            described,
            group,
            ingress,
            egress,
        };
        self.plan.subjects.insert(pod.id.clone(), subject);
    }

    /// Claims the addresses of a recorded pod: those of its record, and those of its annotation.
    fn claim(&mut self, pod: &LocalPod, addresses: [&[IpAddr]; 2], group: Option<GroupId>) {
        let claimants = AddressClaimant::of_record(&pod.id, &pod.added_at);
        for (addresses, by) in addresses.into_iter().zip(claimants) {
            for ip in addresses {
                self.plan.addresses.claim(*ip, by.clone(), group);
            }
        }
    }

    /// Removes a recorded pod's claims on its addresses.
    fn disclaim(&mut self, id: &AttachmentId, subject: &FirewallPod) {
        let [recorded, annotated] = AddressClaimant::of_record(id, &subject.added_at);
        for (addresses, by) in [(&subject.ips[..], recorded), (&subject.additional, annotated)] {
            for ip in addresses {
                self.plan.addresses.disclaim(*ip, &by);
            }
        }
    }

    /// Addresses from the API count for pods of other nodes, and for pods of this node without a
    /// record: their packets come in through no interface of this node.
    fn update_claims(&mut self, name: &PodName, cluster: ClusterFacts<'_>) {
        if let Some((PodByName(before), group)) = self.plan.claims.remove_entry(name) {
            let by = AddressClaimant::Cluster(ClusterClaimant(before.clone()));
            before.ips.iter().for_each(|ip| self.plan.addresses.disclaim(*ip, &by));
            self.plan.groups.release(group);
        }
        let pod = cluster.pod(name);
        let here = pod.and_then(|pod| pod.here.as_ref());
        let is_departed = here.is_some_and(|here| self.plan.departed.get(name) == Some(&here.uid));
        if !is_departed {
            self.plan.departed.remove(name);
        }
        let is_recorded = here.is_some() && self.plan.subjects.has(name);
        let Some(pod) = pod.filter(|_| !is_departed && !is_recorded) else {
            return;
        };
        let group = self.plan.groups.acquire(GroupKey {
            namespace: name.namespace.clone(),
            labels: pod.labels.clone(),
            ports: pod.ports.clone(),
        });
        for ip in &pod.ips {
            let by = AddressClaimant::Cluster(ClusterClaimant(pod.clone()));
            self.plan.addresses.claim(*ip, by, Some(group));
        }
        self.plan.claims.insert(PodByName(pod.clone()), group);
    }

    /// The policies in force are those that select a recorded pod. Returns those that changed.
    fn update_rules(&mut self, cluster: ClusterFacts<'_>) -> RuleChanges {
        let classes = self.plan.classes.keys();
        let tiers = classes.clone().flat_map(|class| class.tiers.iter().flatten());
        let tiers: BTreeSet<&Arc<str>> = tiers.collect();
        let tiers =
            tiers.into_iter().filter_map(|name| Some((&**name, cluster.tier_policy(name)?)));
        let tiers = self.plan.rules.set_tiers(&tiers.collect(), &mut self.plan.peers);
        let selecting: BTreeSet<&PolicyName> = classes.flat_map(|class| &class.policies).collect();
        let policies = selecting.into_iter();
        let policies = policies.filter_map(|name| Some((name, cluster.policy(name)?))).collect();
        let policies = self.plan.rules.set(&policies, &mut self.plan.peers);
        RuleChanges { policies, tiers }
    }

    /// Updates the identities of addresses and ranges. Returns whether ranges changed.
    fn update_identities(&mut self, cluster: ClusterFacts<'_>, change: &ModelChange) -> bool {
        let names_changed = self.plan.names != self.plan.rules.egress_names;
        if names_changed {
            self.plan.names.clone_from(&self.plan.rules.egress_names);
        }
        let were_tiered = self.plan.pod_ranges.is_some();
        self.update_pod_ranges(cluster, change);
        let switched = were_tiered != self.plan.pod_ranges.is_some();
        if switched {
            self.plan.addresses.touched.extend(self.plan.addresses.all().collect::<Vec<_>>());
        }
        let peer_changes = self.plan.peers.take_changes();
        let facts = GroupFacts {
            peers: &self.plan.peers,
            changes: &peer_changes,
            names: &self.plan.names,
            names_changed,
            namespaces: &change.namespaces,
            cluster,
        };
        let changed = self.plan.groups.update(&facts);
        self.plan.addresses.touch(&changed);
        let has_blocks = peer_changes.has_blocks();
        if has_blocks {
            self.update_blocks();
        }
        let lookup = BlockLookup { pieces: &self.plan.pieces, pod_ranges: self.plan.pod_ranges };
        let changed =
            self.plan.addresses.identify(&self.plan.groups, lookup, &mut self.plan.identities);
        self.changes.identities = changed.identities;
        let are_changed = has_blocks || peer_changes.has_nodes() || change.node_facts;
        let is_of_node = |(ip, _): &(IpAddr, bool)| self.plan.nodes.contains(ip);
        let (of_nodes, claimed): (Vec<_>, Vec<_>) =
            changed.claimed.into_iter().partition(is_of_node);
        self.changes.taken.extend(claimed);
        if switched || are_changed || change.node_addresses || !of_nodes.is_empty() {
            self.update_node_identities(cluster);
        }
        has_blocks
    }

    /// While ClusterNetworkPolicies are in force, addresses in the ranges of pods have an identity
    /// even if no pod has them yet.
    fn update_pod_ranges(&mut self, cluster: ClusterFacts<'_>, change: &ModelChange) {
        let is_needed = self.plan.has_tiers();
        if is_needed == self.plan.pod_ranges.is_some() && !change.node_facts {
            return;
        }
        let before = self.plan.pod_ranges.take();
        if is_needed {
            let ranges = PeerScope::PodRanges(ranges_of_pods(cluster));
            self.plan.pod_ranges = Some(self.plan.peers.acquire(ranges));
        }
        before.into_iter().for_each(|before| self.plan.peers.release(before));
    }

    /// Updates the identities of nodes' addresses: see [`keys_of_nodes`].
    fn update_node_identities(&mut self, cluster: ClusterFacts<'_>) {
        let mut now = BTreeMap::new();
        for (address, key) in keys_of_nodes(self.plan, cluster) {
            now.extend(self.plan.identities.acquire(key).map(|id| (address, id)));
        }
        let before = std::mem::replace(&mut self.plan.node_identities, now);
        before.values().for_each(|id| self.plan.identities.release(*id));
        let now = &self.plan.node_identities;
        let all: BTreeSet<IpAddr> = before.keys().chain(now.keys()).copied().collect();
        for of in all {
            self.changes.note_identity(of, before.get(&of).copied(), now.get(&of).copied());
        }
    }

    fn update_blocks(&mut self) {
        let peers = self.plan.peers.iter();
        let blocks = peers.filter_map(|(id, scope)| Some((id, scope.blocks()?)));
        self.plan.pieces = pieces(blocks);
        let mut now = BTreeMap::new();
        for (first, Piece { range, peers }) in &self.plan.pieces {
            let key = key_of_range(peers, self.plan.pod_ranges);
            now.extend(self.plan.identities.acquire(key).map(|id| (*first, (*range, id))));
        }
        let before = std::mem::replace(&mut self.plan.blocks, now);
        before.values().for_each(|(_, id)| self.plan.identities.release(*id));
        let ranges = before.values().chain(self.plan.blocks.values()).map(|(range, _)| *range);
        let of = |blocks: &Blocks, range: AddressRange| {
            blocks.get(&range.first).filter(|(other, _)| *other == range).map(|(_, id)| *id)
        };
        let changed = ranges.collect::<BTreeSet<_>>().into_iter().map(|range| IdentityChange {
            of: range,
            before: of(&before, range),
            after: of(&self.plan.blocks, range),
        });
        self.changes.blocks = changed.filter(|change| change.before != change.after).collect();
        self.plan.addresses.touched.extend(self.plan.addresses.all().collect::<Vec<_>>());
    }

    /// Updates what the pods of each class may do.
    fn update_classes(&mut self, changed: &RuleChanges, identities: &[IdentityKey]) {
        let FirewallPlan { classes, rules, identities: known, peers, .. } = &mut *self.plan;
        let by = ClassFacts { policies: rules, identities: known, peers };
        classes.update(by, changed, identities);
    }

    /// Decides the owners of addresses whose claims changed. Returns the addresses with a new
    /// owner.
    fn update_owners(&mut self) -> BTreeSet<IpAddr> {
        let plan = &*self.plan;
        let now = plan.addresses.touched.iter().map(|ip| (*ip, plan.owner(*ip)));
        let changed = now.filter(|(ip, owner)| plan.owners.get(ip) != *owner);
        let changed: Vec<_> = changed.map(|(ip, owner)| (ip, owner.cloned())).collect();
        for (ip, owner) in &changed {
            let before = match owner {
                Some(id) => self.plan.owners.insert(*ip, id.clone()),
                None => self.plan.owners.remove(ip),
            };
            if before.is_some() && owner.is_some() {
                self.changes.departed.insert(*ip);
            }
            self.changes.owners.extend(before.into_iter().chain(owner.clone()));
        }
        changed.into_iter().map(|(ip, _)| ip).collect()
    }

    /// Decides again about these addresses and the addresses of these pods, or about all.
    fn update_pod_rules(
        &mut self,
        mut addresses: BTreeSet<IpAddr>,
        of: Option<&BTreeSet<AttachmentId>>,
    ) {
        match of {
            Some(ids) => {
                let subjects = ids.iter().filter_map(|id| self.plan.subjects.get(id));
                addresses.extend(subjects.flat_map(FirewallPod::addresses));
            }
            None => addresses.extend(self.plan.owners.keys().chain(self.plan.pod_rules.keys())),
        }
        let mut classes = std::mem::take(&mut self.plan.classes);
        let plan = &*self.plan;
        let by =
            ClassFacts { policies: &plan.rules, identities: &plan.identities, peers: &plan.peers };
        let pod_rules = addresses.into_iter().map(|ip| {
            let subject = plan.owners.get(&ip).and_then(|id| plan.subjects.get(id));
            let own = plan.identity_of(ip);
            let mut rules = |decision| classes.direction_rules(decision, by, own);
            let pod_rules = subject.map(|subject| PodRules {
                ingress: rules(&subject.ingress),
                egress: rules(&subject.egress),
            });
            (ip, pod_rules)
        });
        let pod_rules = pod_rules.collect();
        self.plan.classes = classes;
        self.set_pod_rules(pod_rules);
    }

    fn set_pod_rules(&mut self, now: Vec<(IpAddr, Option<PodRules>)>) {
        for (address, after) in now {
            let before = match &after {
                Some(pod_rules) => self.plan.pod_rules.insert(address, pod_rules.clone()),
                None => self.plan.pod_rules.remove(&address),
            };
            if before != after {
                self.changes.pod_rules.push(PodRulesChange { address, before, after });
            }
        }
    }
}
