//! Which packets come from this node's own pods.

use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::model::{LocalPod, PodSet};

/// How local traffic is told apart (KEP-2450's modes, and what none of them can do).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Detector {
    /// Input interface and source address are those of a recorded pod. Exact.
    #[default]
    PodState,
    /// The packet came in through one of these bridges (KEP-2450 bridge mode). Whatever else is on the
    /// bridge counts as a pod.
    Bridge(Vec<Arc<str>>),
    /// The input interface's name begins with one of these (KEP-2450 interface prefix).
    InterfacePrefix(Vec<Arc<str>>),
    /// The source address is in one of these ranges; `None` means the Node object's `podCIDRs`. Any sender
    /// who writes such a source into a packet counts as a pod.
    NodeCidr(Option<Vec<IpNetwork>>),
}

/// Why a packet counts as local.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Local<'a> {
    /// It is this recorded pod's.
    Pod(&'a LocalPod),
    /// It came in through this bridge.
    Bridge(&'a str),
    /// Its input interface begins so.
    Prefix(&'a str),
    /// Its source lies in this range.
    Range(IpNetwork),
}

impl std::fmt::Display for Detector {
    /// As on the command line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PodState => f.write_str("pod-state"),
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
    /// The ranges that `NodeCidr` stands for.
    pub fn ranges(&self, node_cidrs: &[IpNetwork]) -> Vec<IpNetwork> {
        match self {
            Self::NodeCidr(Some(ranges)) => ranges.clone(),
            Self::NodeCidr(None) => node_cidrs.to_vec(),
            Self::PodState | Self::Bridge(_) | Self::InterfacePrefix(_) => Vec::new(),
        }
    }

    /// Whether, and why, a packet with this source that came in through this interface is local. `None` as
    /// the interface means that the node itself sends.
    pub fn local<'a>(
        &'a self,
        pods: &'a PodSet,
        node_cidrs: &[IpNetwork],
        source: IpAddr,
        interface: Option<&str>,
    ) -> Option<Local<'a>> {
        match self {
            Self::PodState => {
                let interface = interface?;
                let is = |pod: &&LocalPod| *pod.interface == *interface && pod.ips.contains(&source);
                pods.pods.iter().find(is).map(Local::Pod)
            }
            Self::Bridge(names) => {
                let interface = interface?;
                names
                    .iter()
                    .find(|name| ***name == *interface)
                    .map(|name| Local::Bridge(name))
            }
            Self::InterfacePrefix(prefixes) => {
                let interface = interface?;
                let prefix = prefixes.iter().find(|prefix| interface.starts_with(&***prefix));
                prefix.map(|prefix| Local::Prefix(prefix))
            }
            Self::NodeCidr(_) => self
                .ranges(node_cidrs)
                .into_iter()
                .find(|range| range.contains(source))
                .map(Local::Range),
        }
    }
}
