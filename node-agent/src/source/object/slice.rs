//! EndpointSlice (`discovery.k8s.io/v1`).

mod convert;
#[cfg(test)]
mod tests;

use serde::Deserialize;

pub use self::convert::slice;
use super::Metadata;

/// An EndpointSlice, cut down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    /// What every object has.
    #[serde(default)]
    pub metadata: Metadata,
    /// `IPv4`, `IPv6` or `FQDN`.
    #[serde(default)]
    pub address_type: String,
    /// Where the endpoints listen.
    pub ports: Option<Vec<EndpointPort>>,
    /// The endpoints.
    pub endpoints: Option<Vec<Endpoint>>,
}

/// One entry of `ports`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct EndpointPort {
    /// Joins it to the Service's port.
    pub name: Option<String>,
    /// TCP when missing.
    pub protocol: Option<String>,
    /// Missing means all ports, which no proxy can join to a Service's port.
    pub port: Option<i64>,
}

/// One entry of `endpoints`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// The first is the address; the API says that nobody may use the others.
    pub addresses: Option<Vec<String>>,
    /// What may be sent to it.
    pub conditions: Option<Conditions>,
    /// The node it runs on.
    pub node_name: Option<String>,
    /// Who should prefer it.
    pub hints: Option<Hints>,
}

/// `endpoints[].conditions`.
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
pub struct Hints {
    /// Zones.
    pub for_zones: Option<Vec<Hint>>,
    /// Nodes.
    pub for_nodes: Option<Vec<Hint>>,
}

/// One entry of a hint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Hint {
    /// The zone or node.
    #[serde(default)]
    pub name: String,
}
