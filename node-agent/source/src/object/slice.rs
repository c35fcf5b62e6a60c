//! EndpointSlice (`discovery.k8s.io/v1`).

mod convert;
#[cfg(test)]
mod tests;

use serde::Deserialize;

pub use self::convert::slice;
use super::Metadata;

/// An EndpointSlice, reduced to the fields that are used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    #[serde(default)]
    pub metadata: Metadata,
    /// `IPv4`, `IPv6` or `FQDN`.
    #[serde(default)]
    pub address_type: String,
    /// The ports at which the endpoints listen.
    pub ports: Option<Vec<EndpointPort>>,
    pub endpoints: Option<Vec<EndpointEntry>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct EndpointPort {
    /// Matches the name of the Service's port.
    pub name: Option<String>,
    /// TCP when missing.
    pub protocol: Option<String>,
    /// Missing means all ports, which no proxy can map to one service port.
    pub port: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointEntry {
    /// The first is the address; the API says that the others must not be used.
    pub addresses: Option<Vec<String>>,
    pub conditions: Option<Conditions>,
    pub node_name: Option<String>,
    /// The zones and nodes whose clients should prefer it.
    pub hints: Option<EndpointHints>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Conditions {
    /// Missing means true.
    pub ready: Option<bool>,
    /// Missing means true.
    pub serving: Option<bool>,
    /// Missing means false.
    pub terminating: Option<bool>,
}

/// `endpoints[].hints`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointHints {
    pub for_zones: Option<Vec<Hint>>,
    pub for_nodes: Option<Vec<Hint>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Hint {
    /// The zone or node.
    #[serde(default)]
    pub name: String,
}
