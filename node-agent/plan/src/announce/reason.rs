//! Why a prefix is not announced: a closed list.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::super::pod_ranges::{SHORTEST_V4, SHORTEST_V6};

/// Why a prefix is not announced. Of several reasons, the first in this order is reported.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WithheldReason {
    /// Forbidden by every configuration: packets to another owner would be routed here.
    Forbidden(ForbiddenReason),
    /// No configured range contains it. Without ranges, whoever may write a Service could claim any
    /// address.
    OutsideRanges,
    /// The ranges of this flag do not permit it to services.
    NotPermitted(&'static str),
    /// The service has too many external IPs and load balancer IPs for its number of ports.
    TooManyAddresses,
    /// The configured maximum, this number, is reached.
    OverLimit(usize),
    /// The backend could not program its rules.
    RulesRefused,
    /// The kernel does not route the address to the pod.
    NotDeliveredHere,
    /// Load balancers must not use this node.
    NodeExcluded(NodeExclusion),
    /// The node drains, and other nodes serve it.
    Draining,
    /// Policy Local, and no ready endpoint on this node.
    NoReadyLocalEndpoint,
    /// No ready endpoint on any node.
    NoEndpoint,
    /// Other Services have claimed all its ports first.
    AnotherService,
    /// The Service's label `denizen.io/announce` is `false`.
    OptedOut,
    /// The load balancer's `ipMode` is `Proxy`: it sends nothing to this address.
    IpModeProxy,
    /// Addresses of this kind are not configured to be announced.
    NotChosen,
}

/// Why load balancers must not use a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeExclusion {
    /// Its label says so.
    Label,
    /// Its condition `NetworkUnavailable` is true.
    NetworkUnavailable,
    Deleted,
}

/// Why a prefix is never announced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForbiddenReason {
    /// Special-purpose addresses are never routed.
    Special,
    /// The range has more addresses than one node's pods can have.
    TooLarge,
    /// The prefix contains an address of a node.
    NodeAddress {
        address: IpAddr,
        node: Arc<str>,
    },
    ApiServer(IpAddr),
    /// The prefix contains a gateway of this node's routes.
    Gateway(IpAddr),
    /// The prefix contains a BGP peer of this node.
    Peer(IpAddr),
    /// The prefix overlaps a podCIDR of this node, or of another one.
    PodRange {
        /// The podCIDR.
        range: IpNetwork,
        node: Arc<str>,
    },
}

impl WithheldReason {
    /// A code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Forbidden(ForbiddenReason::NodeAddress { .. }) => "node-address",
            Self::Forbidden(_) => "forbidden",
            Self::OutsideRanges => "outside-ranges",
            Self::NotPermitted(_) => "not-permitted",
            Self::TooManyAddresses => "too-many-addresses",
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

    /// Whether an operator or an owner must act, since something that was asked for cannot be
    /// announced.
    pub fn needs_action(&self) -> bool {
        match self {
            Self::Forbidden(_)
            | Self::OutsideRanges
            | Self::NotPermitted(_)
            | Self::TooManyAddresses
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

impl fmt::Display for WithheldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(forbidden) => forbidden.fmt(f),
            Self::OutsideRanges => write!(f, "--announce-ranges does not contain it"),
            Self::NotPermitted(flag) => write!(f, "it is not served: {flag} does not contain it"),
            Self::TooManyAddresses => {
                write!(f, "it is not served: the Service has too many addresses for its ports")
            }
            Self::OverLimit(most) => write!(f, "there are more than {most} announcements"),
            Self::RulesRefused => write!(f, "the rules of its ports could not be programmed"),
            Self::NotDeliveredHere => {
                write!(f, "the kernel has no route for it that leads to the pod")
            }
            Self::NodeExcluded(NodeExclusion::Label) => write!(
                f,
                "the Node's label node.kubernetes.io/exclude-from-external-load-balancers forbids it"
            ),
            Self::NodeExcluded(NodeExclusion::NetworkUnavailable) => {
                write!(f, "the Node's condition NetworkUnavailable is true")
            }
            Self::NodeExcluded(NodeExclusion::Deleted) => write!(f, "the Node was deleted"),
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

impl fmt::Display for ForbiddenReason {
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
