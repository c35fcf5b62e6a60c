//! What the page for people shows. Plain values, made by the loop and shown by others.

use serde::{Deserialize, Serialize};

use super::Status;

/// Which part of what is known is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewQuery {
    /// Only what has this text in its name or one of its addresses; empty for everything.
    pub search: String,
    /// How many services to leave out at the beginning.
    pub skip: usize,
}

/// What is known, as far as it was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// This node's name.
    pub node: String,
    /// What `denizen-agent status` says.
    pub status: Status,
    /// Local pods, by name.
    pub pods: Found<PodRow>,
    /// Services, by name.
    pub services: Found<ServiceRow>,
    /// What was programmed last, newest first.
    pub syncs: Vec<SyncRow>,
}

/// A part of what was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found<T> {
    /// How much was found.
    pub total: usize,
    /// What of it is shown.
    pub shown: Vec<T>,
}

/// A pod of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRow {
    /// `namespace/name`, or the attachment's name where the runtime told none.
    pub name: String,
    /// Its addresses.
    pub ips: Vec<String>,
    /// The interface through which its packets come in.
    pub interface: String,
    /// The bridge's port, for a bridged pod.
    pub port: Option<String>,
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRow {
    /// `namespace/name`.
    pub name: String,
    /// What holds for all of it: policies, session affinity, source ranges, its health-check node
    /// port.
    pub policies: Vec<String>,
    /// Its frontends.
    pub keys: Vec<FrontendRow>,
}

/// A frontend of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontendRow {
    /// `cluster IP`, `node port`, …
    pub kind: String,
    /// Where it is: `10.96.0.10:80/tcp`.
    pub at: String,
    /// Whose frontend it is, where another service has it.
    pub taken_by: Option<String>,
    /// What becomes of connections of this node and its pods.
    pub inside: Fate,
    /// What becomes of those from elsewhere, where that differs.
    pub outside: Option<Fate>,
}

/// What becomes of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fate {
    /// To one of these.
    Forward(Found<EndpointRow>),
    /// Refused.
    Reject,
    /// Dropped.
    Drop,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRow {
    /// Where it listens.
    pub at: String,
    /// It is on this node.
    pub local: bool,
}

/// One attempt to program the kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SyncRow {
    /// When, RFC 3339 in UTC, to the millisecond.
    pub at: String,
    /// How long it took.
    pub milliseconds: f64,
    /// What for.
    pub what: String,
    /// Why it failed, where it did.
    pub error: Option<String>,
}
