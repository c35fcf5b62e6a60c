//! The result of a probe, as the client prints it, and as a server reports its own probes.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The result of the attempts at one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProbeResult {
    /// The target as given, with the protocol.
    pub(super) to: String,
    pub(super) outcome: ProbeOutcome,
    pub(super) attempts: u32,
    /// Time since the beginning of the first attempt.
    pub(super) milliseconds: u64,
    /// The server's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// This client's address, as the server sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<IpAddr>,
    /// What is wrong, in the system's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    /// The result of the server's connection back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) back: Option<Box<ProbeResult>>,
    /// The results of the server's own first connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) first: Option<Vec<ProbeResult>>,
}

/// The outcome of the last attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ProbeOutcome {
    /// A server of this program answered.
    Answered,
    /// The connection was accepted, which is enough with `--handshake`.
    Connected,
    Refused,
    /// There is no route, or a rule rejects the connection.
    Unreachable,
    TimedOut,
    /// Something else: another program answered, or the name is unknown.
    Failed,
}
