//! How the tests' server behaves, and the requests that it got.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How the server behaves; by default, well. In front of a real server, what concerns pages,
/// selectors, streams, bookmarks and lateness has no effect: the real server answers such requests.
#[derive(Debug, Clone)]
pub struct ServerBehaviour {
    /// Streaming lists are refused, as by a server whose gate `WatchList` is off.
    pub refuses_streams: bool,
    /// Objects are selected by no field but their names, as with Services before Kubernetes 1.31.
    pub refuses_fields: bool,
    /// The beginning of a list is sent, and its end never.
    pub never_ends_lists: bool,
    /// Everything is answered in JSON, whatever was asked for.
    pub only_json: bool,
    /// New connections speak HTTP/1.1.
    pub only_http1: bool,
    /// A resource for which every request is answered with 429, in plain text, and this number of
    /// seconds in `Retry-After`.
    pub too_many: Option<(&'static str, u64)>,
    /// No page has more objects than this, whatever was asked for.
    pub page: usize,
    /// For this many of the next requests for a further page, the page is gone.
    pub loses_pages: usize,
    /// This many of the next lists, in pages or as streams, break off half way.
    pub breaks_lists: usize,
    /// Compressed lists have a wrong checksum.
    pub damages_lists: bool,
    /// No watch can resume where it wants to: the history is forgotten.
    pub forgets: bool,
    /// Resources for which a watch's first event is longer than 16 MiB.
    pub oversized: Vec<&'static str>,
    /// Before every event whose number is a multiple of this, a watch gets something that is
    /// neither JSON nor protobuf.
    pub garbage_every: Option<usize>,
    /// Everything is sent in pieces of this many bytes, with this pause between them.
    pub slow: Option<(usize, Duration)>,
    /// Resources that are not served.
    pub unserved: Vec<&'static str>,
    /// ClusterNetworkPolicies are defined, and served.
    pub tiers: bool,
    /// Resources for which a request is answered with a page that is not JSON, as by a proxy that
    /// is in the way by mistake.
    pub garbled: Vec<&'static str>,
    /// Resources that nobody may read. For subresources of pods, it may also be one verb alone that
    /// nobody may do: `create pods/exec`.
    pub forbidden: Vec<&'static str>,
    /// How many seconds the server's clock is ahead.
    pub clock_ahead: i64,
    /// The server's Kubernetes version.
    pub release: &'static str,
    /// Resources for which requests get no answer.
    pub silent: Vec<&'static str>,
    /// Paths for which requests get no answer until they are removed from this list.
    pub silent_paths: Vec<String>,
    /// Paths that are answered with a page that is not JSON.
    pub garbled_paths: Vec<String>,
    /// Paths that nobody may read.
    pub forbidden_paths: Vec<String>,
    /// Resources whose watches bring no changes: they lag behind, as a real server's may.
    pub late: Vec<&'static str>,
    /// The tokens that are accepted; if empty, every client is.
    pub tokens: Vec<String>,
    /// The interval of a watch's bookmarks.
    pub bookmarks: Duration,
    /// Watches end after this time, whatever the client asked for.
    pub watches_last: Duration,
    /// The WebSocket subprotocol of commands in containers.
    pub exec_protocol: &'static str,
}

impl Default for ServerBehaviour {
    fn default() -> Self {
        Self {
            refuses_streams: false,
            refuses_fields: false,
            never_ends_lists: false,
            only_json: std::env::var_os("DENIZEN_TEST_JSON").is_some(),
            only_http1: false,
            too_many: None,
            page: usize::MAX,
            loses_pages: 0,
            breaks_lists: 0,
            damages_lists: false,
            forgets: false,
            oversized: Vec::new(),
            garbage_every: None,
            slow: None,
            unserved: Vec::new(),
            tiers: false,
            garbled: Vec::new(),
            forbidden: Vec::new(),
            clock_ahead: 0,
            release: "v1.33.0",
            silent: Vec::new(),
            silent_paths: Vec::new(),
            garbled_paths: Vec::new(),
            forbidden_paths: Vec::new(),
            late: Vec::new(),
            tokens: Vec::new(),
            bookmarks: Duration::from_secs(60),
            watches_last: Duration::from_secs(3600),
            exec_protocol: "v5.channel.k8s.io",
        }
    }
}

/// Where a watch is cut off.
#[derive(Debug, Clone, Copy, Default)]
pub enum CutPoint {
    /// Within an event's length, which only protobuf has.
    Length,
    /// Within an event's body.
    #[default]
    Body,
    /// Between two events.
    Between,
}

impl ServerBehaviour {
    pub(super) fn forbids(&self, verb: &str, resource: &str) -> bool {
        let is_it = |name: &&str| match name.split_once(' ') {
            Some(alone) => alone == (verb, resource),
            None => *name == resource,
        };
        self.forbidden.iter().any(is_it)
    }

    /// The verbs of which a client needs one for a WebSocket to a container. It is a GET, so before
    /// Kubernetes 1.35 `get` was enough. SPDY is a POST, and has always needed `create`.
    pub(super) fn exec_verbs(&self) -> &'static [&'static str] {
        let minor: Option<u32> =
            self.release.split('.').nth(1).and_then(|minor| minor.parse().ok());
        if minor >= Some(35) { &["get", "create"] } else { &["get"] }
    }
}

/// A request that the server got.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// `GET` and so on.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query, decoded.
    pub query: BTreeMap<String, String>,
    /// The client's `User-Agent`.
    pub user_agent: String,
    /// Whether the client prefers protobuf to JSON.
    pub protobuf: bool,
    /// Whether the client asked only for the objects' metadata.
    pub metadata_only: bool,
    /// Whether the answer may be compressed.
    pub gzip: bool,
    /// The number of its connection, if the server reports it.
    pub connection: Option<usize>,
    /// When the request arrived.
    pub at: Instant,
    /// The status of the answer; 0 while there is none.
    pub status: u16,
}

impl ReceivedRequest {
    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    /// Whether it is a watch.
    pub fn is_watch(&self) -> bool {
        matches!(self.parameter("watch"), Some("true" | "1"))
    }

    /// Whether it is a streaming list.
    pub fn is_stream(&self) -> bool {
        self.is_watch() && self.parameter("sendInitialEvents") == Some("true")
    }

    /// Whether it is a list, or a page of one.
    pub fn is_page(&self) -> bool {
        self.method == "GET" && !self.is_watch()
    }
}

/// The query of a URL, decoded.
pub(super) fn query_of(text: &str) -> BTreeMap<String, String> {
    pairs_of(text).into_iter().collect()
}

/// The same in order, with names that come several times.
pub(super) fn pairs_of(text: &str) -> Vec<(String, String)> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        })
        .collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let hex: String = rest.by_ref().take(2).map(char::from).collect();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap_or(b'?'));
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
