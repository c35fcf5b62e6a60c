//! ServiceCIDR (`networking.k8s.io/v1`).

use ipnetwork::IpNetwork;
use serde::Deserialize;

use super::{Metadata, Notes, ObjectError, ObjectKind, Warning, elements, parse_range};

/// A ServiceCIDR, reduced to the fields that are used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ServiceCidr {
    #[serde(default)]
    pub metadata: Metadata,
    pub spec: Option<ServiceCidrSpec>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ServiceCidrSpec {
    /// At most one range for each family.
    pub cidrs: Option<Vec<String>>,
}

/// The name and ranges of a ServiceCIDR.
pub fn service_cidr(
    raw: &ServiceCidr,
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
    Ok((raw.metadata.name.clone(), ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_both_families() {
        let raw: ServiceCidr = serde_json::from_str(
            r#"{"metadata":{"name":"kubernetes"},"spec":{"cidrs":["172.30.0.0/16","fd00::/112","x"]},"status":{}}"#,
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
