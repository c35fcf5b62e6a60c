//! Merges ranges of addresses.

use ipnetwork::IpNetwork;

/// The fewest ranges that hold the same addresses as these of one family. Sorted.
pub(super) fn joined(mut ranges: Vec<IpNetwork>) -> Vec<IpNetwork> {
    ranges.sort_unstable_by_key(|range| (range.network(), range.prefix()));
    let mut joined: Vec<IpNetwork> = Vec::new();
    for mut range in ranges {
        if joined.last().is_some_and(|wider| wider.contains(range.network())) {
            continue;
        }
        while let Some(whole) = joined.last().and_then(|lower| whole(*lower, range)) {
            joined.pop();
            range = whole;
        }
        joined.push(range);
    }
    joined
}

/// The range of which these two are the halves, in order.
fn whole(lower: IpNetwork, upper: IpNetwork) -> Option<IpNetwork> {
    let prefix = lower.prefix().checked_sub(1).filter(|_| lower.prefix() == upper.prefix())?;
    let whole = IpNetwork::new(lower.network(), prefix).ok()?;
    let are_halves = whole.network() == lower.network() && whole.contains(upper.network());
    are_halves.then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_few_as_can_be() {
        let cases: [(&[&str], &[&str]); 6] = [
            (&["10.1.0.0/16", "10.0.0.0/8", "10.1.2.3/32"], &["10.0.0.0/8"]),
            (&["10.0.0.128/25", "10.0.0.0/26", "10.0.0.64/26"], &["10.0.0.0/24"]),
            (&["10.0.1.0/24", "10.0.2.0/24"], &["10.0.1.0/24", "10.0.2.0/24"]),
            (&["0.0.0.0/1", "128.0.0.0/1", "10.0.0.0/8"], &["0.0.0.0/0"]),
            (&["fd00::1/128", "fd00::/128", "fd00::2/128"], &["fd00::/127", "fd00::2/128"]),
            (&["10.0.0.1/32", "10.0.0.1/32"], &["10.0.0.1/32"]),
        ];
        for (ranges, expected) in cases {
            let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
            let found: Vec<String> = joined(ranges).iter().map(ToString::to_string).collect();
            assert_eq!(found, expected);
        }
    }
}
