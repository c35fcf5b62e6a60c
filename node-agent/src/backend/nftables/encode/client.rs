//! Session affinity: what is remembered of clients, as expressions.

use super::super::name::SetName;
use super::super::rule::{Budget, ENDPOINT_BITS};
use super::super::set::Part;
use super::{EXPR_DATA, EXPR_NAME, Expressions, META_PRIORITY, register};

/// `enum nft_dynset_ops`.
const UPDATE: u32 = 1;
const DELETE: u32 = 2;

impl Expressions<'_> {
    /// Remembers, in a map of clients, the endpoint whose number is in the packet's priority.
    pub(super) fn remember(&mut self, map: SetName, seconds: u32) {
        self.client(map, UPDATE, Some(seconds));
    }

    /// Forgets the client.
    pub(super) fn forget(&mut self, map: SetName) {
        self.client(map, DELETE, None);
    }

    /// Changes the client's entry: service port and client → endpoint's number.
    fn client(&mut self, map: SetName, operation: u32, seconds: Option<u32>) {
        let family = map.family(self.table_family);
        let words = map.shape().key_len(family) / 4;
        // Behind the key. nft's own choice for an IPv6 key lies within it.
        let data = words.next_multiple_of(4);
        self.service_port();
        self.address(family, Part::Source, 1);
        self.meta(META_PRIORITY, data);
        self.expression("dynset", |w| {
            w.put_str(1, map.as_str());
            w.put_u32(3, operation);
            w.put_u32(4, register(0));
            w.put_u32(5, register(data));
            if let Some(seconds) = seconds {
                w.put(6, &milliseconds(seconds));
            }
        });
    }

    /// Goes on while the service port's budget lasts (`struct nft_limit_priv`, one for each
    /// element).
    pub(super) fn spend(&mut self, budget: Budget) {
        const EXPRESSION: u16 = 7;
        const HOUR: u64 = 3600;
        self.service_port();
        self.expression("dynset", |w| {
            w.put_str(1, SetName::AffinityBudget.as_str());
            w.put_u32(3, UPDATE);
            w.put_u32(4, register(0));
            w.put(6, &milliseconds(budget.seconds));
            let limit = w.begin(EXPRESSION);
            w.put_str(EXPR_NAME, "limit");
            let data = w.begin(EXPR_DATA);
            w.put(1, &u64::from(budget.hourly).to_be_bytes());
            w.put(2, &HOUR.to_be_bytes());
            w.put_u32(3, budget.burst);
            w.put_u32(4, 0);
            w.put_u32(5, 0);
            w.end(data);
            w.end(limit);
        });
    }

    fn service_port(&mut self) {
        self.meta(META_PRIORITY, 0);
        self.bits(!ENDPOINT_BITS, 0);
    }
}

fn milliseconds(seconds: u32) -> [u8; 8] {
    (u64::from(seconds) * 1000).to_be_bytes()
}
