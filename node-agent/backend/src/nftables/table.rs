//! The desired content of one table, and what differs from the last one. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::lower::{FrontendState, lower};
use super::name::{Class, Facts, ServiceTable, SetName};
use super::number::{Numbers, Owner};
use super::program;
use super::rule::Chain;
use super::table_config::TableConfig;
use denizen_model::{Family, PodSet, family_of};
use denizen_nft::sampled;
use denizen_nft::{Delta, Element, Key, Schema, SetId, Value, comment_text};
use denizen_plan::{Frontend, FrontendAddress, FrontendKey, FrontendKind};

/// A difference, and the new classes that it needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Chains to make first.
    pub classes: Vec<Class>,
    /// Then elements to delete, and elements to add.
    pub elements: Delta,
}

impl Difference {
    /// Nothing to do.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty() && self.elements.is_empty()
    }

    /// Nothing to do, with the same allocation.
    pub fn clear(&mut self) {
        self.classes.clear();
        self.elements.clear();
    }
}

type Members = BTreeMap<Key, Option<Arc<str>>>;

/// The desired content of one table.
#[derive(Debug)]
pub struct Table {
    /// Its family.
    pub table_family: ServiceTable,
    /// Its sets.
    pub schema: Schema,
    config: TableConfig,
    keys: HashMap<FrontendKey, FrontendState>,
    classes: BTreeSet<Class>,
    numbers: Numbers,
    cluster_ips: HashMap<IpAddr, usize>,
    /// Those of [`Self::hold_cluster_ips`]. Each counts once.
    held: BTreeSet<IpAddr>,
    members: BTreeMap<SetName, Members>,
    /// Somebody watches what is dropped.
    samples_drops: bool,
}

impl Table {
    /// An empty one.
    pub fn new(table_family: ServiceTable, config: TableConfig) -> Self {
        Self {
            table_family,
            schema: table_family.schema(),
            config,
            keys: HashMap::new(),
            classes: BTreeSet::new(),
            numbers: Numbers::default(),
            cluster_ips: HashMap::new(),
            held: BTreeSet::new(),
            members: BTreeMap::new(),
            samples_drops: false,
        }
    }

    /// Whether rules show what is dropped. Returns whether that changes the chains.
    pub fn sample_drops(&mut self, on: bool) -> bool {
        std::mem::replace(&mut self.samples_drops, on) != on
    }

    /// Takes over the number by which an earlier run's clients remember an endpoint.
    pub fn restore_number(&mut self, owner: Owner, endpoint: SocketAddr, number: u32) {
        self.numbers.restore(owner, endpoint, number);
    }

    /// Every desired chain, each before those that refer to it.
    pub fn chains(&self) -> Vec<Chain> {
        let classes = self.classes.iter().flat_map(|class| self.class_chains(*class));
        program::chains(self.table_family, &self.config).into_iter().chain(classes).collect()
    }

    /// As [`Self::chains`], in the driver's terms.
    pub fn lowered_chains(&self) -> Vec<denizen_nft::Chain> {
        self.lowered(&self.chains())
    }

    /// These chains in the driver's terms.
    pub fn lowered(&self, chains: &[Chain]) -> Vec<denizen_nft::Chain> {
        let lowered = chains.iter().map(|chain| chain.lowered(self.table_family)).collect();
        // An ARP message is no packet whose end anybody looks for.
        let samples = self.samples_drops && self.table_family != ServiceTable::Arp;
        if samples { sampled(lowered) } else { lowered }
    }

    /// The chains of a class.
    pub fn class_chains(&self, class: Class) -> Vec<Chain> {
        program::class_chains(class, &self.config.node_side)
    }

    /// Every desired element, in no order. They are made one by one: together they take more memory
    /// than what they are made from.
    pub fn each_element(&self) -> impl Iterator<Item = Element> + '_ {
        let of_frontends = self.keys.iter().flat_map(|(key, state)| state.elements(key));
        let members = self.members.iter().flat_map(|(set, members)| {
            let of_set = members.iter();
            of_set.map(|(key, comment)| member(*set, *key, comment.clone()))
        });
        let cluster_ips = self.cluster_ips.keys().map(|ip| cluster_ip(*ip));
        of_frontends.chain(members).chain(cluster_ips)
    }

    /// The desired elements of a set, in no order. Of the sets of ranges there is one, and few
    /// frontends have any.
    pub fn ranges(&self, set: SetId) -> Vec<Element> {
        let restricted = self.keys.iter().filter(|(_, state)| state.is_restricted());
        let elements = restricted.flat_map(|(key, state)| state.elements(key));
        elements.filter(|element| element.set == set).collect()
    }

    /// Every desired element, by set and in no order.
    pub fn elements_by_set(&self) -> BTreeMap<SetId, Vec<Element>> {
        let mut all: BTreeMap<SetId, Vec<Element>> = BTreeMap::new();
        for element in self.each_element() {
            all.entry(element.set).or_default().push(element);
        }
        all
    }

    /// Whether a service has, or had, session affinity.
    pub fn has_affinity(&self) -> bool {
        self.classes.iter().any(|class| class.affinity.is_some())
    }

    /// The number of desired elements of each set.
    pub fn sizes(&self) -> BTreeMap<SetName, usize> {
        let mut sizes: BTreeMap<SetName, usize> =
            SetName::of(self.table_family).iter().map(|set| (*set, 0)).collect();
        let members = self.members.iter().map(|(set, members)| (*set, members.len()));
        sizes.extend(members);
        if let Some(size) = sizes.get_mut(&SetName::ClusterIps) {
            *size = self.cluster_ips.len();
        }
        for (key, state) in &self.keys {
            for element in state.elements(key) {
                *sizes.entry(SetName::of_id(element.set)).or_default() += 1;
            }
        }
        sizes
    }

    /// Every desired element, sorted.
    pub fn elements(&self) -> Vec<Element> {
        let sorted = self.elements_by_set().into_values().map(|mut elements| {
            elements.sort_unstable_by_key(|element| element.key);
            elements
        });
        sorted.flatten().collect()
    }

    /// Whether a frontend is desired.
    pub fn has_frontend(&self, key: &FrontendKey) -> bool {
        self.keys.contains_key(key)
    }

    /// What the constant part depends on now.
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Replaces what the constant rules depend on. Returns whether it differs.
    pub fn reconfigure(&mut self, config: TableConfig) -> bool {
        let differs = self.config != config;
        self.config = config;
        differs
    }

    /// Takes changed frontends; `None` means that a frontend is gone. Frontends of the other family
    /// are ignored.
    pub fn change_frontends<'a>(
        &mut self,
        keys: impl Iterator<Item = (FrontendKey, Option<&'a Frontend>)>,
        delta: &mut Difference,
    ) {
        let table_family = self.table_family;
        for (key, frontend) in
            keys.filter(|(key, _)| table_family == ServiceTable::Ip(key.family()))
        {
            self.change_frontend(key, frontend, delta);
        }
    }

    fn change_frontend(
        &mut self,
        key: FrontendKey,
        frontend: Option<&Frontend>,
        delta: &mut Difference,
    ) {
        let now = self.keys.remove(&key);
        let wanted = frontend.map(|frontend| lower(frontend, now.as_ref(), &mut self.numbers));
        let elements = |state: &Option<FrontendState>| {
            state.as_ref().map(|s| s.elements(&key)).unwrap_or_default()
        };
        delta.elements.extend(elements(&now), elements(&wanted));
        self.count_cluster_ip(&key, now.as_ref(), wanted.as_ref(), delta);
        if let Some(wanted) = wanted {
            for class in wanted.classes(&key) {
                if self.classes.insert(class) {
                    delta.classes.push(class);
                }
            }
            self.keys.insert(key, wanted);
        }
    }

    fn count_cluster_ip(
        &mut self,
        key: &FrontendKey,
        now: Option<&FrontendState>,
        wanted: Option<&FrontendState>,
        delta: &mut Difference,
    ) {
        let FrontendAddress::Ip(ip) = key.address else { return };
        let is = |state: Option<&FrontendState>| {
            usize::from(state.is_some_and(|s| s.kind == FrontendKind::ClusterIp))
        };
        self.recount_cluster_ip(ip, is(wanted), is(now), delta);
    }

    /// Addresses whose unused ports are refused even if no service has them; and of which no
    /// neighbour learns that they are this node's.
    pub fn hold_cluster_ips(&mut self, addresses: &BTreeSet<IpAddr>, delta: &mut Difference) {
        if self.table_family == ServiceTable::Arp {
            let own = addresses.iter().filter(|ip| ip.is_ipv4());
            let wanted = own.map(|ip| (Key::EMPTY.address(*ip), None)).collect();
            return self.change_members(SetName::VirtualIps, wanted, delta);
        }
        let wanted = addresses.iter().copied().filter(|ip| self.table_family.holds(*ip)).collect();
        let before = std::mem::replace(&mut self.held, wanted);
        let new: Vec<IpAddr> = self.held.difference(&before).copied().collect();
        new.into_iter().for_each(|ip| self.recount_cluster_ip(ip, 1, 0, delta));
        let gone: Vec<IpAddr> = before.difference(&self.held).copied().collect();
        gone.into_iter().for_each(|ip| self.recount_cluster_ip(ip, 0, 1, delta));
    }

    fn recount_cluster_ip(&mut self, ip: IpAddr, more: usize, less: usize, delta: &mut Difference) {
        let count = self.cluster_ips.entry(ip).or_insert(0);
        let known = *count > 0;
        *count = *count + more - less;
        match (known, *count > 0) {
            (false, true) => delta.elements.add.push(cluster_ip(ip)),
            (true, false) => {
                let key = (SetName::ClusterIps.id(), Key::EMPTY.address(ip));
                delta.elements.delete.push(key);
            }
            (false, false) | (true, true) => {}
        }
        if *count == 0 {
            self.cluster_ips.remove(&ip);
        }
    }

    /// Takes the local pods.
    pub fn change_pods(&mut self, pods: &PodSet, delta: &mut Difference) {
        let of_pods =
            SetName::of(self.table_family).iter().filter(|set| set.filled_by() == Facts::Pods);
        let mut wanted: BTreeMap<SetName, Members> =
            of_pods.map(|set| (*set, Members::new())).collect();
        for pod in &pods.pods {
            let comment: Arc<str> = comment_text(&pod.to_string()).into();
            let port = pod.port.as_deref().filter(|_| self.config.proves_ports());
            let interface = match (self.table_family, port) {
                (ServiceTable::Bridge, Some(port)) => port,
                (ServiceTable::Bridge | ServiceTable::Arp | ServiceTable::Ip(_), _) => {
                    &pod.interface
                }
            };
            for ip in pod.ips.iter().copied() {
                let key = Key::EMPTY.interface(interface).address(ip);
                for set in self.pod_sets(ip, port.is_some()) {
                    wanted.entry(*set).or_default().insert(key, Some(comment.clone()));
                }
            }
        }
        for (set, members) in wanted {
            self.change_members(set, members, delta);
        }
    }

    /// The elements for a pod's address in this table; `by_port` if its port of a bridge must
    /// match.
    fn pod_sets(&self, ip: IpAddr, by_port: bool) -> &'static [SetName] {
        match (self.table_family, family_of(ip)) {
            (ServiceTable::Ip(family), of_ip) if family != of_ip => &[],
            (ServiceTable::Ip(_), _) if by_port => &[SetName::LocalPods, SetName::BridgedPods],
            (ServiceTable::Ip(_), _) => &[SetName::LocalPods],
            (ServiceTable::Arp, _) => &[],
            (ServiceTable::Bridge, _) if !by_port => &[],
            (ServiceTable::Bridge, Family::V4) => &[SetName::PodPorts],
            (ServiceTable::Bridge, Family::V6) => &[SetName::PodPorts6],
        }
    }

    /// Takes the addresses that may reach themselves through a service.
    pub fn change_hairpins(
        &mut self,
        addresses: impl Iterator<Item = IpAddr>,
        delta: &mut Difference,
    ) {
        let key = |ip| (Key::EMPTY.address(ip).address(ip), None);
        let wanted = addresses.filter(|ip| self.table_family.holds(*ip)).map(key).collect();
        self.change_members(SetName::Hairpin, wanted, delta);
    }

    /// Takes the addresses that serve node ports.
    pub fn change_node_port_addresses(&mut self, addresses: &[IpAddr], delta: &mut Difference) {
        let ours = addresses.iter().filter(|ip| self.table_family.holds(**ip));
        let wanted = ours.map(|ip| (Key::EMPTY.address(*ip), None)).collect();
        self.change_members(SetName::NodePortAddresses, wanted, delta);
    }

    fn change_members(&mut self, set: SetName, wanted: Members, delta: &mut Difference) {
        let before = self.members.insert(set, wanted).unwrap_or_default();
        let wanted = &self.members[&set];
        let gone = before.iter().filter(|(key, comment)| wanted.get(key) != Some(*comment));
        delta.elements.delete.extend(gone.map(|(key, _)| (set.id(), *key)));
        let new = wanted.iter().filter(|(key, comment)| before.get(key) != Some(*comment));
        let new = new.map(|(key, comment)| member(set, *key, comment.clone()));
        delta.elements.add.extend(new);
    }
}

fn member(set: SetName, key: Key, comment: Option<Arc<str>>) -> Element {
    Element { set: set.id(), key, value: Value::Member, comment }
}

pub(super) fn cluster_ip(ip: IpAddr) -> Element {
    member(SetName::ClusterIps, Key::EMPTY.address(ip), None)
}
