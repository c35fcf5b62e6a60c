//! Starts and ends the streams of pods, as they are wanted.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch as latest};
use tokio::time::{Instant, sleep};
use tracing::info;

use super::merge::PodMerge;
use super::{PodScope, StreamProgress, StreamScope};
use crate::kube::answer::ObjectAnswer;
use crate::kube::failure::{Failure, Remedy};
use crate::kube::follow::KindFollower;
use crate::kube::list_delay::{ListDelay, count_nodes};
use crate::kube::recovery::Recovery;
use crate::kube::traffic::Traffic;
use crate::kube::{FollowerChannels, KubeConfig, WrongPolicy};
use crate::{Closed, Outlet};
use denizen_model::{CoveredNamespaces, Event, Listing, PodCoverage};
use denizen_object::{ObjectKind, is_dns_name};

/// How often problems of streams are collected.
const IDLE: Duration = Duration::from_secs(1);

/// How often streams are checked while one is not complete.
const BUSY: Duration = Duration::from_millis(50);

/// How often old and new streams are compared.
const COMPARED: Duration = Duration::from_millis(250);

/// After this time, new streams lead although the old ones still show different pods.
const COMPARING: Duration = Duration::from_secs(60);

/// After this many failed lists of a namespace, it is no longer waited for.
const FAILURES: u32 = 5;

/// The pause after a failed attempt to count the nodes.
const COUNTED_AGAIN: Duration = Duration::from_secs(1);

/// The number of nodes in the cluster, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeCount {
    /// Not asked for, or not answered yet.
    #[default]
    Unasked,
    Nodes(u32),
    /// The API refuses to tell.
    Refused,
}

/// The scope of pods that is wanted, by the agent's loop.
#[derive(Debug, Clone)]
pub struct PodScopes {
    /// `None` until it is chosen. Until then only this node's pods are followed.
    pub wanted: latest::Receiver<Option<PodScope>>,
    /// Receives the number of nodes, before anything is listed; `None` if that number is not
    /// needed.
    pub nodes: Option<latest::Sender<NodeCount>>,
}

/// What all streams are followed with.
pub(in crate::kube) struct PodFollowersConfig {
    pub config: KubeConfig,
    pub scopes: PodScopes,
    pub outlet: Outlet,
    /// About pods of this node.
    pub answers: mpsc::Receiver<ObjectAnswer>,
    pub wrong_policies: mpsc::Sender<WrongPolicy>,
    pub traffic: Arc<Traffic>,
    pub list_delay: Arc<ListDelay>,
    pub recovery: Recovery,
}

/// Follows pods by several streams.
pub(in crate::kube) struct PodFollowers {
    with: PodFollowersConfig,
    streams: BTreeMap<StreamScope, Stream>,
    merge: PodMerge,
    /// The coverage that was sent last.
    coverage: Option<PodCoverage>,
    listed: bool,
    /// Since when new streams are compared with the old ones, and when they were compared last.
    compared: Option<(Instant, Instant)>,
    /// Which stream is polled first. It changes each time, so that every stream has its turn.
    first_stream: usize,
}

struct Stream {
    events: mpsc::Receiver<Vec<Event>>,
    problems: latest::Receiver<Vec<String>>,
    progress: Arc<StreamProgress>,
    listed: bool,
    /// The API refuses it.
    refused: bool,
}

impl Stream {
    /// Whether it should no longer be waited for.
    fn has_failed(&self) -> bool {
        !self.listed && (self.refused || self.progress.failures() >= FAILURES)
    }
}

impl PodFollowers {
    pub fn new(with: PodFollowersConfig) -> Self {
        Self {
            with,
            streams: BTreeMap::new(),
            merge: PodMerge::default(),
            coverage: None,
            listed: false,
            compared: None,
            first_stream: 0,
        }
    }

    /// Runs until the receiver is closed.
    pub async fn run(mut self) {
        tokio::select! {
            () = self.count_nodes() => {}
            () = self.with.outlet.closed() => return,
        }
        self.start(StreamScope::OwnPods);
        while self.step().await.is_ok() {}
    }

    async fn step(&mut self) -> Result<(), Closed> {
        self.remove_expired().await?;
        self.seek().await?;
        self.send_progress().await?;
        self.report();
        let is_busy = self.compared.is_some()
            || self.streams.values().any(|stream| !stream.listed && !stream.has_failed());
        let pause = if is_busy { BUSY } else { IDLE };
        let first = self.first_stream;
        self.first_stream = self.first_stream.wrapping_add(1);
        tokio::select! {
            () = self.with.outlet.closed() => Err(Closed),
            (scope, batch) = next(&mut self.streams, first) => self.take(&scope, batch).await,
            changed = self.with.scopes.wanted.changed() => changed.map_err(|_| Closed),
            () = sleep(pause) => Ok(()),
        }
    }

    /// Finds out how large the cluster is, if that matters. Without an answer from the API there is
    /// nothing else to do either.
    async fn count_nodes(&self) {
        let Some(nodes) = &self.with.scopes.nodes else { return };
        loop {
            let counted = match self.with.config.client.get().await {
                Ok(client) => count_nodes(&client, &self.with.traffic).await,
                Err(error) => Err(Failure::from(error)),
            };
            let count = match counted {
                Ok(count) => NodeCount::Nodes(count),
                Err(failure) if failure.remedy() == Remedy::Forbidden => NodeCount::Refused,
                Err(_) => {
                    sleep(COUNTED_AGAIN).await;
                    continue;
                }
            };
            nodes.send_replace(count);
            return;
        }
    }

    fn start(&mut self, scope: StreamScope) {
        let (events, received) = mpsc::channel(16);
        let (outlet, problems) = Outlet::new(events);
        let progress = Arc::new(StreamProgress::default());
        let (unused, no_answers) = mpsc::channel(1);
        drop(unused);
        let is_own = scope == StreamScope::OwnPods;
        let answers = match is_own {
            true => std::mem::replace(&mut self.with.answers, no_answers),
            false => no_answers,
        };
        // The list of a new stream must not be older than what other streams have shown.
        let versions = self.streams.values().map(|stream| stream.progress.version());
        let floor = versions.max().filter(|version| *version > 0);
        let ends = FollowerChannels {
            outlet,
            answers,
            wrong_policies: self.with.wrong_policies.clone(),
            traffic: self.with.traffic.clone(),
            list_delay: self.list_delay(&scope),
            node_trigger: None,
            start: None,
            watched: None,
            scope: scope.clone(),
            progress: progress.clone(),
            floor: floor.map(|version| version.to_string()),
        };
        let (config, recovery) = (&self.with.config, self.with.recovery.clone());
        tokio::spawn(KindFollower::new(ObjectKind::Pod, config, ends, recovery).run());
        let stream = Stream { events: received, problems, progress, listed: false, refused: false };
        self.streams.insert(scope, stream);
    }

    /// The delay of a stream's first list. The stream of all pods is delayed even after the start,
    /// since all agents may begin to follow all pods at once.
    fn list_delay(&self, scope: &StreamScope) -> Arc<ListDelay> {
        if !self.listed && *scope != StreamScope::OwnPods {
            return self.with.list_delay.clone();
        }
        let list_delay = Arc::new(ListDelay::new());
        if *scope != StreamScope::All {
            list_delay.cancel();
        }
        list_delay
    }

    /// Starts and ends streams to match the wanted scope.
    async fn seek(&mut self) -> Result<(), Closed> {
        let Some(wanted) = self.with.scopes.wanted.borrow_and_update().clone() else {
            return Ok(());
        };
        let has_all = self.streams.contains_key(&StreamScope::All);
        match wanted {
            PodScope::All => {
                if !has_all {
                    info!("following the pods of all namespaces");
                    self.merge.add_all();
                    self.start(StreamScope::All);
                }
                // If the stream of all pods leads, any streams of namespaces were only being
                // prepared: end them.
                if self.merge.is_led_by_all() {
                    self.keep_namespaces(|_| false).await?;
                }
            }
            PodScope::Namespaces(wanted) => {
                if has_all && !self.merge.is_led_by_all() {
                    self.end_all().await?;
                }
                self.keep_namespaces(|name| wanted.contains(name)).await?;
                for name in wanted {
                    let scope = StreamScope::PodsOf(name.clone());
                    if !self.streams.contains_key(&scope)
                        && is_dns_name(&name)
                        && self.merge.add_namespace(name)
                    {
                        self.start(scope);
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends the streams of namespaces, except where the namespace `is_kept`.
    async fn keep_namespaces(&mut self, is_kept: impl Fn(&Arc<str>) -> bool) -> Result<(), Closed> {
        let is_gone = |scope: &StreamScope| match scope {
            StreamScope::PodsOf(name) => !is_kept(name),
            StreamScope::All | StreamScope::OwnPods => false,
        };
        let gone: Vec<_> = self.streams.extract_if(.., |scope, _| is_gone(scope)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let mut events = Vec::from_iter(self.changed_coverage());
        for (scope, _) in gone {
            if let StreamScope::PodsOf(name) = scope {
                events.extend(self.merge.remove_namespace(&name, now()));
            }
        }
        self.with.outlet.send(events).await
    }

    /// Ends the stream of all pods, which is no longer wanted. The streams of namespaces lead.
    async fn end_all(&mut self) -> Result<(), Closed> {
        self.streams.remove(&StreamScope::All);
        self.compared = None;
        let gone = self.merge.lead_by_namespaces(now());
        let mut events = Vec::from_iter(self.changed_coverage());
        events.extend(gone);
        self.with.outlet.send(events).await
    }

    /// Takes what a stream brings.
    async fn take(&mut self, scope: &StreamScope, batch: Vec<Event>) -> Result<(), Closed> {
        let events = self.taken(scope, batch);
        self.with.outlet.send(events).await
    }

    fn taken(&mut self, scope: &StreamScope, batch: Vec<Event>) -> Vec<Event> {
        let Some(stream) = self.streams.get_mut(scope) else { return Vec::new() };
        let mut rest = Vec::with_capacity(batch.len());
        for event in batch {
            if let Event::Listed(_) = event {
                (stream.listed, stream.refused) = (true, false);
                stream.progress.listed();
                continue;
            }
            let is_refused = matches!(event, Event::Refused(_));
            stream.refused |= is_refused;
            // That one namespace is refused does not mean that pods in general are.
            if !is_refused || !matches!(scope, StreamScope::PodsOf(_)) {
                rest.push(event);
            }
        }
        self.merge.apply(scope, rest, now())
    }

    /// Switches the leading streams if that is due. Sends the coverage if it changed, and that the
    /// first list is complete.
    async fn send_progress(&mut self) -> Result<(), Closed> {
        self.change_lead().await?;
        let mut events = Vec::from_iter(self.changed_coverage());
        if !self.listed && self.is_complete() {
            self.listed = true;
            events.push(Event::Listed(Listing::Pods));
        }
        self.with.outlet.send(events).await
    }

    /// Switches between the streams of namespaces and the stream of all pods. The old streams stay
    /// until the new ones are complete and then, for at most [`COMPARING`], until they show the
    /// same pods.
    async fn change_lead(&mut self) -> Result<(), Closed> {
        let Some(wanted) = self.with.scopes.wanted.borrow().clone() else { return Ok(()) };
        let has_listed =
            |scope: &StreamScope| self.streams.get(scope).is_some_and(|stream| stream.listed);
        let by_all = self.merge.is_led_by_all();
        let is_ready = match &wanted {
            PodScope::All => !by_all && has_listed(&StreamScope::All),
            PodScope::Namespaces(names) => {
                by_all && names.iter().all(|name| has_listed(&StreamScope::PodsOf(name.clone())))
            }
        };
        if !is_ready {
            self.compared = None;
            return Ok(());
        }
        let at = Instant::now();
        let (since, last) = self.compared.unwrap_or((at, at - COMPARED));
        if at - last < COMPARED {
            return Ok(());
        }
        self.compared = Some((since, at));
        self.drain().await?;
        let has_listed = |name: &str| {
            let stream = self.streams.get(&StreamScope::PodsOf(name.into()));
            stream.is_some_and(|stream| stream.listed)
        };
        if !self.merge.agrees(has_listed, now()) && at - since < COMPARING {
            return Ok(());
        }
        self.compared = None;
        if wanted == PodScope::All {
            self.streams.retain(|scope, _| !matches!(scope, StreamScope::PodsOf(_)));
            let mut events = self.merge.lead_by_all(now());
            events.extend(self.changed_coverage());
            return self.with.outlet.send(events).await;
        }
        info!("following the pods of some namespaces");
        self.end_all().await
    }

    /// Takes all that streams have brought.
    async fn drain(&mut self) -> Result<(), Closed> {
        let scopes: Vec<StreamScope> = self.streams.keys().cloned().collect();
        for scope in scopes {
            let waiting = |streams: &mut BTreeMap<StreamScope, Stream>| {
                streams.get_mut(&scope).and_then(|stream| stream.events.try_recv().ok())
            };
            while let Some(batch) = waiting(&mut self.streams) {
                self.take(&scope, batch).await?;
            }
        }
        Ok(())
    }

    /// Whether all wanted pods are known, or cannot be read.
    fn is_complete(&self) -> bool {
        let Some(wanted) = &*self.with.scopes.wanted.borrow() else { return false };
        match (wanted, &self.coverage) {
            (PodScope::All, coverage) => *coverage == Some(PodCoverage::All),
            (PodScope::Namespaces(_), Some(PodCoverage::All)) => true,
            (PodScope::Namespaces(names), Some(PodCoverage::Some(covered))) => {
                let CoveredNamespaces { complete, failed } = covered;
                names.iter().all(|name| complete.contains(name) || failed.contains(name))
            }
            (PodScope::Namespaces(_), None) => false,
        }
    }

    /// The coverage, if it differs from the one that was sent last.
    fn changed_coverage(&mut self) -> Option<Event> {
        let has_listed =
            |scope: &StreamScope| self.streams.get(scope).is_some_and(|stream| stream.listed);
        if !has_listed(&StreamScope::OwnPods) {
            return None;
        }
        let by_all = self.merge.is_led_by_all() && has_listed(&StreamScope::All);
        let coverage = match by_all {
            true => PodCoverage::All,
            false => PodCoverage::Some(self.covered()),
        };
        let differs = self.coverage.as_ref() != Some(&coverage);
        differs.then(|| {
            self.coverage = Some(coverage.clone());
            Event::PodCoverage(coverage)
        })
    }

    fn covered(&self) -> CoveredNamespaces {
        let mut covered = CoveredNamespaces::default();
        for (scope, stream) in &self.streams {
            let StreamScope::PodsOf(name) = scope else { continue };
            if stream.listed {
                covered.complete.insert(name.clone());
            } else if stream.has_failed() {
                covered.failed.insert(name.clone());
            }
        }
        covered
    }

    /// Removes pods whose grace period is over.
    async fn remove_expired(&mut self) -> Result<(), Closed> {
        let events = self.merge.remove_expired(now());
        self.with.outlet.send(events).await
    }

    fn report(&self) {
        let problems = self.streams.values().flat_map(|stream| stream.problems.borrow().clone());
        self.with.outlet.report(problems.collect());
    }
}

/// The next batch of any stream. `first_stream`: the stream that is polled first.
async fn next(
    streams: &mut BTreeMap<StreamScope, Stream>,
    first_stream: usize,
) -> (StreamScope, Vec<Event>) {
    poll_fn(|context| {
        let first = first_stream % streams.len().max(1);
        for part in [first..usize::MAX, 0..first] {
            let asked = streams.iter_mut().enumerate();
            for (_, (scope, stream)) in asked.filter(|(at, _)| part.contains(at)) {
                if let Poll::Ready(Some(batch)) = stream.events.poll_recv(context) {
                    return Poll::Ready((scope.clone(), batch));
                }
            }
        }
        Poll::Pending
    })
    .await
}

/// Seconds since 1970.
fn now() -> i64 {
    Timestamp::now().as_second()
}
