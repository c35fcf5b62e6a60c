//! Local pods as elements of the rules' sets. Pure.

use super::name::IpsetName;
use denizen_iptables::{Element, Elements, Set};
use denizen_model::{LocalPod, PodSet, family_of};

/// The local pods of both families.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pods {
    all: Elements,
    /// The pods whose port of the bridge must match too.
    bridged: Elements,
}

/// The kernel's IPSET_MAX_COMMENT_SIZE is 255; a pod's namespace and name may be longer.
const LONGEST_COMMENT: usize = 255;

impl Pods {
    /// The recorded pods. `ports_matter`: whether a bridged pod's port of the bridge must match.
    /// Two records of one address and interface are one element.
    pub fn new(pods: &PodSet, ports_matter: bool) -> Self {
        let bridged = pods.pods.iter().filter(|pod| ports_matter && pod.port.is_some());
        Self {
            all: pods.pods.iter().flat_map(elements).collect(),
            bridged: bridged.flat_map(elements).collect(),
        }
    }

    /// The elements of a set: addresses with their input interfaces (the bridge, for a bridged
    /// pod). The comment names the pod.
    pub fn of(&self, set: IpsetName) -> Elements {
        let elements = match set {
            IpsetName::Pods(_) => &self.all,
            IpsetName::BridgedPods(_) => &self.bridged,
        };
        let of_family = |element: &Element| family_of(element.address) == set.family();
        let elements = elements.iter().filter(|(element, _)| of_family(element));
        elements.map(|(element, owner)| (element.clone(), owner.clone())).collect()
    }

    /// The elements of one of the driver's sets.
    pub fn of_set(&self, set: Set) -> Elements {
        IpsetName::of(set).map(|set| self.of(set)).unwrap_or_default()
    }
}

fn elements(pod: &LocalPod) -> impl Iterator<Item = (Element, String)> {
    let mut owner = pod.to_string();
    owner.truncate(owner.floor_char_boundary(LONGEST_COMMENT));
    pod.ips.iter().map(move |address| {
        let interface = pod.interface.clone();
        let address = *address;
        (Element { address, interface }, owner.clone())
    })
}
