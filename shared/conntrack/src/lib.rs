//! The driver of connection tracking, by ctnetlink: reads, deletes and marks entries.
//!
//! It knows flows, and no service, pod or policy. One bit of a connection's mark is its client's.

#![deny(missing_docs)]

mod kernel;
mod message;
#[cfg(test)]
mod tests;

pub use kernel::{Conntrack, ConntrackError};
pub use message::{parse, write_dump};
