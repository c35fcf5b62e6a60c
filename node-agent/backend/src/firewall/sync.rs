//! Brings the kernel's tables to what is decided, and keeps them there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use thiserror::Error;
use tracing::{debug, info};

use super::attached::Attached;
use super::bridge;
use super::element::{
    all, of_block, of_identity, of_interfaces, of_sides, of_surroundings, of_taken,
};
use super::neighbour::{drop_waiting, restricted};
use super::number::Numbers;
use super::program;
use super::records::Records;
use super::report::{Dropped, FirewallReport};
use super::schema::schema;
use crate::Repair;
use denizen_model::{Family, family_of};
use denizen_netlink::NetlinkError;
use denizen_nft::{Delta, Element, Kernel, Mark, NftError, Rendering, Schema, TableFamily};
use denizen_plan::{FirewallPlan, FirewallSettings, Isolation, Plan, PlanChanges, Sides};
use denizen_text::describe;

/// Why the kernel's tables are not as they should be.
#[derive(Debug, Error)]
pub enum FirewallError {
    /// It cannot be read or written.
    #[error(transparent)]
    Driver(#[from] NftError),
    /// Netlink cannot be opened.
    #[error("cannot open netlink to nf_tables")]
    Netlink(#[from] NetlinkError),
    /// Nobody but its owner may change the table.
    #[error("nf_tables, {0} table: it is owned by another process (netlink portid {1})")]
    Owned(TableFamily, u32),
    /// A table of another version is there, and policies are not known yet: in its place, nobody
    /// would be isolated.
    #[error(
        "nf_tables, {0} table: the table of another version stays until all policies are known"
    )]
    OlderTable(TableFamily),
    /// Everything was programmed but these.
    #[error("nf_tables, {family} table: the kernel refused {}", names.join("; "))]
    Parts {
        /// Whose table.
        family: TableFamily,
        /// What was refused, and why.
        names: Vec<String>,
    },
}

/// The pod firewall's tables, and the kernel that they are in.
#[derive(Debug)]
pub struct Firewall {
    pub(super) kernel: Kernel,
    /// When each table was last read and found right, or repaired.
    pub(super) looked: BTreeMap<TableFamily, Mark>,
    pub(super) numbers: Numbers,
    /// An earlier run's numbers were looked for.
    pub(super) restored: bool,
    /// What the kernel holds is not known: nothing was read yet, or a batch failed.
    pub(super) unknown: bool,
    pub(super) records: Records,
    /// The kernel has an isolated pod whose record has not been read: it is compared again.
    pub(super) has_unread: bool,
    /// What is not in the kernel yet, by table.
    pub(super) pending: BTreeMap<TableFamily, Delta>,
    /// What changes as a whole, as it was written last: what is there for recorded pods.
    pub(super) interfaces: BTreeMap<TableFamily, Vec<Element>>,
    /// The same of what is there for nodes, bridges and tunnels.
    pub(super) surroundings: BTreeMap<TableFamily, Vec<Element>>,
    /// How pods were attached when this was last updated.
    attached: Attached,
    /// Bridges whose frames IP rules do not see.
    pub(super) without_netfilter: BTreeSet<Arc<str>>,
    pub(super) elements: usize,
    pub(super) rejected: Vec<String>,
    /// Somebody watches what is dropped.
    pub(super) samples_drops: bool,
    /// Addresses of restricted pods that everything could reach until now, or that were others'.
    newcomers: Vec<(Arc<str>, IpAddr)>,
}

impl Firewall {
    /// Through this connection to nf_tables. Nothing is read or written yet.
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            looked: BTreeMap::new(),
            numbers: Numbers::default(),
            restored: false,
            unknown: true,
            records: Records::default(),
            has_unread: false,
            pending: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            surroundings: BTreeMap::new(),
            attached: Attached::default(),
            without_netfilter: BTreeSet::new(),
            elements: 0,
            rejected: Vec::new(),
            samples_drops: false,
            newcomers: Vec::new(),
        }
    }

    /// With a way to read which pods are recorded.
    pub fn with_records(self, records: Records) -> Self {
        Self { records, ..self }
    }

    /// The portid by which the kernel's notifications name the firewall's own changes.
    pub fn portid(&self) -> u32 {
        self.kernel.portid()
    }

    /// Removes all tables. Returns how many there were.
    ///
    /// # Errors
    /// The kernel's.
    pub fn cleanup(kernel: &mut Kernel) -> Result<usize, NftError> {
        let mut removed = 0;
        for schema in schemas() {
            if kernel.observe(&schema)?.is_there() {
                kernel.write(schema.family, |batch| batch.delete_table(schema.name))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// The bridges that restricted pods are on and whose frames IP rules do not see. Returns
    /// whether that changes the rules.
    pub fn set_without_netfilter(&mut self, bridges: BTreeSet<Arc<str>>) -> bool {
        let differs = self.without_netfilter != bridges;
        self.unknown |= differs;
        self.without_netfilter = bridges;
        differs
    }

    /// Shows packets that are dropped ([`denizen_nft::sampled`]), or no longer, from the next
    /// [`Self::sync`] on.
    pub fn sample_drops(&mut self, on: bool) {
        self.unknown |= std::mem::replace(&mut self.samples_drops, on) != on;
    }

    /// The bridges that restricted pods are on and whose frames IP rules do not see.
    pub fn without_netfilter(&self) -> impl Iterator<Item = &str> {
        self.without_netfilter.iter().map(|bridge| &**bridge)
    }

    /// Takes in what is wanted. Nothing is read or written.
    pub fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        let Some(firewall) = plan.firewall() else { return };
        let of_firewall = &changes.firewall;
        if !changes.pods && of_firewall.is_empty() {
            return;
        }
        self.note_newcomers(plan, changes);
        let attached = Attached::of(plan.recorded());
        self.unknown |= std::mem::replace(&mut self.attached, attached) != attached;
        self.unknown |= of_firewall.state || !firewall.is_known();
        if self.unknown || !firewall.is_enforced() {
            self.numbers.retire(&of_firewall.forgotten);
            return;
        }
        self.add_changes(plan, firewall, changes);
    }

    fn note_newcomers(&mut self, plan: &Plan, changes: &PlanChanges) {
        let was_open = |sides: &Sides| sides.ingress.isolation == Isolation::Open;
        let all = changes.firewall.sides.iter();
        let isolated = all.filter(|change| change.before.as_ref().is_none_or(was_open));
        let handed_over = changes.firewall.departed.iter().copied();
        self.newcomers.extend(restricted(plan, isolated.map(|it| it.address).chain(handed_over)));
    }

    fn add_changes(&mut self, plan: &Plan, firewall: &FirewallPlan, changes: &PlanChanges) {
        let of_firewall = &changes.firewall;
        let known = |numbers: &Numbers, id| numbers.known(id).unwrap_or_default();
        let before: Vec<Vec<Element>> = of_firewall
            .sides
            .iter()
            .map(|change| {
                let sides = change.before.as_ref();
                sides.map_or_else(Vec::new, |sides| {
                    of_sides(change.address, sides, &mut |id| known(&self.numbers, id))
                })
            })
            .collect();
        self.numbers.retire(&of_firewall.forgotten);
        let Self { numbers, pending, .. } = self;
        let mut delta = |address: IpAddr, before, after| {
            let family = TableFamily::from(family_of(address));
            pending.entry(family).or_default().extend(before, after);
        };
        for (change, before) in of_firewall.sides.iter().zip(before) {
            let sides = change.after.as_ref();
            let after = sides.map_or_else(Vec::new, |sides| {
                of_sides(change.address, sides, &mut |id| numbers.number(id))
            });
            delta(change.address, before, after);
        }
        for change in &of_firewall.identities {
            let element = |number| of_identity(change.of, number);
            // The old number is not compared: it is another one.
            let before = change.before.map(|_| element(0));
            let after = change.after.map(|id| element(numbers.number(id)));
            delta(change.of, Vec::from_iter(before), Vec::from_iter(after));
        }
        for change in &of_firewall.blocks {
            let element = |number| of_block(change.of, number);
            let before = change.before.map(|_| element(0));
            let after = change.after.map(|id| element(numbers.number(id)));
            delta(change.of.first, Vec::from_iter(before), Vec::from_iter(after));
        }
        let attached = self.attached;
        for (address, is_taken) in &of_firewall.taken {
            let of_bridges = bridge::of_taken(*address).into_iter().filter(|_| attached.bridged);
            let of_family = [of_taken(*address)].into_iter().filter(|_| attached.routed);
            for (family, elements) in [
                (TableFamily::Bridge, of_bridges.collect::<Vec<_>>()),
                (family_of(*address).into(), of_family.collect()),
            ] {
                let (before, after) =
                    if *is_taken { (Vec::new(), elements) } else { (elements, Vec::new()) };
                self.pending.entry(family).or_default().extend(before, after);
            }
        }
        if of_firewall.surroundings {
            let all = surroundings(firewall);
            replace(&mut self.surroundings, &mut self.pending, all);
        }
        if changes.pods || of_firewall.owners || !of_firewall.sides.is_empty() {
            let all = self.of_interfaces(plan, firewall);
            replace(&mut self.interfaces, &mut self.pending, all);
        }
    }

    /// What is few enough to be compared as a whole.
    pub(super) fn of_interfaces(
        &self,
        plan: &Plan,
        firewall: &FirewallPlan,
    ) -> Vec<(TableFamily, Vec<Element>)> {
        let pods = plan.recorded();
        let mut all: Vec<_> = Family::BOTH
            .map(|version| (TableFamily::from(version), of_interfaces(firewall, pods, version)))
            .into();
        all.push((TableFamily::Bridge, bridge::of_pods(firewall, pods, &self.without_netfilter)));
        all
    }

    /// Programs what is wanted. After an error, call it again: it starts from what it observes.
    ///
    /// # Errors
    /// The kernel's. What it takes is programmed.
    pub fn sync(&mut self, plan: &Plan) -> Result<Repair, FirewallError> {
        let Some(firewall) = plan.firewall() else { return Ok(Repair::default()) };
        let repair = self.write(plan, firewall)?;
        drop_waiting(&std::mem::take(&mut self.newcomers));
        Ok(repair)
    }

    fn write(&mut self, plan: &Plan, firewall: &FirewallPlan) -> Result<Repair, FirewallError> {
        if firewall.is_left_open() {
            return self.release_pending();
        }
        if !firewall.is_known() {
            return self.add_pending(firewall);
        }
        if self.unknown {
            return self.reconcile(plan, firewall);
        }
        match self.commit(firewall) {
            Err(NftError::Refused { .. }) => self.reconcile(plan, firewall),
            Err(error) => {
                self.unknown = true;
                Err(error.into())
            }
            Ok(()) => Ok(Repair::default()),
        }
    }

    /// The connections of these addresses' former pods are deleted. Packets that they let through
    /// until then do not reach the pods that have the addresses now.
    pub fn departed_are_gone(&self, plan: &Plan, departed: impl Iterator<Item = IpAddr>) {
        drop_waiting(&restricted(plan, departed).collect::<Vec<_>>());
    }

    /// Notes that another program changed a table: the next [`Self::resync`] reads all of them,
    /// whatever the ruleset's generation says. (A batch of ours that adds what the plugin had added
    /// changes nothing, and raises no generation.)
    pub fn disturbed(&mut self) {
        self.looked.clear();
    }

    /// Looks at what the kernel holds and repairs what somebody else changed.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn resync(&mut self, plan: &Plan) -> Result<Repair, FirewallError> {
        let Self { kernel, looked, .. } = self;
        let mut marks = schemas().map(|schema| looked.get(&schema.family).copied()).into_iter();
        // As for services: reading is expensive.
        let is_right = marks.all(|mark| mark.is_some_and(|mark| kernel.is_undisturbed(mark)));
        self.unknown |= !is_right;
        self.sync(plan)
    }

    /// Whether this node's pods are in the kernel as they are wanted.
    pub fn has_pods(&self) -> bool {
        !self.unknown && self.pending.is_empty()
    }

    /// How it stands, for whoever asks now and then.
    pub fn report(&mut self, plan: &Plan) -> FirewallReport {
        let mut report = FirewallReport {
            elements: self.elements,
            waiting: self.pending.values().map(Delta::count).sum(),
            rejected: self.rejected.clone(),
            ..FirewallReport::default()
        };
        let Some(firewall) = plan.firewall().filter(|firewall| firewall.is_enforced()) else {
            return report;
        };
        let mut dropped = Dropped::default();
        let ip = Family::BOTH.map(|it| (schema(it), program::chains(it, firewall)));
        for (schema, chains) in ip.into_iter().chain([(bridge::schema(), bridge::chains(firewall))])
        {
            if let Err(error) = dropped.add(&mut self.kernel, &schema, &chains) {
                report.errors.push(describe(&error));
            }
        }
        report.dropped = dropped;
        report
    }
}

/// Whether the kernel accepts the tables. Nothing is changed.
///
/// # Errors
/// What the kernel refused, or cannot be asked.
pub fn probe(settings: FirewallSettings) -> Result<(), FirewallError> {
    let mut kernel = Kernel::open()?;
    let ip = Family::BOTH.map(|it| (schema(it), program::all(it, settings)));
    for (schema, chains) in ip.into_iter().chain([(bridge::schema(), bridge::all())]) {
        let seen = kernel.observe(&schema)?;
        match seen.owner() {
            Some(owner) => return Err(FirewallError::Owned(schema.family, owner)),
            // The kernel accepted it.
            None if seen.is_there() => {}
            None => kernel.try_table(&schema, &chains)?,
        }
    }
    Ok(())
}

/// Removes the tables of a run that had the firewall on. Returns whether there were any.
pub fn remove_left_over() -> bool {
    let removed = Kernel::open()
        .map_err(|error| describe(&error))
        .and_then(|mut kernel| Firewall::cleanup(&mut kernel).map_err(|error| describe(&error)));
    let tables = removed.unwrap_or_else(|error| {
        debug!(error, "cannot look for tables of the pod firewall");
        0
    });
    if tables > 0 {
        info!(tables, "NetworkPolicies are enforced no more: their tables are removed");
    }
    tables > 0
}

/// What is there for nodes, bridges and tunnels, by table.
pub(super) fn surroundings(firewall: &FirewallPlan) -> Vec<(TableFamily, Vec<Element>)> {
    let ip = Family::BOTH.map(|it| (TableFamily::from(it), of_surroundings(firewall, it)));
    ip.into_iter().chain([(TableFamily::Bridge, bridge::of_surroundings(firewall))]).collect()
}

/// Notes the difference between what was written of each table and what should be there.
fn replace(
    written: &mut BTreeMap<TableFamily, Vec<Element>>,
    pending: &mut BTreeMap<TableFamily, Delta>,
    wanted: Vec<(TableFamily, Vec<Element>)>,
) {
    for (family, mut after) in wanted {
        // Two records may have one interface.
        after.sort_unstable_by_key(|element| (element.set, element.key));
        after.dedup_by_key(|element| (element.set, element.key));
        let before = written.insert(family, after.clone()).unwrap_or_default();
        pending.entry(family).or_default().extend(before, after);
    }
}

pub(super) fn schemas() -> [Schema; 3] {
    [schema(Family::V4), schema(Family::V6), bridge::schema()]
}

/// The tables that a plan comes to. Needs no kernel.
pub fn render(plan: &Plan) -> Rendering {
    let Some(firewall) = plan.firewall() else { return Rendering::empty() };
    let (pods, mut numbers) = (plan.recorded(), Numbers::default());
    let mut shown = Rendering::empty();
    for version in Family::BOTH {
        let elements = all(firewall, pods, version, &mut |id| numbers.number(id));
        shown = shown.with(&schema(version), &program::chains(version, firewall), &elements);
    }
    let elements = bridge::elements(firewall, pods, &BTreeSet::new());
    shown.with(&bridge::schema(), &bridge::chains(firewall), &elements)
}
