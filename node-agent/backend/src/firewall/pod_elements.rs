//! The tables' elements by recorded pod, so that a pod that comes or goes costs only its own
//! elements.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::noted::note;
use super::table::FirewallTable;
use denizen_model::LocalPod;
use denizen_nft::{Element, Keeper, Key, SetId, TableFamily};
use denizen_plan::FirewallPlan;
use denizen_state::AttachmentId;

/// The elements of a pod in every table.
type TableElements = Vec<(TableFamily, Element)>;

/// The elements of a recorded pod.
pub(super) fn of_pod(
    firewall: &FirewallPlan,
    pod: &LocalPod,
    unfiltered_bridges: &BTreeSet<Arc<str>>,
) -> TableElements {
    let of_table = |table: FirewallTable| {
        let elements = table.of_pod(firewall, pod, unfiltered_bridges);
        elements.into_iter().map(move |element| (table.family(), element))
    };
    FirewallTable::ALL.into_iter().flat_map(of_table).collect()
}

/// The elements of all recorded pods, counted by the pods that have them: two records may have the
/// same interface, and so the same elements.
#[derive(Debug, Default)]
pub(super) struct PodElements {
    of: BTreeMap<AttachmentId, TableElements>,
    holders: HashMap<ElementKey, u32>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ElementKey {
    family: TableFamily,
    set: SetId,
    key: Key,
}

/// Elements that no pod has any longer, and elements that no pod had before.
#[derive(Debug, Default)]
pub(super) struct ElementChanges {
    gone: TableElements,
    come: TableElements,
}

impl PodElements {
    /// Replaces the elements of a pod.
    pub fn replace(
        &mut self,
        pod: &AttachmentId,
        now: TableElements,
        changed: &mut ElementChanges,
    ) {
        let key = |(family, element): &(TableFamily, Element)| ElementKey {
            family: *family,
            set: element.set,
            key: element.key,
        };
        for element in self.of.remove(pod).unwrap_or_default() {
            let Some(holders) = self.holders.get_mut(&key(&element)) else { continue };
            *holders -= 1;
            if *holders == 0 {
                self.holders.remove(&key(&element));
                changed.gone.push(element);
            }
        }
        for element in &now {
            let holders = self.holders.entry(key(element)).or_default();
            *holders += 1;
            if *holders == 1 {
                changed.come.push(element.clone());
            }
        }
        if !now.is_empty() {
            self.of.insert(pod.clone(), now);
        }
    }

    /// Removes the elements of these pods.
    pub fn remove_all(&mut self, pods: &BTreeSet<AttachmentId>) -> ElementChanges {
        let mut changed = ElementChanges::default();
        pods.iter().for_each(|pod| self.replace(pod, TableElements::new(), &mut changed));
        changed
    }
}

impl ElementChanges {
    /// Notes the changes in the tables' keepers.
    pub fn note(self, keepers: &mut BTreeMap<TableFamily, Keeper>) {
        for table in FirewallTable::ALL {
            let family = table.family();
            let of_table = |all: &TableElements| -> Vec<Element> {
                let all = all.iter().filter(|(other, _)| *other == family);
                all.map(|(_, element)| element.clone()).collect()
            };
            note(keepers, family, of_table(&self.gone), of_table(&self.come));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firewall::element::member;
    use crate::firewall::schema::FirewallSet;

    #[test]
    fn what_two_records_share_stays_until_both_are_gone() {
        let element = |name: &str| {
            let key = Key::EMPTY.interface(name);
            (TableFamily::Ip, member(FirewallSet::PodInterfaces, key))
        };
        let [first, second] = ["a/eth0", "b/eth0"].map(|id| AttachmentId(id.to_owned()));
        let (shared, own) = (element("veth0"), element("veth1"));
        let mut noted = PodElements::default();
        let mut change = |pod: &AttachmentId, now: &[&(TableFamily, Element)]| {
            let mut changed = ElementChanges::default();
            noted.replace(pod, now.iter().copied().cloned().collect(), &mut changed);
            (changed.gone, changed.come)
        };
        assert_eq!(change(&first, &[&shared, &own]), (vec![], vec![shared.clone(), own.clone()]));
        assert_eq!(change(&second, &[&shared]), (vec![], vec![]));
        assert_eq!(change(&first, &[&own]), (vec![own.clone()], vec![own.clone()]));
        assert_eq!(change(&second, &[]), (vec![shared.clone()], vec![]));
        assert_eq!(change(&second, &[]), (vec![], vec![]));
        assert_eq!(change(&first, &[]), (vec![own], vec![]));
    }
}
