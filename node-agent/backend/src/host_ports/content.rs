//! What the table of one version holds.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::table::{
    ADDRESSES, TAKEN, TableRules, chains, of_address, of_hairpin, of_host_port, of_taken,
};
use denizen_model::{Family, family_of};
use denizen_nft::{Chain, Content, Delta, Element, Key, Observed, SetId};
use denizen_plan::{HostPortChanges, HostPortKey, HostPortPlan, Plan, ServedHostPort};

/// What the table of one version holds.
#[derive(Debug)]
pub struct HostPortTable {
    version: Family,
    rules: TableRules,
    elements: HashMap<(SetId, Key), Element>,
    served: HashMap<HostPortKey, ServedHostPort>,
    /// How many host ports lead to each address.
    endpoints: BTreeMap<IpAddr, usize>,
    /// This agent serves services, and they are not known yet.
    awaits_services: bool,
}

impl HostPortTable {
    /// A table without content.
    pub fn new(version: Family) -> Self {
        Self {
            version,
            rules: TableRules::default(),
            elements: HashMap::new(),
            served: HashMap::new(),
            endpoints: BTreeMap::new(),
            awaits_services: false,
        }
    }

    /// Whether the table is not wanted.
    pub fn is_empty(&self) -> bool {
        !self.rules.ports && !self.rules.guard
    }

    /// Takes in all that is decided, if nothing was decided before.
    pub fn fill(&mut self, decided: &HostPortPlan) {
        let all = HostPortChanges {
            served: decided.served().keys().copied().collect(),
            taken: decided.taken().clone(),
            addresses: decided.addresses().clone(),
            ..HostPortChanges::default()
        };
        self.change(decided, &all, &mut Delta::default());
    }

    /// Takes in what differs from before.
    pub fn change(&mut self, decided: &HostPortPlan, changes: &HostPortChanges, delta: &mut Delta) {
        let version = self.version;
        let is_ours = |ip: &IpAddr| family_of(*ip) == version;
        for ip in changes.addresses.iter().copied().filter(is_ours) {
            self.member(of_address(ip), decided.addresses().contains(&ip), delta);
        }
        for taken in changes.taken.iter().copied().filter(|taken| is_ours(&taken.ip)) {
            self.member(of_taken(taken), decided.taken().contains(&taken), delta);
        }
        for key in changes.served.iter().copied().filter(|key| key.family() == version) {
            let served = decided.served().get(&key);
            let former = match served {
                Some(served) => self.served.insert(key, served.clone()),
                None => self.served.remove(&key),
            };
            let element = |served: &ServedHostPort| of_host_port(key, served);
            self.replace(former.as_ref().map(element), served.map(element), delta);
            if let Some(served) = served {
                let ip = served.endpoint.ip();
                *self.endpoints.entry(ip).or_default() += 1;
                self.member(of_hairpin(ip), true, delta);
            }
            for ip in former.iter().map(|former| former.endpoint.ip()) {
                let count = self.endpoints.entry(ip).or_default();
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.endpoints.remove(&ip);
                    self.member(of_hairpin(ip), false, delta);
                }
            }
        }
    }

    /// If there are no host ports, the rules for them are no longer wanted. Returns whether that is
    /// new: then the table has to be read.
    pub fn retire(&mut self) -> bool {
        let is_unused = self.rules.ports && self.served.is_empty();
        if is_unused {
            (self.rules.ports, self.rules.on_loopback) = (false, false);
        }
        is_unused
    }

    /// Takes in what the rules depend on. Those for host ports stay until [`Self::retire`]. Returns
    /// whether the table has to be read: it is created, removed or gets other rules, or services'
    /// ports have become known.
    pub fn update_rules(&mut self, plan: &Plan) -> bool {
        let policy = plan.policy();
        let settings = policy.host_ports;
        let has_loopback =
            self.version == Family::V4 && settings.is_some_and(|settings| settings.localhost);
        let ports = self.rules.ports || !self.served.is_empty();
        let rules = TableRules {
            ports,
            on_loopback: has_loopback && ports,
            // Every backend guards these addresses itself.
            guard: has_loopback && !policy.services,
            open_forward: policy.node_side.open_forward,
        };
        let awaits_services = settings.is_some() && policy.services && plan.services().is_none();
        let had = (self.rules, self.awaits_services);
        (self.rules, self.awaits_services) = (rules, awaits_services);
        had != (rules, awaits_services)
    }

    fn member(&mut self, element: Element, is_wanted: bool, delta: &mut Delta) {
        match is_wanted {
            true => self.replace(None, Some(element), delta),
            false => self.replace(Some(element), None, delta),
        }
    }

    fn replace(&mut self, former: Option<Element>, now: Option<Element>, delta: &mut Delta) {
        let key = |element: &Element| (element.set, element.key);
        let former = former.and_then(|former| self.elements.remove(&key(&former)));
        let there = now.as_ref().and_then(|now| self.elements.insert(key(now), now.clone()));
        delta.extend(former.or(there).into_iter().collect(), now.into_iter().collect());
    }
}

impl Content for HostPortTable {
    fn chains(&self) -> Vec<Chain> {
        chains(self.version, self.rules)
    }

    fn elements(&self) -> impl Iterator<Item = Element> {
        self.elements.values().cloned()
    }

    /// The elements of [`TAKEN`] from an earlier run stay until services are known. They protect a
    /// service without endpoints, which translates nothing.
    fn covers(&self, set: SetId) -> bool {
        set != TAKEN || !self.awaits_services
    }

    /// Until services are known, it is not known which of the node's addresses belong to services,
    /// so no address is removed.
    fn review(&mut self, _seen: &Observed, delta: &mut Delta) -> usize {
        if self.awaits_services {
            delta.delete.retain(|(set, _)| *set != ADDRESSES);
        }
        0
    }
}
