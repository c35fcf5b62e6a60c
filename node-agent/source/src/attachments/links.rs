//! Matches records to the kernel's links. Pure.

use std::collections::HashMap;

use denizen_state::{Attachment, StateError};
use thiserror::Error;
use tokio::task::JoinError;

use crate::node::{Link, LinkKind, NodeError};

/// Why records could not be updated to match the links.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The state file cannot be read or changed.
    #[error("cannot update the records of pods to match their links")]
    State(#[from] StateError),
    #[error("cannot list the links to compare with the records")]
    Links(#[from] NodeError),
    /// The thread that does the work panicked: a bug.
    #[error("the thread that changes the state file ended")]
    Thread(#[from] JoinError),
}

/// Links by index.
pub(super) struct LinksByIndex<'a>(HashMap<u32, &'a Link>);

impl<'a> LinksByIndex<'a> {
    pub(super) fn of(links: &'a [Link]) -> Self {
        Self(links.iter().map(|link| (link.index, link)).collect())
    }

    pub(super) fn at(&self, index: u32) -> Option<&'a Link> {
        self.0.get(&index).copied()
    }

    /// Whether the link of this index leads into a pod, as far as one can see from the node.
    pub(super) fn is_pod_s_veth(&self, index: u32) -> bool {
        self.at(index).is_some_and(|link| link.kind == LinkKind::VethToOtherNetns)
    }

    /// The link of `record`. If only its name *or* only its address differs, it may be the same
    /// link: links are renamed, and the host's udev gives a new link a new address. If both differ,
    /// it is another link that got a freed index.
    fn link(&self, record: &Attachment) -> Option<&'a Link> {
        let was = record.host_interface.as_ref()?;
        let is = self.at(was.index)?;
        (*is.name == *was.name || is.mac == was.mac).then_some(is)
    }

    /// Whether the link of `record` is gone. Always false for a record without a link.
    pub(super) fn lacks(&self, record: &Attachment) -> bool {
        record.host_interface.is_some() && self.link(record).is_none()
    }

    /// The record with its current links and bridges; `None` if nothing changed, or if the link is
    /// gone.
    pub(super) fn moved(&self, record: &Attachment) -> Option<Attachment> {
        self.link(record)?;
        let mut now = self.with_link(record).unwrap_or_else(|| record.clone());
        for further in &mut now.further_interfaces {
            if let Some(moved) = self.with_link(further) {
                *further = moved;
            }
        }
        (now != *record).then_some(now)
    }

    /// The record with its current link and bridge; `None` if nothing changed, or if the link is
    /// gone. For a pod behind a VLAN's interface the bridge of its port does not matter.
    fn with_link(&self, record: &Attachment) -> Option<Attachment> {
        let is = self.link(record)?;
        let mut now = record.clone();
        if let Some(host) = &mut now.host_interface {
            is.name.as_ref().clone_into(&mut host.name);
            host.mac.clone_from(&is.mac);
        }
        if record.l3_interface.is_none() {
            let master = is.master.and_then(|index| self.at(index));
            let bridge = master.filter(|master| master.kind == LinkKind::Bridge);
            now.bridge = bridge.map(|bridge| bridge.name.as_ref().to_owned());
        }
        (now != *record).then_some(now)
    }
}

/// For tests: a record whose link has this name, index and MAC address.
#[cfg(test)]
pub(super) fn record(link: Option<(&str, u32, &str)>) -> Attachment {
    use denizen_state::HostInterface;
    use serde_json::{from_value, json};

    let mut record: Attachment = from_value(json!({
        "containerId": "c", "ifName": "eth0", "network": "pods", "pod": null, "netns": null,
        "hostInterface": null, "bridge": null, "ips": ["10.0.0.2"], "addedAt": "2026-11-20T12:00:00Z",
    }))
    .unwrap();
    record.host_interface = link.map(|(name, index, mac)| HostInterface {
        name: name.to_owned(),
        index,
        mac: mac.to_owned(),
        unknown: Default::default(),
    });
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: &str = "0a:00:00:00:00:01";
    const OTHER: &str = "0a:00:00:00:00:02";

    fn link(index: u32, name: &str, mac: &str, kind: LinkKind, master: Option<u32>) -> Link {
        let (name, mac) = (name.into(), mac.to_owned());
        Link { index, name, mac, kind, master }
    }

    #[test]
    fn a_link_is_gone_when_no_link_matches() {
        let links = [
            link(7, "veth1", MAC, LinkKind::VethToOtherNetns, None),
            link(8, "lo", "", LinkKind::Other, None),
        ];
        let cases = [
            ("as it was", Some(("veth1", 7, MAC)), false),
            ("renamed", Some(("veth0", 7, MAC)), false),
            ("another address", Some(("veth1", 7, OTHER)), false),
            ("no such index", Some(("veth1", 9, MAC)), true),
            ("its index is another link's", Some(("veth0", 7, OTHER)), true),
            ("no interface on this node", None, false),
        ];
        for (name, link, gone) in cases {
            assert_eq!(LinksByIndex::of(&links).lacks(&record(link)), gone, "{name}");
        }
    }

    #[test]
    fn a_record_moves_with_its_link() {
        let veth = LinkKind::VethToOtherNetns;
        let links = [
            link(1, "br1", "", LinkKind::Bridge, None),
            link(2, "bond0", "", LinkKind::Other, None),
            link(7, "routed", MAC, veth, None),
            link(8, "port", MAC, veth, Some(1)),
            link(9, "slave", MAC, veth, Some(2)),
        ];
        let on = |bridge: Option<&str>, link| Attachment {
            bridge: bridge.map(str::to_owned),
            ..record(Some(link))
        };
        let in_vlan = Attachment {
            l3_interface: Some("br0.7".to_owned()),
            ..on(Some("br0"), ("old", 8, MAC))
        };
        let cases = [
            ("as it is", on(None, ("routed", 7, MAC)), None),
            ("renamed", on(None, ("old", 7, MAC)), Some(("routed", MAC, None))),
            ("another address", on(None, ("routed", 7, OTHER)), Some(("routed", MAC, None))),
            ("another link", on(None, ("old", 7, OTHER)), None),
            ("gone", on(None, ("old", 6, MAC)), None),
            ("a port, as it is", on(Some("br1"), ("port", 8, MAC)), None),
            ("a port renamed", on(Some("br1"), ("old", 8, MAC)), Some(("port", MAC, Some("br1")))),
            (
                "a bridge renamed",
                on(Some("br0"), ("port", 8, MAC)),
                Some(("port", MAC, Some("br1"))),
            ),
            ("a port that left", on(Some("br1"), ("routed", 7, MAC)), Some(("routed", MAC, None))),
            ("a port of no bridge", on(None, ("slave", 9, MAC)), None),
            ("in a VLAN", in_vlan, Some(("port", MAC, Some("br0")))),
            ("no interface on this node", record(None), None),
        ];
        for (name, was, expected) in cases {
            let is = LinksByIndex::of(&links).moved(&was);
            let placed = is.as_ref().map(|is| {
                let host = is.host_interface.as_ref().unwrap();
                (&*host.name, &*host.mac, is.bridge.as_deref())
            });
            assert_eq!(placed, expected, "{name}");
            assert!(is.is_none_or(|is| is.l3_interface == was.l3_interface && is.ips == was.ips));
        }
    }
}
