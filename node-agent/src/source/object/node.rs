//! Node (`v1`).

use serde::Deserialize;

use super::{Kind, Metadata, Notes, ObjectError, Warning, elements, parse_address, parse_range};
use crate::model;

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// A Node, cut down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Node {
    /// What every object has.
    #[serde(default)]
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: Option<NodeSpec>,
    /// What is.
    pub status: Option<NodeStatus>,
}

/// `spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// The first of [`Self::pod_cidrs`], from before there were several.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    /// Where this node's pods get their addresses from.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Option<Vec<String>>,
}

/// `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct NodeStatus {
    /// The node's addresses and names.
    pub addresses: Option<Vec<NodeAddress>>,
}

/// One entry of `status.addresses`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `Hostname`, …
    #[serde(rename = "type", default)]
    pub kind: String,
    /// The address or name.
    #[serde(default)]
    pub address: String,
}

/// The node in the model's terms.
pub fn node(raw: &Node, warnings: &mut Vec<Warning>) -> Result<model::Node, ObjectError> {
    let mut notes = Notes::new(Kind::Node, &raw.metadata, warnings)?;
    let status = raw.status.as_ref().and_then(|status| status.addresses.as_ref());
    let mut addresses = Vec::new();
    for wanted in ["InternalIP", "ExternalIP"] {
        for (index, entry) in elements(status).iter().enumerate() {
            if entry.kind != wanted {
                continue;
            }
            match parse_address(&entry.address) {
                Some(address) => addresses.push(address),
                None => notes.warn(
                    format_args!("status.addresses[{index}].address"),
                    &entry.address,
                    "not an IP address: left out",
                ),
            }
        }
    }
    Ok(model::Node {
        name: raw.metadata.name.as_str().into(),
        zone: raw
            .metadata
            .label(ZONE_LABEL)
            .filter(|zone| !zone.is_empty())
            .map(Into::into),
        addresses,
        pod_cidrs: pod_cidrs(raw.spec.as_ref(), &mut notes),
    })
}

fn pod_cidrs(spec: Option<&NodeSpec>, notes: &mut Notes<'_>) -> Vec<ipnetwork::IpNetwork> {
    let Some(spec) = spec else { return Vec::new() };
    let several = elements(spec.pod_cidrs.as_ref());
    let written = match &spec.pod_cidr {
        Some(one) if several.is_empty() && !one.is_empty() => std::slice::from_ref(one),
        Some(_) | None => several,
    };
    let mut ranges = Vec::new();
    for (index, text) in written.iter().enumerate() {
        match parse_range(text) {
            Some(range) => ranges.push(range),
            None => notes.warn(
                format_args!("spec.podCIDRs[{index}]"),
                text,
                "not an address range: left out",
            ),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn converted(json: &str) -> (model::Node, Vec<String>) {
        let raw: Node = serde_json::from_str(json).unwrap();
        let mut warnings = Vec::new();
        let node = node(&raw, &mut warnings).unwrap();
        (node, warnings.iter().map(Warning::to_string).collect())
    }

    #[test]
    fn internal_addresses_come_before_external_ones() {
        let (node, warnings) = converted(
            r#"{"metadata":{"name":"n1","labels":{"topology.kubernetes.io/zone":"a"}},
                "spec":{"podCIDR":"10.1.0.0/24","podCIDRs":["10.1.0.0/24","fd00:1::/64"]},
                "status":{"addresses":[
                    {"type":"ExternalIP","address":"203.0.113.7"},
                    {"type":"Hostname","address":"n1"},
                    {"type":"InternalIP","address":"192.168.0.007"},
                    {"type":"InternalIP","address":"fd00::7"}]}}"#,
        );
        let expected: Vec<IpAddr> = ["192.168.0.7", "fd00::7", "203.0.113.7"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        assert_eq!(node.addresses, expected);
        assert_eq!(node.zone.as_deref(), Some("a"));
        assert_eq!(node.pod_cidrs.len(), 2);
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn what_is_missing_or_malformed() {
        let cases = [
            ("bare", r#"{"metadata":{"name":"n"}}"#, 0, None, 0),
            (
                "nulls",
                r#"{"metadata":{"name":"n","labels":null},"spec":null,"status":{"addresses":null}}"#,
                0,
                None,
                0,
            ),
            (
                "empty zone",
                r#"{"metadata":{"name":"n","labels":{"topology.kubernetes.io/zone":""}}}"#,
                0,
                None,
                0,
            ),
            (
                "old single range",
                r#"{"metadata":{"name":"n"},"spec":{"podCIDR":"10.0.0.0/24"}}"#,
                0,
                Some("10.0.0.0/24"),
                0,
            ),
            (
                "malformed",
                r#"{"metadata":{"name":"n"},"spec":{"podCIDRs":["10.0.0.0/24","nine"]},
                    "status":{"addresses":[{"type":"InternalIP","address":"node.example"},
                                           {"type":"InternalIP","address":"10.0.0.1"}]}}"#,
                1,
                Some("10.0.0.0/24"),
                2,
            ),
        ];
        for (name, json, addresses, range, warnings) in cases {
            let (node, told) = converted(json);
            assert_eq!(node.addresses.len(), addresses, "{name}");
            assert_eq!(
                node.pod_cidrs.first().map(ToString::to_string).as_deref(),
                range,
                "{name}"
            );
            assert_eq!(node.zone, None, "{name}");
            assert_eq!(told.len(), warnings, "{name}: {told:?}");
        }
    }
}
