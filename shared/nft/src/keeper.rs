//! Keeps a table in the kernel as its client renders it.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{debug, info, warn};

use crate::chain::Chain;
use crate::content::{Content, Extent};
use crate::difference::{Delta, Structure};
use crate::kernel::{Kernel, Mark, NftError};
use crate::observed::Observed;
use crate::part::{RejectedElement, commit_parts, try_table};
use crate::repair::Repair;
use crate::sampled::sampled;
use crate::set::{Element, Schema, SetId};
use crate::steps::Steps;

/// How often a repair is tried again if others' changes overtake it, before it waits for the next
/// [`Keeper::sync`].
const REPAIR_TRIES: usize = 10;

/// How many elements of one set a first load collects before it writes them, about a message full.
const LOAD_CHUNK: usize = 1024;

/// A table of ours, what is known of the kernel's copy, and the changes that are not in the kernel
/// yet.
///
/// A change costs what changed: the client notes differences, and they are committed without
/// reading anything. The table is read, and compared with its whole [`Content`], at the start,
/// after an error and after changes of others. What the kernel refuses is found and reported, and
/// everything else is programmed.
#[derive(Debug)]
pub struct Keeper {
    schema: Schema,
    pending: Delta,
    /// The kernel's state is not known: nothing was read yet, or a batch failed.
    is_unknown: bool,
    /// The ruleset when the table was last read and found right, or repaired.
    verified: Option<Mark>,
    /// How many elements the kernel's table has.
    count: usize,
    samples_drops: bool,
    rejected: Vec<RejectedElement>,
}

impl Keeper {
    /// Nothing is read or written yet.
    pub fn new(schema: Schema) -> Self {
        Self {
            schema,
            pending: Delta::default(),
            is_unknown: true,
            verified: None,
            count: 0,
            samples_drops: false,
            rejected: Vec::new(),
        }
    }

    /// The table, as it is declared.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Changes the declaration of the table, with the next [`Self::sync`].
    pub fn set_schema(&mut self, schema: Schema) {
        self.is_unknown |= self.schema != schema;
        self.schema = schema;
    }

    /// Notes the difference between the last content and the present one. While the kernel's state
    /// is not known, nothing is noted: reading finds the difference.
    pub fn note(&mut self, change: impl FnOnce(&mut Delta)) {
        change(&mut self.pending);
        if self.is_unknown {
            self.pending.clear();
        }
    }

    /// Makes the next change read the table first.
    pub fn mark_unknown(&mut self) {
        self.is_unknown = true;
    }

    /// Whether the kernel's state is not known.
    pub fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Whether the content is in the kernel, as far as is known.
    pub fn is_programmed(&self) -> bool {
        !self.is_unknown && self.pending.is_empty()
    }

    /// How many elements differ from what is in the kernel.
    pub fn waiting(&self) -> usize {
        self.pending.count()
    }

    /// How many elements are in the kernel.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The elements that the kernel refused. Everything else is programmed.
    pub fn rejected(&self) -> &[RejectedElement] {
        &self.rejected
    }

    /// Turns on or off, with the next [`Self::sync`], that rules show the packets that they drop or
    /// refuse ([`sampled`]).
    pub fn sample_drops(&mut self, on: bool) {
        self.is_unknown |= std::mem::replace(&mut self.samples_drops, on) != on;
    }

    /// Another program changed the table: [`Self::check`] makes the next change read it, whatever
    /// the ruleset's generation says. (A batch of ours that adds only what exists already is
    /// counted by [`Mark`] but raises no generation, which can hide another program's change.)
    pub fn note_foreign_change(&mut self) {
        self.verified = None;
    }

    /// Makes the next change read the table first if another program may have changed it by `now`,
    /// the state of [`Kernel::now`]. Reading is expensive: for every piece of a dump the kernel
    /// counts from the first element.
    pub fn check(&mut self, now: Option<Mark>) {
        let known = now.zip(self.verified);
        self.is_unknown |= !known.is_some_and(|(now, verified)| now.only_ours_since(verified));
    }

    /// Brings tables to their contents: all tables whose state in the kernel is known by one
    /// transaction, and each other table by its own. After an error, call it again: it starts from
    /// what it observes.
    ///
    /// # Errors
    /// The first error. All that the kernel accepts is programmed.
    pub fn sync<C: Content>(
        kernel: &mut Kernel,
        tables: &mut [(&mut Self, &mut C)],
    ) -> Result<Repair, NftError> {
        match commit(kernel, tables) {
            // It raced with another program's change; or the kernel refuses a part of it, which
            // `reconcile` isolates.
            Ok(()) | Err(NftError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
        let (mut all, mut result) = (Repair::default(), Ok(()));
        for (keeper, content) in tables.iter_mut().filter(|(keeper, _)| keeper.is_unknown) {
            match keeper.reconcile(kernel, *content) {
                Ok(repair) => all = all + repair,
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map(|()| all)
    }

    /// Removes the table, unless the kernel's state is known: then it is gone already.
    ///
    /// # Errors
    /// As [`Self::remove_table`].
    pub fn remove(
        &mut self,
        kernel: &mut Kernel,
        flush_first: &[&str],
    ) -> Result<Repair, NftError> {
        self.pending.clear();
        if !self.is_unknown {
            return Ok(Repair::default());
        }
        let seen = kernel.observe(&self.schema)?;
        let mark = kernel.mark(&seen);
        let rebuilt = remove_observed(kernel, &self.schema, &seen, flush_first)?;
        (self.is_unknown, self.verified, self.count) = (false, Some(mark), 0);
        Ok(Repair { rebuilt, ..Repair::default() })
    }

    /// Removes a table, whatever version made it. The chains `flush_first` are emptied before, so
    /// that no packet is in the chains that they lead to. Returns whether it was there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_table(
        kernel: &mut Kernel,
        schema: &Schema,
        flush_first: &[&str],
    ) -> Result<bool, NftError> {
        let seen = kernel.observe(schema)?;
        remove_observed(kernel, schema, &seen, flush_first)
    }

    /// Whether the kernel accepts a table with these chains. Nothing is changed.
    ///
    /// # Errors
    /// What it refused; [`NftError::Owned`].
    pub fn probe(kernel: &mut Kernel, schema: &Schema, chains: &[Chain]) -> Result<(), NftError> {
        let seen = kernel.observe(schema)?;
        match seen.owner() {
            Some(owner) => Err(NftError::Owned { family: schema.family, owner }),
            // The table exists, so the kernel has accepted it.
            None if seen.is_there() => Ok(()),
            None => try_table(kernel, schema, chains),
        }
    }

    /// Reads the table and commits the difference to the content.
    fn reconcile(
        &mut self,
        kernel: &mut Kernel,
        content: &mut impl Content,
    ) -> Result<Repair, NftError> {
        self.pending.clear();
        self.rejected.clear();
        for _ in 0..REPAIR_TRIES {
            let seen = kernel.observe(&self.schema)?;
            let mark = kernel.mark(&seen);
            let repaired = match self.repair(kernel, content, &seen) {
                Err(NftError::Refused { .. }) => self.salvage(kernel, content, &seen),
                repaired => repaired,
            };
            match repaired {
                Err(NftError::Raced { .. }) => {}
                Err(error) => return Err(error),
                Ok(repair) => {
                    (self.is_unknown, self.verified) = (false, Some(mark));
                    return Ok(repair);
                }
            }
        }
        Err(NftError::Raced { family: self.schema.family })
    }

    fn repair(
        &mut self,
        kernel: &mut Kernel,
        content: &mut impl Content,
        seen: &Observed,
    ) -> Result<Repair, NftError> {
        let Some(structure) = self.structure(content, seen)? else {
            return self.load(kernel, content, seen);
        };
        let (delta, expected) = self.difference(content, seen);
        let elements = delta.add.len().max(delta.delete.len() - expected);
        let left_over = match content.extent() {
            Extent::Whole => structure.left_over(),
            Extent::Partly { .. } => &[],
        };
        let Schema { family, name, .. } = self.schema;
        let steps = Steps::new(delta, content);
        let mut batch = kernel.batch(family, Some(seen.generation()));
        structure.write(&mut batch, name);
        steps.changes.write(&mut batch, &self.schema);
        let Steps { changes, garbage } = steps;
        // At a first load this is as large as the batch, and the kernel is about to allocate as
        // much again.
        drop(changes);
        kernel.commit(batch)?;
        let repair =
            Repair { rebuilt: false, chains: structure.count() + left_over.len(), elements };
        if !repair.is_none() {
            let Repair { chains, elements, .. } = repair;
            info!(table = name, %family, chains, elements, "table brought up to date");
        }
        let steps = Steps { changes: Delta::default(), garbage };
        let mut batch = kernel.batch(family, None);
        // Before 6.2 a kernel refuses to remove a chain in the batch that removes what refers to
        // it.
        batch.delete_chains(name, left_over);
        steps.garbage.write(&mut batch, &self.schema);
        kernel.commit(batch)?;
        Ok(repair)
    }

    /// How the table's chains differ; `None` if the table is to be replaced.
    fn structure(
        &self,
        content: &impl Content,
        seen: &Observed,
    ) -> Result<Option<Structure>, NftError> {
        let schema = &self.schema;
        let structure = seen.structure(schema, &self.chains(content));
        let into_foreign = match content.extent() {
            Extent::Partly { into_foreign } if seen.is_there() => into_foreign,
            Extent::Partly { .. } | Extent::Whole => return Ok(structure),
        };
        // An earlier run may have ended while a command watched drops, so the sampling rules may be
        // there.
        let with_samples = || seen.structure(schema, &sampled(content.chains()));
        let is_additive = |structure: &Structure| structure.is_additive();
        let additive = structure.filter(is_additive);
        if let Some(structure) = additive.or_else(|| with_samples().filter(is_additive)) {
            return Ok(Some(structure));
        }
        let filled =
            content.elements().map(|element| element.set).filter(|set| content.covers(*set));
        let filled: BTreeSet<SetId> = filled.collect();
        match into_foreign && filled.iter().all(|set| seen.has_set(schema.set(*set))) {
            true => Ok(Some(Structure::default())),
            false => Err(NftError::OtherVersion { family: schema.family }),
        }
    }

    /// The difference to the content, and how many of the removals do not count as drift.
    fn difference(&mut self, content: &mut impl Content, seen: &Observed) -> (Delta, usize) {
        let mut count = 0;
        let elements = content.elements().inspect(|_| count += 1);
        let mut delta = seen.difference(elements, |set| content.covers(set));
        self.count = count;
        let expected = content.review(seen, &mut delta);
        (delta, expected)
    }

    /// Puts the table in place of whatever is there, in one transaction. Sets that are not covered
    /// keep their members.
    fn load(
        &mut self,
        kernel: &mut Kernel,
        content: &mut impl Content,
        seen: &Observed,
    ) -> Result<Repair, NftError> {
        let Schema { family, name, .. } = self.schema;
        let kept = kept(content, seen);
        let mut generation = seen.generation();
        let first = content.before_replacing(seen);
        if !first.is_empty() {
            kernel.write(family, |batch| batch.replace_rules(name, &self.sampled(first)))?;
            generation = generation.wrapping_add(1);
        }
        let chains = self.chains(content);
        let mut batch = kernel.batch(family, Some(generation));
        batch.replace_table(seen.is_there(), &self.schema, &chains);
        self.count = 0;
        // Elements are written many of one set at a time, in the order in which they come: sorting
        // would take as long as rendering, and a list of all elements more memory than the batch.
        let mut by_set: BTreeMap<SetId, Vec<Element>> = BTreeMap::new();
        for element in content.elements() {
            let of_set = by_set.entry(element.set).or_default();
            of_set.push(element);
            if of_set.len() == LOAD_CHUNK {
                batch.add_elements(&self.schema, of_set);
                self.count += of_set.len();
                of_set.clear();
            }
        }
        for elements in by_set.values().chain([&kept]) {
            batch.add_elements(&self.schema, elements);
            self.count += elements.len();
        }
        drop(by_set);
        kernel.commit(batch)?;
        let (chains, elements) = (chains.len(), self.count);
        info!(table = name, %family, chains, elements, "table programmed");
        Ok(Repair { rebuilt: true, chains, elements })
    }

    /// The kernel refuses a batch as a whole. So the rejected parts are found, and everything else
    /// is programmed. The next attempt tries them again.
    fn salvage(
        &mut self,
        kernel: &mut Kernel,
        content: &mut impl Content,
        seen: &Observed,
    ) -> Result<Repair, NftError> {
        let (family, is_there) = (self.schema.family, seen.is_there());
        let chains = self.chains(content);
        let mut batch = kernel.batch(family, Some(seen.generation()));
        match (seen.structure(&self.schema, &chains), content.extent()) {
            (Some(structure), _) if structure.is_additive() => {
                structure.write(&mut batch, self.schema.name);
            }
            (_, Extent::Partly { .. }) if is_there => {}
            (_, Extent::Partly { .. } | Extent::Whole) => {
                let kept = kept(content, seen);
                batch.replace_table(is_there, &self.schema, &chains);
                batch.add_elements(&self.schema, &kept);
            }
        }
        kernel.commit(batch)?;
        let seen = kernel.observe(&self.schema)?;
        let (delta, _) = self.difference(content, &seen);
        let elements = delta.count();
        let Steps { changes, garbage } = Steps::new(delta, content);
        for delta in [changes, garbage] {
            self.rejected.extend(commit_parts(kernel, &self.schema, &delta));
        }
        if self.rejected.is_empty() {
            warn!(%family, "the kernel refused a change as a whole, and each of its parts not");
            return Ok(Repair { elements, ..Repair::default() });
        }
        let rejected = self.rejected.iter().map(|rejected| rejected.text.clone()).collect();
        Err(NftError::PartlyRefused { family, rejected })
    }

    fn chains(&self, content: &impl Content) -> Vec<Chain> {
        self.sampled(content.chains())
    }

    fn sampled(&self, chains: Vec<Chain>) -> Vec<Chain> {
        if self.samples_drops { sampled(chains) } else { chains }
    }
}

/// Elements of the replaced table that stay. If the table is not replaced, [`Content::review`]
/// keeps them.
fn kept(content: &mut impl Content, seen: &Observed) -> Vec<Element> {
    let mut kept = seen.members(|set| !content.covers(set));
    kept.extend(content.foreign_members(seen));
    kept
}

/// Commits what was noted about tables that are known: one transaction for all of them, and a
/// second for elements and chains that nothing refers to any more.
fn commit<C: Content>(
    kernel: &mut Kernel,
    tables: &mut [(&mut Keeper, &mut C)],
) -> Result<(), NftError> {
    let mut due = Vec::new();
    for (keeper, content) in tables {
        if keeper.is_unknown || keeper.pending.is_empty() {
            continue;
        }
        // Until the kernel has taken it.
        keeper.is_unknown = true;
        let mut delta = std::mem::take(&mut keeper.pending);
        delta.chains = keeper.sampled(delta.chains);
        due.push((&mut **keeper, Steps::new(delta, *content)));
    }
    let Some((keeper, _)) = due.first() else { return Ok(()) };
    let family = keeper.schema.family;
    let mut transaction = |step: fn(&Steps) -> &Delta| {
        let mut batch = kernel.batch(family, None);
        for (keeper, steps) in &due {
            batch.about(keeper.schema.family);
            step(steps).write(&mut batch, &keeper.schema);
        }
        kernel.commit(batch)
    };
    transaction(|steps| &steps.changes)?;
    if due.iter().any(|(_, steps)| !steps.garbage.is_empty()) {
        transaction(|steps| &steps.garbage)?;
    }
    for (keeper, Steps { changes, garbage }) in &mut due {
        let (add, delete) = (changes.add.len(), changes.delete.len() + garbage.delete.len());
        keeper.is_unknown = false;
        keeper.count = (keeper.count + add).saturating_sub(delete);
        let Schema { family, name, .. } = keeper.schema;
        debug!(table = name, %family, add, delete, "elements changed");
    }
    Ok(())
}

/// A table with an owner process is not ours: our tables have no owner, because they outlive the
/// agent.
fn remove_observed(
    kernel: &mut Kernel,
    schema: &Schema,
    seen: &Observed,
    flush_first: &[&str],
) -> Result<bool, NftError> {
    let is_ours = seen.is_there() && seen.owner().is_none();
    if is_ours {
        let full = flush_first.iter().filter(|chain| seen.has_rules(chain));
        kernel.write(schema.family, |batch| {
            full.for_each(|chain| batch.flush_chain(schema.name, &(*chain).into()));
        })?;
        kernel.write(schema.family, |batch| batch.delete_table(schema.name))?;
    }
    Ok(is_ours)
}
