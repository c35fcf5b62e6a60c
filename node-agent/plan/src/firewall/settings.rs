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

/// `--watch-pods`: which pods of the cluster are known. Fixed at the start. It also decides which
/// sources pods may use, so that this does not vary with the size of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KnownPods {
    /// All pods. An open pod may send from every address that no pod and no node has, unless it
    /// may evade a ClusterNetworkPolicy of the cluster so.
    #[default]
    All,
    /// Perhaps only the pods of some namespaces. An address without a known owner may be a pod's or
    /// a node's, so every pod may send only from its own addresses, and may not reach any tunnel.
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
