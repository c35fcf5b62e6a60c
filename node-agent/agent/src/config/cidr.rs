//! Lists of CIDRs.

use ipnetwork::IpNetwork;
use thiserror::Error;

use denizen_model::canonical_range;

/// A value that is not a CIDR.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a CIDR such as 10.0.0.0/24")]
pub struct NotACidr(String);

/// The CIDRs that are written in `list`, separated by commas.
pub(super) fn cidrs(list: &str) -> Result<Vec<IpNetwork>, NotACidr> {
    let parse = |value: &str| {
        let range = value.parse().ok().and_then(canonical_range);
        range.ok_or_else(|| NotACidr(value.to_owned()))
    };
    list.split(',').map(str::trim).map(parse).collect()
}
