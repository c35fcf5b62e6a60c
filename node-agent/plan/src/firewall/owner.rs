//! Which recorded pod has which address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::FirewallPod;
use denizen_state::AttachmentId;

/// The owner of each address. Of two records with one address, the later one counts.
pub(super) fn owners(
    subjects: &BTreeMap<AttachmentId, FirewallPod>,
) -> BTreeMap<IpAddr, AttachmentId> {
    let mut owners: BTreeMap<IpAddr, AttachmentId> = BTreeMap::new();
    for (id, subject) in subjects {
        for ip in &subject.ips {
            let owner = owners.entry(*ip).or_insert_with(|| id.clone());
            if subjects.get(owner).is_some_and(|other| other.added_at < subject.added_at) {
                *owner = id.clone();
            }
        }
    }
    owners
}

/// The addresses whose owner is another pod than before.
pub(super) fn handed_over<'a>(
    before: &'a BTreeMap<IpAddr, AttachmentId>,
    now: &'a BTreeMap<IpAddr, AttachmentId>,
) -> impl Iterator<Item = IpAddr> {
    let is_other =
        |(ip, id): &(&IpAddr, &AttachmentId)| before.get(ip).is_some_and(|former| former != *id);
    now.iter().filter(is_other).map(|(ip, _)| *ip)
}
