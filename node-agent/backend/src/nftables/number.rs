//! The numbers that session affinity remembers endpoints by.
//!
//! The kernel remembers, for each client of a service port, one 32-bit number: two bits that mark
//! it as ours, sixteen for the service port, fourteen for the endpoint. An endpoint keeps its
//! number for as long as it is known, and across restarts, whatever slot it is in.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::rule::{ENDPOINT_BITS, SCRATCH, SCRATCH_BITS};
use denizen_model::Protocol;

/// The most endpoints of a frontend with session affinity.
pub const MOST_NUMBERS: usize = ENDPOINT_BITS as usize;

/// A service port as the elements' comments name it, and its protocol.
pub type Owner = (Arc<str>, Protocol);

/// One service port's numbers.
#[derive(Debug, Default)]
struct PortNumbers {
    /// The service port's number, shifted to its place.
    bits: u32,
    /// The endpoint number that was assigned last.
    last: u32,
    endpoints: HashMap<SocketAddr, u32>,
    /// The assigned endpoint numbers.
    taken: HashSet<u32>,
}

/// All numbers of one family.
#[derive(Debug, Default)]
pub struct Numbers {
    ports: HashMap<Owner, PortNumbers>,
    last: u32,
}

impl Numbers {
    /// Takes over a number from an earlier run.
    pub fn restore(&mut self, owner: Owner, endpoint: SocketAddr, number: u32) {
        if number & SCRATCH_BITS != SCRATCH || number & ENDPOINT_BITS == 0 {
            return;
        }
        let port = self.ports.entry(owner).or_default();
        port.bits = number & !ENDPOINT_BITS;
        port.last = port.last.max(number & ENDPOINT_BITS);
        port.remember(endpoint, number & ENDPOINT_BITS);
        self.last = self.last.max((port.bits & !SCRATCH_BITS) / (ENDPOINT_BITS + 1));
    }

    /// The numbers of a service port's endpoints (at most [`MOST_NUMBERS`]), in the same order; no
    /// two are the same.
    pub fn of(&mut self, owner: &Owner, endpoints: &[SocketAddr]) -> Box<[u32]> {
        if !self.ports.contains_key(owner) {
            self.last = self.last % PORTS + 1;
            let bits = SCRATCH | (self.last * (ENDPOINT_BITS + 1));
            self.ports.insert(owner.clone(), PortNumbers { bits, ..PortNumbers::default() });
        }
        let Some(port) = self.ports.get_mut(owner) else {
            return Box::default();
        };
        if port.endpoints.len() + endpoints.len() > MOST_NUMBERS {
            port.forget_all_but(endpoints);
        }
        endpoints.iter().map(|endpoint| port.number(*endpoint)).collect()
    }
}

/// The most service ports with a number of their own. If there are more, some share a number, and
/// so the memory of clients.
const PORTS: u32 = (1 << 16) - 1;

impl PortNumbers {
    fn remember(&mut self, endpoint: SocketAddr, number: u32) {
        self.endpoints.insert(endpoint, number);
        self.taken.insert(number);
    }

    fn forget_all_but(&mut self, wanted: &[SocketAddr]) {
        let wanted: HashSet<&SocketAddr> = wanted.iter().collect();
        self.endpoints.retain(|endpoint, _| wanted.contains(endpoint));
        self.taken = self.endpoints.values().copied().collect();
    }

    fn number(&mut self, endpoint: SocketAddr) -> u32 {
        let number = self.endpoints.get(&endpoint).copied().unwrap_or_else(|| {
            // Starts after the last one, so that a number is reused as late as possible.
            let free = (self.last + 1..=ENDPOINT_BITS)
                .chain(1..=self.last)
                .find(|n| !self.taken.contains(n));
            let number = free.unwrap_or(ENDPOINT_BITS);
            self.last = number;
            self.remember(endpoint, number);
            number
        });
        self.bits | number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: usize) -> SocketAddr {
        SocketAddr::from(([10, 0, (n / 256) as u8, (n % 256) as u8], 80))
    }

    fn owner(name: &str) -> Owner {
        (name.into(), Protocol::Tcp)
    }

    #[test]
    fn an_endpoint_keeps_its_number_and_no_two_share_one() {
        let mut numbers = Numbers::default();
        let web = owner("default/web");
        let first = numbers.of(&web, &[at(1), at(2), at(3)]);
        let second = numbers.of(&web, &[at(3), at(4)]);
        assert_eq!(second[0], first[2]);
        assert!(!first.contains(&second[1]));
        assert_eq!(numbers.of(&web, &[at(1)])[0], first[0]);
        assert_ne!(numbers.of(&owner("default/other"), &[at(1)])[0], first[0]);
        assert!(first.iter().all(|n| n & SCRATCH_BITS == SCRATCH && n & ENDPOINT_BITS != 0));
    }

    #[test]
    fn numbers_survive_a_restart() {
        let mut before = Numbers::default();
        let web = owner("default/web");
        let given = before.of(&web, &[at(1), at(2)]);
        let mut after = Numbers::default();
        after.restore(web.clone(), at(2), given[1]);
        after.restore(web.clone(), at(1), given[0]);
        assert_eq!(after.of(&web, &[at(2), at(1), at(3)])[..2], [given[1], given[0]]);
        assert_ne!(after.of(&owner("a"), &[at(1)])[0] & !ENDPOINT_BITS, given[0] & !ENDPOINT_BITS);
    }

    #[test]
    fn they_do_not_run_out_under_churn() {
        let mut numbers = Numbers::default();
        let web = owner("default/web");
        for round in 0..200 {
            let endpoints: Vec<_> = (round * 300..round * 300 + 400).map(at).collect();
            let given: HashSet<u32> = numbers.of(&web, &endpoints).iter().copied().collect();
            assert_eq!(given.len(), endpoints.len(), "round {round}");
        }
    }
}
