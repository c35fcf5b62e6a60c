//! Pods: the Node's podCIDRs, and single pods outside them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::super::direct::without_host_bits;
use super::forbidden::Forbidding;
use super::{
    AnnounceSettings, AnnouncedPods, Announcement, Announcements, Announcing, Because, Class,
    Owner, WhyNot,
};
use crate::model::{LocalPod, Nodes};

/// The addresses of recorded pods that are announced by themselves, if the kernel delivers them.
///
/// Ranges are never derived from addresses that were seen: a pod's address does not show who owns
/// those around it.
pub fn single_pods<'a>(
    settings: &AnnounceSettings,
    nodes: &Nodes,
    pods: &'a [LocalPod],
) -> Vec<(&'a LocalPod, IpAddr)> {
    let ranges = match settings.pods {
        AnnouncedPods::Off | AnnouncedPods::NodeCidrs => return Vec::new(),
        AnnouncedPods::Exact => &[][..],
        AnnouncedPods::Auto => nodes.own.as_ref().map(|node| &*node.pod_cidrs).unwrap_or_default(),
    };
    let is_outside = |ip: &IpAddr| !ranges.iter().any(|range| range.contains(*ip));
    let of_pod =
        |pod: &'a LocalPod| pod.ips.iter().filter(|ip| is_outside(ip)).map(move |ip| (pod, *ip));
    pods.iter().flat_map(of_pod).collect()
}

pub(super) fn decide(by: &Announcing<'_>, forbidding: &Forbidding<'_>, found: &mut Announcements) {
    let ranges = by.nodes.own.iter().flat_map(|node| node.pod_cidrs.iter().copied());
    for range in ranges.map(without_host_bits) {
        let why_not = match by.settings.pods {
            AnnouncedPods::Off | AnnouncedPods::Exact => Some(WhyNot::NotChosen),
            AnnouncedPods::NodeCidrs | AnnouncedPods::Auto => {
                forbidding.pod_range(range).map(WhyNot::Forbidden)
            }
        };
        match why_not {
            Some(why) => found.keep_silent(range, Owner::Node, why),
            None => {
                let (class, because) = (Class::PodRange, Because::PodRange);
                let since = "".into();
                found.announce(range, Announcement { class, is_draining: false, because, since });
            }
        }
    }
    singles(by, forbidding, found);
}

/// The oldest stay if there are too many: an announcement never ends because of a newer pod.
fn singles(by: &Announcing<'_>, forbidding: &Forbidding<'_>, found: &mut Announcements) {
    let AnnounceSettings { most_pods, .. } = *by.settings;
    let mut singles = single_pods(by.settings, by.nodes, by.plan.recorded());
    singles.sort_by(|(a, a_ip), (b, b_ip)| (&a.added_at, a_ip).cmp(&(&b.added_at, b_ip)));
    let mut chosen = BTreeSet::new();
    for (pod, address) in singles {
        let name: Arc<str> = pod.to_string().into();
        let why_not = if let Some(forbidden) = forbidding.pod(address) {
            Some(WhyNot::Forbidden(forbidden))
        } else if by.surveyed.undelivered.contains(&address) {
            Some(WhyNot::NotDeliveredHere)
        } else {
            let is_full = chosen.len() >= most_pods && !chosen.contains(&address);
            is_full.then_some(WhyNot::OverLimit(most_pods))
        };
        if let Some(why) = why_not {
            found.keep_silent(address.into(), Owner::Pod(name), why);
            continue;
        }
        chosen.insert(address);
        let announcement = Announcement {
            class: Class::Pod,
            is_draining: false,
            because: Because::Pod(name),
            since: pod.added_at.clone(),
        };
        found.announce(address.into(), announcement);
    }
}
