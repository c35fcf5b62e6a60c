//! Where a kind is served: ClusterNetworkPolicies come and go while they are followed.

use std::sync::Arc;

use kube::Client;
use kube::core::Request;
use tokio::sync::watch as latest;

use super::discovery::{Discovered, discover, is_defined};
use super::failure::Failure;
use super::kinds;
use super::node_trigger::NodeFollowerTrigger;
use super::read::WatchedTiers;
use super::traffic::Traffic;
use denizen_model::Event;
use denizen_object::ObjectKind;

/// Where the kind of a follower is served, and who else needs to know it. For kinds that are part
/// of Kubernetes, nobody else does.
#[derive(Debug)]
pub(super) struct ServedPath {
    path: Option<String>,
    /// Objects of an older version, which nobody enforces.
    pub old: Vec<String>,
    node_trigger: Option<NodeFollowerTrigger>,
    watched: Option<latest::Sender<WatchedTiers>>,
}

impl ServedPath {
    pub(super) fn new(
        node_trigger: Option<NodeFollowerTrigger>,
        watched: Option<latest::Sender<WatchedTiers>>,
    ) -> Self {
        Self { path: None, old: Vec::new(), node_trigger, watched }
    }

    /// Asks whether ClusterNetworkPolicies are served. If they were until now, or an earlier run
    /// may have enforced some (`is_first`), their definition must be gone too.
    pub(super) async fn find(
        &mut self,
        client: &Client,
        traffic: &Arc<Traffic>,
        is_first: bool,
    ) -> Result<bool, Failure> {
        let Discovered { path, old } = discover(client, traffic).await?;
        self.old = old;
        let may_be_enforced = is_first || self.path.is_some();
        if path.is_none() && may_be_enforced && is_defined(client, traffic).await? {
            return Err(Failure::NotServedYet);
        }
        self.path = path;
        Ok(self.path.is_some())
    }

    pub(super) fn request(&self, kind: ObjectKind) -> Request {
        match &self.path {
            Some(path) => Request::new(path.as_str()),
            None => kinds::request(kind),
        }
    }

    /// Tells the reader of ClusterNetworkPolicies where they are, and how far the watch is.
    pub(super) fn publish(&self, version: Option<&String>) {
        if let Some(watched) = &self.watched {
            let now = WatchedTiers { path: self.path.clone(), version: version.cloned() };
            watched.send_if_modified(|before| std::mem::replace(before, now.clone()) != now);
        }
    }

    /// Starts the follower of other Nodes with the first ClusterNetworkPolicy.
    pub(super) async fn start_node_follower(&mut self, events: &[Event]) {
        let is_policy = |event: &Event| matches!(event, Event::ClusterNetworkPolicy(_, Some(_)));
        if events.iter().any(is_policy)
            && let Some(mut node_trigger) = self.node_trigger.take()
        {
            node_trigger.start_and_wait().await;
        }
    }
}
