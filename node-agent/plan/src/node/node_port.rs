//! On which of the node's own addresses node ports are served.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use super::own_address::is_link_local;
use denizen_model::{Family, LocalPod, Node, NodeAddress, family_of};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NodePortAddresses {
    /// The primary address of each family: the first that the Node object names. If it names none,
    /// or if there is no Node object: every address of the node that is not on loopback, not
    /// link-local, and not on an interface through which pods' packets come in.
    #[default]
    Primary,
    /// The node's addresses in these ranges. A family without a range serves no node ports
    /// (kube-proxy would open all of that family's addresses).
    In(Vec<IpNetwork>),
    All {
        /// 127.0.0.0/8 too. IPv4 only: nothing can be forwarded from `::1`.
        localhost: bool,
    },
}

impl NodePortAddresses {
    /// Whether 127.0.0.1 serves node ports, too.
    pub fn has_loopback(&self) -> bool {
        match self {
            Self::All { localhost } => *localhost,
            Self::Primary | Self::In(_) => false,
        }
    }

    /// Whether all addresses of this family except loopback serve node ports.
    pub fn are_all(&self, family: Family) -> bool {
        match self {
            Self::All { .. } => true,
            Self::In(ranges) => {
                ranges.iter().any(|range| range.prefix() == 0 && family_of(range.ip()) == family)
            }
            Self::Primary => false,
        }
    }
}

/// Where node ports are served now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodePorts {
    /// As configured.
    pub configured: NodePortAddresses,
    pub addresses: Vec<IpAddr>,
}

impl NodePorts {
    /// Whether all addresses of this family except loopback serve node ports. Then backends ask the
    /// kernel which addresses are the node's own. `addresses` would not do: it has the links'
    /// addresses only, and an address may be the node's own by a route of type `local` alone.
    pub fn are_everywhere(&self, family: Family) -> bool {
        self.configured.are_all(family)
    }

    /// Where health-check node ports listen: at these addresses; the unspecified address stands for
    /// every address of its family, loopback too. Nobody can listen at a link-local IPv6 address
    /// without naming the link, and no load balancer asks there.
    pub fn listening(&self) -> Vec<IpAddr> {
        let at = |ip: &IpAddr| match family_of(*ip) {
            family if self.are_everywhere(family) => unspecified(family),
            _ => *ip,
        };
        let mut found: Vec<IpAddr> = self.addresses.iter().map(at).collect();
        found.retain(|ip| ip.is_ipv4() || !is_link_local(*ip));
        found.dedup();
        found
    }

    /// Whether they are served on loopback in this family. IPv6 has no `route_localnet`: packets
    /// from ::1 that leave the node never come back.
    pub fn are_on_loopback(&self, family: Family) -> bool {
        family == Family::V4 && self.configured.has_loopback()
    }
}

/// The address at which a listener gets the connections to every address of a family.
pub(crate) fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

pub fn node_port_addresses(
    wanted: &NodePortAddresses,
    node: Option<&Node>,
    addresses: &[NodeAddress],
    pods: &[LocalPod],
) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = match wanted {
        NodePortAddresses::In(ranges) => {
            let inside = |ip: IpAddr| ranges.iter().any(|range| range.contains(ip));
            addresses
                .iter()
                .map(|a| a.address)
                .filter(|ip| !ip.is_loopback() && inside(*ip))
                .collect()
        }
        NodePortAddresses::All { localhost } => addresses
            .iter()
            .map(|a| a.address)
            .filter(|ip| !ip.is_loopback())
            .chain(localhost.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST)))
            .collect(),
        NodePortAddresses::Primary => Family::BOTH
            .into_iter()
            .flat_map(|family| {
                let named = node.into_iter().flat_map(|node| node.addresses.iter().copied());
                match named.clone().find(|ip| family_of(*ip) == family) {
                    Some(primary) => vec![primary],
                    None => reachable(family, addresses, pods),
                }
            })
            .collect(),
    };
    found.sort_unstable();
    found.dedup();
    found
}

/// The node's addresses of a family that can be reached from outside.
pub(super) fn reachable(
    family: Family,
    addresses: &[NodeAddress],
    pods: &[LocalPod],
) -> Vec<IpAddr> {
    let of_pods = |name: &str| pods.iter().any(|pod| *pod.interface == *name);
    let candidates = addresses.iter().filter(|a| family_of(a.address) == family);
    candidates
        .filter(|a| !a.address.is_loopback() && !is_link_local(a.address) && !of_pods(&a.interface))
        .map(|a| a.address)
        .collect()
}
