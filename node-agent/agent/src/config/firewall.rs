//! The flags of the pod firewall.

use clap::{Args, ValueEnum};

use denizen_plan::{FirewallSettings, IfRefused, ToNode};

/// `--network-policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetworkPolicyMode {
    /// Enforce them, unless another engine does on this node.
    Auto,
    /// Enforce them.
    On,
    /// Leave them to another engine.
    Off,
}

/// `--policy-to-node`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyToNode {
    /// Egress policies apply.
    Enforce,
    /// Everything passes.
    Allow,
}

/// The flags of the pod firewall, as written.
#[derive(Debug, Clone, Copy, Args)]
pub struct FirewallArgs {
    /// Whether to enforce NetworkPolicies for this node's pods. auto: unless another engine
    /// (Calico, Cilium, kube-router, …) does so on this node
    #[arg(long, value_enum, value_name = "MODE", default_value = "auto")]
    pub network_policy: NetworkPolicyMode,

    /// Whether egress policies apply to what a pod sends to its own node
    #[arg(long, value_enum, value_name = "MODE", default_value = "enforce")]
    pub policy_to_node: PolicyToNode,
}

impl FirewallArgs {
    /// What was asked for, where no other engine is in the way. `by_ipvs`: the backend is ipvs.
    pub fn settings(&self, by_ipvs: bool) -> Option<FirewallSettings> {
        let to_node = match self.policy_to_node {
            PolicyToNode::Enforce => ToNode::Enforce,
            PolicyToNode::Allow => ToNode::Allow,
        };
        let if_refused = match self.network_policy {
            NetworkPolicyMode::Auto => IfRefused::Open,
            NetworkPolicyMode::On => IfRefused::Pending,
            NetworkPolicyMode::Off => return None,
        };
        Some(FirewallSettings { to_node, if_refused, by_ipvs, pods: KnownPods::All })
    }
}
