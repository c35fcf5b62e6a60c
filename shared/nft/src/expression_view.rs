//! Reads an expression of a rule of any owner.

use denizen_netlink::Attributes;
use nix::libc;

use crate::encode::{NFTRACE, VERDICT_REGISTER};

/// An expression of a rule, as it was read.
#[derive(Debug, Clone, Copy)]
pub struct ExpressionView<'a> {
    name: &'a str,
    data: Attributes<'a>,
}

/// The verdict of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision<'a> {
    /// On with the next rule.
    Continue,
    /// The packet passes this base chain; later ones may drop it.
    Accept,
    /// The packet is dropped or refused.
    Drop,
    /// Back to where the chain was called.
    Return,
    /// To a chain, and back.
    Jump(&'a str),
    /// To a chain, not back.
    Goto(&'a str),
    /// The rule alone does not show it: a map of verdicts, a queue to a program, a target of
    /// xtables.
    Other,
}

impl<'a> ExpressionView<'a> {
    /// From its own attributes, in a rule's list of expressions.
    pub(crate) fn read(attributes: Attributes<'a>) -> Self {
        let name = attributes.find_str(1).unwrap_or_default();
        Self { name, data: attributes.nested(2) }
    }

    /// Its name in the kernel.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The expression's attributes (`NFTA_EXPR_DATA`).
    pub(crate) fn data(&self) -> Attributes<'a> {
        self.data
    }

    /// The name of the xtables target, if the expression calls one.
    pub fn xtables_target(&self) -> Option<&'a str> {
        (self.name == "target").then(|| self.data.find_str(1).unwrap_or_default())
    }

    /// Whether it makes the kernel report what happens to a packet ([`Statement::Trace`]).
    ///
    /// [`Statement::Trace`]: crate::Statement::Trace
    pub fn traces(&self) -> bool {
        let sets_it = self.name == "meta" && self.data.find_u32(3).is_some();
        sets_it && self.data.find_u32(2) == Some(NFTRACE)
    }

    /// What it decides, if it does.
    pub fn decision(&self) -> Option<Decision<'a>> {
        match self.name {
            "immediate" if self.data.find_u32(1) == Some(VERDICT_REGISTER) => {
                let verdict = self.data.nested(2).nested(2);
                let chain = verdict.find_str(2).unwrap_or_default();
                Some(match verdict.find_u32(1).map(|code| code as i32) {
                    Some(libc::NF_DROP) => Decision::Drop,
                    Some(libc::NF_ACCEPT) => Decision::Accept,
                    Some(libc::NFT_JUMP) => Decision::Jump(chain),
                    Some(libc::NFT_GOTO) => Decision::Goto(chain),
                    Some(libc::NFT_RETURN) => Decision::Return,
                    Some(libc::NFT_CONTINUE) => Decision::Continue,
                    _ => Decision::Other,
                })
            }
            "reject" => Some(Decision::Drop),
            // A lookup in a verdict map has the verdict register as its destination.
            "lookup" => {
                (self.data.find_u32(3) == Some(VERDICT_REGISTER)).then_some(Decision::Other)
            }
            "queue" | "target" => Some(Decision::Other),
            _ => None,
        }
    }
}
