//! What the plugin changes of the pod firewall's tables, when no agent does.

/// The name of the firewall's tables, one in each IP family.
pub const TABLE: &str = "denizen-firewall";

/// The set, in each of the tables, of the source addresses of pods about which nothing is decided
/// yet. Packets from and to them are dropped.
pub const PENDING: &str = "pending";
