//! A change of one family's rules, as `iptables-restore --noflush` takes it. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use super::name::{ChainId, Table};
use super::ruleset::{Lines, Print, Ruleset};
use super::save::{CANARY, Observed};

/// What is to be done in each table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edit([TableEdit; 2]);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TableEdit {
    /// Chains that are made, or made anew.
    write: BTreeMap<String, Lines>,
    remove: BTreeSet<String>,
    /// Rules of the kernel's own chains.
    insert: Vec<(String, String)>,
    delete: Vec<(String, String)>,
}

impl Edit {
    /// Writes chains that changed, and removes those without lines.
    pub fn of(changes: BTreeMap<ChainId, Option<Lines>>) -> Self {
        let mut edit = Self::default();
        for ((table, chain), lines) in changes {
            let of_table = edit.table(table);
            match lines {
                Some(lines) => drop(of_table.write.insert(chain.to_string(), lines)),
                None => drop(of_table.remove.insert(chain.to_string())),
            }
        }
        edit
    }

    /// Brings the kernel from what was seen to what is wanted. A chain of a service proxy that is not wanted
    /// goes, whoever made it; a jump to one stays only as it is wanted, once.
    pub fn between(seen: &Observed, wanted: &Ruleset) -> Self {
        let mut edit = Self::default();
        let mut left: HashMap<(Table, String), Print> = seen
            .chains()
            .map(|(table, name, print)| ((table, name.to_owned()), print))
            .collect();
        wanted.for_each(|(table, chain), lines| {
            let name = chain.to_string();
            if left.remove(&(table, name.clone())) != Some(Print::of(&lines)) {
                edit.table(table).write.insert(name, lines);
            }
        });
        for (table, name) in left.into_keys() {
            edit.table(table).remove.insert(name);
        }
        let mut missing: BTreeSet<(Table, String, String)> = wanted
            .jumps()
            .into_iter()
            .map(|((table, chain), line)| (table, chain.to_string(), line))
            .collect();
        for jump in &seen.jumps {
            if !missing.remove(jump) {
                edit.table(jump.0).delete.push((jump.1.clone(), jump.2.clone()));
            }
        }
        for (table, chain, line) in missing {
            edit.table(table).insert.push((chain, line));
        }
        edit
    }

    /// Removes all that was seen; kube-proxy's canaries too, if it is to leave no trace.
    pub fn removing(seen: &Observed, canaries: bool) -> Self {
        let mut edit = Self::default();
        for (table, name, _) in seen.chains() {
            edit.table(table).remove.insert(name.to_owned());
        }
        for (table, chain, line) in &seen.jumps {
            edit.table(*table).delete.push((chain.clone(), line.clone()));
        }
        for table in seen.canaries.iter().filter(|_| canaries) {
            edit.table(*table).remove.insert(CANARY.to_owned());
        }
        edit
    }

    fn table(&mut self, table: Table) -> &mut TableEdit {
        &mut self.0[table as usize]
    }

    /// There is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|table| *table == TableEdit::default())
    }

    /// How many chains it touches.
    pub fn chains(&self) -> usize {
        self.0
            .iter()
            .map(|table| table.write.len() + table.remove.len())
            .sum()
    }

    /// How many rules it touches in chains that are not ours alone.
    pub fn jumps(&self) -> usize {
        self.0
            .iter()
            .map(|table| table.insert.len() + table.delete.len())
            .sum()
    }

    /// What `iptables-restore --noflush` reads. The filter table comes first: a service that loses its last
    /// endpoint is refused before it is translated no more.
    pub fn input(&self) -> String {
        let mut text = String::new();
        for (table, edit) in Table::BOTH.iter().zip(&self.0) {
            if *edit != TableEdit::default() {
                edit.write_to(*table, &mut text)
                    .expect("a string takes everything");
            }
        }
        text
    }
}

impl TableEdit {
    fn write_to(&self, table: Table, text: &mut String) -> std::fmt::Result {
        writeln!(text, "*{table}")?;
        // A declared chain is made, or emptied.
        for name in self.write.keys().chain(&self.remove) {
            writeln!(text, ":{name} - [0:0]")?;
        }
        for (name, lines) in &self.write {
            lines
                .iter()
                .try_for_each(|line| writeln!(text, "-A {name} {line}"))?;
        }
        for (chain, line) in &self.insert {
            writeln!(text, "-I {chain} {line}")?;
        }
        for (chain, line) in &self.delete {
            writeln!(text, "-D {chain} {line}")?;
        }
        for name in &self.remove {
            writeln!(text, "-X {name}")?;
        }
        writeln!(text, "COMMIT")
    }
}
