//! How many packets pass (`struct nft_limit_priv`).

use denizen_netlink::Writer;

use crate::statement::Limit;

/// What the expression takes.
pub(super) fn limit_data(w: &mut Writer, limit: Limit) {
    const HOUR: u64 = 3600;
    w.put(1, &u64::from(limit.hourly).to_be_bytes());
    w.put(2, &HOUR.to_be_bytes());
    w.put_u32(3, limit.burst);
    w.put_u32(4, 0);
    w.put_u32(5, 0);
}
