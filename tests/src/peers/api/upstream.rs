//! A real server behind the tests' own: forwards requests, and relays answers as they arrive.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use bytes::BytesMut;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch::Receiver;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

use super::answer::{PROTOBUF, failure};
use super::behaviour::{CutPoint, ReceivedRequest};
use super::kinds::PathTarget;
use super::server::Shared;
use super::watch::{Body, EventPipe, Pipe, ReaderGone};

/// How a real server is reached.
pub(super) struct Upstream {
    address: SocketAddr,
    tls: TlsConnector,
}

impl Upstream {
    pub(super) fn new(address: SocketAddr, tls: Arc<ClientConfig>) -> Self {
        Self { address, tls: tls.into() }
    }

    /// Forwards a request; returns the real server's answer. Lists may break off, and watches be
    /// cut.
    pub(super) async fn forward(
        &self,
        shared: &Arc<Shared>,
        received: &ReceivedRequest,
        mut request: Request<Incoming>,
    ) -> Response<Body> {
        let behaviour = shared.behaviour();
        if behaviour.only_json {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        }
        let answer = match self.ask(request).await {
            Ok(answer) => answer,
            Err(error) => return failure(502, "BadGateway", &format!("{error:#}")),
        };
        let (head, answered) = answer.into_parts();
        let is_list = || PathTarget::parse(&received.path).is_some_and(|path| path.name.is_none());
        let is_affected = head.status.is_success() && received.method == "GET" && is_list();
        if !is_affected {
            let body = answered.map_err(std::io::Error::other).boxed_unsync();
            return Response::from_parts(head, body);
        }
        let (pipe, body) = Pipe::new(behaviour);
        if received.is_watch() {
            let content_type = head.headers.get(CONTENT_TYPE).and_then(|text| text.to_str().ok());
            let protobuf = content_type.is_some_and(|text| text.starts_with(PROTOBUF));
            let relay = WatchRelay {
                events: EventPipe::new(pipe, protobuf),
                cut: shared.cut.subscribe(),
                expire: shared.expire.subscribe(),
                lasts: shared.behaviour().watches_last,
            };
            tokio::spawn(relay.run(answered));
        } else {
            let list = match answered.collect().await {
                Ok(list) => list.to_bytes(),
                Err(error) => return failure(502, "BadGateway", &error.to_string()),
            };
            let breaks = shared.take(|behaviour| &mut behaviour.breaks_lists);
            tokio::spawn(pipe.list(list, breaks));
        }
        Response::from_parts(head, body)
    }

    /// Sends a request on a connection of its own, which ends with the answer's body.
    async fn ask(&self, request: Request<Incoming>) -> Result<Response<Incoming>> {
        let (mut head, body) = request.into_parts();
        let mut uri = head.uri.into_parts();
        let host = uri.authority.take().map(|authority| authority.to_string());
        uri.scheme = None;
        head.uri = hyper::Uri::from_parts(uri)?;
        head.version = hyper::Version::HTTP_11;
        if let Some(host) = host {
            head.headers.insert("host", HeaderValue::from_str(&host)?);
        }
        let body = Full::new(body.collect().await?.to_bytes());
        let stream = TcpStream::connect(self.address).await?;
        let stream = self.tls.connect(self.address.ip().into(), stream).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender.send_request(Request::from_parts(head, body)).await?)
    }
}

/// A watch that is relayed, event by event.
struct WatchRelay {
    events: EventPipe,
    cut: Receiver<CutPoint>,
    expire: Receiver<u64>,
    lasts: std::time::Duration,
}

impl WatchRelay {
    async fn run(mut self, answered: Incoming) {
        let _ = self.relay(answered).await;
    }

    async fn relay(&mut self, mut answered: Incoming) -> Result<(), ReaderGone> {
        let mut end = std::pin::pin!(sleep(self.lasts));
        let mut arrived = BytesMut::new();
        loop {
            while let Some(length) = self.events.first(&arrived) {
                self.events.event(arrived.split_to(length).freeze()).await?;
            }
            tokio::select! {
                piece = answered.frame() => match piece {
                    Some(Ok(piece)) => arrived.extend(piece.into_data().ok()),
                    Some(Err(_)) => return Err(self.events.cut(CutPoint::Between).await),
                    None => return Ok(()),
                },
                _ = self.cut.changed() => {
                    let point = *self.cut.borrow_and_update();
                    return Err(self.events.cut(point).await);
                }
                _ = self.expire.changed() => return self.events.expired().await,
                () = &mut end => return Ok(()),
            }
        }
    }
}
