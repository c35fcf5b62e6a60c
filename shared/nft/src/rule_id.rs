//! The id of a rule, by which the kernel's copy of it is recognised.

use std::fmt;

/// A rule's id: a hash of the expressions that were sent to the kernel. The kernel does not return
/// rules as they were written, and another release may word a reason differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(u32);

impl RuleId {
    /// FNV-1a, 32 bits. It distinguishes versions of one program, and withstands no attack.
    pub(crate) fn of(bytes: &[u8]) -> Self {
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
