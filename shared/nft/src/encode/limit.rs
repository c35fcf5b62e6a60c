//! How many packets pass (`struct nft_limit_priv`).

use denizen_netlink::Writer;

use super::{EXPR_DATA, EXPR_NAME};
use crate::rule::Limit;

/// A limit that each element of a set has by itself.
pub(super) fn put_limit(w: &mut Writer, limit: Limit) {
    const EXPRESSION: u16 = 7;
    let expression = w.begin(EXPRESSION);
    w.put_str(EXPR_NAME, "limit");
    let data = w.begin(EXPR_DATA);
    limit_data(w, limit);
    w.end(data);
    w.end(expression);
}

/// What the expression takes.
pub(super) fn limit_data(w: &mut Writer, limit: Limit) {
    const HOUR: u64 = 3600;
    w.put(1, &u64::from(limit.hourly).to_be_bytes());
    w.put(2, &HOUR.to_be_bytes());
    w.put_u32(3, limit.burst);
    w.put_u32(4, 0);
    w.put_u32(5, 0);
}
