//! One thing that `iptables-restore` refused, and what is left out for it. Pure.
//!
//! A program refuses a table whole, and says at which line. In a chain of one service every rule
//! counts, so the chain stays as it was, or empty where it is new: nothing gets past what it should
//! drop. In a chain that all services share, that line alone is left out.

use super::name::Table;
use super::ruleset::Lines;
use super::service::Shared;

/// A rule, or a removal, that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Where.
    pub table: Table,
    /// Where there.
    pub chain: String,
    /// What is not written.
    pub left_out: LeftOut,
    what: String,
    /// What becomes of the chain or line.
    pub follows: &'static str,
    said: String,
}

/// What is not written of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftOut {
    /// All of it, which is this.
    Lines(Lines),
    /// This line alone.
    Line(String),
    /// It was to go, and stays without lines.
    Removal,
}

impl Refusal {
    /// A service's chain with these lines; it was there before, or is new.
    pub fn of_chain(
        table: Table,
        chain: String,
        lines: Lines,
        was_there: bool,
        said: &str,
    ) -> Self {
        let first = lines.first().map(String::as_str).unwrap_or_default();
        let more = match lines.len() {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        let what = format!("-A {chain} {first}{more}");
        let follows = if was_there { STAYS } else { STAYS_EMPTY };
        Self::new(table, chain, LeftOut::Lines(lines), &what, follows, said)
    }

    /// A line of a chain that services share.
    pub fn of_line(table: Table, chain: &str, line: &str, said: &str) -> Self {
        let what = format!("-A {chain} {line}");
        let left_out = LeftOut::Line(line.to_owned());
        Self::new(table, chain.to_owned(), left_out, &what, LEFT_OUT, said)
    }

    /// The removal of a chain.
    pub fn of_removal(table: Table, chain: String, said: &str) -> Self {
        let what = format!("-X {chain}");
        Self::new(table, chain, LeftOut::Removal, &what, EMPTIED, said)
    }

    pub(super) fn new(
        table: Table,
        chain: String,
        left_out: LeftOut,
        what: &str,
        follows: &'static str,
        said: &str,
    ) -> Self {
        Self { table, chain, left_out, what: what.to_owned(), follows, said: said.to_owned() }
    }

    /// What was refused, and what the program said.
    pub fn words(&self) -> String {
        let Self { table, what, follows, said, .. } = self;
        format!("{table}: {what}: refused, so {follows}: {said}")
    }
}

pub(super) const STAYS: &str = "the chain stays as it was";
pub(super) const STAYS_EMPTY: &str = "the chain stays empty";
pub(super) const LEFT_OUT: &str = "the rule is left out";
pub(super) const EMPTIED: &str = "the chain stays, empty";

/// Whether all services have lines in it.
pub fn is_shared(table: Table, chain: &str) -> bool {
    let mut shared = Shared::ALL.into_iter().map(Shared::chain);
    shared.any(|(its, name)| its == table && name.to_string() == chain)
}
