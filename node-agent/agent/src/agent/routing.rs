//! Keeps the routes to other nodes' pods: after each change of the nodes, of the node's own
//! networks, and of the routes themselves.

#![expect(clippy::disallowed_methods, reason = "the loop of the routes is paced")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use denizen_nft::Kernel;
use denizen_route::{RouteError, Watch};
use ipnetwork::IpNetwork;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::announcing::Announcer;
use super::foreign::pollable;
use crate::config::Routing as RoutingConfig;
use crate::engine::Engine;
use denizen_model::Nodes;
use denizen_observe::status::RoutingStatus;
use denizen_plan::RejectedRange;
use denizen_routing::routes::{AnnouncedRoutes, PodRoutes, Unserved};
use denizen_source::events::{About, Notice, Notices, Reason};
use denizen_text::describe;

/// Changes come in groups: all addresses of a link, all Nodes of a list.
const QUIET: Duration = Duration::from_millis(5);
/// After a look the next one waits so many times as long as it took: another program that changes
/// routes all the time does not take all of the processor.
const REST: u32 = 4;
/// How often to look where nothing was heard: nobody tells of rules (`ip rule`).
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// After a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The task that keeps the routes.
pub(super) struct Routing {
    nodes: watch::Sender<Option<Nodes>>,
    state: watch::Receiver<State>,
}

/// What the task reports.
#[derive(Debug, Clone, Default)]
struct State {
    status: RoutingStatus,
    errors: Vec<String>,
}

impl Routing {
    /// Starts the task, if routes are wanted. Otherwise removes those that an earlier run has left:
    /// nobody would follow the nodes any more.
    pub(super) fn start(config: &RoutingConfig, notices: Notices) -> Option<Self> {
        match config {
            RoutingConfig::Off | RoutingConfig::Table(_) => {
                note_removed(PodRoutes::open().and_then(|mut routes| routes.remove()));
                None
            }
            RoutingConfig::Direct => {
                let (nodes, nodes_receiver) = watch::channel(None);
                let (sender, state) = watch::channel(State::default());
                let task = Task { nodes: nodes_receiver, state: sender, notices };
                tokio::spawn(task.run());
                Some(Self { nodes, state })
            }
        }
    }

    /// Passes on what is known of the nodes.
    pub(super) fn update(&self, engine: &Engine) {
        self.nodes.send_if_modified(|nodes| {
            let now = engine.nodes();
            let is_same = match (&*nodes, &now) {
                (Some(before), Some(now)) => {
                    before.own == now.own && Arc::ptr_eq(&before.others, &now.others)
                }
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            *nodes = now;
            !is_same
        });
    }

    /// For `status`: the state, and errors.
    pub(super) fn report(&self) -> (RoutingStatus, Vec<String>) {
        let State { status, errors } = self.state.borrow().clone();
        (status, errors)
    }
}

/// What announces, if that is wanted. Otherwise withdraws what an earlier run has left.
///
/// # Errors
/// When netlink cannot be opened.
pub(super) fn announcer(
    config: &RoutingConfig,
    notices: Notices,
    mut kernel: Kernel,
) -> Result<Option<Announcer>, RouteError> {
    match config {
        RoutingConfig::Off | RoutingConfig::Direct => {
            note_removed(AnnouncedRoutes::remove_all());
            if let Err(error) = Unserved::remove(&mut kernel) {
                warn!(error = describe(&error), "cannot look for old tables");
            }
            Ok(None)
        }
        RoutingConfig::Table(config) => {
            Announcer::start(config, notices, Unserved::new(kernel)).map(Some)
        }
    }
}

fn note_removed(removed: Result<usize, RouteError>) {
    match removed {
        Ok(0) => {}
        Ok(count) => info!(count, "removed routes of an earlier --routing-mode"),
        Err(error) => warn!(error = describe(&error), "cannot look for old routes"),
    }
}

struct Task {
    nodes: watch::Receiver<Option<Nodes>>,
    state: watch::Sender<State>,
    notices: Notices,
}

impl Task {
    /// Runs until the loop ends. The routes stay: that is how an upgrade works.
    async fn run(mut self) {
        while !self.state.is_closed() {
            if let Err(error) = self.keep().await {
                self.failed(&[format!("{error:#}")]);
            }
            sleep(RETRY).await;
        }
    }

    /// Keeps the routes until the loop ends, or netlink fails.
    async fn keep(&mut self) -> anyhow::Result<()> {
        let mut routes = PodRoutes::open()?;
        let mut heard = pollable(Watch::open(vec![routes.portid()])?)?;
        loop {
            let begun = Instant::now();
            let pause = if self.sync(&mut routes)? { AT_LEAST_EVERY } else { RETRY };
            sleep(QUIET.max(begun.elapsed() * REST)).await;
            tokio::select! {
                changed = self.nodes.changed() => if changed.is_err() {
                    return Ok(());
                },
                heard = relevant(&mut heard, &routes) => heard?,
                () = sleep(pause) => {}
            }
            sleep(QUIET).await;
        }
    }

    /// Returns whether the kernel has all that is wanted.
    fn sync(&mut self, routes: &mut PodRoutes) -> Result<bool, RouteError> {
        // Before the first list nothing is known to be unwanted.
        let Some(nodes) = self.nodes.borrow_and_update().clone() else { return Ok(true) };
        let synced = routes.sync(&nodes)?;
        if synced.repaired > 0 {
            warn!(routes = synced.repaired, "repaired routes that another program changed");
        }
        let mut known = BTreeSet::new();
        self.state.send_modify(|State { status, .. }| {
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
        self.notices.send(Notice { about: About::Node, reason: Reason::RouteRejected, text });
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

/// Waits until something happens that the routes depend on.
async fn relevant(heard: &mut AsyncFd<Watch>, routes: &PodRoutes) -> anyhow::Result<()> {
    loop {
        let mut ready = heard.readable_mut().await?;
        ready.clear_ready();
        let mut is_relevant = false;
        let watch = ready.get_inner_mut();
        watch.changes(|change| is_relevant |= routes.depend_on(&change))?;
        if is_relevant {
            return Ok(());
        }
    }
}
