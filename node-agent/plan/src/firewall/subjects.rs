//! This node's recorded pods, and how each is decided.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::direction_rules::{DirectionDecision, PodDescription};
use super::group::GroupId;
use super::own_addresses;
use denizen_model::{LocalPod, PodName};
use denizen_state::AttachmentId;

#[derive(Debug)]
pub(super) struct FirewallPod {
    pub pod: Option<PodName>,
    pub uid: Option<Arc<str>>,
    /// The recorded addresses, and the link-local one.
    pub ips: Vec<IpAddr>,
    /// The addresses from its annotation.
    pub additional: Arc<[IpAddr]>,
    pub added_at: Arc<str>,
    pub described: Option<PodDescription>,
    pub group: Option<GroupId>,
    pub ingress: DirectionDecision,
    pub egress: DirectionDecision,
}

impl FirewallPod {
    /// Whether it was made from a record equal to this one.
    pub fn is(&self, pod: &LocalPod) -> bool {
        (&self.pod, &self.uid, &self.added_at) == (&pod.pod, &pod.uid, &pod.added_at)
            && self.ips.iter().copied().eq(own_addresses(pod))
    }

    pub fn decisions(&self) -> [&DirectionDecision; 2] {
        [&self.ingress, &self.egress]
    }

    /// Every address that it has or asks for.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ips.iter().chain(&*self.additional).copied()
    }
}

/// This node's recorded pods, by attachment.
#[derive(Debug, Default)]
pub(super) struct Subjects {
    all: BTreeMap<AttachmentId, FirewallPod>,
    /// How many attachments the pods of these names have.
    attachments: HashMap<PodName, usize>,
}

impl Subjects {
    pub fn get(&self, id: &AttachmentId) -> Option<&FirewallPod> {
        self.all.get(id)
    }

    pub fn ids(&self) -> impl Iterator<Item = &AttachmentId> {
        self.all.keys()
    }

    pub fn iter(&self) -> impl Iterator<Item = &FirewallPod> {
        self.all.values()
    }

    /// Whether a pod of this name is recorded.
    pub fn has(&self, name: &PodName) -> bool {
        self.attachments.contains_key(name)
    }

    /// Adds a new attachment.
    pub fn insert(&mut self, id: AttachmentId, subject: FirewallPod) {
        if let Some(name) = &subject.pod {
            *self.attachments.entry(name.clone()).or_default() += 1;
        }
        self.all.insert(id, subject);
    }

    pub fn remove(&mut self, id: &AttachmentId) -> Option<FirewallPod> {
        let subject = self.all.remove(id)?;
        if let Some(name) = &subject.pod
            && let Some(attachments) = self.attachments.get_mut(name)
        {
            *attachments -= 1;
            if *attachments == 0 {
                self.attachments.remove(name);
            }
        }
        Some(subject)
    }
}
