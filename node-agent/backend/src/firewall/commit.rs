//! Commits what changed since the tables were known.

use tracing::debug;

use super::bridge;
use super::element::of_sides;
use super::program;
use super::sync::{Firewall, schemas};
use super::write::{Phase, Steps, is_garbage};
use denizen_model::{Family, family_of};
use denizen_nft::sampled;
use denizen_nft::{Chain, Delta, Element, NftError, Schema, SetId, TableFamily};
use denizen_plan::{Direction, FirewallPlan, Isolation};

impl Firewall {
    /// A change costs what changed: one transaction for all tables, and one for what nothing refers
    /// to behind it.
    pub(super) fn commit(&mut self, firewall: &FirewallPlan) -> Result<(), NftError> {
        let pending = std::mem::take(&mut self.pending);
        let mut steps: Vec<(Schema, Steps)> = Vec::new();
        for schema in schemas() {
            if let Some(delta) = pending.get(&schema.family) {
                let delta = Delta { delete: delta.delete.clone(), add: delta.add.clone() };
                let sorted = self.steps(delta, firewall, schema.family);
                steps.push((schema, sorted));
            }
        }
        self.unknown = true;
        for phase in [Phase::First, Phase::Then] {
            let mut batch = self.kernel.batch(TableFamily::Ip, None);
            for (schema, steps) in &steps {
                batch.about(schema.family);
                let chains = || self.chains(firewall, schema.family);
                let after = |set| self.permissions(firewall, schema.family, set);
                steps.write(phase, &mut batch, schema, chains, after);
            }
            self.kernel.commit(batch)?;
        }
        self.unknown = false;
        for (schema, steps) in &steps {
            let (add, delete) = (steps.first.add.len(), steps.first.delete.len());
            debug!(family = %schema.family, add, delete, "elements of the firewall changed");
            self.elements = (self.elements + add).saturating_sub(delete + steps.then.delete.len());
        }
        Ok(())
    }

    pub(super) fn steps(
        &self,
        delta: Delta,
        firewall: &FirewallPlan,
        family: TableFamily,
    ) -> Steps {
        let version = version_of(family);
        let is_isolated = |address, direction: Direction| {
            let sides = firewall.sides(address);
            sides.is_some_and(|sides| sides.of(direction).isolation != Isolation::Open)
        };
        Steps::new(delta, |set, key| {
            version.is_some_and(|version| is_garbage(set, key, version, &self.numbers, is_isolated))
        })
    }

    fn chains(&self, firewall: &FirewallPlan, family: TableFamily) -> Vec<Chain> {
        let chains = match version_of(family) {
            Some(version) => program::chains(version, firewall),
            None => bridge::chains(firewall),
        };
        if self.samples_drops { sampled(chains) } else { chains }
    }

    /// What a set of permissions should hold.
    fn permissions(
        &self,
        firewall: &FirewallPlan,
        family: TableFamily,
        set: SetId,
    ) -> Vec<Element> {
        let pods = firewall.pods();
        let pods = pods.filter(|(ip, _)| Some(family_of(*ip)) == version_of(family));
        let mut number = |id| self.numbers.known(id).unwrap_or_default();
        let mut elements = Vec::new();
        for (address, sides) in pods {
            let of_pod = of_sides(address, sides, &mut number).into_iter();
            elements.extend(of_pod.filter(|element| element.set == set));
        }
        elements
    }
}

fn version_of(family: TableFamily) -> Option<Family> {
    Family::BOTH.into_iter().find(|version| TableFamily::from(*version) == family)
}
