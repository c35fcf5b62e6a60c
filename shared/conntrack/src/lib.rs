//! The driver of connection tracking, by ctnetlink: reads, deletes and marks entries.
//!
//! It knows flows, and no service, pod or policy. It uses one bit of a connection's mark, which its
//! caller chooses.

#![deny(missing_docs)]

mod kernel;
mod message;
#[cfg(test)]
mod tests;

pub use kernel::{Conntrack, ConntrackError};
pub use message::{parse, write_dump};
