//! Keeps the routes to other nodes' pods: after each change of the nodes, of this node's networks,
//! and of the routes themselves.

#![expect(clippy::disallowed_methods, reason = "the loop of the routes is paced")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use denizen_route::{RouteChange, RouteError, RouteWatch};
use ipnetwork::IpNetwork;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::pollable::pollable;
use crate::routes::PodRoutes;
use crate::{RoutingReport, RoutingSettings, RoutingStatus, SendNotice};
use denizen_model::{Nodes, Notice, NoticeReason, NoticeSubject};
use denizen_plan::RejectedRange;
use denizen_text::describe;

/// The pause after a change: changes come in groups, such as all addresses of a link, or all Nodes
/// of a list.
const QUIET: Duration = Duration::from_millis(5);
/// After a sync, the pause before the next one is this many times as long as the sync took: a
/// program that changes routes all the time does not keep a processor busy.
const REST: u32 = 4;
/// Syncs at least this often: the kernel sends no notification when rules (`ip rule`) change.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The task that keeps the routes.
pub struct DirectRouter {
    nodes: watch::Sender<Option<Nodes>>,
    state: watch::Receiver<DirectRoutesState>,
}

#[derive(Debug, Clone, Default)]
struct DirectRoutesState {
    status: RoutingStatus,
    errors: Vec<String>,
}

impl DirectRouter {
    /// Starts the task, if routes are wanted. Otherwise removes the routes of an earlier run, since
    /// no process follows the nodes any more.
    pub fn start(settings: &RoutingSettings, send_notice: SendNotice) -> Option<Self> {
        match settings {
            RoutingSettings::Off | RoutingSettings::Table(_) => {
                note_removed(PodRoutes::open().and_then(|mut routes| routes.remove()));
                None
            }
            RoutingSettings::Direct => {
                let (nodes, nodes_receiver) = watch::channel(None);
                let (sender, state) = watch::channel(DirectRoutesState::default());
                let task = RouteTask { nodes: nodes_receiver, state: sender, send_notice };
                tokio::spawn(task.run());
                Some(Self { nodes, state })
            }
        }
    }

    /// Passes on the nodes.
    pub fn update(&self, now: Option<Nodes>) {
        self.nodes.send_if_modified(|nodes| std::mem::replace(nodes, now.clone()) != now);
    }

    pub fn report(&self, report: &mut RoutingReport) {
        let DirectRoutesState { status, errors } = self.state.borrow().clone();
        report.warnings.extend(status.rejected.iter().cloned());
        report.errors.extend(errors);
        report.routes = Some(status);
    }
}

/// Logs what an earlier run had left.
pub(crate) fn note_removed(removed: Result<usize, RouteError>) {
    match removed {
        Ok(0) => {}
        Ok(count) => info!(count, "removed routes of an earlier --routing-mode"),
        Err(error) => warn!(error = describe(&error), "cannot look for old routes"),
    }
}

struct RouteTask {
    nodes: watch::Receiver<Option<Nodes>>,
    state: watch::Sender<DirectRoutesState>,
    send_notice: SendNotice,
}

impl RouteTask {
    /// Runs until the agent's loop ends. The routes stay, so that an upgrade of the agent
    /// interrupts nothing.
    async fn run(mut self) {
        while !self.state.is_closed() {
            if let Err(error) = self.keep().await {
                self.failed(&[format!("{error:#}")]);
            }
            sleep(RETRY).await;
        }
    }

    /// Keeps the routes until the agent's loop ends, or netlink fails.
    async fn keep(&mut self) -> anyhow::Result<()> {
        let mut routes = PodRoutes::open()?;
        let mut watch = pollable(RouteWatch::open(vec![routes.portid()])?)?;
        loop {
            let begun = Instant::now();
            let pause = if self.sync(&mut routes)? { AT_LEAST_EVERY } else { RETRY };
            sleep(QUIET.max(begun.elapsed() * REST)).await;
            tokio::select! {
                changed = self.nodes.changed() => if changed.is_err() {
                    return Ok(());
                },
                relevant = relevant(&mut watch, |change| routes.depend_on(change)) => relevant?,
                () = sleep(pause) => {}
            }
            sleep(QUIET).await;
        }
    }

    /// Returns whether the kernel has all that is wanted.
    fn sync(&mut self, routes: &mut PodRoutes) -> Result<bool, RouteError> {
        // Before the first list of nodes, every route may still be wanted.
        let Some(nodes) = self.nodes.borrow_and_update().clone() else { return Ok(true) };
        let synced = routes.sync(&nodes)?;
        if synced.repaired > 0 {
            warn!(routes = synced.repaired, "repaired routes that another program changed");
        }
        let mut known = BTreeSet::new();
        self.state.send_modify(|DirectRoutesState { status, .. }| {
            known = status.rejected.iter().cloned().collect();
            status.is_known = true;
            let own = nodes.own.iter().flat_map(|node| &node.pod_cidrs);
            status.pod_cidrs = own.map(IpNetwork::to_string).collect();
            status.routes = synced.routes;
            status.repaired += synced.repaired as u64;
            status.rejected = synced.plan.rejected.iter().map(RejectedRange::to_string).collect();
        });
        let now = synced.plan.rejected.iter().map(RejectedRange::to_string);
        now.filter(|text| !known.contains(text)).for_each(|text| self.note(text));
        self.failed(&synced.refused);
        Ok(synced.refused.is_empty())
    }

    fn note(&self, text: String) {
        warn!(problem = text, "a podCIDR gets no route");
        (self.send_notice)(Notice {
            about: NoticeSubject::Node,
            reason: NoticeReason::RouteRejected,
            text,
        });
    }

    /// Reports these errors, none if all is well.
    fn failed(&self, errors: &[String]) {
        self.state.send_if_modified(|state| {
            let is_new = state.errors != errors;
            if is_new {
                errors.iter().for_each(|error| error!(error, "cannot keep a route"));
            }
            state.errors = errors.to_vec();
            is_new
        });
    }
}

/// Waits until something happens that routes of ours depend on.
pub(crate) async fn relevant(
    watch: &mut AsyncFd<RouteWatch>,
    depend_on: impl Fn(&RouteChange) -> bool,
) -> anyhow::Result<()> {
    loop {
        let mut ready = watch.readable_mut().await?;
        ready.clear_ready();
        let mut is_relevant = false;
        let watch = ready.get_inner_mut();
        watch.changes(|change| is_relevant |= depend_on(&change))?;
        if is_relevant {
            return Ok(());
        }
    }
}
