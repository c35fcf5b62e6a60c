//! Which packets come from this node's own pods.

use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::model::{LocalPod, PodSet};

/// How local traffic is told apart (KEP-2450's modes, and what none of them can do).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Detector {
    /// Input interface and source address are those of a recorded pod.
    #[default]
    PodState,
    /// As [`Self::PodState`]; and a bridged pod's packet must have come in through the recorded
    /// port of the bridge. On a bridge, only this tells a pod from its neighbour that writes its
    /// address into a packet.
    PodPort,
    /// The packet came in through one of these bridges (KEP-2450 bridge mode). Whatever else is on
    /// the bridge counts as a pod.
    Bridge(Vec<Arc<str>>),
    /// The packet came in through any port of any bridge (KEP-2450's physdev, `--physdev-is-in`).
    /// Whatever else is on a bridge counts as a pod.
    BridgePort,
    /// The input interface's name begins with one of these (KEP-2450 interface prefix).
    InterfacePrefix(Vec<Arc<str>>),
    /// The source address is in one of these ranges; `None` means the Node object's `podCIDRs`. Any
    /// sender who writes such a source into a packet counts as a pod.
    NodeCidr(Option<Vec<IpNetwork>>),
}

/// Where a packet came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// The input interface that the IP stack sees: a bridge, or a VLAN's device on it, for what
    /// came in through a port of one.
    pub interface: &'a str,
    /// What it came in through before that.
    pub port: Port<'a>,
}

/// The port of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port<'a> {
    /// There is no bridge.
    None,
    /// One of a bridge's, and it is not said which.
    Unnamed,
    /// This one.
    Named(&'a str),
}

/// Why a packet counts as local.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Local<'a> {
    /// It is this recorded pod's.
    Pod(&'a LocalPod),
    /// It came in through a port of a bridge.
    Port,
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
    /// Whether it tells the ports of a bridge apart, or a bridge's port from other interfaces.
    pub fn knows_ports(&self) -> bool {
        match self {
            Self::PodPort | Self::BridgePort => true,
            Self::PodState | Self::Bridge(_) | Self::InterfacePrefix(_) | Self::NodeCidr(_) => {
                false
            }
        }
    }

    /// Whether a pod is local by its record, and not before there is one.
    pub fn goes_by_records(&self) -> bool {
        match self {
            Self::PodState | Self::PodPort => true,
            Self::Bridge(_) | Self::BridgePort | Self::InterfacePrefix(_) | Self::NodeCidr(_) => {
                false
            }
        }
    }

    /// The ranges that `NodeCidr` stands for.
    pub fn ranges(&self, node_cidrs: &[IpNetwork]) -> Vec<IpNetwork> {
        match self {
            Self::NodeCidr(Some(ranges)) => ranges.clone(),
            Self::NodeCidr(None) => node_cidrs.to_vec(),
            Self::PodState
            | Self::PodPort
            | Self::Bridge(_)
            | Self::BridgePort
            | Self::InterfacePrefix(_) => Vec::new(),
        }
    }

    /// Whether, and why, a packet with this source that came in there is local. `None` means that
    /// the node itself sends.
    pub fn local<'a>(
        &'a self,
        pods: &'a PodSet,
        node_cidrs: &[IpNetwork],
        source: IpAddr,
        arrival: Option<Arrival<'_>>,
    ) -> Option<Local<'a>> {
        match self {
            Self::NodeCidr(_) => {
                let mut ranges = self.ranges(node_cidrs).into_iter();
                ranges.find(|range| range.contains(source)).map(Local::Range)
            }
            Self::PodState => pod(pods, source, arrival?, |_, _| true),
            Self::PodPort => pod(pods, source, arrival?, is_port),
            Self::Bridge(names) => {
                let interface = arrival?.interface;
                let name = names.iter().find(|name| ***name == *interface);
                name.map(|name| Local::Bridge(name))
            }
            Self::BridgePort => match arrival?.port {
                Port::None => None,
                Port::Unnamed | Port::Named(_) => Some(Local::Port),
            },
            Self::InterfacePrefix(prefixes) => {
                let interface = arrival?.interface;
                let prefix = prefixes.iter().find(|prefix| interface.starts_with(&***prefix));
                prefix.map(|prefix| Local::Prefix(prefix))
            }
        }
    }
}

/// The recorded pod that sends so, if its port is the one that it should be.
fn pod<'a>(
    pods: &'a PodSet,
    source: IpAddr,
    arrival: Arrival<'_>,
    is_port: impl Fn(&LocalPod, Port<'_>) -> bool,
) -> Option<Local<'a>> {
    let is = |pod: &&LocalPod| {
        *pod.interface == *arrival.interface
            && pod.ips.contains(&source)
            && is_port(pod, arrival.port)
    };
    pods.pods.iter().find(is).map(Local::Pod)
}

fn is_port(pod: &LocalPod, port: Port<'_>) -> bool {
    match (pod.port.as_deref(), port) {
        (None, _) | (Some(_), Port::Unnamed) => true,
        (Some(own), Port::Named(named)) => own == named,
        (Some(_), Port::None) => false,
    }
}
