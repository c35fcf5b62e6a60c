//! The content of the status page. Plain values, which the loop makes and the HTTP server renders.

use serde::{Deserialize, Serialize};

use super::Status;
use crate::drops::DropCounts;

/// Selects a part of the services and pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewQuery {
    /// Only those with this text in the name or an address; empty for all.
    pub search: String,
    /// The number of services to skip.
    pub skip: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct View {
    pub node: String,
    /// The output of `denizen-agent status`.
    pub status: Status,
    /// Local pods, by name.
    pub pods: ResultPart<PodRow>,
    /// Services, by name.
    pub services: ResultPart<ServiceRow>,
    /// The output of `denizen-agent drops`.
    pub drops: DropCounts,
    /// The last syncs, newest first.
    pub syncs: Vec<SyncRow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultPart<T> {
    /// The size of the whole result.
    pub total: usize,
    pub shown: Vec<T>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRow {
    /// `namespace/name`, or the attachment's id if the runtime passed no name.
    pub name: String,
    pub ips: Vec<String>,
    /// The input interface of its packets.
    pub interface: String,
    /// The bridge port, for a bridged pod.
    pub port: Option<String>,
    /// If its TCP is redirected to a proxy: the proxy's profile.
    #[serde(default)]
    pub redirect: Option<String>,
    /// Its isolation for ingress and for egress; empty if the pod firewall is off.
    pub policy: Vec<SideRow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideRow {
    /// `ingress` or `egress`.
    pub direction: String,
    /// Whether policies restrict this direction.
    pub state: SideState,
    /// The policies that isolate the pod in this direction.
    pub policies: Vec<String>,
}

/// Whether policies restrict one direction of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SideState {
    /// Everything passes.
    Open,
    /// What policies permit passes.
    Isolated,
    /// Nothing passes until its policies are known.
    Pending,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRow {
    /// `namespace/name`.
    pub name: String,
    /// Policies, session affinity, source ranges and health-check node port.
    pub policies: Vec<String>,
    pub keys: Vec<FrontendRow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontendRow {
    /// `cluster IP`, `node port`, …
    pub kind: String,
    /// Its address, port and protocol: `10.96.0.10:80/tcp`.
    pub at: String,
    /// The other service that this frontend is served for, if any.
    pub taken_by: Option<String>,
    /// What happens to connections of this node and its pods.
    pub inside: ConnectionFate,
    /// What happens to connections from outside, if that differs.
    pub outside: Option<ConnectionFate>,
}

/// What happens to a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ConnectionFate {
    Forward(ResultPart<EndpointRow>),
    Reject,
    Drop,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRow {
    pub at: String,
    pub local: bool,
}

/// One attempt to program the kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SyncRow {
    /// When, RFC 3339 in UTC, to the millisecond.
    pub at: String,
    pub milliseconds: f64,
    pub what: String,
    /// Why it failed, if it did.
    pub error: Option<String>,
}
