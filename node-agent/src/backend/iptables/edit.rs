//! A change of one family's rules, as `iptables-restore --noflush` takes it. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use super::name::{ChainId, Table};
use super::refusals::Refusals;
use super::ruleset::{Lines, Print, Ruleset};
use super::save::{CANARY, Observed};

/// Chains in one go, where there may be several.
pub const AT_ONCE: usize = 1_000;

/// What the names of chains begin with that only others of these and KUBE-SERVICES lead to, each
/// after those that it names.
const AHEAD: [&str; 7] = [
    "KUBE-MARK-MASQ",
    "KUBE-MASQ-IF-NOT-LOCAL",
    "KUBE-SEP-",
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-EXT-",
    "KUBE-FW-",
];

/// What is to be done in each table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edit {
    tables: [TableEdit; 3],
    /// The kernel holds no chain of a service proxy: what is written is reached by nobody until its
    /// last chains and jumps are there.
    fresh: bool,
}

/// What is to be done in one table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableEdit {
    /// Chains that are made, or made anew.
    pub write: BTreeMap<String, Lines>,
    /// Chains that go.
    pub remove: BTreeSet<String>,
    /// Rules of the kernel's own chains.
    pub insert: Vec<(String, String)>,
    /// The same, that go.
    pub delete: Vec<(String, String)>,
}

impl Edit {
    /// Writes chains that changed, and removes those without lines.
    pub fn of(changes: BTreeMap<ChainId, Option<Lines>>, refused: &mut Refusals) -> Self {
        let mut edit = Self::default();
        for ((table, chain), lines) in changes {
            let name = chain.to_string();
            match lines {
                Some(lines) => {
                    if let Some(lines) = refused.without(table, &name, lines) {
                        edit.table(table).write.insert(name, lines);
                    }
                }
                None => edit.take_away(table, name, refused),
            }
        }
        edit
    }

    fn take_away(&mut self, table: Table, name: String, refused: &mut Refusals) {
        if refused.keep(table, &name) {
            self.table(table).write.insert(name, Lines::new());
        } else {
            self.table(table).remove.insert(name);
        }
    }

    /// Brings the kernel from what was seen to what is wanted. A chain of a service proxy that is
    /// not wanted goes, whoever made it; a jump to one stays only as it is wanted, once.
    pub fn between(seen: &Observed, wanted: &Ruleset, refused: &mut Refusals) -> Self {
        let mut edit = Self { fresh: seen.chains().next().is_none(), ..Self::default() };
        let mut left: HashMap<(Table, String), Print> =
            seen.chains().map(|(table, name, print)| ((table, name.to_owned()), print)).collect();
        wanted.for_each(|(table, chain), lines| {
            let name = chain.to_string();
            let print = left.remove(&(table, name.clone()));
            match (refused.without(table, &name, lines), print) {
                (Some(lines), print) if print != Some(Print::of(&lines)) => {
                    edit.table(table).write.insert(name, lines);
                }
                // Others lead to it.
                (None, None) => drop(edit.table(table).write.insert(name, Lines::new())),
                (Some(_) | None, _) => {}
            }
        });
        refused.forget_gone(seen);
        let nothing = Print::of(Lines::new());
        for ((table, name), print) in left {
            if print != nothing || !refused.keep(table, &name) {
                edit.take_away(table, name, refused);
            }
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

    /// Writes these chains, or removes those that are not wanted, whatever the kernel holds of
    /// them.
    pub fn anew(mut chains: BTreeSet<(Table, String)>, wanted: &Ruleset) -> Self {
        let mut edit = Self::default();
        wanted.for_each(|(table, chain), lines| {
            let id = (table, chain.to_string());
            if chains.remove(&id) {
                edit.table(table).write.insert(id.1, lines);
            }
        });
        for (table, chain) in chains {
            edit.table(table).remove.insert(chain);
        }
        edit
    }

    /// Removes what was seen in some tables, but for kube-proxy's canaries.
    pub fn remove(&mut self, seen: &Observed, of: impl Fn(Table) -> bool) {
        for (table, name, _) in seen.chains().filter(|(table, ..)| of(*table)) {
            self.table(table).remove.insert(name.to_owned());
        }
        for (table, chain, line) in seen.jumps.iter().filter(|(table, ..)| of(*table)) {
            self.table(*table).delete.push((chain.clone(), line.clone()));
        }
    }

    /// Removes those, for kube-proxy to leave no trace.
    pub fn remove_canaries(&mut self, seen: &Observed) {
        for table in &seen.canaries {
            self.table(*table).remove.insert(CANARY.to_owned());
        }
    }

    /// A chain that was to be written is only emptied; the lines that it was to have.
    pub fn empty(&mut self, table: Table, chain: &str) -> Option<Lines> {
        self.table(table).write.get_mut(chain).map(std::mem::take)
    }

    /// A chain that was to be written is not; the lines that it was to have.
    pub fn skip(&mut self, table: Table, chain: &str) -> Option<Lines> {
        self.table(table).write.remove(chain)
    }

    /// A line is not written.
    pub fn leave_out(&mut self, table: Table, chain: &str, line: &str) {
        if let Some(lines) = self.table(table).write.get_mut(chain) {
            lines.retain(|it| it != line);
        }
    }

    /// A chain that was to go is only emptied.
    pub fn keep(&mut self, table: Table, chain: &str) {
        let edit = self.table(table);
        if edit.remove.remove(chain) {
            edit.write.insert(chain.to_owned(), Lines::new());
        }
    }

    /// A table is as it should be.
    pub fn forget(&mut self, table: Table) {
        *self.table(table) = TableEdit::default();
    }

    /// What is to be done in the tables of services, in the order of [`Self::input`].
    pub fn into_tables(mut self) -> impl Iterator<Item = (Table, TableEdit)> {
        let all = Table::OF_SERVICES.map(|table| (table, std::mem::take(self.table(table))));
        all.into_iter().filter(|(_, edit)| *edit != TableEdit::default())
    }

    fn table(&mut self, table: Table) -> &mut TableEdit {
        &mut self.tables[table as usize]
    }

    /// There is nothing to do.
    pub fn is_empty(&self) -> bool {
        !self.is_of(&Table::ALL)
    }

    /// There is something to do in one of these tables.
    pub fn is_of(&self, tables: &[Table]) -> bool {
        let mut edits = tables.iter().map(|table| &self.tables[*table as usize]);
        edits.any(|edit| *edit != TableEdit::default())
    }

    /// What was there before, where that is known: nothing.
    pub fn seen(&self) -> Option<Observed> {
        self.fresh.then(Observed::default)
    }

    /// As if all the chains that it touches were there.
    pub fn of_all_there(&self) -> Observed {
        let mut seen = Observed::default();
        for table in Table::OF_SERVICES {
            let TableEdit { write, remove, .. } = &self.tables[table as usize];
            let names = write.keys().chain(remove);
            names.for_each(|name| seen.read(table, &format!(":{name} -")));
        }
        seen
    }

    /// How many chains it touches.
    pub fn chains(&self) -> usize {
        self.tables.iter().map(|table| table.write.len() + table.remove.len()).sum()
    }

    /// How many rules it touches in chains that are not ours alone.
    pub fn jumps(&self) -> usize {
        self.tables.iter().map(|table| table.insert.len() + table.delete.len()).sum()
    }

    /// [`Self::input`] in several goes, where that changes nothing that a packet could meet: first
    /// chains that nothing leads to yet, those that others name before the others. For each chain
    /// `iptables-nft-restore` looks at all of its input (measured with 1.8.9: 25,000 chains take 37
    /// s at once, 13 s so).
    pub fn goes(&self) -> Vec<String> {
        let nat = &self.tables[Table::Nat as usize];
        if !self.fresh || nat.write.len() <= AT_ONCE {
            return vec![self.input()];
        }
        let (mut ahead, mut last) = (Vec::new(), nat.clone());
        last.write.retain(|name, lines| match place_ahead(name) {
            Some(place) => {
                ahead.push((place, name.clone(), std::mem::take(lines)));
                false
            }
            None => true,
        });
        ahead.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let of_nat = |write: BTreeMap<String, Lines>| {
            let mut go = Self::default();
            go.table(Table::Nat).write = write;
            go.input()
        };
        let go = |chains: &[(usize, String, Lines)]| {
            let chains = chains.iter();
            of_nat(chains.map(|(_, name, lines)| (name.clone(), lines.clone())).collect())
        };
        let mut goes: Vec<String> = ahead.chunks(AT_ONCE).map(go).collect();
        let filter = self.tables[Table::Filter as usize].clone();
        let rest = Self { tables: [filter, last, TableEdit::default()], fresh: true };
        goes.push(rest.input());
        goes
    }

    /// What `iptables-restore --noflush` reads of services. The filter table comes first: a service
    /// that loses its last endpoint is refused before it is translated no more.
    pub fn input(&self) -> String {
        self.input_of(&Table::OF_SERVICES)
    }

    /// The same of egress masquerade, apart: whatever becomes of it, services go on.
    pub fn egress_input(&self) -> String {
        self.input_of(&[Table::Security])
    }

    fn input_of(&self, tables: &[Table]) -> String {
        let mut text = String::new();
        for table in tables {
            let edit = &self.tables[*table as usize];
            if *edit != TableEdit::default() {
                edit.write_to(*table, &mut text).expect("a string takes everything");
            }
        }
        text
    }
}

/// Where a chain stands among those that are to be there before others; `None` where that is all
/// the same.
pub fn place_ahead(name: &str) -> Option<usize> {
    AHEAD.iter().position(|begin| name.starts_with(begin))
}

impl TableEdit {
    /// What `iptables-restore --noflush` reads.
    pub fn input(&self, table: Table) -> String {
        let mut text = String::new();
        self.write_to(table, &mut text).expect("a string takes everything");
        text
    }

    fn write_to(&self, table: Table, text: &mut String) -> std::fmt::Result {
        writeln!(text, "*{table}")?;
        // A declared chain is made, or emptied.
        for name in self.write.keys().chain(&self.remove) {
            writeln!(text, ":{name} - [0:0]")?;
        }
        for (name, lines) in &self.write {
            lines.iter().try_for_each(|line| writeln!(text, "-A {name} {line}"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As large a service as it takes: a chain that names chains of every other kind.
    fn wanted(services: usize) -> Edit {
        let mut edit = Edit { fresh: true, ..Edit::default() };
        let nat = edit.table(Table::Nat);
        let mut add = |name: String, to: &str| {
            nat.write.insert(name, vec![format!("-j {to}")].into_iter().collect());
        };
        add("KUBE-SERVICES".into(), "KUBE-FW-0");
        add("KUBE-MARK-MASQ".into(), "MARK");
        add("KUBE-MASQ-IF-NOT-LOCAL".into(), "KUBE-MARK-MASQ");
        for n in 0..services {
            add(format!("KUBE-FW-{n}"), &format!("KUBE-EXT-{n}"));
            add(format!("KUBE-EXT-{n}"), &format!("KUBE-SVL-{n}"));
            add(format!("KUBE-SVL-{n}"), &format!("KUBE-SEP-{n}"));
            add(format!("KUBE-SVC-{n}"), &format!("KUBE-SEP-{n}"));
            add(format!("KUBE-SEP-{n}"), "KUBE-MASQ-IF-NOT-LOCAL");
        }
        nat.insert.push(("PREROUTING".into(), "-j KUBE-SERVICES".into()));
        edit
    }

    #[test]
    fn a_go_names_only_chains_that_are_there() {
        let edit = wanted(900);
        let goes = edit.goes();
        assert!(goes.len() > 4, "{}", goes.len());
        let mut there = BTreeSet::from(["MARK".to_owned()]);
        for go in &goes {
            let declared = go.lines().filter_map(|line| line.strip_prefix(':'));
            there.extend(declared.map(|line| line.split(' ').next().unwrap().to_owned()));
            for (_, to) in go.lines().filter_map(|line| line.split_once("-j ")) {
                assert!(there.contains(to), "{to} is not there yet");
            }
        }
        let sorted = |text: &str| {
            let lines = text.lines().filter(|line| line.starts_with([':', '-']));
            lines.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        assert_eq!(sorted(&goes.concat()), sorted(&edit.input()), "the same in all");
        let (last, before) = goes.split_last().unwrap();
        assert!(last.contains("-I PREROUTING") && last.contains("-A KUBE-SERVICES"));
        assert!(before.iter().all(|go| !go.contains("KUBE-SERVICES")));
    }

    #[test]
    fn what_packets_may_meet_is_changed_at_once() {
        let few = wanted(10);
        assert_eq!(few.goes(), [few.input()]);
        let replaced = Edit { fresh: false, ..wanted(900) };
        assert_eq!(replaced.goes(), [replaced.input()]);
    }
}
