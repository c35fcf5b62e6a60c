//! Which endpoint the kernel's hashing schedulers choose (`net/netfilter/ipvs/ip_vs_mh.c`,
//! `ip_vs_sh.c`, `ip_vs_dh.c`). Their hashes have constant keys, so the choice follows from the
//! order of the real servers.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use super::scheduler::{Method, Scheduler};

/// The rows of `mh`'s table, with the kernel's usual `CONFIG_IP_VS_MH_TAB_INDEX`, 12.
const MH_ROWS: usize = 4093;
/// The rows of `sh`'s table, with the kernel's usual `CONFIG_IP_VS_SH_TAB_BITS`, 8, and of `dh`'s.
const SH_ROWS: usize = 256;

/// `mh`'s keys: for rows, and for the distance to an endpoint's next row.
const MH_KEYS: [u64; 2] = [2_654_435_761, 2_654_446_892];

/// `GOLDEN_RATIO_32` (linux/hash.h).
const GOLDEN_RATIO: u32 = 0x61C8_8647;

/// A real server and its weight. Slices of these have the kernel's order.
pub type Listed = (SocketAddr, u32);

/// Which endpoint a client gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hashed {
    To(SocketAddr),
    /// None: the client is refused.
    Nobody,
    /// It depends on the client's port, which is not given.
    ByPort,
}

/// A virtual server's table.
#[derive(Debug)]
pub struct HashTable<'a> {
    scheduler: Scheduler,
    reals: &'a [Listed],
    /// For each row, an index into `reals`.
    rows: Vec<usize>,
}

impl<'a> HashTable<'a> {
    /// The kernel's table for these real servers; `None` for methods that do not hash, and for
    /// weights that denizen never sets (it sets 1, and 0 only after 1).
    pub fn new(scheduler: Scheduler, reals: &'a [Listed]) -> Option<Self> {
        if reals.is_empty() || reals.iter().any(|(_, weight)| *weight > 1) {
            return None;
        }
        let rows = match scheduler.method {
            Method::Mh => mh_rows(reals),
            Method::Sh | Method::Dh => (0..SH_ROWS).map(|row| row % reals.len()).collect(),
            Method::Rr
            | Method::Wrr
            | Method::Lc
            | Method::Wlc
            | Method::Lblc
            | Method::Lblcr
            | Method::Sed
            | Method::Nq
            | Method::Fo
            | Method::Twos => return None,
        };
        Some(Self { scheduler, reals, rows })
    }

    /// Which endpoint this client gets; with [`Method::Dh`], which one all clients of the virtual
    /// server with this address get.
    pub fn choose(&self, client: IpAddr, port: Option<NonZeroU16>) -> Hashed {
        let port = match (self.scheduler.hashes_port, port) {
            (false, _) => 0,
            (true, Some(port)) => port.get(),
            (true, None) => return Hashed::ByPort,
        };
        let client = folded(client).wrapping_add(port.into());
        let first = self.row(client, 0);
        if let Some(endpoint) = self.available(first) {
            return Hashed::To(endpoint);
        }
        if !self.scheduler.fallback {
            return Hashed::Nobody;
        }
        let size = self.rows.len();
        let others = (0..size).map(|step| self.row(client, (step + first) % size));
        let found = others.into_iter().find_map(|row| self.available(row));
        found.map_or(Hashed::Nobody, Hashed::To)
    }

    fn row(&self, client: u32, offset: usize) -> usize {
        let (size, offset) = (self.rows.len(), offset as u32);
        if self.scheduler.method == Method::Mh {
            mh_hash(client.wrapping_add(offset), MH_KEYS[0]) as usize % size
        } else {
            let hash = client.wrapping_mul(GOLDEN_RATIO) >> (u32::BITS - SH_ROWS.ilog2());
            hash.wrapping_add(offset) as usize % size
        }
    }

    fn available(&self, row: usize) -> Option<SocketAddr> {
        let (at, weight) = self.reals[self.rows[row]];
        (weight > 0).then_some(at)
    }
}

/// Endpoints take turns, in their order: each takes the next free row of its own sequence. An
/// endpoint with weight 0 keeps the turns of its last weight.
fn mh_rows(reals: &[Listed]) -> Vec<usize> {
    let start = |(at, _): &Listed| {
        let at = folded(at.ip()).wrapping_add(at.port().into());
        let place = mh_hash(at, MH_KEYS[0]) as usize % MH_ROWS;
        (place, mh_hash(at, MH_KEYS[1]) as usize % (MH_ROWS - 1) + 1)
    };
    let mut sequences: Vec<(usize, usize)> = reals.iter().map(start).collect();
    let mut rows = vec![None; MH_ROWS];
    for turn in 0..MH_ROWS {
        let whose = turn % reals.len();
        let (place, skip) = &mut sequences[whose];
        while rows[*place].is_some() {
            *place = (*place + *skip) % MH_ROWS;
        }
        rows[*place] = Some(whose);
    }
    rows.into_iter().flatten().collect()
}

/// An address as one number.
fn folded(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => {
            let bits = u128::from(ip);
            (0..4).fold(0, |folded, word| folded ^ (bits >> (32 * word)) as u32)
        }
    }
}

/// `hsiphash` of a number on a 64-bit kernel: SipHash-1-3, with both halves of the key alike.
fn mh_hash(number: u32, key: u64) -> u32 {
    let initial = [
        0x736f_6d65_7073_6575_u64,
        0x646f_7261_6e64_6f6d,
        0x6c79_6765_6e65_7261,
        0x7465_6462_7974_6573,
    ];
    let mut state = initial.map(|word| word ^ key);
    // SipHash puts the message's length above its last bytes.
    let block = (4 << 56) | u64::from(number);
    state[3] ^= block;
    state = mixed(state);
    state[0] ^= block;
    state[2] ^= 0xff;
    let [a, b, c, d] = mixed(mixed(mixed(state)));
    (a ^ b ^ c ^ d) as u32
}

/// One round of SipHash.
fn mixed([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher};

    use super::*;
    use denizen_fixture::ip;

    fn reals(weights: &[u32]) -> Vec<Listed> {
        let real = |(weight, last): (&u32, u16)| (([10, 1, 2, last as u8], 8080).into(), *weight);
        weights.iter().zip(1..).map(real).collect()
    }

    fn clients() -> impl Iterator<Item = (IpAddr, Option<NonZeroU16>)> {
        let ports = (1024..=u16::MAX).step_by(7).map(NonZeroU16::new);
        (0..10_000_u32).zip(ports.cycle()).map(|(n, port)| (IpAddr::V4((n * 13).into()), port))
    }

    /// Rust's own hasher is SipHash-1-3 with the key 0.
    #[test]
    fn the_hash_is_siphash() {
        for number in [0_u32, 1, 0x0a60_000a, u32::MAX] {
            let mut hasher = DefaultHasher::new();
            hasher.write(&number.to_le_bytes());
            assert_eq!(mh_hash(number, 0), hasher.finish() as u32, "{number}");
        }
    }

    #[test]
    fn a_client_gets_nobody_only_where_nothing_falls_back() {
        for method in [Method::Mh, Method::Sh] {
            let all = reals(&[1, 1, 0, 1]);
            let table = |fallback| {
                let scheduler = Scheduler { method, fallback, hashes_port: true };
                HashTable::new(scheduler, &all).expect("it hashes")
            };
            let (with, without) = (table(true), table(false));
            let mut refused = 0;
            for (client, port) in clients() {
                assert_eq!(with.choose(client, None), Hashed::ByPort);
                let Hashed::To(at) = with.choose(client, port) else {
                    panic!("{client} is refused")
                };
                assert_ne!(at, all[2].0, "it drains");
                match without.choose(client, port) {
                    Hashed::Nobody => refused += 1,
                    Hashed::To(same) => assert_eq!(same, at),
                    Hashed::ByPort => panic!("{client} has a port"),
                }
            }
            assert!((2000..3000).contains(&refused), "{method}: {refused} of 10,000");
        }
    }

    /// `dh` hashes the service's address, not the client's. It has no fallback.
    #[test]
    fn a_services_address_is_hashed_to_all_endpoints_alike() {
        let all = reals(&[1, 1, 0, 1]);
        let table = HashTable::new(Scheduler::new(Method::Dh), &all).expect("it hashes");
        let of = |place: usize| {
            let is = |(service, _): &(IpAddr, _)| match table.choose(*service, None) {
                Hashed::To(at) => at == all[place].0,
                Hashed::Nobody => place == 2,
                Hashed::ByPort => false,
            };
            clients().filter(is).count()
        };
        let counts = [0, 1, 2, 3].map(of);
        assert_eq!(counts.iter().sum::<usize>(), 10_000);
        assert!(counts.iter().all(|count| (2000..3000).contains(count)), "{counts:?}");
    }

    #[test]
    fn others_choices_are_not_known() {
        let all = reals(&[1, 1]);
        assert!(HashTable::new(Scheduler::new(Method::Rr), &all).is_none());
        assert!(HashTable::new(Scheduler::new(Method::Mh), &reals(&[1, 2])).is_none());
        assert!(HashTable::new(Scheduler::new(Method::Mh), &[]).is_none());
    }

    /// Of IPv6 addresses, all four words count.
    #[test]
    fn addresses_are_folded() {
        assert_eq!(folded(ip("10.0.0.1")), 0x0a00_0001);
        assert_eq!(
            folded(ip("1:2:3:4:5:6:7:8")),
            0x0001_0002 ^ 0x0003_0004 ^ 0x0005_0006 ^ 0x0007_0008
        );
    }

    /// If a node learned of the endpoints in another order, `mh` sends few clients to another
    /// endpoint, but `sh` sends all clients to another one if the order is reversed.
    #[test]
    fn the_order_matters_little() {
        let mut orders = [reals(&[1; 4]), reals(&[1; 4])];
        orders[1].reverse();
        let agreement = |method| {
            let scheduler = Scheduler { hashes_port: true, ..Scheduler::new(method) };
            let [one, other] =
                orders.each_ref().map(|order| HashTable::new(scheduler, order).expect("it hashes"));
            let same = |(client, port): &(IpAddr, _)| {
                one.choose(*client, *port) == other.choose(*client, *port)
            };
            clients().filter(same).count()
        };
        let (mh, sh) = (agreement(Method::Mh), agreement(Method::Sh));
        assert_eq!((mh, sh), (9971, 0), "of 10,000");
    }
}
