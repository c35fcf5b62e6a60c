//! The firewall's tables, and the desired content of each. Pure, except that it reads the recorded
//! pods.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::bridge;
use super::element::{all, of_permitted_sets, of_pod, of_pod_rules, of_surroundings};
use super::ip_chains::ip_chains;
use super::number::Numbers;
use super::records::Records;
use super::schema::{FirewallScope, FirewallSet, schema};
use denizen_model::{Family, LocalPod, family_of};
use denizen_nft::{
    Chain, Content, Delta, Element, Extent, Key, Observed, Schema, SetId, TableFamily, read_address,
};
use denizen_plan::{FirewallPlan, FirewallSettings, Isolation, Plan};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirewallTable {
    /// IP packets of one version.
    Ip(Family),
    /// Frames that come in through a port of a bridge.
    Bridge,
}

impl FirewallTable {
    pub const ALL: [Self; 3] = [Self::Ip(Family::V4), Self::Ip(Family::V6), Self::Bridge];

    pub fn family(self) -> TableFamily {
        match self {
            Self::Ip(version) => version.into(),
            Self::Bridge => TableFamily::Bridge,
        }
    }

    pub fn schema(self, scope: FirewallScope) -> Schema {
        match self {
            Self::Ip(version) => schema(version, scope),
            Self::Bridge => bridge::schema(),
        }
    }

    /// Its desired chains. None while no policy exists: rules would only cost time.
    pub fn chains(self, plan: &FirewallPlan, scope: FirewallScope) -> Vec<Chain> {
        match plan.is_enforced() {
            true => self.all_chains(plan.settings(), scope),
            false => Vec::new(),
        }
    }

    /// All chains, each before those that refer to it.
    pub fn all_chains(self, settings: FirewallSettings, scope: FirewallScope) -> Vec<Chain> {
        match self {
            Self::Ip(version) => ip_chains(version, settings, scope),
            Self::Bridge => bridge::all(settings.pods),
        }
    }

    /// The elements of a recorded pod.
    pub fn of_pod(
        self,
        firewall: &FirewallPlan,
        pod: &LocalPod,
        unfiltered_bridges: &BTreeSet<Arc<str>>,
    ) -> Vec<Element> {
        match self {
            Self::Ip(version) => of_pod(firewall, pod, version),
            Self::Bridge => bridge::of_pod(firewall, pod, unfiltered_bridges),
        }
    }

    /// The elements of the port sets for pods that ClusterNetworkPolicies select.
    pub fn of_permitted_sets(self, firewall: &FirewallPlan, numbers: &Numbers) -> Vec<Element> {
        match self {
            Self::Ip(version) => of_permitted_sets(firewall, version, numbers),
            Self::Bridge => Vec::new(),
        }
    }

    /// The elements of nodes, bridges and tunnels.
    pub fn of_surroundings(self, firewall: &FirewallPlan) -> Vec<Element> {
        match self {
            Self::Ip(version) => of_surroundings(firewall, version),
            Self::Bridge => bridge::of_surroundings(firewall),
        }
    }
}

/// A table's desired content.
pub(super) struct FirewallContent<'a> {
    pub table: FirewallTable,
    pub scope: FirewallScope,
    pub plan: &'a Plan,
    pub firewall: &'a FirewallPlan,
    pub numbers: &'a Numbers,
    pub records: &'a Records,
    pub unfiltered_bridges: &'a BTreeSet<Arc<str>>,
    /// The kernel has an isolated pod whose record has not been read.
    pub has_unread: bool,
}

impl FirewallContent<'_> {
    pub fn has_elements(&self) -> bool {
        self.elements().next().is_some()
    }

    /// The addresses that are recorded and not in the plan. To be read after the kernel: a pod is
    /// recorded before it is isolated.
    fn unread(&self) -> BTreeSet<IpAddr> {
        let mut unread = self.records.read();
        let known = self.plan.recorded().iter().flat_map(|pod| &pod.ips);
        known.for_each(|ip| _ = unread.remove(ip));
        unread
    }

    /// The elements of each local pod of this version.
    fn of_each_pod(&self) -> impl Iterator<Item = Element> {
        let pods = self.firewall.pods();
        let pods = pods.filter(|(ip, _)| self.table == FirewallTable::Ip(family_of(*ip)));
        pods.flat_map(|(address, pod_rules)| of_pod_rules(address, pod_rules, None, self.numbers))
    }
}

impl Content for FirewallContent<'_> {
    fn chains(&self) -> Vec<Chain> {
        self.table.chains(self.firewall, self.scope)
    }

    /// Until policies are known, new pods are pending, and nothing else is changed.
    fn elements(&self) -> impl Iterator<Item = Element> {
        let pods = self.plan.recorded();
        let elements: Box<dyn Iterator<Item = Element>> = match self.table {
            _ if !self.firewall.is_known() => Box::new(self.of_each_pod()),
            FirewallTable::Ip(version) => all(self.firewall, pods, version, self.numbers),
            FirewallTable::Bridge => bridge::elements(self.firewall, pods, self.unfiltered_bridges),
        };
        elements
    }

    /// A new, empty table in place of one that another version of denizen made would isolate
    /// nobody, so the old table stays until policies are known.
    fn extent(&self) -> Extent {
        match self.firewall.is_known() {
            true => Extent::Whole,
            false => Extent::Partly { into_foreign: false },
        }
    }

    /// A permission is garbage if no identity has its peer's number, or if its pod is no longer
    /// isolated, or now judged by the other kind of policies. It is deleted a commit later: a
    /// packet that raced with the change, and has read a number or how the pod is judged, still
    /// finds what was permitted then, and no more.
    fn is_garbage(&self, set: SetId, key: &Key) -> bool {
        let FirewallTable::Ip(version) = self.table else { return false };
        let name = FirewallSet::of_id(set);
        let permitted_sets = [
            FirewallSet::PermittedPorts,
            FirewallSet::PermittedPortRanges,
            FirewallSet::PermittedOthers,
        ];
        if permitted_sets.contains(&name) {
            return true;
        }
        // A range that grows or shrinks consists of other parts, and a packet looks up one part
        // after another.
        if matches!(name, FirewallSet::WithPortRanges(_) | FirewallSet::PortRanges(_)) {
            return true;
        }
        let Some(direction) = name.permits() else { return false };
        let bytes = key.as_bytes();
        let number = bytes.last_chunk().copied().map(u32::from_ne_bytes).unwrap_or_default();
        let pod_rules = read_address(version, bytes).and_then(|pod| self.firewall.pod_rules(pod));
        let is_looked_up = pod_rules.is_some_and(|pod_rules| {
            let is_of_tiers = matches!(name, FirewallSet::PortsByPeer(_));
            pod_rules.of(direction).isolation != Isolation::Open
                && pod_rules.is_tiered() == is_of_tiers
        });
        !self.numbers.is_in_use(number) || !is_looked_up
    }

    /// As [`Self::review`]: the addresses of pods that are not in the plan yet stay.
    fn foreign_members(&mut self, seen: &Observed) -> Vec<Element> {
        let FirewallTable::Ip(version) = self.table else { return Vec::new() };
        let mut kept = seen.members(|set| set == FirewallSet::Pending.id());
        if kept.is_empty() {
            return kept;
        }
        let unread = self.unread();
        let is_unread = |key: &Key| {
            read_address(version, key.as_bytes()).is_some_and(|ip| unread.contains(&ip))
        };
        kept.retain(|element| is_unread(&element.key));
        self.has_unread |= !kept.is_empty();
        kept
    }

    /// The plugin adds the addresses of pods about which nothing is decided yet. If such a pod is
    /// recorded but not in the plan yet, its address stays.
    fn review(&mut self, _seen: &Observed, delta: &mut Delta) -> usize {
        let FirewallTable::Ip(version) = self.table else { return 0 };
        if !self.firewall.is_known() {
            delta.delete.clear();
            return 0;
        }
        let pending = |(set, _): &&(SetId, Key)| *set == FirewallSet::Pending.id();
        let found = delta.delete.iter().filter(pending).count();
        if found == 0 {
            return 0;
        }
        let unread = self.unread();
        delta.delete.retain(|(set, key)| {
            let address = read_address(version, key.as_bytes());
            *set != FirewallSet::Pending.id() || !address.is_some_and(|ip| unread.contains(&ip))
        });
        let removed = delta.delete.iter().filter(pending).count();
        self.has_unread |= removed < found;
        removed
    }
}
