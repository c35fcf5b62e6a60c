//! The body of a watch, and of any other answer that is sent piece by piece.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use denizen_fixture::protobuf;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval_at, sleep, sleep_until};

use super::behaviour::{CutPoint, ServerBehaviour};
use super::kinds::Resource;
use super::select::Selector;
use super::server::Shared;
use super::store::Stored;

/// The body of an answer.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The client does not read any more.
#[derive(Debug)]
pub(super) struct ReaderGone;

/// The sending end of a body.
#[derive(Debug)]
pub(super) struct Pipe {
    sender: mpsc::Sender<Result<Frame<Bytes>, io::Error>>,
    behaviour: ServerBehaviour,
}

impl Pipe {
    /// A pipe, and the body that reads from it.
    pub(super) fn new(behaviour: ServerBehaviour) -> (Self, Body) {
        let (sender, receiver) = mpsc::channel(64);
        let pieces = stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|piece| (piece, receiver))
        });
        (Self { sender, behaviour }, StreamBody::new(pieces).boxed_unsync())
    }

    /// Sends a whole list, or as much of it as the server's behaviour permits.
    pub(super) async fn list(self, text: Bytes, breaks: bool) {
        if self.behaviour.never_ends_lists {
            let _ = self.write(text.slice(..text.len() / 2)).await;
            sleep(std::time::Duration::from_secs(3600)).await;
        } else if breaks {
            self.break_off(&text).await;
        } else {
            let _ = self.write(text).await;
        }
    }

    /// Sends these bytes, at the server's configured pace.
    pub(super) async fn write(&self, bytes: Bytes) -> Result<(), ReaderGone> {
        let Some((size, pause)) = self.behaviour.slow else {
            return self.send(Ok(Frame::data(bytes))).await;
        };
        for piece in bytes.chunks(size) {
            sleep(pause).await;
            self.send(Ok(Frame::data(Bytes::copy_from_slice(piece)))).await?;
        }
        Ok(())
    }

    /// Sends half of these bytes and ends the connection abruptly.
    pub(super) async fn break_off(&self, bytes: &Bytes) -> ReaderGone {
        self.end_with(bytes.slice(..bytes.len() / 2)).await
    }

    /// Sends these bytes and ends the connection abruptly.
    async fn end_with(&self, bytes: Bytes) -> ReaderGone {
        let _ = self.send(Ok(Frame::data(bytes))).await;
        // What was written must have left before the connection is gone.
        sleep(std::time::Duration::from_millis(20)).await;
        let _ = self.send(Err(io::ErrorKind::ConnectionAborted.into())).await;
        ReaderGone
    }

    async fn send(&self, piece: Result<Frame<Bytes>, io::Error>) -> Result<(), ReaderGone> {
        self.sender.send(piece).await.map_err(|_| ReaderGone)
    }
}

/// What a watch shows.
#[derive(Debug)]
pub(super) struct WatchScope {
    pub(super) resource: Resource,
    pub(super) selector: Selector,
    /// Changes after this version; `None` for a streaming list.
    pub(super) since: Option<u64>,
    pub(super) bookmarks: bool,
    pub(super) protobuf: bool,
    pub(super) seconds: u64,
}

/// A watch that runs.
pub(super) struct Watch {
    shared: Arc<Shared>,
    scope: WatchScope,
    events: EventPipe,
    cut: watch::Receiver<CutPoint>,
    expire: watch::Receiver<u64>,
}

impl Watch {
    /// A new watch. From now on it can be cut off.
    pub(super) fn new(shared: Arc<Shared>, scope: WatchScope, pipe: Pipe) -> Self {
        Self {
            cut: shared.cut.subscribe(),
            expire: shared.expire.subscribe(),
            shared,
            events: EventPipe::new(pipe, scope.protobuf),
            scope,
        }
    }

    /// Runs until the watch is over.
    pub(super) async fn run(mut self) {
        let _ = self.serve().await;
    }

    async fn serve(&mut self) -> Result<(), ReaderGone> {
        let mut versions = self.shared.store.versions();
        let mut since = match self.scope.since {
            Some(since) => since,
            None => self.initial().await?,
        };
        let behaviour = self.events.pipe.behaviour.clone();
        let longest = std::time::Duration::from_secs(self.scope.seconds);
        let end = Instant::now() + behaviour.watches_last.min(longest);
        let mut bookmark = interval_at(Instant::now() + behaviour.bookmarks, behaviour.bookmarks);
        loop {
            versions.borrow_and_update();
            let WatchScope { resource, selector, .. } = &self.scope;
            if !self.shared.behaviour().late.contains(&resource.plural) {
                let Ok((events, until)) = self.shared.store.events(*resource, selector, since)
                else {
                    return self.events.expired().await;
                };
                for event in events {
                    self.object(event.kind, &event.object).await?;
                }
                since = until;
            }
            tokio::select! {
                _ = versions.changed() => {}
                _ = self.cut.changed() => {
                    let point = *self.cut.borrow_and_update();
                    return Err(self.events.cut(point).await);
                }
                _ = self.expire.changed() => return self.events.expired().await,
                _ = bookmark.tick() => {
                    if self.scope.bookmarks { self.bookmark(since, false).await?; }
                }
                () = sleep_until(end) => return Ok(()),
            }
        }
    }

    /// Sends all existing objects, and the bookmark that ends them.
    async fn initial(&mut self) -> Result<u64, ReaderGone> {
        let WatchScope { resource, selector, .. } = &self.scope;
        let (objects, version) = self.shared.store.list(*resource, selector);
        let breaks = self.shared.take(|behaviour| &mut behaviour.breaks_lists);
        let half = objects.len() / 2;
        for (n, object) in objects.into_iter().enumerate() {
            if breaks && n >= half {
                return Err(self.events.pipe.break_off(&object.json).await);
            }
            self.object("ADDED", &object).await?;
        }
        if !self.events.pipe.behaviour.never_ends_lists {
            self.bookmark(version, true).await?;
        }
        Ok(version)
    }

    async fn bookmark(&mut self, version: u64, ends: bool) -> Result<(), ReaderGone> {
        let Resource { version: api, kind, .. } = self.scope.resource;
        let annotations =
            if ends { json!({ "k8s.io/initial-events-end": "true" }) } else { Value::Null };
        let object = json!({
            "kind": kind, "apiVersion": api,
            "metadata": { "resourceVersion": version.to_string(), "annotations": annotations },
        });
        let mut text = object;
        if !ends {
            text["metadata"].as_object_mut().map(|metadata| metadata.remove("annotations"));
        }
        self.events.value("BOOKMARK", kind, &text).await
    }

    async fn object(&mut self, event: &str, object: &Stored) -> Result<(), ReaderGone> {
        let Resource { version, kind, .. } = self.scope.resource;
        match object.protobuf.as_ref().filter(|_| self.scope.protobuf) {
            Some(message) => self.events.frame(event, version, kind, message).await,
            None => self.events.line(event, &object.json).await,
        }
    }
}

/// Sends the events of a watch, in one of the encodings.
#[derive(Debug)]
pub(super) struct EventPipe {
    pipe: Pipe,
    protobuf: bool,
    sent: usize,
}

impl EventPipe {
    pub(super) fn new(pipe: Pipe, protobuf: bool) -> Self {
        Self { pipe, protobuf, sent: 0 }
    }

    /// The length of the first event in these bytes, if they contain all of it.
    pub(super) fn first(&self, bytes: &[u8]) -> Option<usize> {
        let length = match (self.protobuf, bytes.first_chunk()) {
            (true, Some(length)) => 4 + usize::try_from(u32::from_be_bytes(*length)).ok()?,
            (true, None) => return None,
            (false, _) => bytes.iter().position(|byte| *byte == b'\n')? + 1,
        };
        (bytes.len() >= length).then_some(length)
    }

    /// Sends an event unchanged; before it, garbage if the server's behaviour says so.
    pub(super) async fn event(&mut self, event: Bytes) -> Result<(), ReaderGone> {
        self.sent += 1;
        if self.pipe.behaviour.garbage_every.is_some_and(|every| self.sent.is_multiple_of(every)) {
            let garbage: &[u8] =
                if self.protobuf { b"\0\0\0\x09}garbage{" } else { b"}no JSON{\n" };
            self.pipe.write(Bytes::from_static(garbage)).await?;
        }
        self.pipe.write(event).await
    }

    /// Cuts the watch off.
    pub(super) async fn cut(&self, point: CutPoint) -> ReaderGone {
        let begun: &[u8] = match (point, self.protobuf) {
            (CutPoint::Between, _) => b"",
            (CutPoint::Length, true) => &[0, 0],
            (CutPoint::Body, true) => &[0, 0, 1, 0, 0x0a, 5, b'A', b'D'],
            (CutPoint::Length | CutPoint::Body, false) => br#"{"type":"MODIFIED","obj"#,
        };
        self.pipe.end_with(Bytes::from_static(begun)).await
    }

    pub(super) async fn expired(&mut self) -> Result<(), ReaderGone> {
        self.value("ERROR", "Status", &expired()).await
    }

    async fn value(&mut self, event: &str, kind: &str, value: &Value) -> Result<(), ReaderGone> {
        if !self.protobuf {
            return self.line(event, value.to_string().as_bytes()).await;
        }
        let message = protobuf::object(kind, value);
        self.frame(event, value["apiVersion"].as_str().unwrap_or_default(), kind, &message).await
    }

    async fn frame(
        &mut self,
        event: &str,
        version: &str,
        kind: &str,
        message: &[u8],
    ) -> Result<(), ReaderGone> {
        let object = protobuf::envelope(version, kind, message);
        self.event(protobuf::event(event, &object).into()).await
    }

    async fn line(&mut self, kind: &str, object: &[u8]) -> Result<(), ReaderGone> {
        let mut line = Vec::with_capacity(object.len() + 40);
        line.extend_from_slice(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
        line.extend_from_slice(object);
        line.extend_from_slice(b"}\n");
        self.event(line.into()).await
    }
}

/// The answer to a request for a version that is forgotten.
pub(super) fn expired() -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410,
    })
}
