//! Which service proxy a chain of iptables belongs to.

use denizen_iptables::Table;

/// kube-proxy's chain by which it notices that somebody flushed the table.
pub const CANARY: &str = "KUBE-PROXY-CANARY";

/// A service proxy whose chains are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Denizen. The chains that it took over from kube-proxy are its own.
    Denizen,
    /// kube-proxy, its canaries included.
    KubeProxy,
}

impl Owner {
    /// The owner of a service proxy's chain. `services` owns the chains of services: both proxies
    /// give them the same names, and only a rule's comment shows whose they are. The chains for
    /// egress masquerade, in the table security, are always denizen's.
    pub fn of(table: &str, chain: &str, services: Self) -> Self {
        match chain == CANARY {
            true => Self::KubeProxy,
            false if table == Table::Security.as_str() => Self::Denizen,
            false => services,
        }
    }

    /// Denizen if `is_ours`, else kube-proxy.
    pub fn ours_if(is_ours: bool) -> Self {
        if is_ours { Self::Denizen } else { Self::KubeProxy }
    }
}
