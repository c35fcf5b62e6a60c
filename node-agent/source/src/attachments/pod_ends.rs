//! Decides which pod a link belongs to that has the index of an earlier link. The index, name and
//! MAC address of the node's end do not always tell: Calico gives all these ends one MAC address;
//! the AWS VPC CNI names them by namespace and pod. Both create the veth inside the pod, where it
//! has the same low index each time, and it keeps that index on the node if the index is free
//! there.

use std::collections::HashSet;
use std::io;

use denizen_cni::Adopter;
use denizen_state::{Attachment, State};
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

    /// Where the link of `record` leads.
    pub(super) fn end_of(&mut self, record: &Attachment) -> LinkEnd {
        let leads_to_pod = self.0.as_mut().map(|kernel| kernel.leads_to_pod(record));
        match leads_to_pod.and_then(Result::ok).flatten() {
            Some(true) => LinkEnd::ItsPod,
            Some(false) => LinkEnd::OtherPod,
            None => LinkEnd::Unknown,
        }
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

/// Where the link of a record leads, as far as the kernel can tell; the most trustworthy answer
/// last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LinkEnd {
    OtherPod,
    Unknown,
    ItsPod,
}

/// The indices of veths that several records have: a veth has only one pod.
pub(super) fn shared(state: &State, links: &LinksByIndex<'_>) -> HashSet<u32> {
    let records = state.attachments.values().filter(|record| !links.lacks(record));
    let indices = records.filter_map(|record| Some(record.host_interface.as_ref()?.index));
    let mut seen = HashSet::new();
    indices.filter(|index| links.is_pod_s_veth(*index) && !seen.insert(*index)).collect()
}

fn added_at(record: &Attachment) -> Option<Timestamp> {
    record.added_at.parse().ok()
}

/// Whether each of the records of one veth must go. The kernel decides where it can, since the
/// clock may have been set back between two ADDs; else the time of the ADD.
pub(super) fn superseded(records: &[(LinkEnd, &Attachment)]) -> Vec<bool> {
    let best = records.iter().map(|(end, _)| *end).max();
    let kept = records.iter().filter(|(end, _)| Some(*end) == best);
    let newest = kept.filter_map(|(_, record)| added_at(record)).max();
    let must_go = |(end, record): &(LinkEnd, &Attachment)| {
        Some(*end) < best || added_at(record).is_some_and(|time| Some(time) < newest)
    };
    records.iter().map(must_go).collect()
}
