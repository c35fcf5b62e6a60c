//! Node (`v1`).

use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use super::{
    BorrowedText, Metadata, Notes, ObjectError, ObjectKind, TextMap, Warning, elements,
    parse_address, parse_range,
};
use crate::protobuf::{Field, FromProtobuf, ProtobufError};

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Condition of a node whose network is not set up.
const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
/// Taint of a node that the cluster autoscaler is about to remove (its `deletetaint` package).
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Types of addresses.
const INTERNAL: &str = "InternalIP";
const EXTERNAL: &str = "ExternalIP";

/// A Node, reduced to the fields that are used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct NodeObject<'a> {
    #[serde(default, borrow)]
    pub metadata: Metadata<'a>,
    pub spec: Option<NodeSpec<'a>>,
    pub status: Option<NodeStatus<'a>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec<'a> {
    /// The first of [`Self::pod_cidrs`]: the older field, for one range only.
    #[serde(rename = "podCIDR", borrow)]
    pub pod_cidr: Option<BorrowedText<'a>>,
    /// The ranges from which this node's pods get their addresses.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Option<Vec<BorrowedText<'a>>>,
    pub taints: Option<Vec<Taint<'a>>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Taint<'a> {
    #[serde(default, borrow)]
    pub key: BorrowedText<'a>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct NodeStatus<'a> {
    /// The node's addresses and names.
    #[serde(borrow)]
    pub addresses: Option<Vec<StatusAddress<'a>>>,
    pub conditions: Option<Vec<Condition<'a>>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Condition<'a> {
    #[serde(rename = "type", default, borrow)]
    pub kind: BorrowedText<'a>,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: BorrowedText<'a>,
}

/// One entry of `status.addresses`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct StatusAddress<'a> {
    /// `InternalIP`, `ExternalIP`, `Hostname`, …
    #[serde(rename = "type", default, borrow)]
    pub kind: BorrowedText<'a>,
    /// The address or name.
    #[serde(default)]
    pub address: BorrowedText<'a>,
}

impl<'a> FromProtobuf<'a> for NodeObject<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.metadata.merge(field.bytes()?),
            2 => field.merge_into(&mut self.spec),
            3 => field.merge_into(&mut self.status),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for NodeSpec<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.pod_cidr = Some(field.text()?),
            5 => field.push_into(&mut self.taints)?,
            7 => field.push_text(&mut self.pod_cidrs)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for Taint<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.key = field.text()?;
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for NodeStatus<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            4 => field.push_into(&mut self.conditions),
            5 => field.push_into(&mut self.addresses),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for Condition<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.kind = field.text()?,
            2 => self.status = field.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for StatusAddress<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.kind = field.text()?,
            2 => self.address = field.text()?,
            _ => {}
        }
        Ok(())
    }
}

/// The node in the model's terms.
pub fn node(
    raw: &NodeObject<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<denizen_model::Node, ObjectError> {
    let mut notes = Notes::new(ObjectKind::Node, &raw.metadata, warnings)?;
    let mut addresses = addresses(raw, INTERNAL, &mut notes);
    addresses.extend(self::addresses(raw, EXTERNAL, &mut notes));
    Ok(denizen_model::Node {
        name: (*raw.metadata.name).into(),
        created: created(raw),
        zone: raw.metadata.label(ZONE_LABEL).filter(|zone| !zone.is_empty()).map(Into::into),
        addresses,
        pod_cidrs: pod_cidrs(raw.spec.as_ref(), &mut notes),
        leaving: is_leaving(raw),
        excluded: raw.metadata.label(EXCLUDE_LABEL).is_some(),
        network_unavailable: raw.status.iter().any(is_network_unavailable),
        taints: taints(raw).iter().map(|taint| (*taint.key).into()).collect(),
        labels: labels(raw),
    })
}

/// Another node in the model's terms, and its name.
pub fn other_node(
    raw: &NodeObject<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<(Arc<str>, denizen_model::OtherNode), ObjectError> {
    let mut notes = Notes::new(ObjectKind::Node, &raw.metadata, warnings)?;
    let node = denizen_model::OtherNode {
        created: created(raw),
        internal: addresses(raw, INTERNAL, &mut notes),
        external: addresses(raw, EXTERNAL, &mut notes),
        pod_cidrs: pod_cidrs(raw.spec.as_ref(), &mut notes),
        labels: labels(raw),
    };
    Ok(((*raw.metadata.name).into(), node))
}

fn created(raw: &NodeObject<'_>) -> Arc<str> {
    raw.metadata.created()
}

/// The addresses of this type, in the order of the API.
fn addresses(raw: &NodeObject<'_>, wanted: &str, notes: &mut Notes<'_>) -> Vec<IpAddr> {
    let status = raw.status.as_ref().and_then(|status| status.addresses.as_ref());
    let mut addresses = Vec::new();
    let all = elements(status).iter().enumerate();
    for (index, entry) in all.filter(|(_, entry)| *entry.kind == *wanted) {
        match parse_address(&entry.address) {
            Some(address) => addresses.push(address),
            None => notes.warn(
                format_args!("status.addresses[{index}].address"),
                &entry.address,
                "not an IP address: left out",
            ),
        }
    }
    addresses
}

fn labels(raw: &NodeObject<'_>) -> denizen_model::Labels {
    raw.metadata.labels.iter().flat_map(TextMap::iter).collect()
}

fn taints<'r>(raw: &'r NodeObject<'r>) -> &'r [Taint<'r>] {
    elements(raw.spec.as_ref().and_then(|spec| spec.taints.as_ref()))
}

fn is_leaving(raw: &NodeObject<'_>) -> bool {
    raw.metadata.deletion_timestamp.is_some()
        || taints(raw).iter().any(|taint| *taint.key == *TO_BE_DELETED)
}

fn is_network_unavailable(status: &NodeStatus<'_>) -> bool {
    let is_named = |condition: &Condition<'_>| {
        *condition.kind == *NETWORK_UNAVAILABLE && &*condition.status == "True"
    };
    elements(status.conditions.as_ref()).iter().any(is_named)
}

fn pod_cidrs(spec: Option<&NodeSpec<'_>>, notes: &mut Notes<'_>) -> Vec<ipnetwork::IpNetwork> {
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
    use super::*;

    fn converted(json: &str) -> (denizen_model::Node, Vec<String>) {
        let raw: NodeObject<'_> = serde_json::from_str(json).unwrap();
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
        let expected: Vec<IpAddr> =
            ["192.168.0.7", "fd00::7", "203.0.113.7"].map(|text| text.parse().unwrap()).to_vec();
        assert_eq!(node.addresses, expected);
        assert_eq!(node.zone.as_deref(), Some("a"));
        assert_eq!(node.pod_cidrs.len(), 2);
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn a_node_that_is_deleted_or_about_to_be_is_leaving() {
        let cases = [
            (r#"{"metadata":{"name":"n"}}"#, false),
            (
                r#"{"metadata":{"name":"n"},"spec":{"taints":[{"key":"other","effect":"NoSchedule"}]}}"#,
                false,
            ),
            (
                r#"{"metadata":{"name":"n"},"spec":{"taints":[{"key":"other"},
                    {"key":"ToBeDeletedByClusterAutoscaler","value":"1","effect":"NoSchedule"}]}}"#,
                true,
            ),
            (r#"{"metadata":{"name":"n","deletionTimestamp":"2026-11-20T12:00:00Z"}}"#, true),
        ];
        for (json, leaving) in cases {
            assert_eq!(converted(json).0.leaving, leaving, "{json}");
        }
    }

    #[test]
    fn missing_or_malformed_fields() {
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
            let (node, shown) = converted(json);
            assert_eq!(node.addresses.len(), addresses, "{name}");
            assert_eq!(node.pod_cidrs.first().map(ToString::to_string).as_deref(), range, "{name}");
            assert_eq!(node.zone, None, "{name}");
            assert_eq!(shown.len(), warnings, "{name}: {shown:?}");
        }
    }
}
