//! The Kubernetes API: Services, EndpointSlices, this Node and ServiceCIDRs, as it serves them now.
//!
//! | file | knows |
//! | --- | --- |
//! | [`access`] | which server, and as whom |
//! | `token` | a bearer token in a file that somebody replaces |
//! | `client` | connections that notice when the other end is gone |
//! | `kinds` | what is asked for: paths and selectors |
//! | `index` | what was told of which object; pure |
//! | `follow` | lists, watches, and what to do when they fail |
//! | `failure` | what failed, and what follows from that |
//! | `pace` | how long to wait |
//! | `recovery` | that the server answers again, so that nobody has to wait any longer |
//! | `wire` | what an answer says besides its objects |
//!
//! Each kind is followed by a task of its own: listed once, as a stream where the server can, in
//! pages where it cannot, then watched from there. What is told is one change: a list is told when
//! all of it is there, with what was deleted in the meantime, and until then what was told before
//! stays true. An object that cannot be used is named, and what was known of it stays.
//!
//! It builds on kube's client and not on kube-runtime's `watcher`. Version 5.0.0 was tried, with a
//! type that holds an object's JSON, one kind, on a busy machine:
//!
//! - A watch that the server ends at once is asked for again at once: 22 requests a second. The
//!   watcher yields nothing in between, so that no back-off around it can slow it down. Ours asked
//!   6 times in 10 s.
//! - A list as a stream that breaks off is asked for again in the same way, whole: 110 times and
//!   274 MB in 10 s, without an error to report. Ours asked 6 times.
//! - It has no other way to list where a server refuses streams, and no time limit for the answer
//!   to a request. Both would have to be built around it, and a second watcher, as one with new
//!   credentials, begins with a list.
//!
//! What speaks for it: it reads pages and bookmarks and resumes as ours does, and a broken object
//! ends a list no more, if the type takes any JSON.

pub mod access;
mod client;
mod failure;
mod follow;
mod index;
mod kinds;
pub(crate) mod pace;
mod recovery;
#[cfg(test)]
mod tests;
mod token;
mod wire;

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch as latest};

use self::access::Access;
use self::follow::Follower;
use self::recovery::Recovery;
use super::Outlet;
use super::object::Kind;
use crate::model::Event;

/// The kinds that are followed, in no order.
const KINDS: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];

/// Starts a task for each kind, which tells what the API serves until nobody listens any more.
/// Returns what is wrong with each right now. `since` is when the agent started: what was triggered
/// before counts for no latency.
pub fn start(
    access: &Access,
    node_name: &Arc<str>,
    since: Timestamp,
    told: &mpsc::Sender<Vec<Event>>,
) -> Vec<latest::Receiver<Vec<String>>> {
    let recovery = Recovery::new();
    KINDS
        .into_iter()
        .map(|kind| {
            let (outlet, problems) = Outlet::new(told.clone());
            let (access, recovery) = (access.clone(), recovery.clone());
            let follower = Follower::new(kind, access, node_name.clone(), since, outlet, recovery);
            tokio::spawn(follower.run());
            problems
        })
        .collect()
}
