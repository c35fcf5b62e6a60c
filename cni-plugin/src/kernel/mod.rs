//! Reads a pod's interface from the kernel, over plain rtnetlink sockets.
//!
//! It never changes anything, and knows nothing of CNI: names and indices in, links out.

mod attached;
mod link;
mod netns;
mod vlan;

pub(crate) use attached::{Attached, at, attached, only};
pub(crate) use link::{Link, Links};
pub(crate) use netns::Netns;
