//! Reads tables, chains and rules of any owner.

use denizen_netlink::{Attributes, Message};
use nix::libc;

use crate::chain::Hook;
use crate::expression::{observed, wanted};
use crate::expression_view::{Decision, ExpressionView};
use crate::family::TableFamily;
use crate::listing::rule_text;
use crate::rule::Rule;
use crate::rule_id::RuleId;
use crate::user_data::comment_in;

/// A table, as it was read.
#[derive(Debug, Clone, Copy)]
pub struct TableView<'a>(pub(crate) Message<'a>);

/// A chain, as it was read.
#[derive(Debug, Clone, Copy)]
pub struct ChainView<'a>(pub(crate) Message<'a>);

/// A rule, as it was read.
#[derive(Debug, Clone, Copy)]
pub struct RuleView<'a>(pub(crate) Message<'a>);

fn table_family(message: &Message<'_>) -> Option<TableFamily> {
    message.family().and_then(TableFamily::from_number)
}

impl<'a> TableView<'a> {
    /// Its family; `None` for a family that Denizen does not use.
    pub fn family(&self) -> Option<TableFamily> {
        table_family(&self.0)
    }

    /// The table's name.
    pub fn name(&self) -> Option<&'a str> {
        self.0.attributes().find_str(1)
    }

    /// Whether its chains see no packets for the time being.
    pub fn is_dormant(&self) -> bool {
        const DORMANT: u32 = 1;
        self.0.attributes().find_u32(2).is_some_and(|flags| flags & DORMANT != 0)
    }
}

impl<'a> ChainView<'a> {
    /// The family of its table; `None` for a family that Denizen does not use.
    pub fn family(&self) -> Option<TableFamily> {
        table_family(&self.0)
    }

    /// The name of the chain's table.
    pub fn table(&self) -> Option<&'a str> {
        self.0.attributes().find_str(1)
    }

    /// The chain's name.
    pub fn name(&self) -> Option<&'a str> {
        self.0.attributes().find_str(3)
    }

    /// Whether a hook calls it.
    pub fn is_base(&self) -> bool {
        self.0.attributes().find(4).is_some()
    }

    /// Whether this hook calls it.
    pub fn is_at(&self, hook: Hook) -> bool {
        self.0.attributes().nested(4).find_u32(1) == Some(hook.number())
    }

    /// Whether its policy is to drop.
    pub fn drops_by_policy(&self) -> bool {
        self.0.attributes().find_u32(5) == Some(libc::NF_DROP as u32)
    }
}

impl<'a> RuleView<'a> {
    /// The name of its chain.
    pub fn chain(&self) -> Option<&'a str> {
        self.0.attributes().find_str(2)
    }

    /// What it matches and does, close to nft's own text.
    pub fn text(&self) -> String {
        rule_text(self.expressions())
    }

    /// Its handle, by which it is removed.
    pub fn handle(&self) -> Option<u64> {
        self.0.attributes().find(3)?.try_into().ok().map(u64::from_be_bytes)
    }

    /// Its comment, as nft keeps it.
    pub fn comment(&self) -> Option<&'a str> {
        self.0.attributes().find(7).and_then(comment_in)
    }

    /// The id in the comment, by which a rule of ours is recognised.
    pub fn id(&self) -> Option<RuleId> {
        self.comment().and_then(RuleId::read)
    }

    /// Its comment, as iptables-nft writes it: a match of xtables (`struct xt_comment_info`).
    pub fn xtables_comment(&self) -> Option<&'a str> {
        let is_comment = |expression: &ExpressionView<'_>| {
            expression.name() == "match" && expression.data().find_str(1) == Some("comment")
        };
        let found = self.expressions().find(is_comment)?;
        let text = found.data().find(3)?.split(|byte| *byte == 0).next()?;
        std::str::from_utf8(text).ok()
    }

    /// The chain that it jumps or goes to.
    pub fn leads_to(&self) -> Option<&'a str> {
        self.expressions().find_map(|expression| match expression.decision()? {
            Decision::Jump(chain) | Decision::Goto(chain) => Some(chain),
            Decision::Continue
            | Decision::Accept
            | Decision::Drop
            | Decision::Return
            | Decision::Other => None,
        })
    }

    /// How many packets its counters counted.
    pub fn packets(&self) -> u64 {
        const PACKETS: u16 = 2;
        let counters = self.expressions().filter(|expression| expression.name() == "counter");
        let packets = counters.filter_map(|counter| counter.data().find(PACKETS)?.try_into().ok());
        packets.map(u64::from_be_bytes).sum()
    }

    /// Whether it does what `rule` does in a table of this family, whatever its counters say.
    pub fn does(&self, family: TableFamily, rule: &Rule) -> bool {
        observed(self.0.attributes().nested(4)) == wanted(family, rule)
    }

    /// Its expressions, in order.
    pub fn expressions(&self) -> impl Iterator<Item = ExpressionView<'a>> {
        let list = self.0.attributes().nested(4);
        list.map(|(_, expression)| ExpressionView::read(Attributes::new(expression)))
    }
}
