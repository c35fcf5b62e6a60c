//! Why a prefix is not announced: a closed list.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::super::pod_ranges::{SHORTEST_V4, SHORTEST_V6};

/// Why a prefix is not announced. Of several owners' reasons, the first one here counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhyNot {
    /// Whatever the configuration: the fabric would send somebody else's packets here.
    Forbidden(Forbidden),
    /// No configured range contains it. Anybody who may write a Service can ask for any address.
    OutsideRanges,
    /// There are as many announcements as are permitted.
    OverLimit(usize),
    /// The backend could not program the rules of its ports.
    RulesRefused,
    /// The kernel would not deliver its packets to the pod.
    NotDeliveredHere,
    /// Load balancers are not to use this node.
    NodeExcluded(Excluded),
    /// The node drains, and other nodes serve it.
    Draining,
    /// Policy Local, and nobody here is ready.
    NoReadyLocalEndpoint,
    /// Nobody anywhere is ready.
    NoEndpoint,
    /// Other Services have all its ports.
    AnotherService,
    /// The Service's label `denizen.io/announce` is `false`.
    OptedOut,
    /// The load balancer's `ipMode` is `Proxy`: it sends nothing to this address.
    IpModeProxy,
    /// Nobody has asked for addresses of this kind.
    NotChosen,
}

/// Why load balancers are not to use a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Excluded {
    /// Its label says so.
    Label,
    /// Its condition `NetworkUnavailable` is true.
    NetworkUnavailable,
    Deleted,
}

/// Whose packets would come here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forbidden {
    /// Nobody's: addresses that are not routed.
    Special,
    /// Those of more addresses than a node can have pods.
    TooLarge,
    /// A node's.
    NodeAddress {
        address: IpAddr,
        /// The node's name.
        node: Arc<str>,
    },
    /// The API server's.
    ApiServer(IpAddr),
    /// Those of a neighbour through whom this node's routes lead.
    Gateway(IpAddr),
    /// Those of a router with whom this node speaks BGP.
    Peer(IpAddr),
    /// Pods' of this node, or of another one.
    PodRange {
        /// The podCIDR.
        range: IpNetwork,
        /// The node's name.
        node: Arc<str>,
    },
}

impl WhyNot {
    /// Its name, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Forbidden(Forbidden::NodeAddress { .. }) => "node-address",
            Self::Forbidden(_) => "forbidden",
            Self::OutsideRanges => "outside-ranges",
            Self::OverLimit(_) => "over-limit",
            Self::RulesRefused => "rules-refused",
            Self::NotDeliveredHere => "not-delivered-here",
            Self::NodeExcluded(_) => "node-excluded",
            Self::Draining => "draining",
            Self::NoReadyLocalEndpoint => "no-ready-local-endpoint",
            Self::NoEndpoint => "no-endpoint",
            Self::AnotherService => "another-service",
            Self::OptedOut => "opted-out",
            Self::IpModeProxy => "ip-mode-proxy",
            Self::NotChosen => "not-chosen",
        }
    }

    /// Whether somebody asks for what they do not get: an operator or an owner must act.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Forbidden(_)
            | Self::OutsideRanges
            | Self::OverLimit(_)
            | Self::RulesRefused
            | Self::NotDeliveredHere => true,
            Self::NodeExcluded(_)
            | Self::Draining
            | Self::NoReadyLocalEndpoint
            | Self::NoEndpoint
            | Self::AnotherService
            | Self::OptedOut
            | Self::IpModeProxy
            | Self::NotChosen => false,
        }
    }
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(forbidden) => forbidden.fmt(f),
            Self::OutsideRanges => write!(f, "--announce-ranges does not contain it"),
            Self::OverLimit(most) => write!(f, "there are more than {most} announcements"),
            Self::RulesRefused => write!(f, "the rules of its ports could not be programmed"),
            Self::NotDeliveredHere => {
                write!(f, "the kernel has no route for it that leads to the pod")
            }
            Self::NodeExcluded(Excluded::Label) => write!(
                f,
                "the Node's label node.kubernetes.io/exclude-from-external-load-balancers forbids it"
            ),
            Self::NodeExcluded(Excluded::NetworkUnavailable) => {
                write!(f, "the Node's condition NetworkUnavailable is true")
            }
            Self::NodeExcluded(Excluded::Deleted) => write!(f, "the Node was deleted"),
            Self::Draining => write!(f, "this node drains, and others serve it"),
            Self::NoReadyLocalEndpoint => {
                write!(f, "its policy is Local, and no endpoint on this node is ready")
            }
            Self::NoEndpoint => write!(f, "no endpoint is ready"),
            Self::AnotherService => write!(f, "another Service has its ports"),
            Self::OptedOut => write!(f, "the Service's label denizen.io/announce is false"),
            Self::IpModeProxy => {
                write!(
                    f,
                    "its ipMode is not VIP: the load balancer has it, and sends nothing to it here"
                )
            }
            Self::NotChosen => write!(f, "--announce-services or --announce-pods leaves it out"),
        }
    }
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Special => write!(f, "these addresses are not routed"),
            Self::TooLarge => {
                write!(f, "it is too large (shorter than /{SHORTEST_V4} or /{SHORTEST_V6})")
            }
            Self::NodeAddress { address, node } => {
                write!(f, "{address} is an address of node {node}")
            }
            Self::ApiServer(address) => write!(f, "{address} is the API server's address"),
            Self::Gateway(address) => write!(f, "{address} is a gateway of this node"),
            Self::Peer(address) => write!(f, "{address} is a BGP peer of this node"),
            Self::PodRange { range, node } => write!(f, "it overlaps {range} of Node {node}"),
        }
    }
}
