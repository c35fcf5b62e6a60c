//! Limits the number of connections, and decides which one ends if there are more.
//!
//! A new connection is always accepted: a client with a request sends it at once and gets an answer
//! within a millisecond. A connection without a request ends first.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot::{self, error::TryRecvError};

/// The most connections at a time. Each holds a file descriptor and a buffer of at most 16 KiB.
const CONNECTIONS: usize = 128;
/// The most connections of one client address at a time.
const OF_ONE_CLIENT: usize = 16;

/// The open connections. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Slots(Arc<Mutex<HeldConnections>>);

/// The open connections, oldest first.
#[derive(Debug, Default)]
struct HeldConnections {
    next: u64,
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    number: u64,
    client: IpAddr,
    has_requested: Arc<AtomicBool>,
    /// Dropped when the connection must end.
    _evict: oneshot::Sender<Infallible>,
}

/// The slot of one connection, which is free again when this value is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Slots,
    number: u64,
    has_requested: Arc<AtomicBool>,
    evicted: oneshot::Receiver<Infallible>,
}

impl Slots {
    /// A slot for a connection of `client`. If none is free, another connection ends: one of this
    /// client if it has used up its share, else one of the client that has the most. The oldest one
    /// without a request ends first.
    pub(super) fn take(&self, client: IpAddr) -> Slot {
        let (evict, evicted) = oneshot::channel();
        let has_requested = Arc::new(AtomicBool::new(false));
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.make_room(client);
        let number = table.next;
        table.next += 1;
        table.held.push(Held {
            number,
            client,
            has_requested: has_requested.clone(),
            _evict: evict,
        });
        Slot { slots: self.clone(), number, has_requested, evicted }
    }
}

impl HeldConnections {
    fn make_room(&mut self, client: IpAddr) {
        let of_client = self.held.iter().filter(|held| held.client == client).count();
        let victim = if of_client >= OF_ONE_CLIENT {
            self.victim(|candidate| candidate == client)
        } else if self.held.len() >= CONNECTIONS {
            let mut counts: HashMap<IpAddr, usize> = HashMap::new();
            for held in &self.held {
                *counts.entry(held.client).or_default() += 1;
            }
            let most = counts.values().max().copied();
            self.victim(|candidate| counts.get(&candidate).copied() == most)
        } else {
            None
        };
        if let Some(victim) = victim {
            self.held.remove(victim);
        }
    }

    /// The index of the connection that must end, among those of the candidates.
    fn victim(&self, is_candidate: impl Fn(IpAddr) -> bool) -> Option<usize> {
        let candidate = |held: &Held| is_candidate(held.client);
        let idle = |held: &Held| candidate(held) && !held.has_requested.load(Ordering::Relaxed);
        let oldest_idle = self.held.iter().position(idle);
        oldest_idle.or_else(|| self.held.iter().position(candidate))
    }
}

impl Slot {
    /// A flag for the connection to set when it has received a whole request.
    pub(super) fn has_requested(&self) -> Arc<AtomicBool> {
        self.has_requested.clone()
    }

    /// Whether the connection must end.
    pub(super) fn is_evicted(&mut self) -> bool {
        self.evicted.try_recv() == Err(TryRecvError::Closed)
    }

    /// Waits until the connection must end.
    pub(super) async fn evicted(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.held.retain(|held| held.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    /// The indices of the connections that must end.
    fn evicted(slots: &mut [Slot]) -> Vec<usize> {
        let numbered = slots.iter_mut().enumerate();
        numbered.filter_map(|(number, slot)| slot.is_evicted().then_some(number)).collect()
    }

    #[test]
    fn a_client_over_its_share_loses_its_oldest_connection_without_a_request() {
        let slots = Slots::default();
        let mut others = slots.take(client(2));
        let mut held: Vec<_> = (0..OF_ONE_CLIENT).map(|_| slots.take(client(1))).collect();
        held[0].has_requested.store(true, Ordering::Relaxed);
        held.push(slots.take(client(1)));
        assert_eq!(evicted(&mut held), [1]);
        held.push(slots.take(client(1)));
        assert_eq!(evicted(&mut held), [1, 2]);
        for slot in &held {
            slot.has_requested.store(true, Ordering::Relaxed);
        }
        held.push(slots.take(client(1)));
        assert_eq!(evicted(&mut held), [0, 1, 2], "all have asked: the oldest");
        assert!(!others.is_evicted());
    }

    #[test]
    fn if_all_slots_are_taken_the_client_with_the_most_loses_one() {
        let slots = Slots::default();
        let mut few = slots.take(client(0));
        let clients = (1..).flat_map(|number| [number; 3]).map(client);
        let mut held: Vec<_> =
            clients.take(CONNECTIONS - 1).map(|client| slots.take(client)).collect();
        assert!(evicted(&mut held).is_empty());
        let mut newest = slots.take(client(200));
        assert_eq!(evicted(&mut held), [0]);
        assert!(!few.is_evicted() && !newest.is_evicted());
        // A slot is free again once its connection has ended.
        drop(held.remove(1));
        held.push(slots.take(client(201)));
        assert_eq!(evicted(&mut held), [0], "no other");
    }

    #[test]
    fn many_clients_with_one_connection_each_do_not_block_others() {
        let slots = Slots::default();
        let mut held: Vec<_> =
            (0..=255).map(|number| slots.take([10, 1, 0, number].into())).collect();
        let expected: Vec<_> = (0..256 - CONNECTIONS).collect();
        assert_eq!(evicted(&mut held), expected, "the oldest");
    }
}
