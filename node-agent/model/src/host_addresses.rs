//! The addresses of nodes, as their pods report them.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The addresses in `status.hostIPs` of pods, and how many pods report each.
#[derive(Debug, Default)]
pub(crate) struct HostAddresses(BTreeMap<IpAddr, usize>);

impl HostAddresses {
    /// A pod reports `now` in place of `before`. Returns whether an address is new or gone. For
    /// most pods none is: another pod of the same node reports the same addresses.
    pub(crate) fn replace(&mut self, before: &[IpAddr], now: &[IpAddr]) -> bool {
        if before == now {
            return false;
        }
        let mut differs = false;
        for ip in now {
            let pods = self.0.entry(*ip).or_default();
            differs |= *pods == 0;
            *pods += 1;
        }
        for ip in before {
            let Some(pods) = self.0.get_mut(ip) else { continue };
            *pods -= 1;
            if *pods == 0 {
                self.0.remove(ip);
                differs = true;
            }
        }
        differs
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &IpAddr> {
        self.0.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_and_the_last_pod_with_an_address_make_a_difference() {
        let ips = |last: &[u8]| -> Vec<IpAddr> {
            last.iter().map(|last| [10, 0, 0, *last].into()).collect()
        };
        let mut known = HostAddresses::default();
        // What a pod reported, what it reports now, and all that is known then.
        let steps: [[&[u8]; 3]; 7] = [
            [&[], &[1], &[1]],
            [&[], &[1], &[1]],
            [&[1], &[1, 2], &[1, 2]],
            [&[1, 2], &[2, 1], &[1, 2]],
            [&[2, 1], &[3], &[1, 3]],
            [&[1], &[3], &[3]],
            [&[3], &[], &[3]],
        ];
        for [before, now, expected] in steps.map(|step| step.map(ips)) {
            let known_before: Vec<IpAddr> = known.iter().copied().collect();
            let differs = known.replace(&before, &now);
            assert_eq!(differs, known_before != expected, "{before:?} {now:?}");
            assert_eq!(known.iter().copied().collect::<Vec<_>>(), expected);
        }
    }
}
