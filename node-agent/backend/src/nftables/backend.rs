//! Implements `Backend` for nf_tables.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::net::{IpAddr, SocketAddr};

use tracing::debug;

use super::client::{clients, dropped};
use super::element::{frontend_of, protocol_and_number};
use super::name::{FilledBy, Group, KnownFacts, ServiceSet, ServiceTable, TABLE};
use super::table::Table;
use super::table_config::TableConfig;
use crate::{Backend, Figures, FrontendConnections, Repair, Report, SetSize};
use denizen_model::{Family, Protocol, family_of};
use denizen_netlink::NetlinkError;
use denizen_nft::{
    Content, Keeper, Kernel, NftError, Observed, RejectedElement, Rendering, Schema, TableFamily,
    Value, read_address, read_endpoint,
};
use denizen_plan::{Frontend, FrontendKey, NodePlan, Plan, PlanChanges};
use denizen_text::describe;

/// When a table is removed, the chains that choose services go first.
const CHOOSING: [&str; 2] = ["prerouting", "output"];

/// Renders a plan. Needs no kernel.
pub fn render(plan: &Plan) -> Rendering {
    let mut backend = Nftables::offline();
    backend.update(plan, &PlanChanges::from_nothing(plan));
    backend.rendering()
}

/// Maps a planned frontend to the frontend that is programmed: the same, or one with other
/// endpoints.
pub(crate) type Programmed<'a> = &'a dyn Fn(&Frontend) -> Cow<'_, Frontend>;

/// The nftables backend: the desired tables, and the kernel.
#[derive(Debug)]
pub struct Nftables<K = Kernel> {
    kernel: K,
    /// In the order in which they are programmed: the bridge's table before the IP tables, which
    /// read its mark, and after them if it is removed.
    pub(super) tables: Vec<KeptTable>,
}

/// A table, and its keeper.
#[derive(Debug)]
pub(super) struct KeptTable {
    table: Table,
    pub(super) keeper: Keeper,
}

/// Stands in for a [`Kernel`] if the rules are only rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoKernel;

impl Nftables {
    /// Opens nf_tables in this thread's network namespace. Nothing is read or written yet.
    ///
    /// # Errors
    /// [`NetlinkError`] if netlink cannot be opened.
    pub fn open() -> Result<Self, NetlinkError> {
        let mut backend = Self::of(Kernel::open()?, &ServiceTable::ALL);
        backend.restore_numbers();
        Ok(backend)
    }

    /// As [`Self::open`], for the bridge's table alone: for a backend whose IP rules are not in
    /// nf_tables. The table is not wanted before an update with a detector that needs ports.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_bridge() -> Result<Self, NftError> {
        let kernel = Kernel::open().map_err(NftError::Open)?;
        Ok(Self::of(kernel, &[ServiceTable::Bridge]))
    }

    /// Takes over the numbers of session affinity, so that an earlier run's clients stay with their
    /// endpoints.
    fn restore_numbers(&mut self) {
        for KeptTable { table, keeper } in &mut self.tables {
            let (table_family, schema) = (table.table_family, keeper.schema());
            let seen = remembered(&mut self.kernel, table_family, schema);
            for (id, key, value, comment) in seen.elements() {
                let family = ServiceSet::of_id(id).family(table_family);
                let ends = protocol_and_number(family, schema.set(id), &key);
                let endpoint = match value {
                    Some(Value::Data(data)) => read_endpoint(family, data),
                    Some(Value::Member | Value::Goto(_)) | None => None,
                };
                if let (Some((ip, port)), Some(owner), Some((protocol, number))) =
                    (endpoint, comment, ends)
                {
                    table.restore_number((owner.clone(), protocol), (ip, port).into(), number);
                }
            }
        }
    }

    /// A connection whose commits count as this backend's own.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn sibling_connection(&self) -> Result<Kernel, NetlinkError> {
        self.kernel.sibling_connection()
    }

    /// The portid by which the kernel's notifications name this backend's own changes.
    pub fn portid(&self) -> u32 {
        self.kernel.portid()
    }

    /// Removes all tables but those that are wanted here: what another backend, or another mode,
    /// left behind. ARP's stays until [`Self::remove_arp`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_others(&mut self) -> Result<usize, NftError> {
        let wanted = self.tables.iter().filter(|kept| kept.table.is_wanted());
        let wanted = wanted.map(|kept| kept.table.table_family);
        let wanted: Vec<ServiceTable> = wanted.chain([ServiceTable::Arp]).collect();
        remove_all(&mut self.kernel, &wanted)
    }

    /// Removes all tables but ARP's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_all_but_arp(kernel: &mut Kernel) -> Result<usize, NftError> {
        remove_all(kernel, &[ServiceTable::Arp])
    }

    /// Removes ARP's table, which the backend ipvs left. To be called when the addresses of virtual
    /// servers are no longer routed here, so that this node does not answer ARP requests for them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_arp(kernel: &mut Kernel) -> Result<usize, NftError> {
        let schema = ServiceTable::Arp.schema();
        Ok(usize::from(Keeper::remove_table(kernel, &schema, &CHOOSING)?))
    }
}

impl Nftables<NoKernel> {
    /// A backend without a kernel, which only renders.
    pub fn offline() -> Self {
        Self::of(NoKernel, &ServiceTable::ALL)
    }

    /// As [`Self::offline`], for the bridge's table alone.
    pub fn offline_bridge() -> Self {
        Self::of(NoKernel, &[ServiceTable::Bridge])
    }

    /// The rules that it would program.
    pub fn rendering(&self) -> Rendering {
        let wanted = self.tables.iter().filter(|kept| kept.table.is_wanted());
        wanted.fold(Rendering::empty(), |shown, KeptTable { table, keeper }| {
            shown.with(keeper.schema(), &table.chains(), &table.sorted_elements())
        })
    }
}

impl<K> Nftables<K> {
    fn of(kernel: K, table_families: &[ServiceTable]) -> Self {
        let tables = table_families.iter().copied().map(KeptTable::new).collect();
        let mut backend = Self { kernel, tables };
        backend.order();
        backend
    }

    fn order(&mut self) {
        // The order of families has the bridge first.
        self.tables.sort_by_key(|kept| (!kept.table.is_wanted(), kept.table.table_family));
    }

    /// Sets the constant part of each table from the plan of the node.
    fn configure(&mut self, node: &NodePlan) {
        for KeptTable { table, keeper } in &mut self.tables {
            let config = TableConfig::new(table.table_family, node);
            if table.reconfigure(config) {
                keeper.mark_unknown();
            }
        }
        self.order();
    }

    /// Takes a new plan. nf_tables itself balances all frontends.
    pub fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        self.update_as(plan, changes, &|frontend| Cow::Borrowed(frontend));
    }

    /// As [`Self::update`], with each changed frontend replaced by `programmed`. If the replacement
    /// of a frontend changes, the frontend must be in `changes`.
    pub fn update_as(&mut self, plan: &Plan, changes: &PlanChanges, programmed: Programmed<'_>) {
        if changes.node {
            self.configure(plan.node());
        }
        for kept in &mut self.tables {
            kept.update(plan, changes, programmed);
        }
    }

    /// Takes the addresses that are routed to this node for virtual servers. Their unused ports are
    /// refused even if no service has the address any more. Otherwise the node's own ports would
    /// answer.
    pub fn change_routed_addresses(&mut self, addresses: &BTreeSet<IpAddr>) {
        for KeptTable { table, keeper } in &mut self.tables {
            keeper.note(|delta| table.change_routed_addresses(addresses, delta));
        }
    }

    /// The number of desired elements of each set.
    pub fn sizes(&self) -> Vec<SetSize> {
        let of = |kept: &KeptTable| {
            let table_family = kept.table.table_family;
            let sizes = kept.table.sizes().into_iter();
            let sizes = sizes.filter(|(set, _)| set.filled_by() != FilledBy::Packets);
            sizes.map(move |(set, elements)| SetSize {
                family: set.family(table_family),
                set: set.to_string(),
                elements,
            })
        };
        self.tables.iter().flat_map(of).collect()
    }

    /// Whether any of its tables is wanted.
    pub fn is_wanted(&self) -> bool {
        self.tables.iter().any(|kept| kept.table.is_wanted())
    }

    /// Whether the plan's pods are in the kernel.
    pub fn has_pods(&self) -> bool {
        let mut wanted = self.tables.iter().filter(|kept| kept.table.is_wanted());
        wanted.all(|kept| kept.table.known.pods && kept.keeper.is_programmed())
    }
}

impl KeptTable {
    fn new(table_family: ServiceTable) -> Self {
        let table = Table::new(table_family, TableConfig::default());
        Self { table, keeper: Keeper::new(table_family.schema()) }
    }

    fn update(&mut self, plan: &Plan, changes: &PlanChanges, programmed: Programmed<'_>) {
        let Self { table, keeper } = self;
        let pods = plan.pods().filter(|_| changes.pods);
        let known = KnownFacts {
            pods: table.known.pods || pods.is_some(),
            services: table.known.services || plan.services().is_some(),
        };
        if std::mem::replace(&mut table.known, known) != known {
            keeper.mark_unknown();
        }
        if let Some(pods) = pods {
            keeper.note(|delta| table.change_pods(pods, delta));
        }
        match table.table_family {
            ServiceTable::Ip(_) => self.update_services(plan, changes, programmed),
            // These tables have no frontends.
            ServiceTable::Arp | ServiceTable::Bridge => {}
        }
    }

    fn update_services(&mut self, plan: &Plan, changes: &PlanChanges, programmed: Programmed<'_>) {
        let Self { table, keeper } = self;
        if changes.node {
            let node_ports = &plan.node().node_ports;
            let listed = |ip: &&IpAddr| !node_ports.are_everywhere(family_of(**ip));
            let listed: Vec<IpAddr> = node_ports.addresses.iter().filter(listed).copied().collect();
            keeper.note(|delta| table.change_node_port_addresses(&listed, delta));
        }
        let Some(services) = plan.services() else {
            return;
        };
        for key in &changes.frontends {
            let frontend = services.frontend(key).map(programmed);
            keeper.note(|delta| table.change_frontend(*key, frontend.as_deref(), delta));
        }
        if changes.hairpins {
            keeper.note(|delta| {
                table.change_hairpins(services.hairpins().iter().copied(), delta);
            });
        }
    }

    fn rejected_at(&self, frontend: &FrontendKey) -> impl Iterator<Item = String> {
        let is_at = |rejected: &&RejectedElement| {
            let family = ServiceSet::of_id(rejected.set).family(self.table.table_family);
            let set = self.keeper.schema().set(rejected.set);
            frontend_of(family, set, &rejected.key) == Some(*frontend)
        };
        let rejected = self.keeper.rejected().iter();
        rejected.filter(is_at).map(|rejected| rejected.text.clone()).collect::<Vec<_>>().into_iter()
    }
}

impl Backend for Nftables {
    type Error = NftError;

    fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        Self::update(self, plan, changes);
    }

    /// A table that is not wanted is removed once the others are programmed. An earlier run's
    /// bridge table stays until all services are known, because that run's IP tables, which may
    /// read its mark, stay until then too.
    fn sync(&mut self) -> Result<Repair, NftError> {
        let Self { kernel, tables } = self;
        let (wanted, others): (Vec<_>, Vec<_>) =
            tables.iter_mut().partition(|kept| kept.table.is_wanted());
        let wanted = wanted.into_iter().map(|kept| (&mut kept.keeper, &mut kept.table));
        let mut repair = Keeper::sync(kernel, &mut wanted.collect::<Vec<_>>())?;
        for KeptTable { table, keeper } in others {
            // `Self::remove_arp` removes an earlier run's ARP table, after that run's virtual
            // servers.
            if table.table_family != ServiceTable::Arp && table.known.services {
                repair = repair + keeper.remove(kernel, &CHOOSING)?;
            }
        }
        Ok(repair)
    }

    fn resync(&mut self) -> Result<Repair, NftError> {
        let Self { kernel, tables } = self;
        let now = kernel.now();
        tables.iter_mut().for_each(|kept| kept.keeper.check(now));
        self.sync()
    }

    fn report(&mut self) -> Report {
        let tables = self.tables.iter_mut();
        let left = tables.flat_map(|kept| std::mem::take(&mut kept.table.left_frontends)).collect();
        Report { has_pods: self.has_pods(), left_frontends: left, ..Report::default() }
    }

    fn figures(&mut self) -> Figures {
        let mut figures = Figures { sizes: self.sizes(), ..Figures::default() };
        let Self { kernel, tables } = self;
        let counts = tables.iter().map(|kept| (kept.keeper.schema(), &kept.table));
        match dropped(kernel, counts) {
            Ok((drops, missed)) => {
                (figures.drops, figures.missed_lookups) = (Some(drops), missed);
            }
            Err(error) => figures.errors.push(describe(&error)),
        }
        match connections(kernel) {
            Ok(connections) => figures.connections = connections,
            Err(error) => figures.errors.push(describe(&error)),
        }
        match clients(kernel, tables.iter().map(|kept| (kept.keeper.schema(), &kept.table))) {
            Ok(affinity) => figures.affinity = affinity,
            Err(error) => figures.errors.push(describe(&error)),
        }
        figures
    }

    fn sample_drops(&mut self, on: bool) -> bool {
        for KeptTable { table, keeper } in &mut self.tables {
            // Dropped ARP messages are of no interest.
            keeper.sample_drops(on && table.table_family != ServiceTable::Arp);
        }
        true
    }

    fn rejected(&self, frontend: &Frontend) -> Vec<String> {
        self.tables.iter().flat_map(|kept| kept.rejected_at(&frontend.key)).collect()
    }

    /// Everything is programmed at once.
    async fn wait(&mut self) {
        pending().await
    }
}

/// Connections to services, as rules count them; none without `--service-metrics`.
fn connections(kernel: &mut Kernel) -> Result<BTreeMap<FrontendConnections, u64>, NetlinkError> {
    let mut connections = BTreeMap::new();
    for family in Family::BOTH {
        let set = ServiceSet::ServiceConnections.as_str();
        let elements = kernel.counted_elements(TableFamily::from(family), TABLE, set)?;
        connections.extend(elements.iter().filter_map(|element| {
            // The key of `COUNTED`: each field is padded to whole 32-bit words.
            let bytes = element.key.as_bytes();
            let protocol = Protocol::from_number(*bytes.first()?)?;
            let port = u16::from_be_bytes(*bytes.get(4..6)?.first_chunk()?);
            let at = SocketAddr::new(read_address(family, bytes.get(8..)?)?, port);
            Some((FrontendConnections { at, protocol }, element.packets))
        }));
    }
    Ok(connections)
}

/// The endpoints that clients of services with session affinity are remembered with. None if the
/// table or a set does not exist.
fn remembered(kernel: &mut Kernel, table_family: ServiceTable, schema: &Schema) -> Observed {
    let mut seen = Observed::default();
    let of_groups = Group::ALL.map(Group::affinity_endpoints);
    for set in ServiceSet::of(table_family).filter(|set| of_groups.contains(set)) {
        if let Err(error) = kernel.read_set(schema, schema.set(set.id()), &mut seen) {
            debug!(family = %schema.family, %set, %error, "no clients are remembered from an earlier run");
        }
    }
    seen
}

/// Removes all tables except these. Returns how many there were.
fn remove_all(kernel: &mut Kernel, but: &[ServiceTable]) -> Result<usize, NftError> {
    let mut removed = 0;
    // In reverse order: the IP tables read the mark of the bridge's table, which goes last.
    let others = ServiceTable::ALL.into_iter().rev().filter(|table| !but.contains(table));
    for table_family in others {
        let schema = table_family.schema();
        removed += usize::from(Keeper::remove_table(kernel, &schema, &CHOOSING)?);
    }
    Ok(removed)
}
