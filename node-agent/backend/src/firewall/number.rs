//! The numbers that stand for identities in the kernel, and those that stand for port sets: what
//! may pass between a pod and an identity.
//!
//! A number never changes its meaning while an address has it: a packet that races with a commit
//! may have read the number before the commit and look for permissions after it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use denizen_model::{Family, family_of};
use denizen_nft::{Observed, Value, read_address};
use denizen_plan::{Direction, FirewallPlan, IdentityId, PermittedPorts, PodRules};

/// Bit of a port set's number, which no identity has.
const PORT_SET: u32 = 1 << 31;
/// The port set that permits everything.
pub const ALL: u32 = PORT_SET;
/// The port set that permits nothing.
const NONE: u32 = PORT_SET | 1;
/// The identity of addresses that no policy distinguishes from others.
pub const NOBODY: u32 = PORT_SET - 2;
/// The identity that a pod has as its own peer.
pub const ITSELF: u32 = PORT_SET - 1;

/// The numbers in use. 0 means everybody, and is never assigned.
#[derive(Debug, Default)]
pub struct Numbers {
    numbers: HashMap<IdentityId, u32>,
    taken: BTreeSet<u32>,
    /// Numbers that may be assigned again from the next change on.
    retired: Vec<u32>,
    next: u32,
    permitted_sets: HashMap<PermittedPorts, u32>,
    port_sets_taken: BTreeSet<u32>,
    /// Port sets that no pod used after the last change.
    unused: Vec<PermittedPorts>,
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
        while self.taken.contains(&self.next) || !(1..NOBODY).contains(&self.next) {
            self.next = if self.next >= NOBODY { 1 } else { self.next + 1 };
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

    /// The number of a port set; `NONE` if none was assigned.
    pub fn permitted(&self, permitted: &PermittedPorts) -> u32 {
        match permitted.is_all() {
            true => ALL,
            false => self.permitted_sets.get(permitted).copied().unwrap_or(NONE),
        }
    }

    /// Gives a port set a number if it has none. The number is a hash of what the port set permits,
    /// so that a restarted agent finds most of the earlier run's elements correct.
    fn assign_permitted(&mut self, permitted: &PermittedPorts) {
        if permitted.is_all() || permitted.is_none() || self.permitted_sets.contains_key(permitted)
        {
            return;
        }
        let mut number = digest(permitted);
        while number <= NONE || self.port_sets_taken.contains(&number) {
            number = number.wrapping_add(1) | PORT_SET;
        }
        self.port_sets_taken.insert(number);
        self.permitted_sets.insert(permitted.clone(), number);
    }

    /// Frees the numbers of port sets that are unused now (not in `used`) and were already unused
    /// after the last change.
    pub fn retire_permitted_sets(&mut self, used: &HashSet<&PermittedPorts>) {
        for permitted in std::mem::take(&mut self.unused) {
            if !used.contains(&permitted)
                && let Some(number) = self.permitted_sets.remove(&permitted)
            {
                self.port_sets_taken.remove(&number);
            }
        }
        let unused = self.permitted_sets.keys().filter(|permitted| !used.contains(permitted));
        self.unused = unused.cloned().collect();
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
            pods.for_each(|(_, pod_rules)| self.assign_peers(pod_rules, None));
        }
    }

    /// Gives every peer of a pod, and every port set between them, a number. Those of `before`
    /// already have one.
    pub fn assign_peers(&mut self, pod_rules: &PodRules, before: Option<&PodRules>) {
        for direction in Direction::BOTH {
            let permissions = pod_rules.of(direction).permissions.iter();
            permissions.filter_map(|permission| permission.peer).for_each(|id| self.assign(id));
            let Some(tiered) = &pod_rules.of(direction).tiered else { continue };
            let before = before.and_then(|before| before.of(direction).tiered.as_ref());
            let by_peer = tiered.by_peer.beyond(before.map(|before| &before.by_peer));
            by_peer.filter_map(|(id, _)| *id).for_each(|id| self.assign(id));
            tiered.permitted_sets().for_each(|permitted| self.assign_permitted(permitted));
        }
    }

    /// Whether an identity has the number.
    pub fn is_in_use(&self, number: u32) -> bool {
        [0, NOBODY, ITSELF].contains(&number)
            || self.taken.contains(&number) && !self.retired.contains(&number)
    }

    /// Begins a change. The identities in `gone` no longer exist; their numbers may be reused by
    /// the change after this one.
    pub fn retire(&mut self, gone: &[IdentityId]) {
        for number in self.retired.drain(..) {
            self.taken.remove(&number);
        }
        self.retired.extend(gone.iter().filter_map(|id| self.numbers.remove(id)));
    }

    /// Takes over an earlier run's numbers from the kernel's tables.
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

    /// Takes over each number of an earlier run that belongs to exactly one identity. `seen`: for
    /// each number in the kernel, the identities of the addresses that have it. The other numbers
    /// stay reserved until the next change.
    fn restore(&mut self, seen: &BTreeMap<u32, BTreeSet<Option<IdentityId>>>) {
        for (number, ids) in seen.iter().filter(|(number, _)| (1..NOBODY).contains(*number)) {
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

/// FNV-1a, the same in every version of this program. The caller resolves collisions.
fn digest(permitted: &PermittedPorts) -> u32 {
    let spans = permitted.spans().flat_map(|(protocol, (first, last))| {
        let ports = [first.to_be_bytes(), last.to_be_bytes()].concat();
        std::iter::once(protocol.number()).chain(ports)
    });
    let bytes = spans.chain([u8::from(permitted.passes_others())]);
    let digest = bytes
        .fold(0x811c_9dc5_u32, |digest, byte| (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    digest | PORT_SET
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn a_number_is_given_again_only_after_the_change_that_retired_it() {
        let mut numbers = Numbers::default();
        let [a, b, c] = [1, 2, 3].map(|id| IdentityId(NonZeroU64::new(id).unwrap()));
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
        let [a, b, c] = [1, 2, 3].map(|id| IdentityId(NonZeroU64::new(id).unwrap()));
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
