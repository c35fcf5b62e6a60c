//! The configuration of the pod firewall.

/// The configuration of the pod firewall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FirewallSettings {
    /// What pods may send to their own node.
    pub to_node: ToNode,
    /// What happens to new pods while RBAC forbids the agent to read policies, pods or namespaces.
    pub if_refused: IfRefused,
    /// IPVS may choose endpoints. Packets that it forwards pass the hooks input and output, not
    /// forward.
    pub by_ipvs: bool,
    /// Which pods of other nodes may be unknown.
    pub pods: KnownPods,
}

/// `--watch-pods`: which pods of the cluster are known. It is fixed at the start, and decides
/// what pods may send, so that this never depends on how large the cluster is at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KnownPods {
    /// All: nobody takes an address of one.
    #[default]
    All,
    /// Perhaps only those of some namespaces. So an address that nobody is known to have may be a
    /// pod's or a node's: every pod sends from its own addresses alone, and reaches no tunnel.
    Some,
}

/// What happens to new pods of this node while RBAC forbids the agent to read what policies need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfRefused {
    /// `--network-policy on`: they are pending.
    #[default]
    Pending,
    /// `--network-policy auto`: they are open, since the operator of an agent whose role is older
    /// than the pod firewall never requested it.
    Open,
}

/// `--policy-to-node`: whether egress policies apply to what a pod sends to its own node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToNode {
    #[default]
    Enforce,
    Allow,
}
