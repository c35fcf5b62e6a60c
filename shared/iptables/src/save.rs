//! What `iptables-save` says, cut down to what belongs to the client. Pure.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher};

use super::{ChainId, Fingerprint, Lines, Schema, Table};

/// What the kernel holds in the chains that a client owns, by their names: another program may have
/// written them.
#[derive(Debug)]
pub struct Observed {
    schema: &'static Schema,
    chains: HashMap<ChainId, DefaultHasher>,
    jumps: Vec<(ChainId, String)>,
    /// The rules of the chains that the client reads.
    lines: HashMap<ChainId, Lines>,
}

impl Observed {
    /// Without chains: nothing was read yet.
    pub fn new(schema: &'static Schema) -> Self {
        Self { schema, chains: HashMap::new(), jumps: Vec::new(), lines: HashMap::new() }
    }

    /// Takes in what `iptables-save` wrote of `table`. Lines that do not concern the client's
    /// chains are skipped.
    pub fn read(&mut self, table: Table, text: &str) {
        for line in text.lines() {
            if let Some((name, _)) = line.strip_prefix(':').and_then(|rest| rest.split_once(' ')) {
                if (self.schema.owns)(table, name) {
                    self.chains.entry((table, name.to_owned())).or_default();
                }
            } else if let Some((chain, rule)) = appended(line) {
                self.rule((table, chain.to_owned()), rule);
            }
        }
    }

    fn rule(&mut self, chain: ChainId, rule: &str) {
        if let Some(lines) = self.chains.get_mut(&chain) {
            rule.hash(lines);
            if (self.schema.reads)(chain.0, &chain.1) {
                self.lines.entry(chain).or_default().push(rule.to_owned());
            }
        } else if target(rule).is_some_and(|target| (self.schema.owns)(chain.0, target)) {
            self.jumps.push((chain, rule.to_owned()));
        }
    }

    /// Every chain, with the fingerprint of its rules.
    pub fn chains(&self) -> impl Iterator<Item = (&ChainId, Fingerprint)> {
        self.chains.iter().map(|(chain, lines)| (chain, Fingerprint(lines.finish())))
    }

    /// Whether there is this chain.
    pub fn has(&self, chain: &ChainId) -> bool {
        self.chains.contains_key(chain)
    }

    /// Whether there are no chains.
    pub fn has_no_chains(&self) -> bool {
        self.chains.is_empty()
    }

    /// Rules of other chains that jump to one of the client's chains.
    pub fn jumps(&self) -> &[(ChainId, String)] {
        &self.jumps
    }

    /// The rules of a chain that the client reads ([`Schema::reads`]).
    pub fn lines(&self, table: Table, name: &str) -> &[String] {
        self.lines.get(&(table, name.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// Whether neither a chain of the client nor a jump to one was found.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.jumps.is_empty()
    }
}

/// The chain and the rule of a line that appends one.
pub fn appended(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("-A ")?.split_once(' ')
}

/// The target of a rule that jumps without options, as every jump to a chain does.
pub fn target(rule: &str) -> Option<&str> {
    rule.rsplit_once(" -j ").map(|(_, to)| to).or_else(|| rule.strip_prefix("-j "))
}
