//! Addresses in a packet's header.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::{CMP_EQ, Expressions, NETWORK_HEADER};
use crate::backend::nftables::set::Part;
use crate::model::{Family, family_of};

/// Where the source or the destination address is in the header.
fn offset(family: Family, part: Part) -> u32 {
    match (family, part == Part::Destination) {
        (Family::V4, false) => 12,
        (Family::V4, true) => 16,
        (Family::V6, false) => 8,
        (Family::V6, true) => 24,
    }
}

impl Expressions<'_> {
    pub(super) fn address(&mut self, family: Family, part: Part, word: u32) {
        self.payload(NETWORK_HEADER, offset(family, part), part.len(family), word);
    }

    /// Compares as many whole bytes of an address as the prefix has, and masks the last one.
    pub(super) fn within(&mut self, part: Part, range: IpNetwork) {
        let network = match range.network() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let offset = offset(family_of(range.ip()), part);
        let bits = usize::from(range.prefix());
        if bits.is_multiple_of(8) && bits > 0 {
            self.payload(NETWORK_HEADER, offset, bits / 8, 0);
            return self.compare(CMP_EQ, &network[..bits / 8]);
        }
        let mask: Vec<u8> = (0..network.len())
            .map(|byte| {
                0xff_u8.checked_shl(8 - bits.saturating_sub(byte * 8).min(8) as u32).unwrap_or(0)
            })
            .collect();
        self.payload(NETWORK_HEADER, offset, network.len(), 0);
        self.bitwise(&mask, &vec![0; network.len()]);
        self.compare(CMP_EQ, &network);
    }
}
