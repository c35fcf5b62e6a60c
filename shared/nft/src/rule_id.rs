//! The id of a rule, by which the kernel's copy of it is recognised.

use std::fmt;

use denizen_netlink::Writer;

use crate::encode;
use crate::family::Family;
use crate::rule::Rule;

/// What a rule is known by: a hash of what the kernel was told to do. Rules do not come back from
/// the kernel as they were written, and reasons may be worded otherwise in another release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(u32);

impl Rule {
    /// What it is known by in a table of this family.
    pub fn id(&self, family: Family) -> RuleId {
        let mut list = Writer::default();
        encode::statements(&mut list, family, &self.statements);
        RuleId::of(list.bytes())
    }

    /// `<id> <why>`: what is beside it on the node.
    pub fn comment(&self, family: Family) -> String {
        format!("{} {}", self.id(family), self.why)
    }
}

impl RuleId {
    /// FNV-1a, 32 bits: the id tells versions of one program apart, it withstands no attack.
    fn of(bytes: &[u8]) -> Self {
        let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        Self(bytes.iter().fold(0x811c_9dc5, hash))
    }

    /// The id that a comment begins with.
    pub fn read(comment: &str) -> Option<Self> {
        let (id, _) = comment.split_once(' ').filter(|(id, _)| id.len() == 8)?;
        u32::from_str_radix(id, 16).ok().map(Self)
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}
