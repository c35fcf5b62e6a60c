//! What operators see in `kubectl get events`, under kube-proxy's reasons.
//!
//! Whoever has something to say says it and goes on: a task writes it, when it can. Without the
//! Kubernetes API nothing is said. The log, health and `status` have it all, whatever becomes of an
//! event.

mod limit;
mod write;

use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::debug;

use crate::model::ServiceName;
use crate::source::kube::access::Access;

/// Events that wait to be written; more are lost.
const WAITING: usize = 64;

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum About {
    /// This node.
    Node,
    /// A Service.
    Service(ServiceName),
}

/// What happened. Each is one of kube-proxy's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The agent has started.
    Starting,
    /// Nobody can ask for its health.
    HealthUnserved,
    /// Nobody can ask for its metrics.
    MetricsUnserved,
    /// No load balancer can ask for the endpoints of a Service on this node.
    HealthCheckUnserved,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// About what.
    pub about: About,
    /// What happened.
    pub reason: Reason,
    /// For a person; empty where the reason says it all.
    pub text: String,
}

/// Where events are said.
#[derive(Debug, Clone)]
pub struct Notices(Option<mpsc::Sender<Notice>>);

impl Notices {
    /// Nobody hears them.
    pub fn nowhere() -> Self {
        Self(None)
    }

    /// A task writes them to the API until the last of these is gone.
    pub fn to_api(access: Access, node_name: Arc<str>) -> Self {
        let (sender, waiting) = mpsc::channel(WAITING);
        tokio::spawn(write::run(access, node_name, waiting));
        Self(Some(sender))
    }

    /// Says it.
    pub fn tell(&self, notice: Notice) {
        if let Some(sender) = &self.0
            && let Err(error) = sender.try_send(notice)
        {
            debug!(%error, "an event is not written");
        }
    }
}
