//! The numbers by which the kernel knows identities.
//!
//! A number never changes its meaning while an address has it: a packet that races with a commit
//! may have read the number before and look for permissions after.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use denizen_model::{Family, family_of};
use denizen_nft::{Observed, Value, read_address};
use denizen_plan::{Direction, FirewallPlan, IdentityId, Sides};

/// The numbers in use. 0 stands for everybody, and is nobody's.
#[derive(Debug, Default)]
pub struct Numbers {
    numbers: HashMap<IdentityId, u32>,
    taken: BTreeSet<u32>,
    /// Free from the next change on.
    retired: Vec<u32>,
    next: u32,
}

impl Numbers {
    /// The number of an identity; 0 if none was assigned.
    pub fn number(&self, id: IdentityId) -> u32 {
        self.numbers.get(&id).copied().unwrap_or_default()
    }

    /// Gives an identity a number if it has none.
    pub fn assign(&mut self, id: IdentityId) {
        if self.numbers.contains_key(&id) {
            return;
        }
        while self.taken.contains(&self.next) || self.next == 0 {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.taken.insert(number);
        self.numbers.insert(id, number);
    }

    /// As [`Self::assign`]. Returns the number.
    pub fn assigned(&mut self, id: IdentityId) -> u32 {
        self.assign(id);
        self.number(id)
    }

    /// Gives every identity of a plan a number.
    pub fn assign_all(&mut self, plan: &FirewallPlan) {
        for version in Family::BOTH {
            let is_ours = |address: &IpAddr| family_of(*address) == version;
            let identities = plan.identities().filter(|(address, _)| is_ours(address));
            identities.for_each(|(_, id)| self.assign(id));
            let blocks = plan.blocks().filter(|(range, _)| is_ours(&range.first));
            blocks.for_each(|(_, id)| self.assign(id));
            let pods = plan.pods().filter(|(address, _)| is_ours(address));
            pods.for_each(|(_, sides)| self.assign_peers(sides));
        }
    }

    /// Gives every peer of a pod a number.
    pub fn assign_peers(&mut self, sides: &Sides) {
        for direction in Direction::BOTH {
            let permissions = sides.of(direction).permissions.iter();
            permissions.filter_map(|permission| permission.peer).for_each(|id| self.assign(id));
        }
    }

    /// Whether an identity has this number.
    pub fn is_in_use(&self, number: u32) -> bool {
        number == 0 || self.taken.contains(&number) && !self.retired.contains(&number)
    }

    /// A change begins. These identities are gone: their numbers may be given to others by the
    /// change after this one.
    pub fn retire(&mut self, gone: &[IdentityId]) {
        for number in self.retired.drain(..) {
            self.taken.remove(&number);
        }
        self.retired.extend(gone.iter().filter_map(|id| self.numbers.remove(id)));
    }

    /// Takes over an earlier run's numbers from what the kernel holds of a table.
    pub fn restore_from(&mut self, seen: &[(Family, Observed)], plan: &FirewallPlan) {
        let mut numbers: BTreeMap<u32, BTreeSet<Option<IdentityId>>> = BTreeMap::new();
        for (version, seen) in seen {
            for (_, key, value, _) in seen.elements() {
                let Some(Value::Data(data)) = value else { continue };
                let number = data.as_bytes().first_chunk().copied();
                let address = read_address(*version, key.as_bytes());
                if let Some((number, address)) = number.zip(address) {
                    let identity = plan.identity_of(address);
                    numbers.entry(u32::from_ne_bytes(number)).or_default().insert(identity);
                }
            }
        }
        self.restore(&numbers);
    }

    /// Takes over an earlier run's numbers: each that stands for one identity alone. `seen` says
    /// which number each identity's addresses have in the kernel. The others stay taken for now.
    fn restore(&mut self, seen: &BTreeMap<u32, BTreeSet<Option<IdentityId>>>) {
        for (number, ids) in seen {
            self.taken.insert(*number);
            let only = ids.first().copied().flatten().filter(|_| ids.len() == 1);
            match only {
                Some(id) if !self.numbers.contains_key(&id) => {
                    self.numbers.insert(id, *number);
                }
                Some(_) | None => self.retired.push(*number),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_again_only_after_the_change_that_retired_it() {
        let mut numbers = Numbers::default();
        let [a, b, c] = [0, 1, 2].map(IdentityId);
        assert_eq!([a, b].map(|id| numbers.assigned(id)), [1, 2]);
        numbers.retire(&[a]);
        assert!(!numbers.is_in_use(1));
        assert_eq!(numbers.assigned(c), 3);
        numbers.retire(&[]);
        numbers.next = 0;
        assert_eq!(numbers.assigned(a), 1);
    }

    #[test]
    fn an_earlier_runs_number_is_kept_where_it_means_one_identity() {
        let mut numbers = Numbers::default();
        let [a, b, c] = [0, 1, 2].map(IdentityId);
        let seen = [
            (7, [Some(a)].into()),
            (8, [Some(b), Some(c)].into()),
            (9, [Some(a)].into()),
            (1, [None].into()),
        ];
        numbers.restore(&seen.into());
        assert_eq!([a, b, c].map(|id| numbers.assigned(id)), [7, 2, 3]);
        assert!(!numbers.is_in_use(8) && !numbers.is_in_use(9) && !numbers.is_in_use(1));
    }
}
