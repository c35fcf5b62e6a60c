//! What host ports are decided by.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;

use super::HostPortSettings;
use crate::node::NodePorts;
use crate::services::{Frontend, FrontendAddress, FrontendKey, FrontendKind, ServicePlan};
use denizen_model::{LocalPod, NodeAddress, Protocol, family_of};

/// The device on which kube-proxy's IPVS mode keeps services' addresses.
const KUBE_IPVS: &str = "kube-ipvs0";

/// What host ports are decided by, and what of it differs from before.
pub(crate) struct HostPortInputs<'a> {
    pub settings: HostPortSettings,
    /// The pods that were known before.
    pub former_pods: &'a [LocalPod],
    pub pods: &'a [LocalPod],
    pub links: &'a [NodeAddress],
    pub links_changed: bool,
    /// `None` while services are not known.
    pub services: Option<&'a ServicePlan>,
    /// Services are Denizen's, and not known yet.
    pub awaits_services: bool,
    /// The frontends whose decision changed.
    pub frontends: &'a BTreeSet<FrontendKey>,
    pub node_ports: &'a NodePorts,
}

/// The addresses of the node, by their use for host ports.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct NodeAddresses {
    /// Addresses that a pod may request by `hostIP`.
    all: BTreeSet<IpAddr>,
    /// Addresses on dummy devices. A node-local DNS cache has a cluster IP on one.
    pub on_dummies: BTreeSet<IpAddr>,
    /// Addresses at which host ports that name no address are served: all except loopback addresses
    /// (127.0.0.0/8 is a setting of its own, and nothing can be forwarded from `::1`), those on
    /// [`KUBE_IPVS`], and cluster IPs on dummy devices.
    pub any: BTreeSet<IpAddr>,
}

impl NodeAddresses {
    pub fn of(by: &HostPortInputs<'_>) -> Self {
        let is_cluster_ip = |ip: IpAddr| {
            let mut frontends = by.services.into_iter().flat_map(ServicePlan::frontends);
            let at = FrontendAddress::Ip(ip);
            // Until services are known, those that an earlier run programmed stay in force.
            by.awaits_services
                || frontends.any(|one| one.kind == FrontendKind::ClusterIp && one.key.address == at)
        };
        let foreign = by.links.iter().filter(|on| !on.address.is_loopback());
        let of_node = foreign.filter(|on| &*on.interface != KUBE_IPVS);
        let on_dummies = by.links.iter().filter(|on| on.dummy);
        Self {
            all: by.links.iter().map(|on| on.address).collect(),
            on_dummies: on_dummies.map(|on| on.address).collect(),
            any: of_node
                .filter(|on| !on.dummy || !is_cluster_ip(on.address))
                .map(|on| on.address)
                .collect(),
        }
    }

    /// Whether the node has an address at which host ports that name it can be served.
    pub fn has(&self, ip: IpAddr, settings: HostPortSettings) -> bool {
        match ip {
            IpAddr::V4(v4) if v4.is_loopback() => settings.localhost,
            IpAddr::V6(v6) if v6.is_loopback() => false,
            IpAddr::V4(_) | IpAddr::V6(_) => self.all.contains(&ip),
        }
    }

    /// The addresses of which `all` or `any` differs.
    pub fn differing(&self, other: &Self) -> BTreeSet<IpAddr> {
        let all = self.all.symmetric_difference(&other.all);
        all.chain(self.any.symmetric_difference(&other.any)).copied().collect()
    }
}

impl HostPortInputs<'_> {
    /// The frontend of a service at an address of the node.
    pub fn frontend(&self, ip: IpAddr, protocol: Protocol, port: NonZeroU16) -> Option<&Frontend> {
        let services = self.services?;
        let key = |address| FrontendKey { address, protocol, port };
        let node = key(FrontendAddress::Node(family_of(ip)));
        let at_node =
            || services.frontend(&node).filter(|_| self.node_ports.addresses.contains(&ip));
        let at_ip = services.frontend(&key(FrontendAddress::Ip(ip)));
        at_ip.filter(|_| !is_of_one_link(ip)).or_else(at_node)
    }
}

/// Whether an address is link-local (IPv6), so that no service has it. Every pod's interface adds
/// one.
pub(super) fn is_of_one_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
