//! The pods of this node, as the CNI plugin recorded them.

use std::cmp::Ordering;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::cluster_pod::PodName;
use super::host_port::HostPort;
use super::link::Mac;
use denizen_state::redirect::Redirect;
use denizen_state::{AttachmentId, Epoch, Generation};

/// One attachment of a pod whose packets enter this node's network stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPod {
    pub id: AttachmentId,
    /// The pod, if the runtime passed its name.
    pub pod: Option<PodName>,
    /// The pod's UID, if the runtime passed it.
    pub uid: Option<Arc<str>>,
    /// The input interface of the pod's packets in the IP stack: the bridge for a bridged pod.
    pub interface: Arc<str>,
    /// If [`Self::interface`] is a bridge: the bridge port through which the pod's packets arrive,
    /// the node's end of its veth. `None` for a routed pod. Also `None` for a pod in a VLAN of a
    /// bridge: between the pod's port and the VLAN's interface there may be a port of another
    /// bridge.
    pub port: Option<Arc<str>>,
    /// The bridge port of a pod in a VLAN of a bridge.
    pub vlan_port: Option<Arc<str>>,
    /// The bridge that the pod is behind; `None` for a routed pod.
    pub bridge: Option<Arc<str>>,
    pub ips: Vec<IpAddr>,
    /// The MAC address of the interface inside the pod, if it was recorded.
    pub mac: Option<Mac>,
    /// The node's ports that lead to the pod.
    pub host_ports: Vec<HostPort>,
    /// When it was recorded, RFC 3339 in UTC, so it sorts.
    pub added_at: Arc<str>,
    /// It was attached without the plugin, and may have sent packets before it was recorded.
    pub adopted: bool,
    /// How the plugin redirected the pod's TCP to its own proxy.
    pub redirect: Option<Arc<Redirect>>,
}

impl LocalPod {
    /// Whether other pods may be behind [`Self::interface`] too: it is a bridge, or a VLAN device
    /// of a bridge.
    pub fn shares_interface(&self) -> bool {
        self.bridge.is_some()
    }

    /// The bridge port through which the pod's frames come, in a VLAN or not.
    pub fn bridge_port(&self) -> Option<&Arc<str>> {
        self.port.as_ref().or(self.vlan_port.as_ref())
    }

    /// Whether the pod is in a VLAN of a bridge: its packets come in through neither the bridge nor
    /// its own port.
    pub fn is_in_vlan(&self) -> bool {
        self.bridge.as_ref().is_some_and(|bridge| *bridge != self.interface)
    }
}

impl fmt::Display for LocalPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pod {
            Some(pod) => pod.fmt(f),
            None => f.write_str(&self.id.0),
        }
    }
}

/// The pods that are in one list only, or differ: as they were, and as they are. Both lists are
/// sorted by id.
pub fn differing_pods<'a>(
    before: &'a [LocalPod],
    now: &'a [LocalPod],
) -> Vec<(Option<&'a LocalPod>, Option<&'a LocalPod>)> {
    let mut differing = Vec::new();
    let (mut before, mut now) = (before.iter().peekable(), now.iter().peekable());
    loop {
        let order = match (before.peek(), now.peek()) {
            (None, None) => return differing,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(was), Some(is)) => was.id.cmp(&is.id),
        };
        let was = if order.is_le() { before.next() } else { None };
        let is = if order.is_ge() { now.next() } else { None };
        if was != is {
            differing.push((was, is));
        }
    }
}

/// Identifies one state of one state file.
pub type PodVersion = (Epoch, Generation);

/// The state file's content at one generation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSet {
    /// The version of the file; `None` if there is no file.
    pub version: Option<PodVersion>,
    /// Every recorded attachment with an input interface, sorted by id.
    pub pods: Vec<LocalPod>,
}
