//! Ranges of ports as prefixes, each of which is one element of a hash.
//!
//! The kernel has sets of ranges of several fields (pipapo), but a look-up there goes through all
//! elements whose preceding fields match the packet: 11 us for a pod with a thousand peers.

/// The lengths of prefixes: every second one. With all lengths, a range would have fewer parts (at
/// most 30 instead of 44), but a packet would need twice as many look-ups.
pub const LENGTHS: [u8; 7] = [14, 12, 10, 8, 6, 4, 2];

/// A part of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortPart {
    Port(u16),
    /// All ports of a prefix of one of the [`LENGTHS`]. The bit after the prefix is set, so the
    /// number also shows the length.
    Prefix(u16),
}

/// The parts of the range from the first port to the last one.
pub fn parts(first: u16, last: u16) -> Vec<PortPart> {
    let end = u32::from(last) + 1;
    let mut from = u32::from(first);
    let mut parts = Vec::new();
    while from < end {
        let fits = |size: &u32| from.is_multiple_of(*size) && from + size <= end;
        let sizes = LENGTHS.iter().rev().map(|length| 1_u32 << (16 - length));
        let size = sizes.into_iter().find(fits).unwrap_or(1);
        parts.push(match size {
            1 => PortPart::Port(from as u16),
            _ => PortPart::Prefix((from | (size / 2)) as u16),
        });
        from += size;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ports of a part: those that the rule about its length finds.
    fn ports(part: PortPart) -> Vec<u16> {
        match part {
            PortPart::Port(port) => vec![port],
            PortPart::Prefix(marked) => {
                let found = |port: u16| {
                    let keys = LENGTHS.iter().map(|length| {
                        let mask = u16::MAX << (16 - length);
                        (port & mask) | (1 << (15 - length))
                    });
                    keys.filter(|key| *key == marked).count()
                };
                let all: Vec<u16> = (0..=u16::MAX).filter(|port| found(*port) > 0).collect();
                assert!(all.iter().all(|port| found(*port) == 1), "{marked}");
                all
            }
        }
    }

    #[test]
    fn the_parts_of_a_range_are_its_ports_and_no_others() {
        let cases = [
            (0, u16::MAX, 4),
            (1, u16::MAX, 24),
            (1, u16::MAX - 1, 44),
            (80, 80, 1),
            (80, 83, 1),
            (79, 84, 3),
            (1024, u16::MAX, 9),
            (30_000, 32_767, 8),
            (u16::MAX, u16::MAX, 1),
        ];
        for (first, last, count) in cases {
            let parts = parts(first, last);
            assert_eq!(parts.len(), count, "{first}-{last}");
            let all: Vec<u16> = parts.into_iter().flat_map(ports).collect();
            assert_eq!(all, (first..=last).collect::<Vec<_>>());
        }
    }
}
