//! The numbers by which the kernel knows identities.
//!
//! A number never changes its meaning while an address has it: a packet that races with a commit
//! may have read the number before and look for permissions after.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use denizen_plan::IdentityId;

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
    /// The number of an identity.
    pub fn number(&mut self, id: IdentityId) -> u32 {
        if let Some(number) = self.numbers.get(&id) {
            return *number;
        }
        while self.taken.contains(&self.next) || self.next == 0 {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.taken.insert(number);
        self.numbers.insert(id, number);
        number
    }

    /// The number of an identity that was given one.
    pub fn known(&self, id: IdentityId) -> Option<u32> {
        self.numbers.get(&id).copied()
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

    /// Takes over an earlier run's numbers: each that stands for one identity alone. `seen` says
    /// which number each identity's addresses have in the kernel. The others stay taken for now.
    pub fn restore(&mut self, seen: &BTreeMap<u32, BTreeSet<Option<IdentityId>>>) {
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
        assert_eq!((numbers.number(a), numbers.number(b)), (1, 2));
        numbers.retire(&[a]);
        assert!(!numbers.is_in_use(1));
        assert_eq!(numbers.number(c), 3);
        numbers.retire(&[]);
        numbers.next = 0;
        assert_eq!(numbers.number(a), 1);
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
        assert_eq!(numbers.number(a), 7);
        assert_eq!([numbers.number(b), numbers.number(c)], [2, 3]);
        assert!(!numbers.is_in_use(8) && !numbers.is_in_use(9) && !numbers.is_in_use(1));
    }
}
