//! A range is found again by the bounds that the kernel has of it.

use proptest::prelude::*;

use super::*;
use crate::bytes::Range;

proptest! {
    #[test]
    fn a_range_is_found_by_its_bounds(address: u128, number: u32, bits in 0_u8..=128) {
        let mask = |width: u32| u128::MAX.checked_shl(width - u32::from(bits).min(width)).unwrap_or(0);
        let v6 = IpAddr::from(Ipv6Addr::from(address & mask(128)));
        let v4 = IpAddr::from(Ipv4Addr::from((address & mask(32)) as u32));
        for (ip, bits) in [(v6, bits), (v4, bits.min(32))] {
            let key = Key::EMPTY.number(number).range(ip, bits);
            let range = Range::Addresses(family_of(ip));
            let (first, last) = key.bounds(range);
            let found = Key::from_bounds(range, first.as_bytes(), last.as_bytes());
            prop_assert_eq!(found, Some(key));
        }
    }

    #[test]
    fn a_range_of_ports_is_found_by_its_bounds(address: u128, number: u32, a: u16, b: u16) {
        let addresses =
            [IpAddr::from(Ipv6Addr::from(address)), Ipv4Addr::from(address as u32).into()];
        for ip in addresses {
            let schema = schema(family_of(ip).into());
            let set = schema.set(PORTS);
            let fields = Key::EMPTY.address(ip).byte(6).port(a.min(b)).number(number);
            let key = fields.up_to_port(a.max(b));
            let range = set.range().unwrap();
            let (first, last) = set.ordered(key).bounds(range);
            prop_assert_eq!(first.as_bytes().len(), fields.as_bytes().len());
            let found = Key::from_bounds(range, first.as_bytes(), last.as_bytes()).unwrap();
            prop_assert_eq!(set.ordered(found), key);
            let none = Key::from_bounds(range, first.as_bytes(), &[]);
            prop_assert_eq!(none, None);
        }
    }
}
