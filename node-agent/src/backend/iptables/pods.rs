//! This node's pods as elements of the sets that the rules ask. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{Family, PodSet, family_of};

/// A pod's address, and the interface that its packets come in through (the bridge's, for a bridged pod).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    /// The address.
    pub address: IpAddr,
    /// The interface.
    pub interface: Arc<str>,
}

/// The pods of this node, of both families.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pods(BTreeMap<PodKey, String>);

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
    /// From what the plugin recorded. Two records of one address and interface are one element.
    pub fn new(pods: &PodSet) -> Self {
        let of_pod = pods.pods.iter().flat_map(|pod| {
            let mut owner = pod.to_string();
            owner.truncate(owner.floor_char_boundary(LONGEST_COMMENT));
            pod.ips.iter().map(move |address| {
                let interface = pod.interface.clone();
                let address = *address;
                (PodKey { address, interface }, owner.clone())
            })
        });
        Self(of_pod.collect())
    }

    /// Those of a family, in order.
    pub fn of(&self, family: Family) -> impl Iterator<Item = PodElement<'_>> {
        let all = self.0.iter().map(|(key, owner)| PodElement { key, owner });
        all.filter(move |pod| family_of(pod.key.address) == family)
    }

    /// Whether there is such an element.
    pub fn contains(&self, key: &PodKey) -> bool {
        self.0.contains_key(key)
    }
}

impl fmt::Display for PodElement<'_> {
    /// As `ipset add` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PodKey { address, interface } = self.key;
        write!(f, "{address},{interface} comment \"{}\"", self.owner)
    }
}
