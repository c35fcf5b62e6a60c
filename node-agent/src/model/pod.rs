//! The pods of this node, as the CNI plugin recorded them.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use denizen_shared::state::{AttachmentId, Epoch, Generation};

/// One attachment of a pod whose packets enter this node's stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPod {
    /// Names the attachment.
    pub id: AttachmentId,
    /// `namespace/name`, where the runtime told.
    pub pod: Option<Arc<str>>,
    /// The input interface that the IP stack sees on the pod's packets: the bridge for a bridged
    /// pod.
    pub interface: Arc<str>,
    /// Where [`Self::interface`] is a bridge: the port of it that the pod's packets come in
    /// through, which is the node's end of its veth. `None` for a routed pod, and for one in a VLAN
    /// of a bridge, since between that port and the VLAN's interface there may be another bridge's
    /// port.
    pub port: Option<Arc<str>>,
    /// The pod's addresses.
    pub ips: Vec<IpAddr>,
    /// It was attached without denizen, and may have sent packets before it was known.
    pub adopted: bool,
}

impl fmt::Display for LocalPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.pod.as_deref().unwrap_or(&self.id.0))
    }
}

/// Which state of which state file.
pub type PodVersion = (Epoch, Generation);

/// The state file's content at one generation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSet {
    /// Which file; `None` while there is no file.
    pub version: Option<PodVersion>,
    /// Every recorded attachment with an input interface, sorted by id.
    pub pods: Vec<LocalPod>,
}
