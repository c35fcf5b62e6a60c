//! Which part of a change the kernel refuses, where nobody names it. Pure, but for what it is given
//! to write to.
//!
//! ip_tables takes a table or refuses it, and all that its program then names is the line of
//! COMMIT. So the change is written in parts, each chain before those that lead to it. What is
//! taken stays, for it is to be written anyway; what is refused is written by halves. Rules of one
//! shape go together: an extension that is missing has all of them refused, and no other.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use super::edit::{Edit, TableEdit, place_ahead};
use super::isolate::is_the_rules;
use super::name::{Table, is_a_services};
use super::refusal::{Refusal, is_shared};
use super::ruleset::Lines;
use super::save::Observed;
use super::tools::IptablesError;

/// A chain that comes and goes within one transaction, so that nobody ever sees it.
const PROBE: &str = "DENIZEN-PROBE";

/// Where more are alike than the first, so many as the second are tried before all.
const FEW: usize = 8;
const SAMPLES: usize = 4;

/// What a change is written to.
pub trait Kernel {
    /// Gives `iptables-restore` this input, of one table.
    ///
    /// # Errors
    /// The program's.
    fn write(&mut self, input: &str) -> Result<(), IptablesError>;

    /// The lines of a chain that is there.
    ///
    /// # Errors
    /// The program's.
    fn lines(&mut self, table: Table, chain: &str) -> Result<Lines, IptablesError>;

    /// So many chains at once are written well.
    fn at_once(&self) -> usize;

    /// Whether there is time to look closer at what is refused.
    fn has_time(&mut self) -> bool;
}

/// Writes all of `edit` but what is refused. `seen` is in the kernel.
///
/// # Errors
/// When it is not for its rules that a change fails, or what every service needs is refused.
pub fn write_in_parts(
    kernel: &mut impl Kernel,
    edit: Edit,
    seen: &Observed,
) -> Result<Vec<Refusal>, IptablesError> {
    let mut refusals = Vec::new();
    for (table, edit) in edit.into_tables() {
        let mut search = Search { kernel, table, seen, refusals };
        search.write(edit)?;
        refusals = search.refusals;
    }
    Ok(refusals)
}

/// A part was refused.
struct No {
    error: IptablesError,
    has_time: bool,
}

/// One of a part that is refused.
struct Bad<T> {
    it: T,
    said: String,
}

struct Search<'a, K> {
    kernel: &'a mut K,
    table: Table,
    seen: &'a Observed,
    refusals: Vec<Refusal>,
}

impl<K: Kernel> Search<'_, K> {
    fn write(&mut self, edit: TableEdit) -> Result<(), IptablesError> {
        let TableEdit { write, remove, insert, delete } = edit;
        // If it is the rules' fault, this is not refused.
        self.must("a change of nothing", &removing([PROBE.to_owned()]))?;
        let new = write.keys().filter(|name| !self.seen.has(self.table, name));
        let new: Vec<_> = new.map(|name| (name.clone(), Lines::new())).collect();
        for new in new.chunks(self.kernel.at_once()) {
            self.must("new chains", &writing(new))?;
        }
        // What is allowed depends on where it is reached from.
        let jumps = TableEdit { insert, delete, ..TableEdit::default() };
        if jumps != TableEdit::default() {
            self.must("jumps", &jumps)?;
        }
        let mut stages: BTreeMap<_, Vec<(String, Lines)>> = BTreeMap::new();
        for (name, lines) in write {
            let stage = self.stage(&name);
            stages.entry(stage).or_default().push((name, lines));
        }
        for chains in stages.into_values() {
            self.chains(chains)?;
        }
        self.removals(remove.into_iter().collect())
    }

    /// When a chain is written.
    fn stage(&self, name: &str) -> (bool, usize) {
        (is_shared(self.table, name), place_ahead(name).unwrap_or(usize::MAX))
    }

    /// Chains of one stage.
    fn chains(&mut self, chains: Vec<(String, Lines)>) -> Result<(), IptablesError> {
        let (services, others): (Vec<_>, Vec<_>) =
            chains.into_iter().partition(|(name, _)| is_a_services(name));
        for (name, lines) in others {
            if is_shared(self.table, &name) {
                self.shared(name, lines)?;
            } else {
                self.must(&name.clone(), &writing(&[(name, lines)]))?;
            }
        }
        for group in alike(services, |(_, lines)| shapes(lines)) {
            for part in group.chunks(self.kernel.at_once()) {
                let bad = sift(part, |part| self.attempt(&writing(part)))?;
                for Bad { it, said } in bad {
                    let was_there = self.seen.has(self.table, &it.0);
                    let refusal = Refusal::of_chain(self.table, it.0, it.1, was_there, &said);
                    self.refusals.push(refusal);
                }
            }
        }
        Ok(())
    }

    /// A chain that services share is never without what it has already and shall have.
    fn shared(&mut self, name: String, lines: Lines) -> Result<(), IptablesError> {
        if self.attempt(&writing(&[(name.clone(), lines.clone())]))?.is_none() {
            return Ok(());
        }
        let there: HashSet<String> = self.kernel.lines(self.table, &name)?.into_iter().collect();
        let mut taken: HashSet<&String> =
            lines.iter().filter(|line| there.contains(*line)).collect();
        let new: Vec<&String> = lines.iter().filter(|line| !taken.contains(line)).collect();
        let with = |taken: &HashSet<&String>, more: &[&String]| {
            let more: HashSet<&String> = more.iter().copied().collect();
            let is_in = |line: &&String| taken.contains(line) || more.contains(line);
            writing(&[(name.clone(), lines.iter().filter(is_in).cloned().collect())])
        };
        self.must(&name, &with(&taken, &[]))?;
        for group in alike(new, |line| shapes([*line])) {
            let bad = sift(&group, |part| {
                let no = self.attempt(&with(&taken, part))?;
                if no.is_none() {
                    taken.extend(part);
                }
                Ok(no)
            })?;
            for Bad { it, said } in bad {
                let refusal = Refusal::of_line(self.table, &name, it, &said);
                self.refusals.push(refusal);
            }
        }
        Ok(())
    }

    fn removals(&mut self, names: Vec<String>) -> Result<(), IptablesError> {
        for part in names.chunks(self.kernel.at_once()) {
            for Bad { it, said } in
                sift(part, |part| self.attempt(&removing(part.iter().cloned())))?
            {
                self.must(&it, &writing(&[(it.clone(), Lines::new())]))?;
                let refusal = Refusal::of_removal(self.table, it, &said);
                self.refusals.push(refusal);
            }
        }
        Ok(())
    }

    /// Whether it is refused.
    fn attempt(&mut self, edit: &TableEdit) -> Result<Option<No>, IptablesError> {
        let input = edit.input(self.table);
        match self.kernel.write(&input) {
            Ok(()) => Ok(None),
            Err(error) if is_the_rules(&input, said(&error)) => {
                Ok(Some(No { error, has_time: self.kernel.has_time() }))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes what nobody can do without.
    fn must(&mut self, what: &str, edit: &TableEdit) -> Result<(), IptablesError> {
        match self.attempt(edit)? {
            None => Ok(()),
            Some(No { error, .. }) => Err(error.of(&format!("{}: {what}", self.table))),
        }
    }
}

fn said(error: &IptablesError) -> &str {
    match error {
        IptablesError::Failed { said, .. } => said,
        IptablesError::Run { .. }
        | IptablesError::Set { .. }
        | IptablesError::Netlink { .. }
        | IptablesError::Bridge(_) => "",
    }
}

fn writing(chains: &[(String, Lines)]) -> TableEdit {
    TableEdit { write: chains.iter().cloned().collect(), ..TableEdit::default() }
}

fn removing(chains: impl IntoIterator<Item = String>) -> TableEdit {
    TableEdit { remove: chains.into_iter().collect(), ..TableEdit::default() }
}

/// Those of the same shapes together.
fn alike<T>(all: Vec<T>, shapes: impl Fn(&T) -> BTreeSet<String>) -> Vec<Vec<T>> {
    let mut groups: BTreeMap<BTreeSet<String>, Vec<T>> = BTreeMap::new();
    for it in all {
        groups.entry(shapes(&it)).or_default().push(it);
    }
    groups.into_values().collect()
}

/// Which options, extensions and targets these lines have, their values aside.
fn shapes<'a>(lines: impl IntoIterator<Item = &'a String>) -> BTreeSet<String> {
    lines.into_iter().map(|line| shape(line)).collect()
}

fn shape(line: &str) -> String {
    // The comment may say anything.
    let (before, after) = line
        .split_once('"')
        .and_then(|(before, rest)| Some((before, rest.rsplit_once('"')?.1)))
        .unwrap_or((line, ""));
    let mut shape = Vec::new();
    let mut named = false;
    for word in before.split(' ').chain(after.split(' ')) {
        let is_a_chain = word.starts_with("KUBE-");
        if (named && !is_a_chain) || word.starts_with('-') {
            shape.push(word);
        }
        named = word == "-m" || word == "-j" || word == "-p";
    }
    shape.join(" ")
}

/// Those of `all` that are refused: tried together, then by halves until there is no time for more;
/// then whatever is refused together counts as refused. Of many, some are tried first: where each
/// is refused, all of them count so.
fn sift<T: Clone>(
    all: &[T],
    mut attempt: impl FnMut(&[T]) -> Result<Option<No>, IptablesError>,
) -> Result<Vec<Bad<T>>, IptablesError> {
    let mut bad = Vec::new();
    let mut parts = VecDeque::from([all]);
    while let Some(part) = parts.pop_front() {
        let Some(no) = attempt(part)? else { continue };
        if let [it] = part {
            bad.push(Bad::alone(it, &no));
            continue;
        }
        let is_first = part.len() == all.len() && all.len() > FEW;
        if !no.has_time || (is_first && are_samples_refused(all, &mut attempt)?) {
            bad.extend(part.iter().map(|it| Bad::with_others(it, &no)));
        } else {
            let (one, other) = part.split_at(part.len() / 2);
            parts.extend([one, other]);
        }
    }
    Ok(bad)
}

fn are_samples_refused<T>(
    all: &[T],
    mut attempt: impl FnMut(&[T]) -> Result<Option<No>, IptablesError>,
) -> Result<bool, IptablesError> {
    for some in all.chunks(all.len().div_ceil(SAMPLES)) {
        if attempt(&some[..1])?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

impl<T: Clone> Bad<T> {
    fn alone(it: &T, no: &No) -> Self {
        Self { it: it.clone(), said: said(&no.error).to_owned() }
    }

    fn with_others(it: &T, no: &No) -> Self {
        Self { it: it.clone(), said: format!("{} (together with others like it)", said(&no.error)) }
    }
}

#[cfg(test)]
mod tests;
