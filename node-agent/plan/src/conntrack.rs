//! Which entries of connection tracking are stale, or forbidden by policies. Pure.
//!
//! The kernel applies the NAT chains to a flow's first packet only, and repeats the result while
//! packets come. A UDP sender does not start again, so its flow continues to an endpoint that is
//! gone; or, if its first packet came before the service, it stays untranslated.
//! [`StaleCandidates`] says where to search after a change, and [`StaleFilter`] what happens to
//! each entry.
//!
//! A TCP connection to a service is left alone once it was answered: an endpoint that no longer
//! serves resets it, and the client connects again. But an unanswered SYN is repeated for two
//! minutes (`tcp_syn_retries`), always to the same endpoint, whose address another pod may have by
//! then. Without its entry, the next SYN is translated anew.
//!
//! The firewall passes packets of established connections. When a change of policy forbids one, its
//! entry gets a mark by which the firewall drops its packets. The entry is not deleted: conntrack
//! takes a packet from the middle of a connection for the first one of a new connection
//! (`nf_conntrack_tcp_loose`), in the direction of that packet. If the server sends first, which
//! policies mostly permit, the client's packets would count as answers. The dropped packets keep
//! the entry alive: the kernel repeats them after 120 seconds at most, and forgets an
//! unacknowledged connection after 300 (`nf_conntrack_tcp_timeout_max_retrans`).
//!
//! That does not hold if both ends close the connection (30 seconds,
//! `nf_conntrack_tcp_timeout_last_ack`), so the firewall resets an end that closes it while it is
//! forbidden. If both had closed it before, packets still on their way may arrive after that time.

mod candidates;
mod stale;
#[cfg(test)]
mod tests;

pub use candidates::{CandidateTracker, StaleCandidates};
pub use stale::StaleFilter;
