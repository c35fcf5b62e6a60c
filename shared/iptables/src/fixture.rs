//! A client of the driver, for tests.

use super::{OnRejection, Schema};

/// Chains `OWN-ALL`, which leads to each `OWN-2-…`, which lead to `OWN-1-…`, which need `OWN-0`.
pub static SCHEMA: Schema = Schema {
    owns: |_, name| name.starts_with("OWN-"),
    reads: |_, name| name == "OWN-ALL",
    creation_order: |name| ["OWN-0", "OWN-1", "OWN-2"].iter().position(|it| name.starts_with(it)),
    on_rejection: |_, name| match name {
        "OWN-0" => OnRejection::Fail,
        "OWN-ALL" => OnRejection::OmitRule,
        _ => OnRejection::KeepChain,
    },
    extensions: |_| Vec::new(),
};
