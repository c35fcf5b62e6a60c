//! What the agent costs the API server.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// What following one kind of objects has cost since the agent's start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiTraffic {
    /// The kind, such as `Pods`.
    pub kind: String,
    /// Bytes of all answers.
    pub bytes: u64,
    /// Events of watches, bookmarks included.
    pub events: u64,
    /// Lists that were requested, by reason. Reasons without one are missing.
    pub lists: BTreeMap<String, u64>,
    /// Answers by encoding: `protobuf` and `json`.
    pub answers: BTreeMap<String, u64>,
}

impl fmt::Display for ApiTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, bytes, events, lists, answers: _ } = self;
        let reasons = lists.iter().map(|(reason, count)| format!("{count} {reason}"));
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        write!(f, "{kind}: {bytes} bytes, {events} events, lists: {reasons}")
    }
}
