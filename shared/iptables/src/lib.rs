//! The driver of iptables. It reads and writes tables through iptables' own programs, and sets of
//! addresses through netlink. It knows nothing of services: a client declares by a [`Schema`] which
//! chains are its own, and says by [`Desired`] what they shall hold.
//!
//! `save` parses what the kernel holds, `delta` computes the difference, `programs` executes the
//! programs, in one `worker` thread for each family. `probe` finds out what the programs and the
//! kernel lack; rules that need it are rejected before the difference is computed
//! (`rejected_rules`). `search` finds the rules that the kernel rejects all the same. `writer` puts
//! these modules together.

#![deny(missing_docs)]

mod delta;
mod error;
#[cfg(test)]
mod fixture;
mod ipset;
mod probe;
mod programs;
mod rejected_rule;
mod rejected_rules;
mod save;
mod search;
mod worker;
mod writer;

use denizen_packet::Family;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

pub use delta::Delta;
pub use error::IptablesError;
pub use ipset::{Element, Elements, Set, Sets};
pub use probe::Extension;
pub use programs::{Programs, Variant, has_family, legacy_tables};
pub use rejected_rules::RejectedRules;
pub use save::{Observed, appended};
pub use worker::{FinishedJob, JobOutcome};
pub use writer::{Repaired, RestoreFailures, Writer};

/// A table of iptables in which a client may have chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Accepts, refuses and drops packets.
    Filter,
    /// Translates addresses: DNAT, SNAT, MASQUERADE.
    Nat,
    /// The last table that packets pass in FORWARD. A kernel may lack it, so it is written apart
    /// from the others, and its failure does not fail the others.
    Security,
}

impl Table {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 3] = [Self::Filter, Self::Nat, Self::Security];

    /// The tables that every kernel with iptables has.
    pub const REQUIRED: [Self; 2] = [Self::Filter, Self::Nat];

    /// The table with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.as_str() == name)
    }

    /// The name, as `iptables -t` takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Security => "security",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A chain: its table and its name.
pub type ChainId = (Table, String);

/// A chain's rules, each as `iptables-save` writes it, without `-A` and the chain's name.
pub type Lines = Vec<String>;

/// Distinguishes two contents of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of a chain with these rules, in this order.
    pub fn of<T: AsRef<str>>(lines: impl IntoIterator<Item = T>) -> Self {
        let mut hasher = DefaultHasher::new();
        lines.into_iter().for_each(|line| line.as_ref().hash(&mut hasher));
        Self(hasher.finish())
    }
}

/// What the driver must know of a client's chains. All of it follows from a chain's table and name:
/// a restarted agent remembers nothing else.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// Whether a chain is the client's. Such a chain is removed when the client does not want it,
    /// and so is a rule of another chain that jumps to it.
    pub owns: fn(Table, &str) -> bool,
    /// Whether the rules of this chain are kept in [`Observed`], for the client to read.
    pub reads: fn(Table, &str) -> bool,
    /// For a chain that only other chains of the client jump to: its place in the order in which
    /// such chains are created, each after the chains that it jumps to.
    pub creation_order: fn(&str) -> Option<usize>,
    /// What to do with a chain when one of its rules is rejected.
    pub on_rejection: fn(Table, &str) -> OnRejection,
    /// Extensions that the client can do without.
    pub extensions: fn(Family) -> Vec<Extension>,
}

/// What to do with a chain when one of its rules is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnRejection {
    /// The chain keeps the rules that it had (none, if it is new): its rules only make sense
    /// together.
    KeepChain,
    /// The chain is written without that rule.
    OmitRule,
    /// Nothing works without this chain: the whole write fails.
    Fail,
}

/// What a client wants one family's chains to hold, and which of them have changed since the
/// changes were last taken.
pub trait Desired {
    /// The family whose tables these are: each family has a writer of its own.
    fn family(&self) -> Family;

    /// Calls `each` with every chain and its rules.
    fn for_each(&self, each: impl FnMut(ChainId, Lines));

    /// The rules of the kernel's own chains that jump to the client's chains.
    fn jumps(&self) -> Vec<(ChainId, String)>;

    /// Whether any chain has changed.
    fn is_changed(&self) -> bool;

    /// The chains that have changed, each with its rules; `None` if the chain is not wanted any
    /// more.
    fn take_changes(&mut self) -> BTreeMap<ChainId, Option<Lines>>;

    /// Forgets what has changed: everything is about to be compared.
    fn forget_changes(&mut self);

    /// Whether the jumps have changed. Then everything is compared.
    fn has_changed_jumps(&self) -> bool;

    /// Whether there are chains in this table, or were when everything was last compared.
    fn uses(&self, table: Table) -> bool;

    /// Whether any chain in this table has changed.
    fn is_changed_in(&self, table: Table) -> bool;
}
