//! ServiceCIDR (`networking.k8s.io/v1`).

use ipnetwork::IpNetwork;
use serde::Deserialize;

use super::{
    BorrowedText, Metadata, Notes, ObjectError, ObjectKind, Warning, elements, parse_range,
};
use crate::protobuf::{Field, FromProtobuf, ProtobufError};

/// A ServiceCIDR, reduced to the fields that are used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ServiceCidr<'a> {
    #[serde(default, borrow)]
    pub metadata: Metadata<'a>,
    pub spec: Option<ServiceCidrSpec<'a>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ServiceCidrSpec<'a> {
    /// At most one range for each family.
    #[serde(borrow)]
    pub cidrs: Option<Vec<BorrowedText<'a>>>,
}

impl<'a> FromProtobuf<'a> for ServiceCidr<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.metadata.merge(field.bytes()?),
            2 => field.merge_into(&mut self.spec),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for ServiceCidrSpec<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => field.push_text(&mut self.cidrs),
            _ => Ok(()),
        }
    }
}

/// The name and ranges of a ServiceCIDR.
pub fn service_cidr(
    raw: &ServiceCidr<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<(String, Vec<IpNetwork>), ObjectError> {
    let mut notes = Notes::new(ObjectKind::ServiceCidr, &raw.metadata, warnings)?;
    let mut ranges = Vec::new();
    let cidrs = raw.spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
    for (index, text) in elements(cidrs).iter().enumerate() {
        match parse_range(text) {
            Some(range) => ranges.push(range),
            None => notes.warn(
                format_args!("spec.cidrs[{index}]"),
                text,
                "not an address range: left out",
            ),
        }
    }
    Ok((raw.metadata.name.to_string(), ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_both_families() {
        let raw: ServiceCidr<'_> = serde_json::from_str(
            r#"{"metadata":{"name":"kubernetes"},"status":{},
                "spec":{"cidrs":["172.30.0.0/16","fd00::/112","x"]}}"#,
        )
        .unwrap();
        let mut warnings = Vec::new();
        let (name, ranges) = service_cidr(&raw, &mut warnings).unwrap();
        assert_eq!(name, "kubernetes");
        assert_eq!(ranges, ["172.30.0.0/16".parse().unwrap(), "fd00::/112".parse().unwrap()]);
        let shown: Vec<String> = warnings.iter().map(Warning::to_string).collect();
        assert_eq!(
            shown,
            ["ServiceCIDR kubernetes: spec.cidrs[2] \"x\": not an address range: left out"]
        );
    }

    #[test]
    fn without_a_name() {
        let error = service_cidr(&ServiceCidr::default(), &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "ServiceCIDR without metadata.name");
    }
}
