//! The capabilities of this process.

/// A capability of Linux, with its number (linux/capability.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// `CAP_NET_ADMIN`: rules, links and the network's settings.
    NetAdmin = 12,
    /// `CAP_NET_RAW`: raw sockets, which iptables' programs use.
    NetRaw = 13,
}

impl Capability {
    /// Whether this process has it. True if that is unknown: then an attempt will show.
    pub fn is_held(self) -> bool {
        #[expect(clippy::disallowed_methods, reason = "the kernel's word about this process")]
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let set = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        set.is_none_or(|set| set & (1 << self as u32) != 0)
    }
}
