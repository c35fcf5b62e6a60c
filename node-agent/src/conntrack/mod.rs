//! Connection tracking: deletes stale entries.
//!
//! The kernel applies the NAT chains to a flow's first packet only, and repeats the result as long
//! as packets come. A UDP sender never starts again, so its flow continues to an endpoint that is
//! gone, or, if its first packet came before the service, to nobody. `stale` decides which entries
//! are stale (pure), `entry` parses an entry (pure), `kernel` reads and deletes.
//!
//! TCP is left alone: an endpoint that no longer serves resets the connection, and the client
//! connects again.

mod candidates;
mod entry;
mod kernel;
mod stale;
#[cfg(test)]
mod tests;

pub use candidates::{CandidateTracker, StaleCandidates};
pub use entry::Entry;
pub(crate) use entry::write_dump;
pub use kernel::{Conntrack, ConntrackError};
pub use stale::StaleFilter;
