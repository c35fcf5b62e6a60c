//! The verdict of an explanation.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PacketVerdict {
    /// Its destination becomes one of the endpoints.
    Forward,
    Reject,
    /// It is dropped without an answer.
    Drop,
    /// Denizen does nothing to it.
    Untouched,
    /// It is addressed to a Service of another proxy, whose rules decide.
    Foreign,
    /// Not known: the kernel rejected rules that decide it. It has older rules in their place, or
    /// none.
    Unknown,
}

impl fmt::Display for PacketVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forwarded",
            Self::Reject => "refused",
            Self::Drop => "dropped",
            Self::Untouched => "left alone by services",
            Self::Foreign => "left to another proxy",
            Self::Unknown => "unknown: the kernel rejected rules of this service",
        })
    }
}
