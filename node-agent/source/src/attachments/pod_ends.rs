//! Decides which pod a link belongs to that has the index of an earlier link. The index, name and
//! MAC address of the node's end do not always tell: Calico gives all these ends one MAC address;
//! the AWS VPC CNI names them by namespace and pod. Both create the veth inside the pod, where it
//! has the same low index each time, and it keeps that index on the node if the index is free
//! there.

use std::collections::{BTreeMap, HashSet};
use std::io;

use denizen_cni::Adopter;
use denizen_state::{Attachment, AttachmentId, State};
use jiff::Timestamp;
use tracing::debug;

use super::links::LinksByIndex;

/// The pods' ends of veths, as the kernel shows them from the node.
pub(super) struct PodEnds(Option<Adopter>);

impl PodEnds {
    /// Without a netlink socket, [`Self::lead_elsewhere`] is always false.
    pub(super) fn open() -> Self {
        let opened = Adopter::open();
        Self(opened.inspect_err(|error| debug!(%error, "cannot ask for pods' ends")).ok())
    }

    /// Whether the link that `now` names, which has only the name or only the MAC address in common
    /// with that of `record`, leads to another pod's interface.
    pub(super) fn lead_elsewhere(&mut self, record: &Attachment, now: &Attachment) -> bool {
        let mac = match &mut self.0 {
            Some(kernel) => kernel.mac(now),
            None => Err(io::Error::other("no socket")),
        };
        let is_other = |mac: String| record.mac.as_ref().is_some_and(|recorded| *recorded != mac);
        now.host_interface != record.host_interface && mac.ok().flatten().is_some_and(is_other)
    }

    /// `now`, with the links of `record` in place of those that lead to another pod; `None` if the
    /// first link leads to another pod, or if nothing changed.
    pub(super) fn confirm(
        &mut self,
        record: &Attachment,
        mut now: Attachment,
    ) -> Option<Attachment> {
        if self.lead_elsewhere(record, &now) {
            return None;
        }
        for (was, is) in record.further_interfaces.iter().zip(&mut now.further_interfaces) {
            if self.lead_elsewhere(was, is) {
                is.clone_from(was);
            }
        }
        (now != *record).then_some(now)
    }
}

/// The records whose link is also in a newer record: a veth has only one pod.
pub(super) fn superseded(state: &State, links: &LinksByIndex<'_>) -> HashSet<AttachmentId> {
    let records = || {
        state.attachments.iter().filter_map(|(id, record)| {
            let index = record.host_interface.as_ref()?.index;
            let added_at: Timestamp = record.added_at.parse().ok()?;
            links.is_pod_s_veth(index).then_some((index, added_at, id))
        })
    };
    let mut newest: BTreeMap<u32, Timestamp> = BTreeMap::new();
    for (index, added_at, _) in records() {
        let newest = newest.entry(index).or_insert(added_at);
        *newest = (*newest).max(added_at);
    }
    let old = records().filter(|(index, added_at, _)| *added_at < newest[index]);
    old.map(|(_, _, id)| id.clone()).collect()
}
