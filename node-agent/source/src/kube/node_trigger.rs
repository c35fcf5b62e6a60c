//! The other nodes' Nodes, which are followed once there is a ClusterNetworkPolicy.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::Outlet;

/// Time limit for the first list of Nodes. After it, policies are sent without that list.
const LISTING: Duration = Duration::from_secs(10);

/// The end that the follower of ClusterNetworkPolicies has: it starts the follower of other Nodes.
#[derive(Debug)]
pub(super) struct NodeFollowerTrigger {
    needed: watch::Sender<bool>,
    listed: watch::Receiver<bool>,
}

/// The end that the follower of other Nodes has: it waits until it is needed.
#[derive(Debug)]
pub(super) struct NodeFollowerStart {
    needed: watch::Receiver<bool>,
    listed: watch::Sender<bool>,
}

/// Both ends.
pub(super) fn node_follower_trigger() -> (NodeFollowerTrigger, NodeFollowerStart) {
    let (needed, asked) = watch::channel(false);
    let (done, listed) = watch::channel(false);
    (NodeFollowerTrigger { needed, listed }, NodeFollowerStart { needed: asked, listed: done })
}

impl NodeFollowerTrigger {
    /// Starts the follower, and waits until the Nodes are listed, so that a policy about nodes, or
    /// about pods that are not known yet, is enforced completely from the start.
    pub async fn start_and_wait(&mut self) {
        self.needed.send_if_modified(|needed| !std::mem::replace(needed, true));
        let _ = timeout(LISTING, self.listed.wait_for(|listed| *listed)).await;
    }
}

impl NodeFollowerStart {
    /// Waits until the kind is needed; `false` if it never will be. Without a trigger, it is needed
    /// from the start.
    pub async fn is_needed(start: &mut Option<Self>, outlet: &Outlet) -> bool {
        let Some(start) = start else { return true };
        tokio::select! {
            () = outlet.closed() => false,
            needed = start.needed.wait_for(|needed| *needed) => needed.is_ok(),
        }
    }

    /// Tells that the Nodes are listed.
    pub fn listed(&self) {
        self.listed.send_replace(true);
    }
}
