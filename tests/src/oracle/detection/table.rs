//! What each mode takes for a local pod, written down by reasoning from what the mode looks at.

use crate::node::pod::Wiring;

/// A sender of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DetectedSender {
    /// A pod of this node, as it was recorded.
    Pod,
    /// Another recorded pod of this node of the same wiring, which writes that pod's address into
    /// its packets.
    Neighbour,
    /// A pod of another node.
    Remote,
    /// A host outside.
    Outside,
    /// A host outside that writes the pod's address into its packets.
    Spoofer,
    /// The node itself.
    Node,
}

/// All senders.
pub const SENDERS: [DetectedSender; 6] = [
    DetectedSender::Pod,
    DetectedSender::Neighbour,
    DetectedSender::Remote,
    DetectedSender::Outside,
    DetectedSender::Spoofer,
    DetectedSender::Node,
];

/// What a mode takes for local, for bridged and for routed pods: the pod itself, its neighbour with
/// the pod's address, and the host outside with the pod's address. No mode takes remote pods, hosts
/// outside with their own address, or the node itself for local.
#[derive(Debug)]
pub struct Row {
    /// The value of `--detect-local`.
    pub mode: &'static str,
    bridged: [bool; 3],
    routed: [bool; 3],
}

const YES: bool = true;
/// The mode misses a local pod: see the table in conf/reference/local-pods.md.
const ERRS: bool = false;
/// A deception that the mode cannot see: see the table in conf/reference/local-pods.md.
const DECEIVED: bool = true;
const NO: bool = false;

/// Every mode.
pub const MATRIX: [Row; 9] = [
    // The bridge is the input interface of every pod behind it; a veth is one pod's.
    Row { mode: "pod-state", bridged: [YES, DECEIVED, NO], routed: [YES, NO, NO] },
    // The port of the bridge is one pod's, too.
    Row { mode: "pod-state=port-exact", bridged: [YES, NO, NO], routed: [YES, NO, NO] },
    // Addresses do not matter, and routed pods are behind no bridge.
    Row { mode: "bridge=cni0", bridged: [YES, DECEIVED, NO], routed: [ERRS, NO, NO] },
    Row { mode: "bridge=br-none,cni0", bridged: [YES, DECEIVED, NO], routed: [ERRS, NO, NO] },
    Row { mode: "bridge-port", bridged: [YES, DECEIVED, NO], routed: [ERRS, NO, NO] },
    // Addresses do not matter, and a bridged pod's packets come in through the bridge, whatever its
    // veth is called.
    Row { mode: "interface-prefix=veth", bridged: [ERRS, NO, NO], routed: [YES, DECEIVED, NO] },
    Row {
        mode: "interface-prefix=veth,cni",
        bridged: [YES, DECEIVED, NO],
        routed: [YES, DECEIVED, NO],
    },
    // Interfaces do not matter: every sender with such an address counts as a pod.
    Row {
        mode: "node-cidr=10.10.0.0/16,fd00:10:10::/64",
        bridged: [YES, DECEIVED, DECEIVED],
        routed: [ERRS, NO, NO],
    },
    Row {
        mode: "node-cidr=10.10.0.0/16,fd00:10:10::/64,172.20.0.0/16,fd00:172:20::/64",
        bridged: [YES, DECEIVED, DECEIVED],
        routed: [YES, DECEIVED, DECEIVED],
    },
];

impl Row {
    /// Whether the mode takes that sender for a local pod.
    pub fn takes_for_local(&self, wiring: Wiring, sender: DetectedSender) -> bool {
        let [pod, neighbour, spoofer] = match wiring {
            Wiring::Bridged => self.bridged,
            Wiring::Routed => self.routed,
        };
        match sender {
            DetectedSender::Pod => pod,
            DetectedSender::Neighbour => neighbour,
            DetectedSender::Spoofer => spoofer,
            DetectedSender::Remote | DetectedSender::Outside | DetectedSender::Node => false,
        }
    }
}
