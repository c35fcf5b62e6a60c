//! Finds which rules of a transaction are rejected, where the program cannot say: ip_tables takes a
//! table or rejects it, and all that its program then names is the line of COMMIT. So the
//! transaction is written in parts, each chain before the chains that jump to it. An accepted part
//! stays, since it is to be written anyway; a rejected part is written again in halves. Pure,
//! except for the [`Kernel`] that it writes to.
//!
//! Missing extensions are known before (`probe`). The other rejections depend on where a rule is:
//! another program's rule leads to a chain from a hook where a target in the chain is not allowed,
//! or keeps a chain from being removed.

use std::collections::{BTreeMap, HashSet, VecDeque};

use super::delta::TableDelta;
use super::error::IptablesError;
use super::rejected_rule::RejectedRule;
use super::save::appended;
use super::{ChainId, Lines, OnRejection, Schema, Table};

/// A chain that is created and removed within one transaction, so it is never visible.
const PROBE: &str = "DENIZEN-PROBE";

/// One family's tables, to which transactions are written.
pub trait Kernel {
    /// Gives `iptables-restore` this input, of one table.
    ///
    /// # Errors
    /// The program's.
    fn write(&mut self, input: &str) -> Result<(), IptablesError>;

    /// What `iptables-save` prints of a table.
    ///
    /// # Errors
    /// The program's.
    fn saved(&mut self, table: Table) -> Result<String, IptablesError>;

    /// How many chains are written at once.
    fn at_once(&self) -> usize;

    /// Whether there is time to find out which rules of a rejected part are at fault.
    fn has_time(&mut self) -> bool;
}

/// Writes one table's changes, except what is rejected, which is returned.
///
/// # Errors
/// If the write fails for another reason than its rules, or if a chain is rejected without which
/// nothing works.
pub fn write(
    kernel: &mut impl Kernel,
    schema: &'static Schema,
    table: Table,
    delta: TableDelta,
) -> Result<Vec<RejectedRule>, IptablesError> {
    let input = delta.input(table);
    match kernel.write(&input) {
        Ok(()) => Ok(Vec::new()),
        Err(error) if error.is_about_rules(&input) => {
            let mut search = Search { kernel, schema, table, rejected: Vec::new() };
            search.write(delta)?;
            Ok(search.rejected)
        }
        Err(error) => Err(error),
    }
}

/// Why a part of a transaction was rejected.
struct Rejection {
    error: IptablesError,
    has_time: bool,
}

/// A rejected chain or rule of a part.
struct Rejected<T> {
    what: T,
    reason: String,
}

struct Search<'a, K> {
    kernel: &'a mut K,
    schema: &'static Schema,
    table: Table,
    rejected: Vec<RejectedRule>,
}

impl<K: Kernel> Search<'_, K> {
    fn write(&mut self, delta: TableDelta) -> Result<(), IptablesError> {
        let TableDelta { write, remove, insert, delete } = delta;
        // If the rules are at fault, this transaction without rules is accepted.
        self.must("a change of nothing", &removing([PROBE.to_owned()]))?;
        let new = self.not_there(write.keys())?;
        for new in new.chunks(self.kernel.at_once()) {
            self.must("new chains", &writing(new))?;
        }
        // Jumps before rules: the hooks that lead to a chain decide which rules it may have.
        let jumps = TableDelta { insert, delete, ..TableDelta::default() };
        if !jumps.is_empty() {
            self.must("jumps", &jumps)?;
        }
        let mut stages: BTreeMap<_, Vec<(String, Lines)>> = BTreeMap::new();
        for (name, lines) in write {
            let stage = (self.schema.creation_order)(&name).unwrap_or(usize::MAX);
            stages
                .entry((self.on_rejection(&name) == OnRejection::OmitRule, stage))
                .or_default()
                .push((name, lines));
        }
        for chains in stages.into_values() {
            self.chains(chains)?;
        }
        self.removals(remove.into_iter().collect())
    }

    fn on_rejection(&self, name: &str) -> OnRejection {
        (self.schema.on_rejection)(self.table, name)
    }

    fn id(&self, name: String) -> ChainId {
        (self.table, name)
    }

    /// Those of these chains that the kernel does not hold, each without rules.
    fn not_there<'a>(
        &mut self,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<Vec<(String, Lines)>, IptablesError> {
        let text = self.kernel.saved(self.table)?;
        let declared = text.lines().filter_map(|line| line.strip_prefix(':')?.split_once(' '));
        let there: HashSet<&str> = declared.map(|(name, _)| name).collect();
        let new = names.filter(|name| !there.contains(name.as_str()));
        Ok(new.map(|name| (name.clone(), Lines::new())).collect())
    }

    /// Writes chains of one stage: none of them jumps to another chain of the stage.
    fn chains(&mut self, chains: Vec<(String, Lines)>) -> Result<(), IptablesError> {
        let mut kept_whole = Vec::new();
        for (name, lines) in chains {
            match self.on_rejection(&name) {
                OnRejection::KeepChain => kept_whole.push((name, lines)),
                OnRejection::OmitRule => self.shared(name, lines)?,
                OnRejection::Fail => self.must(&name.clone(), &writing(&[(name, lines)]))?,
            }
        }
        for part in kept_whole.chunks(self.kernel.at_once()) {
            for Rejected { what: (name, lines), reason } in
                sift(part, |part| self.attempt(&writing(part)))?
            {
                self.rejected.push(RejectedRule::chain(self.id(name), lines, &reason));
            }
        }
        Ok(())
    }

    /// Writes a chain without its rejected rules. At no moment does it lack a wanted rule that it
    /// already has.
    fn shared(&mut self, name: String, lines: Lines) -> Result<(), IptablesError> {
        if self.attempt(&writing(&[(name.clone(), lines.clone())]))?.is_none() {
            return Ok(());
        }
        let text = self.kernel.saved(self.table)?;
        let rules = text.lines().filter_map(appended).filter(|(chain, _)| *chain == name);
        let there: HashSet<&str> = rules.map(|(_, rule)| rule).collect();
        let (accepted, new): (Vec<&String>, Vec<&String>) =
            lines.iter().partition(|line| there.contains(line.as_str()));
        let mut accepted: HashSet<&String> = accepted.into_iter().collect();
        let with = |accepted: &HashSet<&String>, more: &[&String]| {
            let more: HashSet<&String> = more.iter().copied().collect();
            let is_in = |line: &&String| accepted.contains(line) || more.contains(line);
            writing(&[(name.clone(), lines.iter().filter(is_in).cloned().collect())])
        };
        self.must(&name, &with(&accepted, &[]))?;
        let rejected = sift(&new, |part| {
            let rejection = self.attempt(&with(&accepted, part))?;
            if rejection.is_none() {
                accepted.extend(part);
            }
            Ok(rejection)
        })?;
        for Rejected { what: line, reason } in rejected {
            self.rejected.push(RejectedRule::rule(self.id(name.clone()), line, &reason));
        }
        Ok(())
    }

    fn removals(&mut self, names: Vec<String>) -> Result<(), IptablesError> {
        for part in names.chunks(self.kernel.at_once()) {
            let rejected = sift(part, |part| self.attempt(&removing(part.iter().cloned())))?;
            for Rejected { what: name, reason } in rejected {
                self.must(&name, &writing(&[(name.clone(), Lines::new())]))?;
                self.rejected.push(RejectedRule::removal(self.id(name), &reason));
            }
        }
        Ok(())
    }

    /// Writes a part; `Some` if it is rejected.
    fn attempt(&mut self, delta: &TableDelta) -> Result<Option<Rejection>, IptablesError> {
        let input = delta.input(self.table);
        match self.kernel.write(&input) {
            Ok(()) => Ok(None),
            Err(error) if error.is_about_rules(&input) => {
                Ok(Some(Rejection { error, has_time: self.kernel.has_time() }))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a part without which nothing works: a rejection is an error.
    fn must(&mut self, what: &str, delta: &TableDelta) -> Result<(), IptablesError> {
        match self.attempt(delta)? {
            None => Ok(()),
            Some(Rejection { error, .. }) => Err(error.of(&format!("{}: {what}", self.table))),
        }
    }
}

fn writing(chains: &[(String, Lines)]) -> TableDelta {
    TableDelta { write: chains.iter().cloned().collect(), ..TableDelta::default() }
}

fn removing(chains: impl IntoIterator<Item = String>) -> TableDelta {
    TableDelta { remove: chains.into_iter().collect(), ..TableDelta::default() }
}

/// The items of `all` that are rejected. They are tried together, and rejected parts again in
/// halves. If there is no more time for that, all items of a rejected part count as rejected.
fn sift<T: Clone>(
    all: &[T],
    mut attempt: impl FnMut(&[T]) -> Result<Option<Rejection>, IptablesError>,
) -> Result<Vec<Rejected<T>>, IptablesError> {
    let mut rejected = Vec::new();
    let mut parts = VecDeque::from([all]);
    while let Some(part) = parts.pop_front() {
        let Some(Rejection { error, has_time }) = attempt(part)? else { continue };
        let message = error.message();
        match part {
            [one] => rejected.push(Rejected { what: one.clone(), reason: message.to_owned() }),
            _ if has_time => {
                let (one, other) = part.split_at(part.len() / 2);
                parts.extend([one, other]);
            }
            _ => rejected.extend(part.iter().map(|one| Rejected {
                what: one.clone(),
                reason: format!("{message} (together with others)"),
            })),
        }
    }
    Ok(rejected)
}

#[cfg(test)]
mod tests;
