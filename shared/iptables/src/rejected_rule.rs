//! One rule that cannot be written, and what is written instead. Pure.

use super::probe::MissingExtensions;
use super::{ChainId, Lines};

/// A chain and, if only one rule of the chain is not written, that rule.
pub type RejectedKey = (ChainId, Option<String>);

/// A rule, or the removal of a chain, that a program or the kernel rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedRule {
    /// The chain that the rule is in, or that could not be removed.
    pub chain: ChainId,
    /// What is not written because of the rejection.
    pub unwritten: Unwritten,
    /// The program's message, or what the host lacks.
    pub reason: String,
    /// It needs an extension that this host lacked when it was last probed.
    pub is_unsupported: bool,
}

/// What is not written of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unwritten {
    /// All rules that the chain should have. The chain keeps the rules that it had.
    Chain(Lines),
    /// This rule. The chain is written without it.
    Rule(String),
    /// The chain's removal. It stays, without rules.
    Removal,
}

impl RejectedRule {
    /// A chain that keeps the rules that it had, because some of `lines` are rejected.
    pub fn chain(chain: ChainId, lines: Lines, reason: &str) -> Self {
        Self::new(chain, Unwritten::Chain(lines), reason)
    }

    /// A rule that its chain is written without.
    pub fn rule(chain: ChainId, line: &str, reason: &str) -> Self {
        Self::new(chain, Unwritten::Rule(line.to_owned()), reason)
    }

    /// A chain that cannot be removed.
    pub fn removal(chain: ChainId, reason: &str) -> Self {
        Self::new(chain, Unwritten::Removal, reason)
    }

    fn new(chain: ChainId, unwritten: Unwritten, reason: &str) -> Self {
        Self { chain, unwritten, reason: reason.to_owned(), is_unsupported: false }
    }

    /// The same rule, rejected because of a missing extension, without asking a program.
    #[must_use]
    pub fn unsupported(self) -> Self {
        Self { is_unsupported: true, ..self }
    }

    /// What was rejected, what follows, and why, as text.
    pub fn text(&self) -> String {
        let Self { chain: (table, chain), unwritten, reason, .. } = self;
        let (what, follows) = match unwritten {
            Unwritten::Chain(lines) => {
                let first = lines.first().map(String::as_str).unwrap_or_default();
                let more = match lines.len() {
                    0 | 1 => String::new(),
                    n => format!(" (and {} more)", n - 1),
                };
                (format!("-A {chain} {first}{more}"), "the chain keeps the rules that it had")
            }
            Unwritten::Rule(line) => (format!("-A {chain} {line}"), "the rule is not written"),
            Unwritten::Removal => (format!("-X {chain}"), "the chain stays, without rules"),
        };
        format!("{table}: {what}: rejected, so {follows}: {reason}")
    }
    pub(crate) fn key(&self) -> RejectedKey {
        let line = match &self.unwritten {
            Unwritten::Rule(line) => Some(line.clone()),
            Unwritten::Chain(_) | Unwritten::Removal => None,
        };
        (self.chain.clone(), line)
    }

    /// Whether it needs a missing extension.
    pub(crate) fn needs(&self, missing: &MissingExtensions) -> bool {
        match &self.unwritten {
            Unwritten::Chain(lines) => lines.iter().any(|line| missing.reason(line).is_some()),
            Unwritten::Rule(line) => missing.reason(line).is_some(),
            Unwritten::Removal => false,
        }
    }
}
