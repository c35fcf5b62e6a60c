//! How the node's pods are attached.

use denizen_model::LocalPod;

/// Which tables have pods whose sources they check: only those need to know whose addresses are
/// taken, of which there are as many as the cluster has pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Attached {
    /// Some are behind ports of bridges.
    pub bridged: bool,
    /// Some have an interface of their own.
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
