//! The Kubernetes API: Services, EndpointSlices, this Node and ServiceCIDRs, and for the pod firewall
//! Pods, Namespaces and NetworkPolicies, live.
//!
//! | file | knows |
//! | --- | --- |
//! | [`access`] | which server, with which credentials |
//! | `token` | a bearer token in a file that may be replaced |
//! | `client` | connections that detect a dead server |
//! | `kinds` | paths and selectors of the requests |
//! | `index` | which objects were sent, and what changed; pure |
//! | `follow` | lists, watches, and what to do when they fail |
//! | `failure` | what failed, and what to do about it |
//! | `pace` | how long to wait |
//! | `recovery` | wakes the other kinds when the server answers again |
//! | `wire` | the parts of an answer around its objects |
//!
//! A task of its own follows each kind. It lists once, as a stream if the server can, else in
//! pages, then watches from there. A list is sent as one change when it is complete, with the
//! deletions since the last one; until then the previous state stays in force. An object that
//! cannot be used is named, and its last known state stays in force.
//!
//! This is built on kube's client, not on kube-runtime's `watcher`. Version 5.0.0 was tried with
//! one kind and a type that holds an object's JSON, on a busy machine:
//!
//! - If the server ends a watch at once, the watcher asks again at once: 22 requests a second. It
//!   yields nothing in between, so no back-off around it can slow it down. This module asked 6
//!   times in 10 s.
//! - If a streamed list breaks off, the watcher asks for the whole list again in the same way: 110
//!   times and 274 MB in 10 s, without an error to report. This module asked 6 times.
//! - It has no other way to list if a server refuses streams, and no time limit for an answer. Both
//!   would have to be built around it. A second watcher, such as one with new credentials, begins
//!   with a list.
//!
//! In its favour: it handles pages, bookmarks and resumption as this module does, and a broken
//! object does not end a list if the type accepts any JSON.

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
use super::{Features, Outlet};
use crate::model::Event;

/// Starts a task for each kind that a feature needs, which sends what the API serves until the receiver is closed.
/// Returns the current problems of each. `since` is when the agent started: triggers before it do
/// not count for the latency.
pub fn start(
    access: &Access,
    node_name: &Arc<str>,
    since: Timestamp,
    features: Features,
    events: &mpsc::Sender<Vec<Event>>,
) -> Vec<latest::Receiver<Vec<String>>> {
    let recovery = Recovery::new();
    features
        .kinds()
        .map(|kind| {
            let (outlet, problems) = Outlet::new(events.clone());
            let (access, recovery) = (access.clone(), recovery.clone());
            let follower = Follower::new(kind, access, node_name.clone(), since, outlet, recovery);
            tokio::spawn(follower.run());
            problems
        })
        .collect()
}
