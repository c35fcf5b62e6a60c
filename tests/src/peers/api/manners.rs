//! How the tests' server behaves, and what it was asked.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How the server behaves. The default is well. In front of a real server, what is about pages,
/// selectors, streams, bookmarks and lateness has no effect: that one answers such questions.
#[derive(Debug, Clone)]
pub struct Manners {
    /// Streaming lists are refused, as by a server whose gate `WatchList` is off.
    pub refuses_streams: bool,
    /// Objects are selected by no field but their names, as Services by a server before 1.31.
    pub refuses_fields: bool,
    /// A list begins, and its end is never sent.
    pub never_ends_lists: bool,
    /// Everything is answered in JSON, whatever was asked for.
    pub only_json: bool,
    /// New connections speak HTTP/1.1.
    pub only_http1: bool,
    /// Resources about which every question is answered with 429, in text, and this number of
    /// seconds in `Retry-After`.
    pub too_many: Option<(&'static str, u64)>,
    /// No page has more objects than this, whatever was asked for.
    pub page: usize,
    /// So many of the next further pages are gone when they are asked for.
    pub loses_pages: usize,
    /// So many of the next lists, in pages or streams, break off half way.
    pub breaks_lists: usize,
    /// Compressed lists have a wrong checksum.
    pub damages_lists: bool,
    /// No watch can begin where it wants to: the history is forgotten.
    pub forgets: bool,
    /// Resources of which a watch's first event is longer than 16 MiB.
    pub oversized: Vec<&'static str>,
    /// Every so many events, a watch has one that is neither JSON nor protobuf.
    pub garbage_every: Option<usize>,
    /// Everything is sent in pieces of so many bytes, with pauses.
    pub slow: Option<(usize, Duration)>,
    /// Resources that are not served.
    pub unserved: Vec<&'static str>,
    /// ClusterNetworkPolicies are defined, and served.
    pub tiers: bool,
    /// Resources about which a question is answered with a page that is no JSON, as by a proxy that
    /// is not meant to be there.
    pub garbled: Vec<&'static str>,
    /// Resources that nobody may read, and of the subresources of pods also what nobody may do
    /// alone: `create pods/exec`.
    pub forbidden: Vec<&'static str>,
    /// So many seconds the server's clock is ahead.
    pub clock_ahead: i64,
    /// Its release.
    pub release: &'static str,
    /// Resources about which a question gets no answer.
    pub silent: Vec<&'static str>,
    /// Paths about which a question gets no answer until this ends.
    pub silent_paths: Vec<String>,
    /// Paths that are answered with a page that is no JSON.
    pub garbled_paths: Vec<String>,
    /// Paths that nobody may read.
    pub forbidden_paths: Vec<String>,
    /// Resources of which watches bring no change: they lag behind, as a real server's may.
    pub late: Vec<&'static str>,
    /// The tokens that are known; any client where there are none.
    pub tokens: Vec<String>,
    /// How often a watch gets a bookmark.
    pub bookmarks: Duration,
    /// Watches end after this, whatever was asked for.
    pub watches_last: Duration,
    /// The protocol of commands in containers.
    pub exec_protocol: &'static str,
}

impl Default for Manners {
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

/// Where in an event a watch is cut.
#[derive(Debug, Clone, Copy, Default)]
pub enum CutPoint {
    /// In its length, which JSON has none of.
    Length,
    /// In its body.
    #[default]
    Body,
    /// Before it.
    Between,
}

impl Manners {
    pub(super) fn forbids(&self, verb: &str, resource: &str) -> bool {
        let is_it = |name: &&str| match name.split_once(' ') {
            Some(alone) => alone == (verb, resource),
            None => *name == resource,
        };
        self.forbidden.iter().any(is_it)
    }

    /// What a client must be permitted for a WebSocket to a container. It is a GET, so before
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
    /// Without the query.
    pub path: String,
    /// The query, decoded.
    pub query: BTreeMap<String, String>,
    /// Which program asked, as it calls itself.
    pub user_agent: String,
    /// Whether it asked for protobuf before JSON.
    pub protobuf: bool,
    /// Whether it asked for the metadata of objects alone.
    pub metadata_only: bool,
    /// Whether the answer may be compressed.
    pub gzip: bool,
    /// The number of its connection, where the server says it.
    pub connection: Option<usize>,
    /// When it came.
    pub at: Instant,
    /// The status of the answer; 0 while there is none.
    pub status: u16,
}

impl ReceivedRequest {
    /// A parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    /// Whether it is a watch.
    pub fn is_watch(&self) -> bool {
        matches!(self.parameter("watch"), Some("true" | "1"))
    }

    /// Whether it is a list as a stream.
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
