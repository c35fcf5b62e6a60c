//! Whether the node's pods are on bridges, or have an interface of their own.

use denizen_model::LocalPod;

/// Tells which tables check pods' sources. Only these need the set of taken addresses, which has an
/// element for each pod of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Attached {
    /// Some pods are behind ports of bridges.
    pub bridged: bool,
    /// Some pods have an interface of their own.
    pub routed: bool,
}

impl Attached {
    pub fn of(pods: &[LocalPod]) -> Self {
        Self {
            bridged: pods.iter().any(|pod| pod.bridge_port().is_some()),
            routed: pods.iter().any(|pod| !pod.shares_interface()),
        }
    }
}
