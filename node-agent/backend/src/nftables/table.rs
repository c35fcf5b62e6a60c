//! The desired content of one table. A change of it is noted as a delta. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::element::frontend_of;
use super::lower::{FrontendState, lower};
use super::name::{ChainName, Class, FilledBy, KnownFacts, ServiceSet, ServiceTable};
use super::number::{Numbers, Owner};
use super::program;
use super::rule::{chain, dropped, rule};
use super::table_config::TableConfig;
use crate::why::Why;
use denizen_model::{Family, PodSet, family_of};
use denizen_nft::{
    Chain, Content, Delta, Element, Extent, Key, Observed, SetId, Value, comment_text,
};
use denizen_plan::{Frontend, FrontendAddress, FrontendKey, FrontendKind};

type Members = BTreeMap<Key, Option<Arc<str>>>;

/// The desired content of one table.
#[derive(Debug)]
pub struct Table {
    pub table_family: ServiceTable,
    pub known: KnownFacts,
    /// Frontends that were found in the kernel but are not desired.
    pub left_frontends: BTreeSet<FrontendKey>,
    config: TableConfig,
    keys: HashMap<FrontendKey, FrontendState>,
    /// How many frontends use each class.
    classes: BTreeMap<Class, usize>,
    numbers: Numbers,
    cluster_ips: HashMap<IpAddr, usize>,
    /// The addresses of [`Self::change_routed_addresses`].
    routed: BTreeSet<IpAddr>,
    members: BTreeMap<ServiceSet, Members>,
}

impl Table {
    /// An empty table.
    pub fn new(table_family: ServiceTable, config: TableConfig) -> Self {
        Self {
            table_family,
            known: KnownFacts::default(),
            left_frontends: BTreeSet::new(),
            config,
            keys: HashMap::new(),
            classes: BTreeMap::new(),
            numbers: Numbers::default(),
            cluster_ips: HashMap::new(),
            routed: BTreeSet::new(),
            members: BTreeMap::new(),
        }
    }

    /// Takes over the number by which an earlier run's clients remember an endpoint.
    pub fn restore_number(&mut self, owner: Owner, endpoint: SocketAddr, number: u32) {
        self.numbers.restore(owner, endpoint, number);
    }

    /// Whether the table is desired at all.
    pub fn is_wanted(&self) -> bool {
        match self.table_family {
            ServiceTable::Ip(_) => true,
            ServiceTable::Bridge => self.config.reads_ports(),
            ServiceTable::Arp => self.config.by_ipvs,
        }
    }

    /// The chains of a class.
    pub fn class_chains(&self, class: Class) -> Vec<Chain> {
        program::class_chains(self.table_family, class, &self.config.node_side)
    }

    /// Whether a service has session affinity.
    pub fn has_affinity(&self) -> bool {
        self.classes.keys().any(|class| class.affinity.is_some())
    }

    /// The number of desired elements of each set.
    pub fn sizes(&self) -> BTreeMap<ServiceSet, usize> {
        let mut sizes: BTreeMap<ServiceSet, usize> =
            ServiceSet::of(self.table_family).map(|set| (set, 0)).collect();
        let members = self.members.iter().map(|(set, members)| (*set, members.len()));
        sizes.extend(members);
        if let Some(size) = sizes.get_mut(&ServiceSet::ClusterIps) {
            *size = self.cluster_ips.len();
        }
        for (key, state) in &self.keys {
            for element in state.elements(key) {
                *sizes.entry(ServiceSet::of_id(element.set)).or_default() += 1;
            }
        }
        sizes
    }

    /// Every desired element, sorted.
    pub fn sorted_elements(&self) -> Vec<Element> {
        let mut elements: Vec<Element> = self.elements().collect();
        elements.sort_unstable_by_key(|element| (element.set, element.key));
        elements
    }

    /// Replaces what the constant rules depend on. Returns whether it differs.
    pub fn reconfigure(&mut self, config: TableConfig) -> bool {
        let differs = self.config != config;
        self.config = config;
        differs
    }

    /// Takes a changed frontend; `None` means that it is gone. Frontends of the other family are
    /// ignored.
    pub fn change_frontend(
        &mut self,
        key: FrontendKey,
        frontend: Option<&Frontend>,
        delta: &mut Delta,
    ) {
        if self.table_family != ServiceTable::Ip(key.family()) {
            return;
        }
        let now = self.keys.remove(&key);
        let wanted = frontend.map(|frontend| lower(frontend, now.as_ref(), &mut self.numbers));
        FrontendState::change(now.as_ref(), wanted.as_ref(), &key, delta);
        self.count_cluster_ip(&key, now.as_ref(), wanted.as_ref(), delta);
        if let Some(owner) = wanted.as_ref().and_then(|wanted| wanted.number_owner(&key)) {
            self.numbers.hold(&owner);
        }
        if let Some(owner) = now.as_ref().and_then(|now| now.number_owner(&key)) {
            self.numbers.release(owner);
        }
        for class in wanted.iter().flat_map(|wanted| wanted.classes(&key)) {
            self.use_class(class, delta);
        }
        for class in now.iter().flat_map(|now| now.classes(&key)) {
            self.leave_class(class, delta);
        }
        if let Some(wanted) = wanted {
            self.keys.insert(key, wanted);
        }
    }

    fn use_class(&mut self, class: Class, delta: &mut Delta) {
        if let Some(count) = self.classes.get_mut(&class) {
            *count += 1;
            return;
        }
        self.classes.insert(class, 1);
        delta.add_chains(self.class_chains(class));
    }

    /// Classes without session affinity stay: there are few, and their next user needs no chains.
    /// The others go with their last user, because each time-out is a class.
    fn leave_class(&mut self, class: Class, delta: &mut Delta) {
        let Some(count) = self.classes.get_mut(&class) else { return };
        *count -= 1;
        if *count == 0 && class.affinity.is_some() {
            self.classes.remove(&class);
            delta.left_over.extend(self.class_chains(class).into_iter().map(|chain| chain.name));
        }
    }

    fn count_cluster_ip(
        &mut self,
        key: &FrontendKey,
        now: Option<&FrontendState>,
        wanted: Option<&FrontendState>,
        delta: &mut Delta,
    ) {
        let FrontendAddress::Ip(ip) = key.address else { return };
        let is = |state: Option<&FrontendState>| {
            usize::from(state.is_some_and(|s| s.kind == FrontendKind::ClusterIp))
        };
        self.recount_cluster_ip(ip, is(wanted), is(now), delta);
    }

    /// Sets the addresses whose unused ports are refused even if no service has them. In ARP's
    /// table: the addresses for which ARP requests are not answered.
    pub fn change_routed_addresses(&mut self, addresses: &BTreeSet<IpAddr>, delta: &mut Delta) {
        if self.table_family == ServiceTable::Arp {
            let own = addresses.iter().filter(|ip| ip.is_ipv4());
            let wanted = own.map(|ip| (Key::EMPTY.address(*ip), None)).collect();
            return self.change_members(ServiceSet::VirtualIps, wanted, delta);
        }
        let wanted = addresses.iter().copied().filter(|ip| self.table_family.holds(*ip)).collect();
        let before = std::mem::replace(&mut self.routed, wanted);
        let new: Vec<IpAddr> = self.routed.difference(&before).copied().collect();
        new.into_iter().for_each(|ip| self.recount_cluster_ip(ip, 1, 0, delta));
        let gone: Vec<IpAddr> = before.difference(&self.routed).copied().collect();
        gone.into_iter().for_each(|ip| self.recount_cluster_ip(ip, 0, 1, delta));
    }

    fn recount_cluster_ip(&mut self, ip: IpAddr, more: usize, less: usize, delta: &mut Delta) {
        let count = self.cluster_ips.entry(ip).or_insert(0);
        let known = *count > 0;
        *count = *count + more - less;
        match (known, *count > 0) {
            (false, true) => delta.add.push(cluster_ip(ip)),
            (true, false) => {
                let key = (ServiceSet::ClusterIps.id(), Key::EMPTY.address(ip));
                delta.delete.push(key);
            }
            (false, false) | (true, true) => {}
        }
        if *count == 0 {
            self.cluster_ips.remove(&ip);
        }
    }

    /// Takes the local pods.
    pub fn change_pods(&mut self, pods: &PodSet, delta: &mut Delta) {
        let of_pods =
            ServiceSet::of(self.table_family).filter(|set| set.filled_by() == FilledBy::Pods);
        let mut wanted: BTreeMap<ServiceSet, Members> =
            of_pods.map(|set| (set, Members::new())).collect();
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

    /// The sets of this table that get an element for a pod's address; `by_port` if its port of a
    /// bridge must match.
    fn pod_sets(&self, ip: IpAddr, by_port: bool) -> &'static [ServiceSet] {
        match (self.table_family, family_of(ip)) {
            (ServiceTable::Ip(family), of_ip) if family != of_ip => &[],
            (ServiceTable::Ip(_), _) if by_port => {
                &[ServiceSet::LocalPods, ServiceSet::BridgedPods]
            }
            (ServiceTable::Ip(_), _) => &[ServiceSet::LocalPods],
            (ServiceTable::Arp, _) => &[],
            (ServiceTable::Bridge, _) if !by_port => &[],
            (ServiceTable::Bridge, Family::V4) => &[ServiceSet::PodPorts],
            (ServiceTable::Bridge, Family::V6) => &[ServiceSet::PodPorts6],
        }
    }

    /// Takes the addresses that may reach themselves through a service.
    pub fn change_hairpins(&mut self, addresses: impl Iterator<Item = IpAddr>, delta: &mut Delta) {
        let key = |ip| (Key::EMPTY.address(ip).address(ip), None);
        let wanted = addresses.filter(|ip| self.table_family.holds(*ip)).map(key).collect();
        self.change_members(ServiceSet::Hairpin, wanted, delta);
    }

    /// Takes the addresses that serve node ports, unless all of the node's own do.
    pub fn change_node_port_addresses(&mut self, addresses: &[IpAddr], delta: &mut Delta) {
        let ours = addresses.iter().filter(|ip| self.table_family.holds(**ip));
        let wanted = ours.map(|ip| (Key::EMPTY.address(*ip), None)).collect();
        self.change_members(ServiceSet::NodePortAddresses, wanted, delta);
    }

    fn change_members(&mut self, set: ServiceSet, wanted: Members, delta: &mut Delta) {
        let before = self.members.insert(set, wanted).unwrap_or_default();
        let wanted = &self.members[&set];
        let gone = before.iter().filter(|(key, comment)| wanted.get(key) != Some(*comment));
        delta.delete.extend(gone.map(|(key, _)| (set.id(), *key)));
        let new = wanted.iter().filter(|(key, comment)| before.get(key) != Some(*comment));
        let new = new.map(|(key, comment)| member(set, *key, comment.clone()));
        delta.add.extend(new);
    }
}

impl Content for Table {
    fn chains(&self) -> Vec<Chain> {
        let classes = self.classes.keys().flat_map(|class| self.class_chains(*class));
        program::chains(self.table_family, &self.config).into_iter().chain(classes).collect()
    }

    fn elements(&self) -> impl Iterator<Item = Element> {
        let of_frontends = self.keys.iter().flat_map(|(key, state)| state.elements(key));
        let members = self.members.iter().flat_map(|(set, members)| {
            let of_set = members.iter();
            of_set.map(|(key, comment)| member(*set, *key, comment.clone()))
        });
        let cluster_ips = self.cluster_ips.keys().map(|ip| cluster_ip(*ip));
        of_frontends.chain(members).chain(cluster_ips)
    }

    /// A range that grows or shrinks consists of other prefixes, and a packet looks up one length
    /// after another.
    fn is_garbage(&self, set: SetId, _key: &Key) -> bool {
        set == ServiceSet::AllowedSources.id()
    }

    /// An earlier run's services stay until all services are known. Until then pods are put into
    /// that run's sets.
    fn extent(&self) -> Extent {
        match self.table_family {
            ServiceTable::Ip(_) if !self.known.services => Extent::Partly { into_foreign: true },
            ServiceTable::Ip(_) | ServiceTable::Arp | ServiceTable::Bridge => Extent::Whole,
        }
    }

    fn covers(&self, set: SetId) -> bool {
        self.known.covers(ServiceSet::of_id(set))
    }

    /// The chain drops, instead of refusing, packets to unused ports. While the table is replaced,
    /// a packet in its chains finds the maps empty but the sets as they were (`nft_map_deactivate`
    /// in net/netfilter/nf_tables_api.c), so it would be refused as if no service had its port. It
    /// must not pass either: its connection would stay untranslated, and where the address is
    /// routed to this node for IPVS, a port of the node's own would answer.
    fn before_replacing(&self, seen: &Observed) -> Vec<Chain> {
        let name = ChainName::UnusedPort;
        if !seen.has_rules(&name.to_string()) {
            return Vec::new();
        }
        vec![chain(name, Why::UnusedPort, vec![rule(Why::LookupRaced, dropped())])]
    }

    fn review(&mut self, seen: &Observed, _delta: &mut Delta) -> usize {
        if self.known.services {
            let schema = self.table_family.schema();
            let keys = [ServiceSet::Services, ServiceSet::NodePorts].map(ServiceSet::id);
            let found = seen.elements().filter(|(set, ..)| keys.contains(set));
            let found = found.filter_map(|(set, key, ..)| {
                let family = ServiceSet::of_id(set).family(self.table_family);
                frontend_of(family, schema.set(set), &key)
            });
            self.left_frontends.extend(found.filter(|key| !self.keys.contains_key(key)));
        }
        0
    }
}

fn member(set: ServiceSet, key: Key, comment: Option<Arc<str>>) -> Element {
    Element { set: set.id(), key, value: Value::Member, comment }
}

pub(super) fn cluster_ip(ip: IpAddr) -> Element {
    member(ServiceSet::ClusterIps, Key::EMPTY.address(ip), None)
}
