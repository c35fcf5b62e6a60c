//! This node's pods as elements of the sets that the rules ask. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::name::SetName;
use crate::model::{LocalPod, PodSet, family_of};

/// A pod's address, and the interface that its packets come in through (the bridge's, for a bridged
/// pod).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    /// The address.
    pub address: IpAddr,
    /// The interface.
    pub interface: Arc<str>,
}

/// The pods of this node, of both families.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pods {
    all: BTreeMap<PodKey, String>,
    /// Those whose port of the bridge must be right, too.
    bridged: BTreeMap<PodKey, String>,
}

/// One element of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodElement<'a> {
    /// What is matched.
    pub key: &'a PodKey,
    /// Whose it is.
    pub owner: &'a str,
}

/// The kernel's IPSET_MAX_COMMENT_SIZE is 255; a pod's namespace and name may be longer.
const LONGEST_COMMENT: usize = 255;

impl Pods {
    /// From what the plugin recorded; `ports_matter` where the port of a bridge does. Two records
    /// of one address and interface are one element.
    pub fn new(pods: &PodSet, ports_matter: bool) -> Self {
        let bridged = pods.pods.iter().filter(|pod| ports_matter && pod.port.is_some());
        Self {
            all: pods.pods.iter().flat_map(elements).collect(),
            bridged: bridged.flat_map(elements).collect(),
        }
    }

    /// Those of a set, in order.
    pub fn of(&self, set: SetName) -> impl Iterator<Item = PodElement<'_>> {
        let elements = self.elements(set).iter();
        elements
            .map(|(key, owner)| PodElement { key, owner })
            .filter(move |pod| family_of(pod.key.address) == set.family())
    }

    /// Whether there is such an element in a set.
    pub fn contains(&self, set: SetName, key: &PodKey) -> bool {
        self.elements(set).contains_key(key)
    }

    fn elements(&self, set: SetName) -> &BTreeMap<PodKey, String> {
        match set {
            SetName::Pods(_) => &self.all,
            SetName::BridgedPods(_) => &self.bridged,
        }
    }
}

fn elements(pod: &LocalPod) -> impl Iterator<Item = (PodKey, String)> {
    let mut owner = pod.to_string();
    owner.truncate(owner.floor_char_boundary(LONGEST_COMMENT));
    pod.ips.iter().map(move |address| {
        let interface = pod.interface.clone();
        let address = *address;
        (PodKey { address, interface }, owner.clone())
    })
}

impl fmt::Display for PodElement<'_> {
    /// As `ipset add` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PodKey { address, interface } = self.key;
        write!(f, "{address},{interface} comment \"{}\"", self.owner)
    }
}
