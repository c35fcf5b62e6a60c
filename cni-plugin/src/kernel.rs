//! Reads a pod's interface from the kernel, over plain rtnetlink sockets, and isolates addresses
//! ([`Pending`]), the one thing that it changes.
//!
//! It knows nothing of CNI: names and indices in, links out.

mod attached;
mod link;
mod netns;
mod pending;
mod vlan;

pub(crate) use attached::{Attached, FurtherInterface, at, attached, further_interfaces, only};
pub(crate) use link::{NetnsLink, NetnsLinks};
pub(crate) use netns::Netns;
pub(crate) use pending::{Pending, PendingError};
