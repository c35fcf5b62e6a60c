//! What the messages of a batch are about.

use std::fmt;
use std::sync::Arc;

/// What a message of a batch is about, for the error that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageSubject {
    /// A table.
    Table,
    /// A chain or its rules.
    Chain(Arc<str>),
    /// A set.
    Set(&'static str),
    /// Elements of a set.
    Elements(&'static str),
    /// The removal of a rule, by its handle, from a chain.
    RuleRemoval(Arc<str>, u64),
    /// The removal of a chain, or of its rules.
    ChainRemoval(Arc<str>),
}

impl fmt::Display for MessageSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => f.write_str("the table"),
            Self::Chain(chain) => write!(f, "chain {chain}"),
            Self::Set(set) => write!(f, "set {set}"),
            Self::Elements(set) => write!(f, "elements of {set}"),
            Self::RuleRemoval(chain, rule) => {
                write!(f, "the removal of rule {rule} of chain {chain}")
            }
            Self::ChainRemoval(chain) => write!(f, "the removal of chain {chain}"),
        }
    }
}
