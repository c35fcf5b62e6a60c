//! Follows one kind: lists it, watches it from there, and repeats what failed.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use kube::Client;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, info, warn};

use super::answer::{Answered, AnsweredVersions, ObjectAnswer};
use super::backoff::{self, Backoff, LIST_SILENCE, NOT_SERVED, STEADY, WATCH_SILENCE};
use super::client::SharedClient;
use super::discovery::ABSENT;
use super::envelope::{Encoding, JsonList, Object, WatchEvent};
use super::exchange::Reply;
use super::failure::{Failure, Remedy, StreamEnd};
use super::frames::{Frames, ListItems};
use super::index::SentObjects;
use super::kinds::{self, ListedState};
use super::list_delay::{ListDelay, is_delayed};
use super::node_trigger::NodeFollowerStart;
use super::pods::{StreamProgress, StreamScope};
use super::recovery::Recovery;
use super::served::ServedPath;
use super::silence::Silence;
use super::traffic::{ListReason, Traffic};
use super::{FollowerChannels, KubeConfig, WrongPolicy};
use crate::{Closed, Outlet};
use denizen_model::Event;
use denizen_object::{ObjectKind, RawObject};
use denizen_text::describe;

/// Follows one kind.
pub(super) struct KindFollower {
    kind: ObjectKind,
    clients: SharedClient,
    outlet: Outlet,
    answers: mpsc::Receiver<ObjectAnswer>,
    answered_versions: AnsweredVersions,
    wrong_policies: mpsc::Sender<WrongPolicy>,
    start: Option<NodeFollowerStart>,
    served: ServedPath,
    index: SentObjects,
    /// The client of the last request.
    client: Option<Arc<Client>>,
    /// The resource version to watch from; `None` if a list is due.
    version: Option<String>,
    /// The last known version. No list may show an older state.
    floor: Option<String>,
    /// Whether the next list must be the newest: the server may never reach the known version.
    needs_newest: bool,
    reason: ListReason,
    silence: Silence,
    traffic: Arc<Traffic>,
    list_delay: Arc<ListDelay>,
    scope: StreamScope,
    progress: Arc<StreamProgress>,
    /// The field selector, until the server refuses it.
    fields: Option<String>,
    /// Whether to use field selectors at all.
    use_field_selectors: bool,
    listed: bool,
    backoff: Backoff,
    recovery: Recovery,
    /// The last request failed because the whole server was unavailable, not only this kind.
    outage: bool,
    /// Another follower's announcement started this attempt.
    woken: bool,
    trouble: Option<String>,
}

impl KindFollower {
    pub(super) fn new(
        kind: ObjectKind,
        config: &KubeConfig,
        ends: FollowerChannels,
        recovery: Recovery,
    ) -> Self {
        let KubeConfig { client, node_name, since, features, pods } = config.clone();
        let FollowerChannels { outlet, answers, wrong_policies, traffic, list_delay, .. } = ends;
        let (node_trigger, start, watched) = (ends.node_trigger, ends.start, ends.watched);
        let of_scope = ends.scope.fields(&node_name);
        let decoder = features.decoder(node_name.clone()).with_ends(pods.is_some());
        Self {
            kind,
            fields: kinds::fields(kind, &node_name, features).or(of_scope),
            index: SentObjects::new(kind, decoder, since),
            use_field_selectors: kinds::has_field_selectors(kind),
            clients: client,
            outlet,
            answers,
            answered_versions: AnsweredVersions::default(),
            wrong_policies,
            start,
            served: ServedPath::new(node_trigger, watched),
            client: None,
            version: None,
            floor: ends.floor,
            needs_newest: false,
            reason: ListReason::Start,
            silence: Silence::default(),
            traffic,
            list_delay,
            scope: ends.scope,
            progress: ends.progress,
            listed: false,
            backoff: Backoff::default(),
            recovery,
            outage: false,
            woken: false,
            trouble: None,
        }
    }

    /// Runs until the receiver is closed.
    pub(super) async fn run(mut self) {
        if !NodeFollowerStart::is_needed(&mut self.start, &self.outlet).await {
            return;
        }
        loop {
            self.recovery.attempt();
            let (least, pause) = match self.advance().await {
                Ok(()) => continue,
                Err(StreamEnd::Closed) => return,
                Err(StreamEnd::Failed(failure)) => match self.failed(&failure).await {
                    Ok(pause) => (failure.asked().unwrap_or_default().min(pause), pause),
                    Err(Closed) => return,
                },
            };
            tokio::select! {
                () = self.outlet.closed() => return,
                woken = self.recovery.pause(least, pause) => self.woken = woken,
            }
        }
    }

    /// One list, or one watch to its end.
    async fn advance(&mut self) -> Result<(), StreamEnd> {
        let client = self.client.insert(self.clients.get().await?).clone();
        if self.kind == ObjectKind::ClusterNetworkPolicy && self.version.is_none() {
            self.discover(&client).await?;
        }
        match self.version.clone() {
            None => self.list(&client).await,
            Some(version) => self.watch(&client, &version).await,
        }
    }

    /// Finds out whether and where ClusterNetworkPolicies are served. If they are not served,
    /// reports that there are none.
    async fn discover(&mut self, client: &Client) -> Result<(), StreamEnd> {
        let is_served = self.served.find(client, &self.traffic, !self.listed).await?;
        self.server_answered();
        self.served.publish(self.version.as_ref());
        if is_served {
            return Ok(());
        }
        self.index.begin_list();
        let events = self.index.complete();
        self.outlet.send(events).await?;
        self.listed().await?;
        self.trouble(None);
        Err(Failure::Absent.into())
    }

    /// The server answers. If this follower found the end of an outage by itself, it wakes the
    /// others. A follower that was woken announces nothing: if connections broke again at once, two
    /// would wake each other without end.
    fn server_answered(&mut self) {
        if std::mem::take(&mut self.outage) && !self.woken {
            self.recovery.announce();
        }
    }

    /// Acts on a failure. Returns how long to wait.
    async fn failed(&mut self, failure: &Failure) -> Result<Duration, Closed> {
        self.outage |= failure.is_outage();
        self.progress.failed();
        let remedy = failure.remedy();
        // For a watch that resumes, `RequestRejected` can only be about its resource version.
        let listing = self.version.is_none();
        match remedy {
            Remedy::NewCredentials => self.clients.discard(self.client.take()).await,
            Remedy::ListAnew | Remedy::RequestRejected => {
                self.floor = self.version.take().or(self.floor.take());
            }
            Remedy::NotServed if self.kind == ObjectKind::ClusterNetworkPolicy => {
                self.version = None;
            }
            Remedy::Again | Remedy::NotServed | Remedy::Forbidden => {}
        }
        if matches!(failure, Failure::Absent) {
            self.floor = None;
            return Ok(ABSENT);
        }
        self.needs_newest |= failure.is_of_the_future();
        self.reason = self.traffic.reason_after(failure, listing, self.reason);
        if listing && self.drop_field_selector(failure) {
            return Ok(Duration::ZERO);
        }
        if self.kind == ObjectKind::ServiceCidr
            && matches!(remedy, Remedy::NotServed | Remedy::Forbidden)
        {
            // Only the drop of packets to addresses without a Service depends on ServiceCIDRs.
            self.listed().await?;
            if remedy == Remedy::NotServed {
                self.trouble(None);
                return Ok(NOT_SERVED);
            }
        }
        if remedy == Remedy::Forbidden && !self.listed {
            self.outlet.send(vec![Event::Refused(self.kind.listing())]).await?;
        }
        let hiccup = matches!(failure, Failure::ShortWatch) && self.backoff.is_fresh();
        if hiccup || remedy == Remedy::ListAnew && !listing {
            debug!(kind = %self.kind, error = describe(failure), "continuing after a failure");
        } else {
            self.trouble(Some(format!("{}{}", describe(failure), failure.advice(self.kind))));
        }
        Ok(self.backoff.pause_after(failure))
    }

    /// Switches to a form of request that older servers understand. Returns whether there was one
    /// left to try.
    fn drop_field_selector(&mut self, failure: &Failure) -> bool {
        let refused = failure.remedy() == Remedy::RequestRejected;
        let kind = self.kind;
        if !refused || kind == ObjectKind::Node || !std::mem::take(&mut self.use_field_selectors) {
            return false;
        }
        if self.scope != StreamScope::OwnPods {
            self.fields = None;
        }
        // Before 1.31 a server selects Services by name only (kubernetes #123905). The model
        // ignores what the selector would have excluded. A Node's selector stays: without it the
        // server would send the heartbeats of all nodes.
        info!(%kind, error = describe(failure), "no field selector: requesting all");
        true
    }

    /// Sends a request, and waits for the head of its answer.
    async fn ask(&self, client: &Client, request: Request<Vec<u8>>) -> Result<Reply, StreamEnd> {
        let reply = timeout(backoff::ANSWER_TIMEOUT, Reply::to(client, request, &self.traffic));
        tokio::select! {
            () = self.outlet.closed() => Err(StreamEnd::Closed),
            reply = reply => Ok(reply.map_err(|_| Failure::TimedOut(backoff::ANSWER_TIMEOUT))??),
        }
    }

    /// Reads a list, as one change. In protobuf, each object is decoded when it has arrived.
    async fn list(&mut self, client: &Client) -> Result<(), StreamEnd> {
        if is_delayed(self.kind) && self.reason == ListReason::Start {
            self.wait_for_turn(client).await?;
        }
        let state = match &self.floor {
            _ if self.needs_newest => ListedState::Newest,
            Some(version) => ListedState::NotOlderThan(version),
            None => ListedState::Cached,
        };
        let params = kinds::list(self.kind, self.fields.clone(), self.use_field_selectors, state);
        let request = self.scope.request(self.served.request(self.kind)).list(&params);
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        kinds::accept_gzip(&mut request);
        self.traffic.list(self.reason);
        let mut reply = self.ask(client, request).await?;
        self.server_answered();
        self.answered_versions.forget_list();
        self.index.begin_list();
        let version = match reply.encoding {
            Encoding::Protobuf => {
                let mut listed = ListItems::default();
                while let Some(piece) = self.piece(&mut reply, LIST_SILENCE).await? {
                    listed.push(&piece);
                    while let Some(object) = listed.next().map_err(Failure::Answer)? {
                        self.take_listed(object).await?;
                    }
                }
                listed.end().map_err(Failure::Answer)?.ok_or(Failure::HalfAList)?
            }
            Encoding::Json => {
                let mut body = Vec::new();
                while let Some(piece) = self.piece(&mut reply, LIST_SILENCE).await? {
                    body.extend_from_slice(&piece);
                }
                let whole: JsonList<'_> = serde_json::from_slice(&body).map_err(Failure::from)?;
                for item in whole.items.iter().flatten() {
                    self.take_listed(Object::Json(item.get())).await?;
                }
                whole.metadata.version().map_err(Failure::Answer)?
            }
        };
        Ok(self.complete(version).await?)
    }

    /// Waits until this agent's first lists are due. Takes answers meanwhile.
    async fn wait_for_turn(&mut self, client: &Client) -> Result<(), StreamEnd> {
        let (list_delay, traffic) = (self.list_delay.clone(), self.traffic.clone());
        let mut turn = std::pin::pin!(list_delay.wait(client, &traffic));
        loop {
            tokio::select! {
                () = self.outlet.closed() => return Err(StreamEnd::Closed),
                Some(answer) = self.answers.recv() => self.take_answer(&answer).await?,
                () = &mut turn => return Ok(()),
            }
        }
    }

    async fn watch(&mut self, client: &Client, version: &str) -> Result<(), StreamEnd> {
        let params = kinds::watch(self.kind, self.fields.clone(), backoff::watch_seconds());
        let request = self.scope.request(self.served.request(self.kind)).watch(&params, version);
        let reply = self.ask(client, request.map_err(kube::Error::BuildRequest)?).await?;
        self.server_answered();
        let begun = Instant::now();
        self.trouble(None);
        let ended = self.read(reply).await;
        if begun.elapsed() >= STEADY {
            self.backoff.reset();
        }
        match ended {
            Err(StreamEnd::Failed(Failure::TimedOut(_)))
                if self.may_go_on(client, version).await? =>
            {
                debug!(kind = %self.kind, "a watch was silent; going on");
            }
            ended => ended?,
        }
        if begun.elapsed() < STEADY {
            return Err(Failure::ShortWatch.into());
        }
        Ok(())
    }

    /// Whether a watch that was silent may go on from `version`.
    async fn may_go_on(&mut self, client: &Client, version: &str) -> Result<bool, StreamEnd> {
        let request = self.scope.request(self.served.request(self.kind));
        Ok(self.silence.is_harmless(client, &request, version, &self.traffic).await?)
    }

    /// Reads a watch to its end.
    async fn read(&mut self, mut reply: Reply) -> Result<(), StreamEnd> {
        let mut frames = Frames::new(reply.encoding);
        while let Some(piece) = self.piece(&mut reply, WATCH_SILENCE).await? {
            frames.push(&piece);
            while let Some(event) = frames.next().map_err(Failure::Answer)? {
                self.traffic.event();
                self.silence.ends();
                self.take(event).await?;
                self.served.publish(self.version.as_ref());
                self.progress.sent(self.version.as_deref());
            }
        }
        if frames.is_between_events() { Ok(()) } else { Err(Failure::HalfAnEvent.into()) }
    }

    /// The next piece of an answer's body; `None` at its end. Takes answers meanwhile.
    async fn piece(
        &mut self,
        reply: &mut Reply,
        silence: Duration,
    ) -> Result<Option<hyper::body::Bytes>, StreamEnd> {
        let begun = Instant::now();
        loop {
            tokio::select! {
                () = self.outlet.closed() => return Err(StreamEnd::Closed),
                Some(answer) = self.answers.recv() => self.take_answer(&answer).await?,
                piece = timeout_at(begun + silence, reply.piece()) => {
                    return Ok(piece.map_err(|_| Failure::TimedOut(silence))??);
                }
            }
        }
    }

    async fn take(&mut self, event: WatchEvent<'_>) -> Result<(), StreamEnd> {
        match event {
            WatchEvent::Refused(status) => return Err(Failure::Refused(status).into()),
            WatchEvent::Bookmark(bookmark) => {
                if let Some(metadata) = bookmark.metadata() {
                    self.version = Some(metadata.resource_version.to_string());
                }
            }
            WatchEvent::Changed(object) => self.take_change(object, SentObjects::changed).await?,
            WatchEvent::Deleted(object) => self.take_change(object, SentObjects::deleted).await?,
        }
        Ok(())
    }

    /// Takes an object of a list. Nothing is decided before the first list is complete, so it is
    /// sent in parts: a copy of 150,000 pods here would take twice the model's memory.
    async fn take_listed(&mut self, object: Object<'_>) -> Result<(), Closed> {
        if !self.answers.is_closed() {
            self.answered_versions.note_listed(object);
        }
        match self.answered_versions.newer(object) {
            Some(metadata) => self.index.keep(&metadata.namespace, &metadata.name),
            None => self.index.list(&object.found(self.kind)),
        }
        if !self.listed && self.index.should_flush() {
            let events = self.index.flush();
            self.outlet.send(events).await?;
        }
        Ok(())
    }

    /// Takes what an answer brings before the watch does.
    async fn take_answer(&mut self, answer: &ObjectAnswer) -> Result<(), Closed> {
        let mut events = Vec::new();
        for answered in self.answered_versions.objects(answer, self.version.as_deref()) {
            events.append(&mut match answered {
                Answered::News(object) => self.index.changed(&object.found(self.kind)),
                Answered::Listed(object) => self.index.flush_one(&object.namespace, &object.name),
            });
        }
        self.served.start_node_follower(&events).await;
        self.outlet.send(events).await?;
        self.report();
        Ok(())
    }

    /// Sends the change of one object, unless an answer has brought a newer state, and remembers
    /// its version.
    async fn take_change(
        &mut self,
        object: Object<'_>,
        apply: fn(&mut SentObjects, &RawObject<'_>) -> Vec<Event>,
    ) -> Result<(), Closed> {
        let metadata = object.metadata();
        if !metadata.as_ref().is_some_and(|metadata| self.answered_versions.has(metadata)) {
            let events = apply(&mut self.index, &object.found(self.kind));
            self.served.start_node_follower(&events).await;
            self.outlet.send(events).await?;
            self.report();
        }
        if let Some(metadata) = metadata {
            self.version = Some(metadata.resource_version.to_string());
        }
        Ok(())
    }

    /// A list is complete: sends it as one change, and continues from its version.
    async fn complete(&mut self, version: String) -> Result<(), Closed> {
        if self.needs_newest {
            // A restored etcd assigns the same versions again.
            self.answered_versions = AnsweredVersions::default();
        }
        for (namespace, name) in self.answered_versions.newer_than(&version) {
            self.index.keep(namespace, name);
        }
        let events = self.index.complete();
        self.served.start_node_follower(&events).await;
        self.outlet.send(events).await?;
        self.listed().await?;
        (self.version, self.needs_newest) = (Some(version), false);
        self.progress.sent(self.version.as_deref());
        self.served.publish(self.version.as_ref());
        self.report();
        Ok(())
    }

    /// Sends once that the first list is complete.
    async fn listed(&mut self) -> Result<(), Closed> {
        let was_listed = std::mem::replace(&mut self.listed, true);
        let listed = (!was_listed).then(|| Event::Listed(self.kind.listing()));
        self.outlet.send(Vec::from_iter(listed)).await?;
        self.start.iter().for_each(NodeFollowerStart::listed);
        Ok(())
    }

    /// Reports that this kind cannot be followed, or can again, and logs it once.
    fn trouble(&mut self, trouble: Option<String>) {
        let kind = self.kind;
        if trouble != self.trouble {
            match &trouble {
                Some(error) => {
                    warn!(%kind, error, "cannot follow the API; keeping the last known state")
                }
                None => info!(%kind, "following the API again"),
            }
        }
        self.trouble = trouble;
        self.report();
    }

    fn report(&mut self) {
        for wrong in self.index.take_wrong_policies() {
            // If the queue is full, the log and the status still have it.
            let _ = self.wrong_policies.try_send(wrong);
        }
        let named = |trouble| format!("{}{}: {trouble}", self.kind.plural(), self.scope);
        let trouble = self.trouble.iter().map(named);
        let absent = self.index.lacks_own_node().filter(|_| self.listed);
        let problems = self.index.problems().cloned();
        let old = self.served.old.iter().cloned();
        self.outlet.report(trouble.chain(absent).chain(old).chain(problems).collect());
    }
}
