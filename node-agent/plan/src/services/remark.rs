//! Services that are not served as their objects say.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::external_addresses::ExternalAddresses;
use super::frontend::{FrontendKey, FrontendKind};
use super::permitted::PermittedRanges;
use super::plan_inputs::PlanInputs;
use crate::Scheduler;
use denizen_model::{Family, Service, ServiceName, ServicePortName, family_of};

/// A deviation from the object that its owner should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// `loadBalancerSourceRanges` restricts only the other family, so all clients may use the
    /// service's load balancer IPs of this one.
    OpenFamily {
        service: ServiceName,
        /// The family that is open.
        family: Family,
    },
    /// A cluster IP is one of the node's own addresses. It is not served: the node would lose it.
    OwnAddress {
        service: ServiceName,
        /// Its cluster IP.
        address: IpAddr,
    },
    /// An external IP or a load balancer IP is outside the ranges that the operator permits. It is
    /// not served.
    NotPermitted { service: ServiceName, kind: FrontendKind, address: IpAddr },
    /// A service has so many external IPs and load balancer IPs, and so many ports, that some of
    /// the addresses are not served.
    TooManyAddresses {
        service: ServiceName,
        /// How many of them are served.
        served: usize,
        /// Those that are not.
        left_out: BTreeSet<IpAddr>,
    },
    /// A ServiceCIDR has one of the node's own addresses in it. Its unallocated addresses are left
    /// alone: the node would lose its own.
    OwnRange {
        range: IpNetwork,
        /// The node's address.
        address: IpAddr,
    },
    /// A frontend of another service has the health-check node port of a service. The frontend's
    /// rules come before this node's sockets, so no query reaches the check.
    ShadowedCheck {
        /// The service whose check it is.
        service: ServiceName,
        port: NonZeroU16,
        /// The frontend that takes it.
        key: FrontendKey,
        /// The service port of that frontend.
        by: ServicePortName,
    },
    /// A service asks for a scheduler that IPVS does not have. `rr` is used.
    UnknownScheduler {
        service: ServiceName,
        /// What it asks for.
        scheduler: Arc<str>,
    },
    /// A service asks for a flag that its scheduler does not have. The flag is ignored.
    UnknownSchedulerFlag {
        service: ServiceName,
        /// What it asks for.
        flag: Arc<str>,
    },
}

impl Remark {
    /// Whether it is an error; otherwise it may be intended.
    pub fn is_error(&self) -> bool {
        match self {
            Self::OpenFamily { .. } => false,
            Self::OwnAddress { .. }
            | Self::NotPermitted { .. }
            | Self::TooManyAddresses { .. }
            | Self::OwnRange { .. }
            | Self::ShadowedCheck { .. }
            | Self::UnknownScheduler { .. }
            | Self::UnknownSchedulerFlag { .. } => true,
        }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenFamily { service, family } => write!(
                f,
                "Service {service}: spec.loadBalancerSourceRanges has no range of {family}: \
                 everybody may use its {family} load balancer IPs"
            ),
            Self::OwnAddress { service, address } => write!(
                f,
                "Service {service}: its cluster IP {address} is this node's own address: not served there"
            ),
            Self::NotPermitted { service, kind, address } => write!(
                f,
                "Service {service}: its {kind} {address} is in no range of {}: not served",
                PermittedRanges::flag(*kind)
            ),
            Self::TooManyAddresses { service, served, left_out } => write!(
                f,
                "Service {service}: for its number of ports it has too many external IPs and load \
                 balancer IPs: {served} are served, {} are not",
                left_out.len()
            ),
            Self::OwnRange { range, address } => write!(
                f,
                "ServiceCIDR {range} has this node's own address {address} in it: its unallocated addresses \
                 are left alone"
            ),
            Self::ShadowedCheck { service, port, key, by } => write!(
                f,
                "health-check node port {port} of {service} is {key} of {by} too: load balancers that ask \
                 there reach that service, and learn nothing of {service}"
            ),
            Self::UnknownScheduler { service, scheduler } => write!(
                f,
                "Service {service}: there is no scheduler {scheduler:?}: rr is used instead"
            ),
            Self::UnknownSchedulerFlag { service, flag } => write!(
                f,
                "Service {service}: its scheduler has no flag {flag:?}: the flag is ignored"
            ),
        }
    }
}

pub(super) fn remarks(service: &Service, by: PlanInputs<'_>) -> Vec<Remark> {
    let name = || service.name.clone();
    let taken = service.cluster_ips.iter().filter(|ip| by.node.protected_addresses.contains(ip));
    let taken = taken.map(|ip| Remark::OwnAddress { service: name(), address: *ip });
    let open = Family::BOTH.into_iter().filter(|family| is_open(service, *family));
    let open = open.map(|family| Remark::OpenFamily { service: name(), family });
    let requested = service.scheduler.as_deref().filter(|_| by.capabilities.balances_by_ipvs);
    let (_, unknown) = Scheduler::for_service(by.scheduler, requested);
    let scheduler = unknown
        .method
        .map(|method| Remark::UnknownScheduler { service: name(), scheduler: method.into() });
    let flag = unknown
        .flag
        .map(|flag| Remark::UnknownSchedulerFlag { service: name(), flag: flag.into() });
    let refused = refused(service, &by.settings.permitted);
    let refused =
        refused.map(|(kind, address)| Remark::NotPermitted { service: name(), kind, address });
    let ExternalAddresses { served, left_out } =
        ExternalAddresses::of(service, &by.settings.permitted);
    let too_many = (!left_out.is_empty()).then(|| Remark::TooManyAddresses {
        service: name(),
        served: served.len(),
        left_out,
    });
    taken.chain(refused).chain(too_many).chain(open).chain(scheduler).chain(flag).collect()
}

/// The addresses of a service that are not served, because the operator does not permit them. An
/// address that is served as the other kind does not count.
fn refused<'a>(
    service: &'a Service,
    permitted: &'a PermittedRanges,
) -> impl Iterator<Item = (FrontendKind, IpAddr)> + 'a {
    let external = service.external_ips.iter().map(|ip| (FrontendKind::ExternalIp, *ip));
    let balanced = service.load_balancer_ips.iter().map(|ip| (FrontendKind::LoadBalancerIp, *ip));
    let (served, refused): (Vec<_>, Vec<_>) =
        external.chain(balanced).partition(|(kind, ip)| permitted.permit(*kind, *ip));
    let served: HashSet<IpAddr> = served.into_iter().map(|(_, ip)| ip).collect();
    refused.into_iter().filter(move |(_, address)| !served.contains(address))
}

/// Whether the source ranges restrict the other family but not load balancer IPs of this one.
fn is_open(service: &Service, family: Family) -> bool {
    let ranges = &service.source_ranges;
    let of_family = |ip: &IpAddr| family_of(*ip) == family;
    let restricts_other =
        Family::BOTH.into_iter().any(|other| other != family && ranges.of(other).is_some());
    let is_named = ranges.ranges.iter().any(|range| of_family(&range.ip()));
    // The service exists in the families of its cluster IPs.
    service.cluster_ips.iter().any(of_family)
        && service.load_balancer_ips.iter().any(of_family)
        && restricts_other
        && !is_named
        && ranges.of(family).is_none()
}
