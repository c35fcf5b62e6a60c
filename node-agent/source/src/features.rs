//! Which objects are read: those that an enabled feature needs.

use std::sync::Arc;

use denizen_model::Event;
use denizen_object::{Decoder, ObjectKind};

/// The enabled features. An object that none of them needs is neither asked for nor decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    pub services: bool,
    pub network_policy: bool,
    /// Routes lead to the other nodes' pods.
    pub other_nodes: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self { services: true, network_policy: false, other_nodes: false }
    }
}

impl Features {
    pub(super) fn need(self, kind: ObjectKind) -> bool {
        match kind {
            ObjectKind::Node => self.services || self.network_policy || self.other_nodes,
            ObjectKind::Service | ObjectKind::EndpointSlice | ObjectKind::ServiceCidr => {
                self.services
            }
            ObjectKind::Namespace
            | ObjectKind::Pod
            | ObjectKind::NetworkPolicy
            | ObjectKind::ClusterNetworkPolicy => self.network_policy,
            // Followed later, once there is a ClusterNetworkPolicy.
            ObjectKind::OtherNode => false,
        }
    }

    /// Decodes objects for the node of this name. ClusterNetworkPolicies name other nodes.
    pub(super) fn decoder(self, node_name: Arc<str>) -> Decoder {
        Decoder::new(node_name).with_other_nodes(self.other_nodes || self.network_policy)
    }

    pub fn kinds(self) -> impl Iterator<Item = ObjectKind> {
        ObjectKind::ALL.into_iter().filter(move |kind| self.need(*kind))
    }

    /// The events that say that these kinds are completely listed.
    pub(super) fn listed(self) -> impl Iterator<Item = Event> {
        self.kinds().map(|kind| Event::Listed(kind.listing()))
    }
}
