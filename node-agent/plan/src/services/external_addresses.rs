//! Which of a service's load balancer IPs and external IPs are served.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use super::frontend::FrontendKind;
use super::permitted::PermittedRanges;
use denizen_model::{Service, family_of};

/// The most frontends that the external addresses of a service have together: enough for 2,000
/// ports at 4 addresses, or for one port at 8,192. Each address has a frontend for each port, so
/// without a limit one small object would have millions. (Its cluster IPs and node ports, at most
/// four for each port, grow only as the object does.)
const MOST_FRONTENDS: usize = 8192;

/// So many addresses are served however many ports the service has: a load balancer IP and an
/// external IP of each family.
const FEWEST_ADDRESSES: usize = 4;

/// The permitted load balancer IPs and external IPs of a service, in the families that it has.
pub(super) struct ExternalAddresses {
    /// Load balancer IPs first, each list in the order of the object. An address that is named as
    /// both is a load balancer IP.
    pub served: Vec<(FrontendKind, IpAddr)>,
    /// Those beyond the limit.
    pub left_out: BTreeSet<IpAddr>,
}

impl ExternalAddresses {
    pub fn of(service: &Service, permitted: &PermittedRanges) -> Self {
        let balanced =
            service.load_balancer_ips.iter().map(|ip| (FrontendKind::LoadBalancerIp, ip));
        let external = service.external_ips.iter().map(|ip| (FrontendKind::ExternalIp, ip));
        let is_served = |(kind, ip): &(FrontendKind, IpAddr)| {
            let has_family = |other: &IpAddr| family_of(*other) == family_of(*ip);
            service.cluster_ips.iter().any(has_family) && permitted.permit(*kind, *ip)
        };
        let mut seen = HashSet::new();
        let mut served: Vec<(FrontendKind, IpAddr)> = balanced
            .chain(external)
            .map(|(kind, ip)| (kind, *ip))
            .filter(|named| is_served(named) && seen.insert(named.1))
            .collect();
        let most = (MOST_FRONTENDS / service.ports.len().max(1)).max(FEWEST_ADDRESSES);
        let left_out = served.split_off(most.min(served.len()));
        Self { served, left_out: left_out.into_iter().map(|(_, ip)| ip).collect() }
    }
}
