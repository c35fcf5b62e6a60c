//! Brings the kernel's tables to the plan, and keeps them there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tracing::{debug, info};

use super::attached::Attached;
use super::bridge;
use super::element::{
    all, of_block, of_identity, of_pod_rules, of_taken, permitted_sets_of, sorted,
};
use super::neighbour::{drop_waiting, restricted};
use super::noted::{note, of_each, replace};
use super::number::Numbers;
use super::pod_elements::{ElementChanges, PodElements, of_pod};
use super::records::Records;
use super::report::FirewallReport;
use super::schema::{FirewallScope, FirewallSet};
use super::table::{FirewallContent, FirewallTable};
use denizen_model::{Family, LocalPod, family_of};
use denizen_nft::{Element, Keeper, Kernel, NftError, Observed, Rendering, Repair, TableFamily};
use denizen_plan::{
    FirewallChanges, FirewallPlan, FirewallSettings, Isolation, Plan, PlanChanges, PodRules,
    PodRulesChange,
};
use denizen_text::describe;

/// The pod firewall: the desired tables, and the kernel.
#[derive(Debug)]
pub struct Firewall {
    kernel: Kernel,
    pub(super) keepers: BTreeMap<TableFamily, Keeper>,
    /// The scope that each table is declared for.
    scopes: BTreeMap<TableFamily, FirewallScope>,
    numbers: Numbers,
    /// An earlier run's numbers have been read.
    is_restored: bool,
    /// All that was noted is in the kernel.
    is_programmed: bool,
    records: Records,
    of_pods: PodElements,
    /// The elements of nodes, bridges and tunnels, as noted last.
    surroundings: BTreeMap<TableFamily, Vec<Element>>,
    /// The elements of port sets, as noted last.
    permitted_sets: BTreeMap<TableFamily, Vec<Element>>,
    /// How pods were attached when this was last updated.
    attached: Attached,
    /// Bridges whose frames IP rules do not see.
    unfiltered_bridges: BTreeSet<Arc<str>>,
    /// Addresses of restricted pods that everything could reach until now, or that another pod had.
    newcomers: Vec<(Arc<str>, IpAddr)>,
}

impl Firewall {
    /// A firewall with this connection to nf_tables. Nothing is read or written yet.
    pub fn new(kernel: Kernel) -> Self {
        const SCOPE: FirewallScope = FirewallScope::Idle;
        let kept = |table: FirewallTable| (table.family(), Keeper::new(table.schema(SCOPE)));
        Self {
            kernel,
            keepers: FirewallTable::ALL.map(kept).into(),
            scopes: FirewallTable::ALL.map(|table| (table.family(), SCOPE)).into(),
            numbers: Numbers::default(),
            is_restored: false,
            is_programmed: false,
            records: Records::default(),
            of_pods: PodElements::default(),
            surroundings: BTreeMap::new(),
            permitted_sets: BTreeMap::new(),
            attached: Attached::default(),
            unfiltered_bridges: BTreeSet::new(),
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
        for table in FirewallTable::ALL {
            removed +=
                usize::from(Keeper::remove_table(kernel, &table.schema(FirewallScope::Idle), &[])?);
        }
        Ok(removed)
    }

    /// Gives the tables the sets of this scope, and no others.
    fn set_scope(&mut self, scope: FirewallScope) {
        FirewallTable::ALL.into_iter().for_each(|table| self.set_scope_of(table, scope));
    }

    /// Makes a new schema only if the scope changes: a schema is large.
    fn set_scope_of(&mut self, table: FirewallTable, scope: FirewallScope) {
        if self.scopes.insert(table.family(), scope) != Some(scope)
            && let Some(keeper) = self.keepers.get_mut(&table.family())
        {
            keeper.set_schema(table.schema(scope));
        }
    }

    /// Takes over the scope of an earlier run's tables, which stay until policies are known.
    fn find_scope(&mut self, firewall: &FirewallPlan) -> Result<(), NftError> {
        for table in FirewallTable::ALL {
            let mut found = FirewallScope::Idle;
            for scope in FirewallScope::ALL {
                let (schema, chains) = (table.schema(scope), table.chains(firewall, scope));
                if self.kernel.observe(&schema)?.structure(&schema, &chains).is_some() {
                    found = scope;
                    break;
                }
            }
            self.set_scope_of(table, found);
        }
        Ok(())
    }

    fn mark_unknown(&mut self) {
        self.is_programmed = false;
        self.keepers.values_mut().for_each(Keeper::mark_unknown);
    }

    /// Sets the bridges of restricted pods whose frames IP rules do not see. Returns whether that
    /// changes the rules.
    pub fn set_unfiltered_bridges(&mut self, bridges: BTreeSet<Arc<str>>) -> bool {
        let differs = self.unfiltered_bridges != bridges;
        if differs {
            self.mark_unknown();
        }
        self.unfiltered_bridges = bridges;
        differs
    }

    /// Turns on or off, with the next [`Self::sync`], that rules show the packets that they drop
    /// ([`denizen_nft::sampled`]).
    pub fn sample_drops(&mut self, on: bool) {
        self.keepers.values_mut().for_each(|keeper| keeper.sample_drops(on));
        self.is_programmed &= !self.is_unknown();
    }

    /// The bridges that restricted pods are on and whose frames IP rules do not see.
    pub fn unfiltered_bridges(&self) -> impl Iterator<Item = &str> {
        self.unfiltered_bridges.iter().map(|bridge| &**bridge)
    }

    fn is_unknown(&self) -> bool {
        self.keepers.values().any(Keeper::is_unknown)
    }

    /// Takes a new plan. Nothing is read or written.
    pub fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        let Some(firewall) = plan.firewall() else { return };
        let of_firewall = &changes.firewall;
        if !changes.pods && of_firewall.is_empty() {
            return;
        }
        self.is_programmed = false;
        self.note_newcomers(plan, changes);
        if firewall.is_known() {
            self.set_scope(FirewallScope::of(firewall));
        }
        let attached = Attached::of(plan.recorded());
        let differs = std::mem::replace(&mut self.attached, attached) != attached;
        if differs || of_firewall.state || !firewall.is_known() {
            self.mark_unknown();
        }
        if self.is_unknown() || !firewall.is_enforced() {
            self.numbers.retire(&of_firewall.forgotten);
            return;
        }
        self.note_changes(plan, firewall, changes);
    }

    fn note_newcomers(&mut self, plan: &Plan, changes: &PlanChanges) {
        let was_open = |pod_rules: &PodRules| pod_rules.ingress.isolation == Isolation::Open;
        let all = changes.firewall.pod_rules.iter();
        let isolated = all.filter(|change| change.before.as_ref().is_none_or(was_open));
        let isolated = isolated.map(|change| change.address);
        let handed_over = changes.firewall.departed.iter().copied();
        self.newcomers.extend(restricted(plan, isolated.chain(handed_over)));
    }

    fn note_changes(&mut self, plan: &Plan, firewall: &FirewallPlan, changes: &PlanChanges) {
        let of_firewall = &changes.firewall;
        self.note_pod_rules(of_firewall);
        self.note_identities(of_firewall);
        if firewall.has_tiers() && !of_firewall.pod_rules.is_empty() {
            self.numbers.retire_permitted_sets(&permitted_sets_of(firewall, None));
            let all = of_each(|table| table.of_permitted_sets(firewall, &self.numbers));
            replace(&mut self.permitted_sets, &mut self.keepers, all);
        }
        self.note_taken(of_firewall);
        if of_firewall.surroundings {
            let all = of_each(|table| table.of_surroundings(firewall));
            replace(&mut self.surroundings, &mut self.keepers, all);
        }
        self.note_pods(plan, firewall, changes);
    }

    /// Notes how the addresses of this node's pods are judged, and retires the numbers of
    /// identities that are gone. The elements from before the change still have these numbers, so
    /// they are made first.
    fn note_pod_rules(&mut self, changes: &FirewallChanges) {
        let of = |pod_rules: Option<&PodRules>, others, address, numbers: &Numbers| {
            pod_rules.map_or_else(Vec::new, |pod_rules| {
                of_pod_rules(address, pod_rules, others, numbers)
            })
        };
        let before = changes.pod_rules.iter().map(|PodRulesChange { address, before, after }| {
            of(before.as_ref(), after.as_ref(), *address, &self.numbers)
        });
        let before: Vec<Vec<Element>> = before.collect();
        let Self { numbers, keepers, .. } = self;
        numbers.retire(&changes.forgotten);
        for (PodRulesChange { address, before: pod_rules, after }, before) in
            changes.pod_rules.iter().zip(before)
        {
            after.iter().for_each(|after| numbers.assign_peers(after, pod_rules.as_ref()));
            let after = of(after.as_ref(), pod_rules.as_ref(), *address, numbers);
            note(keepers, family_of(*address), before, after);
        }
    }

    /// Notes the identities of addresses and of ranges.
    fn note_identities(&mut self, changes: &FirewallChanges) {
        let Self { numbers, keepers, .. } = self;
        for change in &changes.identities {
            // The old element's number does not matter: only its key is used.
            let before = change.before.map(|_| of_identity(change.of, 0));
            let after = change.after.map(|id| of_identity(change.of, numbers.assigned(id)));
            note(keepers, family_of(change.of), before, after);
        }
        for change in &changes.blocks {
            let before = change.before.map(|_| of_block(change.of, 0));
            let after = change.after.map(|id| of_block(change.of, numbers.assigned(id)));
            note(keepers, family_of(change.of.first), before, after);
        }
    }

    /// Notes which addresses only their owner may send from, in the tables that check sources.
    fn note_taken(&mut self, changes: &FirewallChanges) {
        let Attached { bridged, routed } = self.attached;
        for (address, is_taken) in &changes.taken {
            let of_bridges = bridge::of_taken(*address).into_iter().filter(|_| bridged);
            let of_family = [of_taken(*address)].into_iter().filter(|_| routed);
            for (family, elements) in [
                (TableFamily::Bridge, of_bridges.collect::<Vec<_>>()),
                (family_of(*address).into(), of_family.collect()),
            ] {
                let (before, after) =
                    if *is_taken { (Vec::new(), elements) } else { (elements, Vec::new()) };
                note(&mut self.keepers, family, before, after);
            }
        }
    }

    /// Notes what the tables hold for recorded pods that a change concerns.
    fn note_pods(&mut self, plan: &Plan, firewall: &FirewallPlan, changes: &PlanChanges) {
        let (records, owners) = (&changes.records, &changes.firewall.owners);
        let isolated =
            changes.firewall.pod_rules.iter().filter(|change| change.changes_isolation());
        let isolated: BTreeSet<IpAddr> = isolated.map(|change| change.address).collect();
        if records.is_empty() && owners.is_empty() && isolated.is_empty() {
            return;
        }
        let is_concerned = |pod: &&LocalPod| {
            records.contains(&pod.id)
                || owners.contains(&pod.id)
                || pod.ips.iter().any(|ip| isolated.contains(ip))
        };
        let Self { of_pods, keepers, unfiltered_bridges, .. } = self;
        let mut changed = of_pods.remove_all(records);
        for pod in plan.recorded().iter().filter(is_concerned) {
            of_pods.replace(&pod.id, of_pod(firewall, pod, unfiltered_bridges), &mut changed);
        }
        changed.note(keepers);
    }

    /// Programs the plan. After an error, call it again: it starts from what it observes.
    ///
    /// # Errors
    /// The kernel's. All that it accepts is programmed.
    pub fn sync(&mut self, plan: &Plan) -> Result<Repair, NftError> {
        let Some(firewall) = plan.firewall() else { return Ok(Repair::default()) };
        let repair = self.write(plan, firewall)?;
        drop_waiting(&std::mem::take(&mut self.newcomers));
        Ok(repair)
    }

    fn write(&mut self, plan: &Plan, firewall: &FirewallPlan) -> Result<Repair, NftError> {
        let is_waiting = firewall.is_left_open() || !firewall.is_known();
        if is_waiting && self.is_programmed {
            return Ok(Repair::default());
        }
        if firewall.is_left_open() {
            self.release_pending()?;
            self.is_programmed = true;
            return Ok(Repair::default());
        }
        if self.is_unknown() {
            self.mark_unknown();
            match firewall.is_known() {
                true => self.start_over(plan, firewall),
                false if firewall.pods().next().is_some() => self.find_scope(firewall)?,
                false => {}
            }
        }
        let Self { kernel, keepers, scopes, numbers, records, unfiltered_bridges, .. } = self;
        let content = |table: FirewallTable| FirewallContent {
            table,
            scope: scopes[&table.family()],
            plan,
            firewall,
            numbers,
            records,
            unfiltered_bridges,
            has_unread: false,
        };
        let mut contents = FirewallTable::ALL.map(content);
        let is_affected =
            |content: &FirewallContent<'_>| firewall.is_known() || content.has_elements();
        let tables = keepers.values_mut().zip(&mut contents);
        let mut tables: Vec<_> = tables.filter(|(_, content)| is_affected(content)).collect();
        let synced = Keeper::sync(kernel, &mut tables);
        let has_unread = contents.iter().any(|content| content.has_unread);
        let repair = match (synced, firewall.is_known()) {
            (Ok(repair), true) => repair,
            (Ok(_), false) => Repair::default(),
            (Err(error), _) => {
                self.is_programmed = false;
                return Err(error);
            }
        };
        self.is_programmed = !has_unread;
        if has_unread {
            self.mark_unknown();
        }
        Ok(repair)
    }

    /// Makes the next sync compare whole tables. The differences noted so far no longer count.
    fn start_over(&mut self, plan: &Plan, firewall: &FirewallPlan) {
        if !std::mem::replace(&mut self.is_restored, true) {
            self.restore_numbers(firewall);
        }
        self.set_scope(FirewallScope::of(firewall));
        self.numbers.assign_all(firewall);
        self.permitted_sets =
            of_each(|table| table.of_permitted_sets(firewall, &self.numbers)).into();
        self.of_pods = PodElements::default();
        for pod in plan.recorded() {
            let elements = of_pod(firewall, pod, &self.unfiltered_bridges);
            self.of_pods.replace(&pod.id, elements, &mut ElementChanges::default());
        }
        self.surroundings = of_each(|table| table.of_surroundings(firewall)).into();
    }

    /// Identities keep the numbers that an earlier run gave them.
    fn restore_numbers(&mut self, firewall: &FirewallPlan) {
        let mut all = Vec::new();
        for version in Family::BOTH {
            let schema = FirewallTable::Ip(version).schema(FirewallScope::Idle);
            let mut seen = Observed::default();
            for set in [FirewallSet::Identities, FirewallSet::Blocks] {
                let read = self.kernel.read_set(&schema, schema.set(set.id()), &mut seen);
                if let Err(error) = read {
                    debug!(family = %schema.family, %error, "no identities of an earlier run");
                }
            }
            all.push((version, seen));
        }
        self.numbers.restore_from(&all, firewall);
    }

    /// Releases all pending pods, also those that the plugin added: the API refuses the objects
    /// that policies need, so pods are left open. What an earlier run enforced stays.
    fn release_pending(&mut self) -> Result<(), NftError> {
        for schema in
            Family::BOTH.map(|version| FirewallTable::Ip(version).schema(FirewallScope::Idle))
        {
            let seen = self.kernel.observe(&schema)?;
            let is_pending = |set| set == FirewallSet::Pending.id();
            let delta = seen.difference(std::iter::empty(), is_pending);
            self.kernel.write(schema.family, |batch| delta.write(batch, &schema))?;
        }
        Ok(())
    }

    /// To be called once the connections of these addresses' former pods are deleted. Packets that
    /// passed as part of those connections, and still wait, do not reach the pods that have the
    /// addresses now.
    pub fn departed_are_gone(&self, plan: &Plan, departed: impl Iterator<Item = IpAddr>) {
        drop_waiting(&restricted(plan, departed).collect::<Vec<_>>());
    }

    /// Notes that another program changed a table: the next [`Self::resync`] reads all of them,
    /// whatever the ruleset's generation says.
    pub fn note_foreign_change(&mut self) {
        self.keepers.values_mut().for_each(Keeper::note_foreign_change);
    }

    /// Looks at what the kernel holds and repairs what somebody else changed.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn resync(&mut self, plan: &Plan) -> Result<Repair, NftError> {
        let Self { kernel, keepers, .. } = self;
        let now = kernel.now();
        keepers.values_mut().for_each(|keeper| keeper.check(now));
        self.is_programmed &= !self.is_unknown();
        self.sync(plan)
    }

    /// Whether this node's pods are in the kernel as planned.
    pub fn has_pods(&self) -> bool {
        self.is_programmed
    }

    /// The firewall's state. Reads counters from the kernel.
    pub fn report(&mut self, plan: &Plan) -> FirewallReport {
        let rejected = self.keepers.values().flat_map(Keeper::rejected);
        let mut report = FirewallReport {
            elements: self.keepers.values().map(Keeper::count).sum(),
            waiting: self.keepers.values().map(Keeper::waiting).sum(),
            rejected: rejected.map(|element| element.text.clone()).collect(),
            ..FirewallReport::default()
        };
        let Some(firewall) = plan.firewall().filter(|firewall| firewall.is_enforced()) else {
            return report;
        };
        for table in FirewallTable::ALL {
            let scope = FirewallScope::of(firewall);
            let (schema, chains) = (table.schema(scope), table.chains(firewall, scope));
            if let Err(error) = report.dropped.add(&mut self.kernel, &schema, &chains) {
                report.errors.push(describe(&error));
            }
        }
        report
    }
}

/// Whether the kernel accepts the tables. Nothing is changed.
///
/// # Errors
/// The kernel rejects a table, or cannot be asked.
pub fn probe(settings: FirewallSettings) -> Result<(), NftError> {
    let mut kernel = Kernel::open().map_err(NftError::Open)?;
    FirewallTable::ALL.into_iter().try_for_each(|table| {
        let scope = FirewallScope::Policies;
        Keeper::probe(&mut kernel, &table.schema(scope), &table.all_chains(settings, scope))
    })
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

/// Renders a plan's tables. Needs no kernel.
pub fn render(plan: &Plan) -> Rendering {
    let Some(firewall) = plan.firewall() else { return Rendering::empty() };
    let (pods, scope) = (plan.recorded(), FirewallScope::of(firewall));
    let mut numbers = Numbers::default();
    numbers.assign_all(firewall);
    FirewallTable::ALL.into_iter().fold(Rendering::empty(), |shown, table| {
        let elements = match table {
            FirewallTable::Ip(version) => all(firewall, pods, version, &numbers),
            FirewallTable::Bridge => bridge::elements(firewall, pods, &BTreeSet::new()),
        };
        shown.with(
            &table.schema(scope),
            &table.chains(firewall, scope),
            &sorted(elements.collect()),
        )
    })
}
