//! What the kernel says of a pod's interface, over plain rtnetlink sockets.
//!
//! It reads and never changes anything. It knows nothing of CNI: names and indices in, links out.

mod attached;
mod link;
mod netns;
mod vlan;

pub(crate) use attached::{Attached, at, attached, only};
pub(crate) use link::{Link, Links};
pub(crate) use netns::Netns;
