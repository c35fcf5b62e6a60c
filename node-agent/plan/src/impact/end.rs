//! The ends of connections: pods, nodes, and addresses outside the cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ImpactEnd;
use super::facts::{ImpactInputs, PodAddress};
use crate::{AddressRange, FirewallPlan};
use denizen_model::{Family, family_of};

/// An address at one end, or several addresses that no policy can tell apart.
#[derive(Debug)]
pub(super) struct ComparedEnd {
    /// Index into [`ComparedEnds::who`].
    pub who: usize,
    pub family: Family,
    /// One of the addresses; `None` if they have no identity.
    pub address: Option<IpAddr>,
    /// Index of its group in [`ImpactInputs::groups`], if it is a pod's.
    pub group: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct ComparedEnds {
    pub who: Vec<ImpactEnd>,
    pub all: Vec<ComparedEnd>,
    /// The owner of each pod's and node's address, as an index into [`Self::who`].
    pub addresses: HashMap<IpAddr, usize>,
    places: HashMap<ImpactEnd, usize>,
}

impl ComparedEnds {
    /// All ends that these plans know.
    pub fn new(facts: &ImpactInputs, plans: [&FirewallPlan; 2]) -> Self {
        let mut ends = Self::default();
        let mut taken = BTreeSet::new();
        for PodAddress { pod, address, group } in &facts.addresses {
            ends.add(
                ImpactEnd::Pod(pod.clone()),
                family_of(*address),
                Some(*address),
                Some(*group),
            );
            taken.insert(*address);
        }
        let families: BTreeSet<Family> = taken.iter().copied().map(family_of).collect();
        let [before, _] = plans;
        for address in before.node_addresses() {
            // An address that both a pod and a node claim is the pod's.
            if families.contains(&family_of(address)) && taken.insert(address) {
                let name = facts.nodes.get(&address).cloned();
                let name = name.unwrap_or_else(|| address.to_string().into());
                ends.add(ImpactEnd::Node(name), family_of(address), Some(address), None);
            }
        }
        for family in families {
            ends.add_outside(facts, plans, family, &taken);
        }
        ends
    }

    fn add_outside(
        &mut self,
        facts: &ImpactInputs,
        plans: [&FirewallPlan; 2],
        family: Family,
        taken: &BTreeSet<IpAddr>,
    ) {
        let pieces = plans.into_iter().flat_map(FirewallPlan::pieces);
        let outside = OtherAddresses::new(pieces, family);
        for range in outside.ranges {
            let is_of_pods =
                |of: &ipnetwork::IpNetwork| of.contains(range.first) && of.contains(range.last);
            if facts.pod_ranges.iter().any(is_of_pods) {
                continue;
            }
            let mut free = addresses(range).filter(|address| !taken.contains(address));
            if let Some(address) = free.next() {
                self.add(ImpactEnd::Range(range), family, Some(address), None);
            }
        }
        if outside.has_others {
            self.add(ImpactEnd::Elsewhere, family, None, None);
        }
    }

    fn add(
        &mut self,
        who: ImpactEnd,
        family: Family,
        address: Option<IpAddr>,
        group: Option<usize>,
    ) {
        let place = *self.places.entry(who.clone()).or_insert_with(|| {
            self.who.push(who);
            self.who.len() - 1
        });
        if let (Some(address), ImpactEnd::Pod(_) | ImpactEnd::Node(_)) = (address, &self.who[place])
        {
            self.addresses.insert(address, place);
        }
        self.all.push(ComparedEnd { who: place, family, address, group });
    }
}

/// The addresses of a family, cut where any range begins or ends.
struct OtherAddresses {
    /// The addresses that are in some range, sorted.
    ranges: Vec<AddressRange>,
    /// Whether there are addresses in no range.
    has_others: bool,
}

impl OtherAddresses {
    fn new(pieces: impl Iterator<Item = AddressRange>, family: Family) -> Self {
        let max = match family {
            Family::V4 => u32::MAX.into(),
            Family::V6 => u128::MAX,
        };
        // At each edge, the change in the number of ranges that contain what follows.
        let mut edges: BTreeMap<u128, i64> = BTreeMap::from([(0, 0)]);
        for AddressRange { first, last } in pieces.filter(|range| family_of(range.first) == family)
        {
            *edges.entry(number(first)).or_default() += 1;
            if let Some(behind) = number(last).checked_add(1).filter(|behind| *behind <= max) {
                *edges.entry(behind).or_default() -= 1;
            }
        }
        let (mut ranges, mut has_others, mut holding) = (Vec::new(), false, 0);
        let ends: Vec<u128> = edges.keys().skip(1).map(|edge| edge - 1).chain([max]).collect();
        for ((from, more), last) in edges.into_iter().zip(ends) {
            holding += more;
            match holding > 0 {
                true => ranges.push(AddressRange {
                    first: address(from, family),
                    last: address(last, family),
                }),
                false => has_others = true,
            }
        }
        Self { ranges, has_others }
    }
}

fn addresses(AddressRange { first, last }: AddressRange) -> impl Iterator<Item = IpAddr> {
    let family = family_of(first);
    (number(first)..=number(last)).map(move |at| address(at, family))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn address(number: u128, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from(number as u32).into(),
        Family::V6 => Ipv6Addr::from(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use denizen_fixture::ip;

    #[test]
    fn the_outside_is_cut_where_ranges_begin_and_end() {
        let range = |first: &str, last: &str| AddressRange { first: ip(first), last: ip(last) };
        let pieces = [
            range("10.0.0.0", "10.255.255.255"),
            range("10.1.0.0", "10.1.255.255"),
            range("255.0.0.0", "255.255.255.255"),
            range("::", "::ffff"),
        ];
        let outside = OtherAddresses::new(pieces.into_iter(), Family::V4);
        let expected = [
            range("10.0.0.0", "10.0.255.255"),
            range("10.1.0.0", "10.1.255.255"),
            range("10.2.0.0", "10.255.255.255"),
            range("255.0.0.0", "255.255.255.255"),
        ];
        assert_eq!((outside.ranges, outside.has_others), (expected.into(), true));
        let whole = [range("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")];
        let outside = OtherAddresses::new(whole.into_iter(), Family::V6);
        assert_eq!((outside.ranges, outside.has_others), (whole.into(), false));
        let outside = OtherAddresses::new([].into_iter(), Family::V4);
        assert!(outside.ranges.is_empty() && outside.has_others);
    }
}
