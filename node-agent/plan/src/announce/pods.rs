//! Pods: the Node's podCIDRs, and single pods outside them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::super::pod_ranges::without_host_bits;
use super::forbidden::ForbiddenPrefixes;
use super::prefix_claim::PrefixClaim;
use super::{
    AnnounceInputs, AnnounceSettings, AnnouncedPods, Announcement, AnnouncementClass,
    AnnouncementReason, PrefixOwner, Recorded, Withheld, WithheldReason, newest,
};
use denizen_model::{LocalPod, Nodes};

/// The pod addresses that are announced one by one, if the kernel delivers them.
///
/// Ranges are never inferred from the addresses of pods: these do not show who owns the
/// neighbouring addresses.
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

/// The claims on this node's podCIDRs and on single pods.
pub(super) fn claims(
    by: &AnnounceInputs<'_>,
    forbidden_prefixes: &ForbiddenPrefixes<'_>,
) -> Vec<PrefixClaim> {
    let mut found = Vec::new();
    let ranges = by.nodes.own.iter().flat_map(|node| node.pod_cidrs.iter().copied());
    for range in ranges.map(without_host_bits) {
        let withheld = match by.settings.pods {
            AnnouncedPods::Off | AnnouncedPods::Exact => Some(WithheldReason::NotChosen),
            AnnouncedPods::NodeCidrs | AnnouncedPods::Auto => {
                forbidden_prefixes.pod_range(range).map(WithheldReason::Forbidden)
            }
        };
        let verdict = match withheld {
            Some(reason) => Err(Withheld { reason, owner: PrefixOwner::Node }),
            None => Ok(Announcement {
                class: AnnouncementClass::PodRange,
                is_draining: false,
                reason: AnnouncementReason::PodRange,
                recorded: None,
                since: "".into(),
            }),
        };
        found.push(PrefixClaim::of(range, verdict));
    }
    singles(by, forbidden_prefixes, &mut found);
    found
}

/// Above the limit, the oldest stay: a newer pod never ends an announcement. Of several pods with
/// one address, the newest counts.
fn singles(
    by: &AnnounceInputs<'_>,
    forbidden_prefixes: &ForbiddenPrefixes<'_>,
    found: &mut Vec<PrefixClaim>,
) {
    let AnnounceSettings { most_pods, .. } = *by.settings;
    let mut singles = single_pods(by.settings, by.nodes, by.plan.recorded());
    singles.sort_by(|(a, a_ip), (b, b_ip)| (&a.added_at, a_ip).cmp(&(&b.added_at, b_ip)));
    let newest = newest(&singles);
    let mut chosen = BTreeSet::new();
    for (pod, address) in singles {
        if chosen.contains(&address) {
            continue;
        }
        let owner = newest.get(&address).copied().unwrap_or(pod);
        let name: Arc<str> = owner.to_string().into();
        let reason = if let Some(forbidden) = forbidden_prefixes.pod(address) {
            Some(WithheldReason::Forbidden(forbidden))
        } else if by.surveyed.undelivered.contains(&address) {
            Some(WithheldReason::NotDeliveredHere)
        } else {
            (chosen.len() >= most_pods).then_some(WithheldReason::OverLimit(most_pods))
        };
        if let Some(reason) = reason {
            let withheld = Withheld { reason, owner: PrefixOwner::Pod(name) };
            found.push(PrefixClaim::of(address.into(), Err(withheld)));
            continue;
        }
        chosen.insert(address);
        let recorded = by.recorded.get(&address).copied().unwrap_or(Recorded::UNKNOWN);
        let announcement = Announcement {
            class: if recorded.is_fresh {
                AnnouncementClass::FreshPod
            } else {
                AnnouncementClass::Pod
            },
            is_draining: false,
            reason: AnnouncementReason::Pod(name),
            recorded: Some(recorded.at),
            since: pod.added_at.clone(),
        };
        found.push(PrefixClaim::of(address.into(), Ok(announcement)));
    }
}
