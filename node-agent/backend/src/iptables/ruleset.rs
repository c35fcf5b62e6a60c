//! The desired rules of one family, and which chains changed since they were last written. Pure.
//!
//! It keeps what the rules are made from, and a fingerprint of each chain to detect changes. The
//! text of a chain is made when it is written.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::fixed;
use super::name::{ChainId, ChainName, ServiceChain};
use super::rule::Rule;
use super::ruleset_config::RulesetConfig;
use super::service::{ServicePort, ServicePortRules, Shared, lower, lower_shared};
use denizen_iptables::{self as iptables, Desired, Fingerprint, Lines, Table};
use denizen_model::{Family, ServicePortName};
use denizen_plan::{Frontend, FrontendAddress, FrontendKey};

/// The rules of one family.
#[derive(Debug)]
pub struct Ruleset {
    config: RulesetConfig,
    ports: BTreeMap<ServicePortName, PortChains>,
    owners: HashMap<FrontendKey, ServicePortName>,
    /// Chains to be written, or to be removed if they have no rules any more. Each has its service
    /// port, unless it is a constant or a shared chain.
    changed: BTreeMap<ChainId, Option<ServicePortName>>,
    /// Whether the jumps into these chains changed since everything was last compared.
    jumps_changed: bool,
}

/// A service port's frontends, and their chains.
#[derive(Debug, Default)]
struct PortChains {
    frontends: BTreeMap<FrontendKey, Frontend>,
    chains: Box<[(ChainName, Fingerprint)]>,
    shared: [Option<Fingerprint>; Shared::ALL.len()],
}

impl Ruleset {
    /// A ruleset without services.
    pub fn new(config: RulesetConfig) -> Self {
        let mut ruleset = Self {
            config,
            ports: BTreeMap::new(),
            owners: HashMap::new(),
            changed: BTreeMap::new(),
            jumps_changed: false,
        };
        ruleset.touch_fixed();
        ruleset
    }

    /// What every rule depends on.
    pub fn config(&self) -> &RulesetConfig {
        &self.config
    }

    /// Changes what every rule depends on.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut RulesetConfig)) {
        let before = self.config.clone();
        change(&mut self.config);
        if self.config == before {
            return;
        }
        self.jumps_changed |= fixed::jumps(&self.config) != fixed::jumps(&before);
        self.touch_fixed();
        let old = fixed::chains(&before).into_iter().map(|(id, _)| (id, None));
        self.changed.extend(old);
        let names: Vec<ServicePortName> = if self.config.local != before.local {
            self.ports.keys().cloned().collect()
        } else if self.config.to_node != before.to_node {
            let has_node_port = |port: &PortChains| {
                port.frontends.keys().any(|key| matches!(key.address, FrontendAddress::Node(_)))
            };
            let ports = self.ports.iter().filter(|(_, port)| has_node_port(port));
            ports.map(|(name, _)| name.clone()).collect()
        } else {
            Vec::new()
        };
        names.iter().for_each(|name| self.lower(name));
    }

    /// How many chains of this kind there are.
    pub fn chains_of(&self, kind: ServiceChain) -> usize {
        let names = self.ports.values().flat_map(|port| &*port.chains);
        let is_one = |name: ChainName| matches!(name, ChainName::OfService(its, _) if its == kind);
        names.filter(|(name, _)| is_one(*name)).count()
    }

    /// The chains that a packet to this frontend may pass, and its lines in shared chains.
    pub fn of_frontend(
        &self,
        frontend: &Frontend,
    ) -> BTreeSet<(iptables::ChainId, Option<String>)> {
        let port = PortChains {
            frontends: BTreeMap::from([(frontend.key, frontend.clone())]),
            ..PortChains::default()
        };
        let ServicePortRules { chains, shared } =
            lower(view(&self.config, &frontend.service_port, &port));
        let own = chains.into_keys().map(|chain| ((Table::Nat, chain.to_string()), None));
        let shared = shared.into_iter().map(|(of, rule)| {
            let (table, chain) = of.chain();
            ((table, chain.to_string()), Some(rule.text(self.config.family)))
        });
        own.chain(shared).collect()
    }

    /// Whether a service has this frontend.
    pub fn has_frontend(&self, key: &FrontendKey) -> bool {
        self.owners.contains_key(key)
    }

    /// Takes over changed or removed frontends of the plan.
    pub fn change_frontends<'a>(
        &mut self,
        frontends: impl Iterator<Item = (FrontendKey, Option<&'a Frontend>)>,
    ) {
        let mut touched = BTreeSet::new();
        for (key, decided) in frontends.filter(|(key, _)| key.family() == self.config.family) {
            let owner = decided.map(|frontend| frontend.service_port.clone());
            let before = match owner.clone() {
                Some(owner) => self.owners.insert(key, owner),
                None => self.owners.remove(&key),
            };
            if let Some(before) = before {
                if let Some(port) = self.ports.get_mut(&before) {
                    port.frontends.remove(&key);
                }
                touched.insert(before);
            }
            if let (Some(owner), Some(frontend)) = (owner, decided) {
                let port = self.ports.entry(owner.clone()).or_default();
                port.frontends.insert(key, frontend.clone());
                touched.insert(owner);
            }
        }
        touched.iter().for_each(|name| self.lower(name));
    }

    /// Renders a service port again, and notes which chains changed.
    fn lower(&mut self, name: &ServicePortName) {
        let Some(mut port) = self.ports.remove(name) else {
            return;
        };
        let family = self.config.family;
        let print = |rules: &[Rule]| Fingerprint::of(rules.iter().map(|rule| rule.text(family)));
        let ServicePortRules { chains, shared } = lower(view(&self.config, name, &port));
        let chains: Vec<_> = chains.into_iter().map(|(id, rules)| (id, print(&rules))).collect();
        let lists = Shared::ALL.map(|of| {
            let rules = shared.iter().filter(|(chain, _)| *chain == of);
            let lines: Vec<String> = rules.map(|(_, rule)| rule.text(family)).collect();
            (!lines.is_empty()).then(|| Fingerprint::of(lines))
        });
        let stays = |entry: &&(ChainName, Fingerprint), others: &[(ChainName, Fingerprint)]| {
            others
                .binary_search_by_key(&entry.0, |(id, _)| *id)
                .is_ok_and(|at| others[at].1 == entry.1)
        };
        let new = chains.iter().filter(|entry| !stays(entry, &port.chains));
        let old = port.chains.iter().filter(|entry| !stays(entry, &chains));
        for (chain, _) in old.chain(new) {
            self.changed.insert((Table::Nat, *chain), Some(name.clone()));
        }
        for ((of, before), now) in Shared::ALL.into_iter().zip(port.shared).zip(lists) {
            if before != now {
                self.changed.insert(of.chain(), None);
            }
        }
        port.chains = chains.into();
        port.shared = lists;
        if !port.frontends.is_empty() {
            self.ports.insert(name.clone(), port);
        }
    }

    fn touch_fixed(&mut self) {
        let fixed = fixed::chains(&self.config).into_iter().map(|(id, _)| id);
        let all = fixed.chain(Shared::ALL.map(Shared::chain));
        self.changed.extend(all.map(|id| (id, None)));
    }

    fn lines(&self, rules: &[Rule]) -> Lines {
        rules.iter().map(|rule| rule.text(self.config.family)).collect()
    }

    /// The chains in which every service has lines, sorted by service.
    fn shared(&self) -> BTreeMap<ChainId, Lines> {
        let mut found: BTreeMap<ChainId, Lines> =
            Shared::ALL.into_iter().map(|of| (of.chain(), Vec::new())).collect();
        for (name, port) in &self.ports {
            for (of, rule) in lower_shared(view(&self.config, name, port)) {
                found.entry(of.chain()).or_default().push(rule.text(self.config.family));
            }
        }
        let last = self.lines(&fixed::node_port_jumps(&self.config));
        let services = found.entry(Shared::Services.chain()).or_default();
        services.extend(last);
        if let Some([first, end]) = fixed::admission(&self.config) {
            services.insert(0, first.text(self.config.family));
            services.push(end.text(self.config.family));
        }
        found
    }
}

impl Desired for Ruleset {
    fn family(&self) -> Family {
        self.config.family
    }

    fn for_each(&self, mut each: impl FnMut(iptables::ChainId, Lines)) {
        let mut each = |(table, chain): ChainId, lines| each((table, chain.to_string()), lines);
        let fixed = fixed::chains(&self.config).into_iter();
        fixed.for_each(|(id, rules)| each(id, self.lines(&rules)));
        self.shared().into_iter().for_each(|(id, lines)| each(id, lines));
        for (name, port) in &self.ports {
            for (chain, rules) in lower(view(&self.config, name, port)).chains {
                each((Table::Nat, chain), self.lines(&rules));
            }
        }
    }

    fn jumps(&self) -> Vec<(iptables::ChainId, String)> {
        let jumps = fixed::jumps(&self.config).into_iter();
        let line = |rule: Rule| rule.text(self.config.family);
        jumps.map(|((table, chain), rule)| ((table, chain.to_string()), line(rule))).collect()
    }

    fn is_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    fn take_changes(&mut self) -> BTreeMap<iptables::ChainId, Option<Lines>> {
        let changed = std::mem::take(&mut self.changed);
        let mut owned: BTreeMap<&ServicePortName, BTreeMap<ChainName, Vec<Rule>>> = BTreeMap::new();
        for name in changed.values().flatten() {
            if let Some(port) = self.ports.get(name) {
                owned.entry(name).or_insert_with(|| lower(view(&self.config, name, port)).chains);
            }
        }
        let mut fixed: BTreeMap<ChainId, Vec<Rule>> =
            fixed::chains(&self.config).into_iter().collect();
        let is_shared_changed = Shared::ALL.iter().any(|of| changed.contains_key(&of.chain()));
        let mut shared = if is_shared_changed { self.shared() } else { BTreeMap::new() };
        let found = changed.iter().map(|(id, owner)| {
            let rules = match owner {
                Some(owner) => owned.get_mut(owner).and_then(|chains| chains.remove(&id.1)),
                None => fixed.remove(id),
            };
            let lines = rules.map(|rules| self.lines(&rules)).or_else(|| shared.remove(id));
            ((id.0, id.1.to_string()), lines)
        });
        found.collect()
    }

    fn forget_changes(&mut self) {
        self.changed.clear();
        self.jumps_changed = false;
    }

    fn has_changed_jumps(&self) -> bool {
        self.jumps_changed
    }

    fn uses(&self, table: Table) -> bool {
        match table {
            Table::Filter | Table::Nat => true,
            Table::Security => self.config.egress.is_some() || self.jumps_changed,
        }
    }

    fn is_changed_in(&self, table: Table) -> bool {
        self.changed.keys().any(|(its, _)| *its == table)
    }
}

fn view<'a>(
    config: &'a RulesetConfig,
    name: &'a ServicePortName,
    port: &'a PortChains,
) -> ServicePort<'a> {
    ServicePort { name, frontends: &port.frontends, local: &config.local, to_node: &config.to_node }
}
