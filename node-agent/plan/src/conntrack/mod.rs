//! Which entries of connection tracking are stale, or forbidden by policies. Pure.
//!
//! The kernel applies the NAT chains to a flow's first packet only, and repeats the result as long
//! as packets come. A UDP sender never starts again, so its flow continues to an endpoint that is
//! gone, or, if its first packet came before the service, to nobody. [`StaleCandidates`]
//! says where to search after a change, and [`StaleFilter`] what becomes of each entry.
//!
//! A TCP connection to a service is left alone once it was answered: an endpoint that no longer
//! serves resets it, and the client connects again. But a SYN that nobody answered is sent again for
//! two minutes (`tcp_syn_retries`), always to the same endpoint, which may be another pod's address
//! by then. Without its entry, the next one is translated anew.
//!
//! The firewall lets pass what belongs to an established connection. When a change of policy
//! forbids one, its entry gets a mark by which the firewall drops its packets. It is not deleted:
//! conntrack takes a packet from the middle of a connection for the first one of a new connection
//! (`nf_conntrack_tcp_loose`), in the direction of that packet. If the server sends, which it
//! mostly may, the client's packets would be answers. The packets that are dropped keep the entry
//! alive: the kernel sends again after 120 seconds at most, and forgets a connection that nobody
//! acknowledges after 300 (`nf_conntrack_tcp_timeout_max_retrans`).
//!
//! Not so if both ends close it (30 seconds, `nf_conntrack_tcp_timeout_last_ack`): so the firewall
//! resets who closes it while it is forbidden. What both have closed before, and is still on its
//! way, may arrive when that time is over.

mod candidates;
mod stale;
#[cfg(test)]
mod tests;

pub use candidates::{CandidateTracker, StaleCandidates};
pub use stale::StaleFilter;
