//! Pods of this node, and of some namespaces or of all: several streams of one kind.

mod follow;
mod merge;
mod scope;

pub use self::follow::{NodeCount, PodScopes};
pub(super) use self::follow::{PodFollowers, PodFollowersConfig};
pub use self::scope::PodScope;
pub(super) use self::scope::{StreamProgress, StreamScope};
