//! Reads the tables and commits what differs: at the start, after an error, after others' changes.

use std::collections::BTreeMap;

use tracing::{debug, info};

use super::bridge;
use super::element::{all, of_sides};
use super::program;
use super::records::Isolated;
use super::schema::{SetName, schema};
use super::sync::{Firewall, FirewallError, surroundings};
use super::write::{Steps, Wanted, load, numbers_seen, repair};
use crate::Repair;
use denizen_model::{Family, family_of};
use denizen_nft::{Delta, Element, NftError, Observed, TableFamily};
use denizen_plan::{FirewallPlan, Plan};

/// How often a repair that others' changes overtook is tried before it is left to the next
/// occasion.
const REPAIR_TRIES: usize = 10;

impl Firewall {
    /// Reads the tables and commits what differs.
    pub(super) fn reconcile(
        &mut self,
        plan: &Plan,
        firewall: &FirewallPlan,
    ) -> Result<Repair, FirewallError> {
        self.pending.clear();
        self.looked.clear();
        self.unknown = true;
        if !std::mem::replace(&mut self.restored, true) {
            self.restore_numbers(firewall)?;
        }
        self.interfaces = self.of_interfaces(plan, firewall).into_iter().collect();
        self.surroundings = surroundings(firewall).into_iter().collect();
        let (mut repair, mut elements) = (Repair::default(), 0);
        self.rejected.clear();
        let mut result = Ok(());
        for wanted in self.wanted(plan, firewall) {
            elements += wanted.elements.len();
            match self.reconcile_table(&wanted, plan, firewall) {
                Ok(done) => {
                    repair.rebuilt |= done.rebuilt;
                    repair.chains += done.chains;
                    repair.elements += done.elements;
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.elements = elements;
        result?;
        self.unknown = std::mem::take(&mut self.has_unread);
        Ok(repair)
    }

    fn wanted(&mut self, plan: &Plan, firewall: &FirewallPlan) -> Vec<Wanted> {
        let pods = plan.recorded();
        let mut wanted: Vec<Wanted> = Vec::new();
        for version in Family::BOTH {
            wanted.push(Wanted {
                schema: schema(version),
                chains: program::chains(version, firewall),
                elements: all(firewall, pods, version, &mut |id| self.numbers.number(id)),
            });
        }
        wanted.push(Wanted {
            schema: bridge::schema(),
            chains: bridge::chains(firewall),
            elements: bridge::elements(firewall, pods, &self.without_netfilter),
        });
        if self.samples_drops {
            wanted.iter_mut().for_each(Wanted::sample_drops);
        }
        wanted
    }

    fn reconcile_table(
        &mut self,
        wanted: &Wanted,
        plan: &Plan,
        firewall: &FirewallPlan,
    ) -> Result<Repair, FirewallError> {
        let family = wanted.schema.family;
        for _ in 0..REPAIR_TRIES {
            let seen = self.kernel.observe(&wanted.schema)?;
            let mark = self.kernel.mark(&seen);
            match self.repair_table(wanted, plan, firewall, &seen) {
                Err(NftError::Raced { .. }) => {}
                Err(NftError::Refused { .. }) => return self.salvage(wanted, firewall, &seen),
                Err(error) => return Err(error.into()),
                Ok(repair) => {
                    self.looked.insert(family, mark);
                    return Ok(repair);
                }
            }
        }
        Err(NftError::Raced { family }.into())
    }

    fn repair_table(
        &mut self,
        wanted: &Wanted,
        plan: &Plan,
        firewall: &FirewallPlan,
        seen: &Observed,
    ) -> Result<Repair, NftError> {
        let family = wanted.schema.family;
        let Some(structure) = seen.structure(&wanted.schema, &wanted.chains) else {
            let elements = load(&mut self.kernel, seen, wanted)?;
            info!(%family, elements, "the firewall's table is programmed");
            return Ok(Repair { rebuilt: true, chains: wanted.chains.len(), elements });
        };
        let mut delta = seen.difference(wanted.elements.iter().cloned(), |_| true);
        let version =
            Family::BOTH.into_iter().find(|version| TableFamily::from(*version) == family);
        let isolated = version.map(|it| Isolated::in_delta(&mut delta, plan, it, &self.records));
        let Isolated { removed, is_left } = isolated.unwrap_or_default();
        self.has_unread |= is_left;
        // The plugin's own change is no drift.
        let elements = delta.add.len().max(delta.delete.len() - removed);
        let steps = self.steps(delta, firewall, family);
        let chains = structure.count() + structure.left_over().len();
        if chains > 0 || !steps.is_empty() {
            repair(&mut self.kernel, seen, wanted, &structure, &steps)?;
            info!(%family, chains, elements, "the firewall's table is brought up to date");
        }
        Ok(Repair { rebuilt: false, chains, elements })
    }

    /// The kernel refused something: everything else is programmed.
    fn salvage(
        &mut self,
        wanted: &Wanted,
        firewall: &FirewallPlan,
        seen: &Observed,
    ) -> Result<Repair, FirewallError> {
        let (schema, family) = (&wanted.schema, wanted.schema.family);
        if seen.structure(schema, &wanted.chains).is_none_or(|structure| structure.count() > 0) {
            let without = Wanted {
                schema: schema.clone(),
                chains: wanted.chains.clone(),
                elements: Vec::new(),
            };
            load(&mut self.kernel, seen, &without)?;
        }
        let seen = self.kernel.observe(schema)?;
        let delta = seen.difference(wanted.elements.iter().cloned(), |_| true);
        let steps = self.steps(delta, firewall, family);
        let mut names = Vec::new();
        for delta in [&steps.first, &steps.then] {
            for rejected in self.kernel.commit_parts(schema, delta) {
                names.push(rejected.text(schema));
            }
        }
        self.rejected.extend(names.iter().cloned());
        match names.is_empty() {
            true => Ok(Repair::default()),
            false => Err(FirewallError::Parts { family, names }),
        }
    }

    /// Identities keep the numbers that an earlier run gave them.
    fn restore_numbers(&mut self, firewall: &FirewallPlan) -> Result<(), FirewallError> {
        let mut numbers = BTreeMap::new();
        for version in Family::BOTH {
            let schema = schema(version);
            let mut seen = Observed::default();
            for set in [SetName::Identities, SetName::Blocks] {
                let read = self.kernel.read_set(&schema, schema.set(set.id()), &mut seen);
                if let Err(error) = read {
                    debug!(family = %schema.family, %error, "no identities of an earlier run");
                }
            }
            numbers_seen(&seen, |address| firewall.identity_of(address), version, &mut numbers);
        }
        self.numbers.restore(&numbers);
        Ok(())
    }

    /// The API refuses what policies need, and pods are left open for it: none waits any longer,
    /// neither for this run nor for the plugin's sake. What an earlier run enforced stays.
    pub(super) fn release_pending(&mut self) -> Result<Repair, FirewallError> {
        if !self.unknown {
            return Ok(Repair::default());
        }
        for schema in Family::BOTH.map(schema) {
            let seen = self.kernel.observe(&schema)?;
            let is_pending = |set| set == SetName::Pending.id();
            let delta = seen.difference(std::iter::empty(), is_pending);
            self.kernel.write(schema.family, |batch| delta.write(batch, &schema))?;
        }
        self.unknown = false;
        Ok(Repair::default())
    }

    /// While policies are not known: pods that come now wait, and nothing else is touched.
    pub(super) fn add_pending(&mut self, firewall: &FirewallPlan) -> Result<Repair, FirewallError> {
        if !self.unknown {
            return Ok(Repair::default());
        }
        let none = |_| 0;
        for version in Family::BOTH {
            let pods = firewall.pods().filter(|(address, _)| family_of(*address) == version);
            let elements: Vec<Element> =
                pods.flat_map(|(address, sides)| of_sides(address, sides, &mut { none })).collect();
            if elements.is_empty() {
                continue;
            }
            let schema = schema(version);
            let chains = program::chains(version, firewall);
            let seen = self.kernel.observe(&schema)?;
            let mut wanted = Wanted { schema, chains, elements };
            if seen.structure(&wanted.schema, &wanted.chains).is_some_and(|it| !it.is_additive()) {
                // Perhaps somebody watched drops when an earlier run ended.
                wanted.sample_drops();
            }
            let Some(structure) = seen.structure(&wanted.schema, &wanted.chains) else {
                if seen.is_there() {
                    return Err(FirewallError::OlderTable(wanted.schema.family));
                }
                load(&mut self.kernel, &seen, &wanted)?;
                continue;
            };
            if !structure.is_additive() {
                return Err(FirewallError::OlderTable(wanted.schema.family));
            }
            let mut delta = seen.difference(wanted.elements.iter().cloned(), |_| true);
            delta.delete.clear();
            let steps = Steps { first: delta, then: Delta::default() };
            repair(&mut self.kernel, &seen, &wanted, &structure, &steps)?;
        }
        self.unknown = false;
        Ok(Repair::default())
    }
}
