//! The state file: which pods this node has, as the CNI plugin recorded them.
//!
//! The format is a contract between two programs that are upgraded apart: fields unknown to one of
//! them are kept, and a newer [`VERSION`] is refused.
//!
//! This module knows what the file says. How it is locked, read and replaced is in
//! [`crate::store`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use crate::error::StateError;
pub use crate::store::RunDir;

/// The version of the format that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Format version; see [`VERSION`].
    pub version: u32,
    /// Which file this is a state of.
    pub epoch: Epoch,
    /// How many changes this file has seen.
    pub generation: Generation,
    /// Every attachment of a pod of this node.
    pub attachments: BTreeMap<AttachmentId, Attachment>,
    /// Fields that a newer program wrote.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl State {
    /// A file that holds no attachment yet.
    pub fn empty(epoch: Epoch) -> State {
        State {
            version: VERSION,
            epoch,
            generation: Generation(0),
            attachments: BTreeMap::new(),
            unknown: Map::new(),
        }
    }
}

/// A random string made with the file, so that a generation of a lost file is never taken for one
/// of its successor's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub String);

/// Rises by one with every change of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// `<containerId>/<ifName>`: names one attachment of one pod sandbox to one network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttachmentId(pub String);

impl AttachmentId {
    /// The name of the attachment that container `container_id` has through its interface
    /// `if_name`.
    pub fn new(container_id: &str, if_name: &str) -> AttachmentId {
        AttachmentId(format!("{container_id}/{if_name}"))
    }
}

/// One interface of one pod, as it was at ADD.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// The runtime's id of the pod sandbox.
    pub container_id: String,
    /// The interface's name inside the pod.
    pub if_name: String,
    /// The `name` of the CNI network configuration.
    pub network: String,
    /// The pod, where the runtime passed `K8S_POD_*`.
    pub pod: Option<Pod>,
    /// Path of the pod's network namespace.
    pub netns: Option<String>,
    /// The node's end of the pod's veth; `None` where the pod has no interface on this node's
    /// stack.
    pub host_interface: Option<HostInterface>,
    /// Where the packets' input interface is neither [`Self::host_interface`] nor [`Self::bridge`]:
    /// a VLAN device on the bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l3_interface: Option<String>,
    /// The bridge that the host interface is a port of; `None` for a routed pod.
    pub bridge: Option<String>,
    /// The pod's addresses on this interface, of both families.
    pub ips: Vec<IpAddr>,
    /// When the plugin recorded this, RFC 3339 in UTC.
    pub added_at: String,
    /// The pod was attached without denizen, and the agent took it over from what the runtime
    /// remembers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// Fields that a newer program wrote.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// A pod, as the runtime named it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// `K8S_POD_NAMESPACE`.
    pub namespace: String,
    /// `K8S_POD_NAME`.
    pub name: String,
    /// `K8S_POD_UID`, which older runtimes do not pass.
    pub uid: Option<String>,
    /// Fields that a newer program wrote.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// A link on this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostInterface {
    /// Its name at ADD.
    pub name: String,
    /// Its index in the node's network namespace.
    pub index: u32,
    /// Its MAC address, as `ip` prints it.
    pub mac: String,
    /// Fields that a newer program wrote.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl Attachment {
    /// The key that this record has in the file.
    pub fn id(&self) -> AttachmentId {
        AttachmentId::new(&self.container_id, &self.if_name)
    }

    /// The input interface that the node's IP stack sees on this pod's packets: the VLAN device,
    /// else the bridge, else the veth itself; `None` where they never enter this node's stack.
    pub fn input_interface(&self) -> Option<&str> {
        self.l3_interface
            .as_deref()
            .or(self.bridge.as_deref())
            .or(self.host_interface.as_ref().map(|link| link.name.as_str()))
    }
}
