//! The state file: the pods of this node, as the CNI plugin recorded them.
//!
//! The format is a contract between two programs that are upgraded separately: each keeps fields
//! that it does not know, and refuses a newer [`VERSION`].
//!
//! This module defines the content. [`crate::store`] locks, reads and replaces the file.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::host_port::HostPort;
use crate::redirect::Redirect;

/// The version of the format that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// The content of the state file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Format version; see [`VERSION`].
    pub version: u32,
    /// Identifies the file across its generations.
    pub epoch: Epoch,
    /// The number of changes to this file.
    pub generation: Generation,
    /// The runtime has called the plugin since the file was made: the file had a record that an ADD
    /// made. The agent sets this, since such a record is removed with its pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plugin_was_called: bool,
    /// Every attachment of this node's pods.
    pub attachments: BTreeMap<AttachmentId, Attachment>,
    /// Fields that a newer program wrote.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl State {
    /// A state without attachments.
    pub fn empty(epoch: Epoch) -> State {
        State {
            version: VERSION,
            epoch,
            generation: Generation(0),
            plugin_was_called: false,
            attachments: BTreeMap::new(),
            unknown: Map::new(),
        }
    }
}

/// A random string made with the file, so that a generation of a lost file is not mistaken for one
/// of its successor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub String);

/// A number that rises by one with every change of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// `<containerId>/<ifName>`: identifies one attachment of one pod sandbox to one network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttachmentId(pub String);

impl AttachmentId {
    /// The id of the attachment of container `container_id` with the interface `if_name`.
    pub fn new(container_id: &str, if_name: &str) -> AttachmentId {
        AttachmentId(format!("{container_id}/{if_name}"))
    }

    /// The interface's name inside the pod.
    pub fn if_name(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(_, if_name)| if_name)
    }
}

/// One interface of one pod, as recorded at ADD.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// The runtime's id of the pod sandbox.
    pub container_id: String,
    /// The interface's name inside the pod.
    pub if_name: String,
    /// The `name` of the CNI network configuration.
    pub network: String,
    /// The pod, if the runtime passed `K8S_POD_*`.
    pub pod: Option<PodRef>,
    /// Path of the pod's network namespace.
    pub netns: Option<String>,
    /// The node's end of the pod's veth; `None` if the pod has no interface in this node's network
    /// stack.
    pub host_interface: Option<HostInterface>,
    /// The packets' input interface, if it is neither [`Self::host_interface`] nor
    /// [`Self::bridge`]: a VLAN device on the bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l3_interface: Option<String>,
    /// The bridge whose port the host interface is; `None` for a routed pod.
    pub bridge: Option<String>,
    /// The pod's addresses on this interface, of both families.
    pub ips: Vec<IpAddr>,
    /// The MAC address of the interface inside the pod, as `ip` prints it; `None` in records of
    /// older plugins, and for interfaces that have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The node's ports that lead to this pod, in the runtime's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPort>,
    /// The ADD did not record [`Self::host_ports`]: another plugin served them, and the agent took
    /// them from the runtime's cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host_ports_adopted: bool,
    /// Interfaces that the same ADD gave the pod beside this one, as the AWS VPC CNI does for the
    /// address family that its cluster does not have. Each has a record as if by an ADD of its own.
    /// What a pod has only once (host ports, redirection) is in the record of the first interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_interfaces: Vec<Attachment>,
    /// When the plugin recorded this, RFC 3339 in UTC.
    pub added_at: String,
    /// The pod was attached without denizen, and the agent adopted it from the runtime's cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// How the pod's TCP is redirected to its own proxy, if the plugin redirected it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Redirect>,
    /// Redirections of earlier ADDs that [`Self::redirect`] does not replace. Their rules may still
    /// be in the pod, if an ADD was killed before it removed them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub obsolete_redirects: Vec<Redirect>,
    /// Fields that a newer program wrote.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// A pod, as the runtime named it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
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
    /// The interface's name at ADD; it may have another one since.
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
    /// The addresses of all interfaces of this ADD.
    pub fn all_ips(&self) -> impl Iterator<Item = IpAddr> {
        let further = self.further_interfaces.iter().flat_map(|further| &further.ips);
        self.ips.iter().chain(further).copied()
    }

    /// The node's ends of all interfaces of this ADD.
    pub fn host_interfaces(&self) -> impl Iterator<Item = &HostInterface> {
        let further = self.further_interfaces.iter();
        let further = further.filter_map(|further| further.host_interface.as_ref());
        self.host_interface.iter().chain(further)
    }

    /// The key of this record in the file.
    pub fn id(&self) -> AttachmentId {
        AttachmentId::new(&self.container_id, &self.if_name)
    }

    /// This record as the replacement of `before`, which has the same id. If both have the same
    /// network namespace, redirections of `before` that this record's does not replace are added to
    /// the obsolete ones.
    #[must_use]
    pub fn in_place_of(mut self, before: &Attachment) -> Attachment {
        if self.netns == before.netns {
            let is_replaced = |redirect: &Redirect| {
                self.redirect.as_ref().is_some_and(|by| by.replaces(redirect))
            };
            for earlier in before.obsolete_redirects.iter().chain(&before.redirect) {
                if !is_replaced(earlier) && !self.obsolete_redirects.contains(earlier) {
                    self.obsolete_redirects.push(earlier.clone());
                }
            }
        }
        self
    }

    /// The input interface of this pod's packets in the node's IP stack: the VLAN device, else the
    /// bridge, else the veth itself; `None` if they never enter this node's stack.
    pub fn input_interface(&self) -> Option<&str> {
        self.l3_interface
            .as_deref()
            .or(self.bridge.as_deref())
            .or(self.host_interface.as_ref().map(|link| link.name.as_str()))
    }
}
