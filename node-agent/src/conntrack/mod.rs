//! Connection tracking: entries that lead nowhere are taken away.
//!
//! The kernel asks the NAT chains about a flow's first packet only and keeps to the answer as long
//! as packets come. A UDP sender never starts anew, so that its flow goes on to an endpoint that is
//! gone, or, where its first packet came before the service, to nobody. `stale` decides which
//! entries are such (pure), `entry` is one entry as netlink has it (pure), `kernel` reads and
//! deletes.
//!
//! TCP is left alone: who serves nobody any more resets it, and a client connects again.

mod candidates;
mod entry;
mod kernel;
mod stale;
#[cfg(test)]
mod tests;

pub use candidates::{CandidateTracker, StaleCandidates};
pub use entry::Entry;
pub use kernel::{Conntrack, ConntrackError};
pub use stale::StaleFilter;
