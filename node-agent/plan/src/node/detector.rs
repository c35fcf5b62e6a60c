//! The configured way to detect local traffic.

use std::sync::Arc;

use ipnetwork::IpNetwork;

/// How local traffic is detected (KEP-2450's modes, and more exact ones by pod records).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Detector {
    /// Input interface and source address are those of a recorded pod.
    #[default]
    PodState,
    /// As [`Self::PodState`], and a bridged pod's packet must come in through the recorded port of
    /// the bridge. On a bridge, only this mode detects a neighbour that forges a pod's address.
    PodPort,
    /// The packet came in through one of these bridges (KEP-2450 bridge mode). Everything else on
    /// the bridge counts as a pod, too.
    Bridge(Vec<Arc<str>>),
    /// The packet came in through any port of any bridge (KEP-2450's physdev, `--physdev-is-in`).
    /// Everything else on a bridge counts as a pod, too.
    BridgePort,
    /// The input interface's name begins with one of these (KEP-2450 interface prefix).
    InterfacePrefix(Vec<Arc<str>>),
    /// The source address is in one of these ranges; `None` means the Node object's `podCIDRs`. A
    /// sender that forges such a source counts as a pod.
    NodeCidr(Option<Vec<IpNetwork>>),
}

impl std::fmt::Display for Detector {
    /// As on the command line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PodState => f.write_str("pod-state"),
            Self::PodPort => f.write_str("pod-state=port-exact"),
            Self::BridgePort => f.write_str("bridge-port"),
            Self::Bridge(names) => write!(f, "bridge={}", names.join(",")),
            Self::InterfacePrefix(prefixes) => write!(f, "interface-prefix={}", prefixes.join(",")),
            Self::NodeCidr(None) => f.write_str("node-cidr"),
            Self::NodeCidr(Some(ranges)) => {
                let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
                write!(f, "node-cidr={}", ranges.join(","))
            }
        }
    }
}

impl Detector {
    /// Whether it matters through which port of a bridge a packet came in.
    pub fn knows_ports(&self) -> bool {
        match self {
            Self::PodPort | Self::BridgePort => true,
            Self::PodState | Self::Bridge(_) | Self::InterfacePrefix(_) | Self::NodeCidr(_) => {
                false
            }
        }
    }

    /// Whether a pod counts as local only after it has a record.
    pub fn goes_by_records(&self) -> bool {
        match self {
            Self::PodState | Self::PodPort => true,
            Self::Bridge(_) | Self::BridgePort | Self::InterfacePrefix(_) | Self::NodeCidr(_) => {
                false
            }
        }
    }
}
