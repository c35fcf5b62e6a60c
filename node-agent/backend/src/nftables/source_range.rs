//! Ranges of source addresses as prefixes, each of which is one element of a hash.
//!
//! The kernel has sets of ranges of several fields (pipapo), but a look-up there goes through all
//! ranges of the packet's service address: 10 us for a thousand.

use std::cmp::Reverse;
use std::net::IpAddr;

use denizen_model::Family;
use ipnetwork::IpNetwork;

/// The lengths of prefixes are multiples of this: otherwise a packet would have four times as many
/// look-ups. A range has up to eight prefixes, or sixteen if it holds every address.
const STEP: u8 = 4;

/// The lengths of prefixes, the usual ones first.
pub fn lengths(family: Family) -> impl Iterator<Item = u8> {
    let mut lengths: Vec<u8> = (STEP..=bits(family)).step_by(STEP.into()).collect();
    lengths.sort_by_key(|length| (length % 8, Reverse(*length)));
    lengths.into_iter()
}

fn bits(family: Family) -> u8 {
    family.address_len() as u8 * 8
}

/// The prefixes of these lengths that a range consists of.
pub fn parts(range: &IpNetwork) -> Vec<IpNetwork> {
    let length = range.prefix().next_multiple_of(STEP).max(STEP);
    let count = 1_u128 << (length - range.prefix());
    let nth = |n: u128| match range.network() {
        IpAddr::V4(first) => {
            IpAddr::from((u32::from(first) | ((n as u32) << (32 - length))).to_be_bytes())
        }
        IpAddr::V6(first) => {
            IpAddr::from((u128::from(first) | (n << (128 - length))).to_be_bytes())
        }
    };
    let part = |n| IpNetwork::new(nth(n), length).expect("no longer than the addresses");
    (0..count).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_lengths_are_looked_up_first() {
        assert_eq!(lengths(Family::V4).collect::<Vec<_>>(), [32, 24, 16, 8, 28, 20, 12, 4]);
        let lengths: Vec<u8> = lengths(Family::V6).collect();
        assert_eq!((lengths.len(), lengths[0], lengths[8], lengths[31]), (32, 128, 64, 4));
    }

    #[test]
    fn the_parts_of_a_range_are_its_addresses_and_no_others() {
        let cases = [
            ("0.0.0.0/0", 16),
            ("10.0.0.0/8", 1),
            ("10.0.0.0/9", 8),
            ("10.1.2.128/30", 4),
            ("10.1.2.255/32", 1),
            ("::/0", 16),
            ("fd00::/61", 8),
            ("fd00::1/128", 1),
            ("ffff:8000::/17", 8),
        ];
        for (range, count) in cases {
            let range: IpNetwork = range.parse().unwrap();
            let parts = parts(&range);
            assert_eq!(parts.len(), count, "{range}");
            let number = |ip| match ip {
                IpAddr::V4(ip) => u32::from(ip).into(),
                IpAddr::V6(ip) => u128::from(ip),
            };
            let bounds = |range: IpNetwork| (number(range.network()), number(range.broadcast()));
            let (first, last) = bounds(range);
            assert_eq!((bounds(parts[0]).0, bounds(parts[count - 1]).1), (first, last), "{range}");
            let touches =
                |two: &[IpNetwork]| bounds(two[0]).1.checked_add(1) == Some(bounds(two[1]).0);
            assert!(parts.windows(2).all(touches), "{range}");
            let family = denizen_model::family_of(range.ip());
            assert!(parts.iter().all(|part| lengths(family).any(|of| of == part.prefix())));
        }
    }
}
