//! The flags of the pod firewall.

use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnetwork::IpNetwork;

use denizen_plan::{FirewallSettings, IfRefused, KnownPods, ToNode};
use denizen_text::duration;

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

/// `--watch-pods`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WatchPods {
    /// All pods of the cluster.
    All,
    /// In a large cluster, those of the namespaces that policies name.
    Auto,
    /// Those of the namespaces that policies name.
    Namespaces,
}

/// The flags of the pod firewall, as written.
#[derive(Debug, Clone, Args)]
pub struct FirewallArgs {
    /// Whether to enforce NetworkPolicies for this node's pods. auto: unless another engine
    /// (Calico, Cilium, kube-router, …) does so on this node
    #[arg(long, value_enum, value_name = "MODE", default_value = "auto")]
    pub network_policy: NetworkPolicyMode,

    /// Whether egress policies apply to what a pod sends to its own node
    #[arg(long, value_enum, value_name = "MODE", default_value = "enforce")]
    pub policy_to_node: PolicyToNode,

    /// Which pods of other nodes to watch for policies. namespaces: those of the namespaces that
    /// policies of this node's pods name, as long as these are few. auto: namespaces in clusters of
    /// more than 1000 nodes, else all. With namespaces or auto, every pod may send only from its
    /// own addresses
    #[arg(long, value_enum, value_name = "MODE", default_value = "all")]
    pub watch_pods: WatchPods,

    /// Ranges in which pods alone have addresses. With --watch-pods namespaces or auto, a policy
    /// with an empty namespaceSelector permits them, in place of watching all pods for it
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    pub pod_ranges: Vec<IpNetwork>,

    /// How long the pods of a namespace, or all pods, are watched after no policy needs them
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub watch_pods_linger: Duration,
}

impl FirewallArgs {
    /// The ranges that stand for every pod: none if all pods are known.
    pub(super) fn ranges_of_every_pod(&self) -> Vec<IpNetwork> {
        match self.watch_pods {
            WatchPods::All => Vec::new(),
            WatchPods::Auto | WatchPods::Namespaces => self.pod_ranges.clone(),
        }
    }

    /// The settings of the pod firewall, as if no other engine enforced policies here; `None` if it
    /// is off. `by_ipvs`: the backend is ipvs.
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
        let pods = match self.watch_pods {
            WatchPods::All => KnownPods::All,
            WatchPods::Auto | WatchPods::Namespaces => KnownPods::Some,
        };
        Some(FirewallSettings { to_node, if_refused, by_ipvs, pods })
    }
}
