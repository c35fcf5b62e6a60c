//! The external IPs and load balancer IPs that Services may have.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::frontend::FrontendKind;

/// The ranges of external IPs and load balancer IPs that are served. Whoever may write a Service
/// chooses its external IPs, and so whose connections it takes (CVE-2020-8554). An empty list
/// permits every address, as kube-proxy does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PermittedRanges {
    /// For `spec.externalIPs`.
    pub external_ips: Vec<IpNetwork>,
    /// For `status.loadBalancer.ingress`.
    pub load_balancer_ips: Vec<IpNetwork>,
}

impl PermittedRanges {
    /// Whether an address may be served as one of this kind. Cluster IPs and node ports always may:
    /// the API server allocates them.
    pub fn permit(&self, kind: FrontendKind, address: IpAddr) -> bool {
        let ranges = match kind {
            FrontendKind::ExternalIp => &self.external_ips,
            FrontendKind::LoadBalancerIp => &self.load_balancer_ips,
            FrontendKind::ClusterIp | FrontendKind::NodePort => return true,
        };
        ranges.is_empty() || ranges.iter().any(|range| range.contains(address))
    }

    /// The flag that names the ranges for addresses of this kind.
    pub fn flag(kind: FrontendKind) -> &'static str {
        match kind {
            FrontendKind::LoadBalancerIp => "--load-balancer-ip-ranges",
            FrontendKind::ExternalIp | FrontendKind::ClusterIp | FrontendKind::NodePort => {
                "--external-ip-ranges"
            }
        }
    }
}
