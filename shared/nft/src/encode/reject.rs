//! How a packet is refused, as the kernel's attributes of `reject`.

use denizen_netlink::Writer;

use crate::family::TableFamily;
use crate::statement::Reject;

/// Writes what the expression takes, in a table of this family.
pub(super) fn reject_data(writer: &mut Writer, family: TableFamily, reject: Reject) {
    let (kind, code) = match (reject, family) {
        (Reject::TcpReset, _) => (1, 0),
        // ICMPv6 port unreachable; ICMP port unreachable.
        (Reject::PortUnreachable, TableFamily::Ip6) => (0, 4),
        (Reject::PortUnreachable, _) => (0, 3),
    };
    writer.put_u32(1, kind);
    writer.put(2, &[code]);
}
