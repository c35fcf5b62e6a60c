//! The numbers that session affinity remembers endpoints by.
//!
//! The kernel remembers, for each client of a service port, one 32-bit number: two bits that mark
//! it as ours, sixteen for the service port, fourteen for the endpoint. An endpoint keeps its
//! number for as long as it is known, and across restarts, whatever slot it is in. A service port
//! keeps its number as long as it has a frontend, and a while longer.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
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
    /// How many frontends have it.
    frontends: usize,
}

/// All numbers of one family.
#[derive(Debug, Default)]
pub struct Numbers {
    ports: HashMap<Owner, PortNumbers>,
    /// The bits of the service ports.
    taken: HashSet<u32>,
    last: u32,
    /// Service ports without a frontend, the first to be forgotten first.
    released: VecDeque<Owner>,
}

impl Numbers {
    /// Takes over a number from an earlier run, unless another service port has it.
    pub fn restore(&mut self, owner: Owner, endpoint: SocketAddr, number: u32) {
        if number & SCRATCH_BITS != SCRATCH || number & ENDPOINT_BITS == 0 {
            return;
        }
        let bits = number & !ENDPOINT_BITS;
        let port = match self.ports.entry(owner) {
            Entry::Occupied(known) if known.get().bits == bits => known.into_mut(),
            Entry::Vacant(new) if self.taken.insert(bits) => {
                new.insert(PortNumbers { bits, ..PortNumbers::default() })
            }
            Entry::Occupied(_) | Entry::Vacant(_) => return,
        };
        port.last = port.last.max(number & ENDPOINT_BITS);
        port.remember(endpoint, number & ENDPOINT_BITS);
        self.last = self.last.max((bits & !SCRATCH_BITS) / (ENDPOINT_BITS + 1));
    }

    /// The numbers of a service port's endpoints (at most [`MOST_NUMBERS`]), in the same order; no
    /// two are the same.
    pub fn of(&mut self, owner: &Owner, endpoints: &[SocketAddr]) -> Box<[u32]> {
        if !self.ports.contains_key(owner) {
            let bits = self.free_bits();
            self.taken.insert(bits);
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

    /// Notes that one more frontend has these numbers.
    pub fn hold(&mut self, owner: &Owner) {
        if let Some(port) = self.ports.get_mut(owner) {
            port.frontends += 1;
        }
    }

    /// Notes that one frontend fewer has these numbers.
    pub fn release(&mut self, owner: Owner) {
        let Some(port) = self.ports.get_mut(&owner) else { return };
        port.frontends -= 1;
        if port.frontends > 0 {
            return;
        }
        self.released.push_back(owner);
        if self.released.len() > MOST_RELEASED
            && let Some(oldest) = self.released.pop_front()
            && self.ports.get(&oldest).is_some_and(|port| port.frontends == 0)
            && let Some(port) = self.ports.remove(&oldest)
        {
            self.taken.remove(&port.bits);
        }
    }

    /// The bits of a new service port.
    fn free_bits(&mut self) -> u32 {
        if self.taken.len() >= PORTS as usize {
            // Also those of an earlier run's service ports that do not exist any more.
            self.ports.retain(|_, port| port.frontends > 0);
            self.taken = self.ports.values().map(|port| port.bits).collect();
        }
        // Starts after the last one, so that a number is reused as late as possible.
        let mut all = (self.last + 1..=PORTS).chain(1..=self.last);
        let is_free = |n: &u32| !self.taken.contains(&bits(*n));
        self.last = all.find(is_free).unwrap_or(self.last % PORTS + 1);
        bits(self.last)
    }
}

/// A service port's number at its place.
fn bits(port: u32) -> u32 {
    SCRATCH | (port * (ENDPOINT_BITS + 1))
}

/// The most service ports with a number of their own. If there are more, some share a number, and
/// so the memory of clients.
const PORTS: u32 = (1 << 16) - 1;

/// How many service ports without a frontend keep their numbers. The clients of a service port
/// whose frontends are replaced, by those of another port number, keep their endpoints.
const MOST_RELEASED: usize = 256;

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
    fn no_service_port_takes_the_number_of_another() {
        let mut numbers = Numbers::default();
        let held = |numbers: &mut Numbers, name: &str| {
            let number = numbers.of(&owner(name), &[at(1)])[0];
            numbers.hold(&owner(name));
            number
        };
        let living = held(&mut numbers, "living");
        for n in 0..PORTS + 10 {
            assert_ne!(held(&mut numbers, &n.to_string()), living, "{n}");
            numbers.release(owner(&n.to_string()));
        }
        assert!(numbers.ports.len() <= MOST_RELEASED + 1, "{}", numbers.ports.len());
        assert_eq!(held(&mut numbers, "living"), living);
        let last = held(&mut numbers, "moves");
        numbers.release(owner("moves"));
        assert_eq!(held(&mut numbers, "moves"), last, "its frontends were replaced");
    }

    #[test]
    fn a_number_that_two_had_in_an_earlier_run_is_restored_to_one() {
        let given = Numbers::default().of(&owner("a"), &[at(1), at(2)]);
        let mut numbers = Numbers::default();
        numbers.restore(owner("a"), at(1), given[0]);
        numbers.restore(owner("b"), at(2), given[1]);
        assert_eq!(numbers.of(&owner("a"), &[at(1)])[0], given[0]);
        assert_ne!(
            numbers.of(&owner("b"), &[at(2)])[0] & !ENDPOINT_BITS,
            given[0] & !ENDPOINT_BITS
        );
    }

    #[test]
    fn service_ports_of_an_earlier_run_take_no_numbers_for_ever() {
        let mut numbers = Numbers::default();
        for n in 1..=PORTS {
            numbers.restore(owner(&n.to_string()), at(1), bits(n) | 1);
        }
        let living = numbers.of(&owner("7"), &[at(1)])[0];
        numbers.hold(&owner("7"));
        assert_eq!(living, bits(7) | 1);
        assert_ne!(numbers.of(&owner("new"), &[at(1)])[0], living);
        assert_eq!(numbers.ports.len(), 2);
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
