//! Rules, made of [`Statement`]s. The kernel's expressions (`encode`) and nft's text (`text`) are
//! both made from these.

use denizen_netlink::Writer;

use crate::encode;
use crate::family::TableFamily;
use crate::rule_id::RuleId;
use crate::statement::Statement;

/// A rule: its statements, done in order until one does not match, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What it asks and does.
    pub statements: Vec<Statement>,
    /// Why the rule exists, for a person who lists the chain: at most 100 bytes, without quotes.
    pub why: &'static str,
}

impl Rule {
    /// Its id in a table of this family.
    pub fn id(&self, family: TableFamily) -> RuleId {
        let mut list = Writer::default();
        encode::statements(&mut list, family, &self.statements);
        RuleId::of(list.bytes())
    }

    /// Its comment on the node: `<id> <why>`.
    pub fn comment(&self, family: TableFamily) -> String {
        format!("{} {}", self.id(family), self.why)
    }
}
