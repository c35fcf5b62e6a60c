//! Follows one kind: lists it, watches it from there, and repeats what failed.

#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use kube::Client;
use kube::core::WatchEvent;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, info, warn};

use super::access::Access;
use super::answer::{Ahead, ObjectAnswer};
use super::failure::{Failure, Remedy, StreamEnd};
use super::index::{PartialList, SentObjects};
use super::kinds;
use super::pace::{Pace, watch_seconds};
use super::recovery::Recovery;
use super::wire::{INITIAL_EVENTS_END, Json, Page, VersionedObject};
use super::{FollowerChannels, KubeConfig, WrongPolicy};
use crate::object::ObjectKind;
use crate::{Closed, Outlet};
use denizen_model::Event;
use denizen_text::describe;

/// Time limit for one page of a list, and for the first answer to a watch.
const ANSWER: Duration = Duration::from_secs(30);

/// Time limit for a streamed list, before it is requested in pages. A server older than streams may
/// ignore that one was requested, and never say where the list ends.
const STREAMED_LIST: Duration = Duration::from_secs(120);

/// Time limit for silence during a streamed list.
const STREAM_SILENCE: Duration = Duration::from_secs(20);

/// Time limit for silence during a watch: the server sends a bookmark about every minute. The
/// kernel notices a dead connection sooner.
const WATCH_SILENCE: Duration = Duration::from_secs(150);

/// A watch that lasted this long succeeded, however it ended.
const STEADY: Duration = Duration::from_secs(10);

/// Time until a kind that the server does not serve is requested again.
const NOT_SERVED: Duration = Duration::from_secs(600);

/// Follows one kind.
pub(super) struct KindFollower {
    kind: ObjectKind,
    node_name: Arc<str>,
    access: Access,
    outlet: Outlet,
    answers: mpsc::Receiver<ObjectAnswer>,
    ahead: Ahead,
    wrong_policies: mpsc::Sender<WrongPolicy>,
    index: SentObjects,
    /// `None` if the credentials must be read (again).
    client: Option<Client>,
    /// The resource version to watch from; `None` if a list is due.
    version: Option<String>,
    /// Whether to request lists as streams. True until the server refuses.
    streams: bool,
    /// The field selector, until the server refuses it.
    fields: Option<String>,
    listed: bool,
    pace: Pace,
    recovery: Recovery,
    /// The last request failed because the whole server was away, not only this kind.
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
        let KubeConfig { access, node_name, since, features } = config.clone();
        let FollowerChannels { outlet, answers, wrong_policies } = ends;
        Self {
            kind,
            index: SentObjects::new(kind, features.decoder(node_name.clone()), since),
            fields: kinds::fields(kind, &node_name, features),
            node_name,
            access,
            outlet,
            answers,
            ahead: Ahead::default(),
            wrong_policies,
            client: None,
            version: None,
            streams: true,
            listed: false,
            pace: Pace::default(),
            recovery,
            outage: false,
            woken: false,
            trouble: None,
        }
    }

    /// Runs until the receiver is closed.
    pub(super) async fn run(mut self) {
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

    /// One list in pages, or one watch to its end.
    async fn advance(&mut self) -> Result<(), StreamEnd> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.client.insert(self.access.client().await?).clone(),
        };
        match self.version.clone() {
            None if !self.streams => self.list(&client).await,
            version => self.watch(&client, version).await,
        }
    }

    /// The server answers. If this follower found the end of an outage by itself, it wakes the
    /// others. A follower that was woken announces nothing: if connections broke again at once, two
    /// would wake each other without end.
    fn answered(&mut self) {
        if std::mem::take(&mut self.outage) && !self.woken {
            self.recovery.announce();
        }
    }

    /// Acts on a failure. Returns how long to wait.
    async fn failed(&mut self, failure: &Failure) -> Result<Duration, Closed> {
        self.outage |= failure.is_outage();
        let remedy = failure.remedy();
        // For a watch that resumes, `NotThisWay` can only be about its resource version.
        let listing = self.version.is_none();
        match remedy {
            Remedy::NewCredentials => self.client = None,
            Remedy::ListAnew | Remedy::NotThisWay => self.version = None,
            Remedy::Again | Remedy::NotServed | Remedy::Forbidden => {}
        }
        if listing && self.asks_simpler(failure) {
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
        let hiccup = matches!(failure, Failure::ShortWatch) && self.pace.is_fresh();
        if hiccup || remedy == Remedy::ListAnew && !listing {
            debug!(kind = %self.kind, error = describe(failure), "continuing after a failure");
        } else {
            self.trouble(Some(format!("{}{}", describe(failure), failure.advice(self.kind))));
        }
        Ok(self.pace.pause(failure.asked()))
    }

    /// From now on requests lists in a way that an older server understands. Returns whether there
    /// was one left to try.
    fn asks_simpler(&mut self, failure: &Failure) -> bool {
        let refused = failure.remedy() == Remedy::NotThisWay;
        let unread = matches!(failure, Failure::TimedOut(_) | Failure::Answer(_));
        let kind = self.kind;
        let instead = if self.streams && (refused || unread) {
            self.streams = false;
            "no streamed list: requesting pages"
        } else if refused && kind != ObjectKind::Node && self.fields.take().is_some() {
            // Before 1.31 a server selects Services by name only (kubernetes #123905). The model
            // ignores what the selector would have excluded. A Node's selector stays: without it
            // the server would send the heartbeats of all nodes.
            "no field selector: requesting all"
        } else {
            return false;
        };
        info!(%kind, error = describe(failure), "{instead}");
        true
    }

    /// Reads a list in pages. The server keeps a snapshot, so that they are consistent.
    async fn list(&mut self, client: &Client) -> Result<(), StreamEnd> {
        let mut list = PartialList::default();
        let mut next = None;
        loop {
            let request =
                kinds::request(self.kind).list(&kinds::page(self.kind, self.fields.clone(), next));
            let text = client.request_text(request.map_err(kube::Error::BuildRequest)?);
            let text = tokio::select! {
                () = self.outlet.closed() => return Err(StreamEnd::Closed),
                text = timeout(ANSWER, text) => text.map_err(|_| Failure::TimedOut(ANSWER))??,
            };
            self.answered();
            let page: Page = serde_json::from_str(&text).map_err(Failure::Answer)?;
            for item in page.items.iter().flatten() {
                self.take_listed(&mut list, item).await?;
            }
            next = page.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() {
                let version = page.metadata.resource_version.unwrap_or_default();
                return Ok(self.complete(list, version).await?);
            }
        }
    }

    /// Watches from `version`. Without one, all existing objects come first.
    async fn watch(&mut self, client: &Client, version: Option<String>) -> Result<(), StreamEnd> {
        let initial = version.is_none();
        let params = kinds::watch(self.kind, self.fields.clone(), watch_seconds(), initial);
        let request = kinds::request(self.kind).watch(&params, &version.unwrap_or_default());
        let events = client.request_events::<Json>(request.map_err(kube::Error::BuildRequest)?);
        let events = tokio::select! {
            () = self.outlet.closed() => return Err(StreamEnd::Closed),
            events = timeout(ANSWER, events) => events.map_err(|_| Failure::TimedOut(ANSWER))??,
        };
        self.answered();
        let events = pin!(events);
        let begun = Instant::now();
        if !initial {
            self.trouble(None);
        }
        let ended = self.read(events, initial.then(PartialList::default)).await;
        if begun.elapsed() >= STEADY {
            self.pace.reset();
        }
        ended?;
        if begun.elapsed() < STEADY {
            return Err(Failure::ShortWatch.into());
        }
        Ok(())
    }

    /// Reads a watch to its end. `list` collects the list that it begins with, if any.
    async fn read(
        &mut self,
        mut events: impl Stream<Item = kube::Result<WatchEvent<Json>>> + Unpin,
        mut list: Option<PartialList>,
    ) -> Result<(), StreamEnd> {
        let deadline = Instant::now() + STREAMED_LIST;
        let mut heard = Instant::now();
        loop {
            let silence = match list {
                None => WATCH_SILENCE,
                Some(_) => STREAM_SILENCE.min(deadline.saturating_duration_since(heard)),
            };
            let event = tokio::select! {
                () = self.outlet.closed() => return Err(StreamEnd::Closed),
                Some(answer) = self.answers.recv() => {
                    self.take_answer(&answer).await?;
                    continue;
                }
                event = timeout_at(heard + silence, events.next()) => event,
            };
            heard = Instant::now();
            match event {
                Ok(Some(event)) => self.take(event?, &mut list).await?,
                Ok(None) if list.is_some() => return Err(Failure::HalfAList.into()),
                Ok(None) => return Ok(()),
                Err(_) => return Err(Failure::TimedOut(silence).into()),
            }
        }
    }

    async fn take(
        &mut self,
        event: WatchEvent<Json>,
        list: &mut Option<PartialList>,
    ) -> Result<(), StreamEnd> {
        match event {
            WatchEvent::Error(status) => return Err(Failure::Refused(status).into()),
            WatchEvent::Bookmark(bookmark) => {
                let version = bookmark.metadata.resource_version;
                let ends = bookmark.metadata.annotations.contains_key(INITIAL_EVENTS_END);
                if list.is_none() {
                    self.version = Some(version);
                } else if ends && let Some(list) = list.take() {
                    self.complete(list, version).await?;
                    self.trouble(None);
                }
            }
            WatchEvent::Added(object) | WatchEvent::Modified(object) => match list {
                Some(list) => self.take_listed(list, &object).await?,
                None => self.take_change(&object, SentObjects::changed).await?,
            },
            WatchEvent::Deleted(object) => match list {
                Some(list) => self.index.unlist(list, object.get()),
                None => self.take_change(&object, SentObjects::deleted).await?,
            },
        }
        Ok(())
    }

    /// Takes an object of a list. Nothing is decided before the first list is complete, so large
    /// parts of that are sent before: 150,000 pods would wait here in twice the memory that the
    /// model needs for them.
    async fn take_listed(&mut self, list: &mut PartialList, object: &Json) -> Result<(), Closed> {
        self.index.list(list, object.get());
        if !self.listed && list.should_flush() {
            let events = self.index.flush(list);
            self.outlet.send(events).await?;
        }
        Ok(())
    }

    /// Takes what an answer brings before the watch does.
    async fn take_answer(&mut self, answer: &ObjectAnswer) -> Result<(), Closed> {
        let objects = self.ahead.objects(&answer.text, self.version.as_deref()).into_iter();
        let events = objects.flat_map(|object| self.index.changed(object.get())).collect();
        self.outlet.send(events).await?;
        self.report();
        Ok(())
    }

    /// Sends what became of one object, unless an answer has brought more, and remembers its
    /// version.
    async fn take_change(
        &mut self,
        object: &Json,
        apply: fn(&mut SentObjects, &str) -> Vec<Event>,
    ) -> Result<(), Closed> {
        let versioned = serde_json::from_str::<VersionedObject>(object.get()).ok();
        if !versioned.as_ref().is_some_and(|object| self.ahead.has(&object.metadata)) {
            let events = apply(&mut self.index, object.get());
            self.outlet.send(events).await?;
            self.report();
        }
        if let Some(VersionedObject { metadata }) = versioned {
            self.version = Some(metadata.resource_version);
        }
        Ok(())
    }

    /// A list is complete: sends it as one change, and continues from its version.
    async fn complete(&mut self, list: PartialList, version: String) -> Result<(), Closed> {
        self.ahead = Ahead::default();
        let events = self.index.complete(list);
        self.outlet.send(events).await?;
        self.listed().await?;
        self.version = Some(version);
        self.report();
        Ok(())
    }

    /// Sends once that the first list is complete.
    async fn listed(&mut self) -> Result<(), Closed> {
        let is_first = !std::mem::replace(&mut self.listed, true);
        let listed = is_first.then(|| Event::Listed(self.kind.listing()));
        self.outlet.send(Vec::from_iter(listed)).await
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
            // If too many wait to be written, it is in the log and the status nevertheless.
            let _ = self.wrong_policies.try_send(wrong);
        }
        let trouble =
            self.trouble.iter().map(|trouble| format!("{}: {trouble}", self.kind.plural()));
        let absent = self.kind == ObjectKind::Node && self.listed && !self.index.has_own_node();
        let absent = absent.then(|| {
            format!(
                "Node {} does not exist (yet), so its addresses and its zone are unknown; check --node-name",
                self.node_name
            )
        });
        let problems = self.index.problems().cloned();
        self.outlet.report(trouble.chain(absent).chain(problems).collect());
    }
}
