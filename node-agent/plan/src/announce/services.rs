//! Service addresses: each is announced while this node may serve it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::super::pod_ranges::is_too_large;
use super::super::services::{
    Frontend, FrontendAddress, FrontendKey, FrontendKind, NodeLocation, Outcome, PermittedRanges,
    location, ready,
};
use super::forbidden::ForbiddenPrefixes;
use super::prefix_claim::PrefixClaim;
use super::{
    AnnounceInputs, Announcement, AnnouncementClass, AnnouncementReason, Drain, NodeExclusion,
    PrefixOwner, Withheld, WithheldReason,
};
use denizen_model::{Service, TrafficPolicy, family_of};

/// Decides about the addresses of services.
pub(super) struct ServiceAnnouncer<'a> {
    by: &'a AnnounceInputs<'a>,
    forbidden_prefixes: &'a ForbiddenPrefixes<'a>,
    /// The ranges of cluster IPs.
    cluster: Vec<IpNetwork>,
    /// The permitted ranges that only services use. A podCIDR that overlaps them does not forbid an
    /// address.
    for_services: Vec<IpNetwork>,
    contested: Vec<(IpNetwork, &'a Arc<str>)>,
    here: NodeLocation<'a>,
}

impl<'a> ServiceAnnouncer<'a> {
    pub(super) fn new(
        by: &'a AnnounceInputs<'a>,
        forbidden_prefixes: &'a ForbiddenPrefixes<'a>,
    ) -> Self {
        let cluster: Vec<IpNetwork> = by.world.service_ranges().collect();
        let permitted = [&cluster[..], &by.settings.ranges].concat();
        // A range that this node's own pods share, or one wider than any node's pods need, is not
        // used by services alone: a Service must not take pods' addresses.
        let (for_services, shared): (Vec<_>, Vec<_>) = permitted
            .into_iter()
            .partition(|range| !is_too_large(*range) && !forbidden_prefixes.has_own_pods(*range));
        let contested = forbidden_prefixes.contested(&shared);
        let here = location(&by.plan.policy().settings, by.world.node());
        Self { by, forbidden_prefixes, cluster, for_services, contested, here }
    }

    /// The claims of a service on its addresses.
    pub(super) fn claims(&self, service: &Service) -> Vec<PrefixClaim> {
        let withheld =
            |reason| Withheld { reason, owner: PrefixOwner::Service(service.name.clone()) };
        let proxied = service.proxied_ips.iter();
        let mut found: Vec<PrefixClaim> = proxied
            .map(|ip| PrefixClaim::of((*ip).into(), Err(withheld(WithheldReason::IpModeProxy))))
            .collect();
        let addresses = [
            (FrontendKind::ClusterIp, &service.cluster_ips),
            (FrontendKind::ExternalIp, &service.external_ips),
            (FrontendKind::LoadBalancerIp, &service.load_balancer_ips),
        ];
        for (kind, addresses) in addresses {
            let Some(class) = AnnouncementClass::of(kind) else { continue };
            for address in addresses {
                let verdict = self.decide(service, kind, class, *address).map_err(withheld);
                let dropped = match &verdict {
                    Err(Withheld { reason: WithheldReason::TooManyAddresses, .. }) => Vec::new(),
                    Ok(_) | Err(_) => self.dropped(service, *address),
                };
                found.push(PrefixClaim { dropped, ..PrefixClaim::of((*address).into(), verdict) });
            }
        }
        found
    }

    fn decide(
        &self,
        service: &Service,
        kind: FrontendKind,
        class: AnnouncementClass,
        address: IpAddr,
    ) -> Result<Announcement, WithheldReason> {
        self.permit(service, kind, address)?;
        let (ready, local) = self.ready(service, address)?;
        let policy = match kind {
            FrontendKind::ClusterIp => service.internal_policy,
            FrontendKind::NodePort | FrontendKind::LoadBalancerIp | FrontendKind::ExternalIp => {
                service.external_policy
            }
        };
        match policy {
            _ if ready == 0 => return Err(WithheldReason::NoEndpoint),
            TrafficPolicy::Local if local == 0 => return Err(WithheldReason::NoReadyLocalEndpoint),
            // Only under Cluster: other nodes serve the address too. Under Local, this node may be
            // the last that serves it, and announces it until its own pods have ended.
            TrafficPolicy::Cluster if self.by.drain == Drain::Over => {
                return Err(WithheldReason::Draining);
            }
            TrafficPolicy::Local | TrafficPolicy::Cluster => {}
        }
        Ok(Announcement {
            class,
            is_draining: self.by.drain != Drain::No,
            reason: AnnouncementReason::Service { service: service.name.clone(), ready, local },
            recorded: None,
            since: service.created.clone(),
        })
    }

    /// Whether the address may be announced at all, whatever its endpoints.
    fn permit(
        &self,
        service: &Service,
        kind: FrontendKind,
        address: IpAddr,
    ) -> Result<(), WithheldReason> {
        let settings = self.by.settings;
        if !settings.kinds.contains(&kind) {
            return Err(WithheldReason::NotChosen);
        }
        if !self.by.plan.policy().settings.permitted.permit(kind, address) {
            return Err(WithheldReason::NotPermitted(PermittedRanges::flag(kind)));
        }
        let services = self.by.plan.services();
        if services.is_some_and(|services| services.leaves_out(&service.name, address)) {
            return Err(WithheldReason::TooManyAddresses);
        }
        if service.opts_out {
            return Err(WithheldReason::OptedOut);
        }
        let ranges = match kind {
            FrontendKind::ClusterIp => &self.cluster,
            FrontendKind::NodePort | FrontendKind::LoadBalancerIp | FrontendKind::ExternalIp => {
                &settings.ranges
            }
        };
        let within = || ranges.iter().filter(|range| range.contains(address));
        let contested = match within().any(|range| self.for_services.contains(range)) {
            true => &[][..],
            false => &self.contested,
        };
        if let Some(forbidden) = self.forbidden_prefixes.service(address, contested) {
            return Err(WithheldReason::Forbidden(forbidden));
        }
        if within().next().is_none() {
            return Err(WithheldReason::OutsideRanges);
        }
        match (kind, self.excluded()) {
            (FrontendKind::ClusterIp, _) | (_, None) => Ok(()),
            (_, Some(excluded)) => Err(WithheldReason::NodeExcluded(excluded)),
        }
    }

    /// Why load balancers must not use this node.
    fn excluded(&self) -> Option<NodeExclusion> {
        let node = self.by.world.node();
        if self.by.is_gone {
            Some(NodeExclusion::Deleted)
        } else if node.is_some_and(|node| node.network_unavailable) {
            Some(NodeExclusion::NetworkUnavailable)
        } else if node.is_some_and(|node| node.excluded) && !self.by.settings.ignores_exclusion {
            Some(NodeExclusion::Label)
        } else {
            None
        }
    }

    /// The service's own frontends at this address.
    fn frontends(&self, service: &Service, address: IpAddr) -> impl Iterator<Item = &'a Frontend> {
        let services = self.by.plan.services();
        service.ports.iter().filter_map(move |port| {
            let at = FrontendAddress::Ip(address);
            let key = FrontendKey { address: at, protocol: port.protocol, port: port.port };
            let frontend = services?.frontend(&key)?;
            (frontend.service_port.service == service.name).then_some(frontend)
        })
    }

    /// The service's frontends at this address at which this node drops packets from outside,
    /// because only other nodes have endpoints.
    fn dropped(&self, service: &Service, address: IpAddr) -> Vec<FrontendKey> {
        let drops = |frontend: &&Frontend| {
            *frontend.outside.as_ref().unwrap_or(&frontend.inside) == Outcome::Drop
        };
        self.frontends(service, address).filter(drops).map(|frontend| frontend.key).collect()
    }

    /// How many ready endpoint addresses the service's own ports have at this address: on all
    /// nodes, and on this one.
    fn ready(&self, service: &Service, address: IpAddr) -> Result<(usize, usize), WithheldReason> {
        let (mut all, mut local) = (BTreeSet::new(), BTreeSet::new());
        let mut reason_none = WithheldReason::AnotherService;
        for port in &service.ports {
            let at = FrontendAddress::Ip(address);
            let key = FrontendKey { address: at, protocol: port.protocol, port: port.port };
            let frontend = self.by.plan.services().and_then(|services| services.frontend(&key));
            let own = frontend.filter(|frontend| frontend.service_port.service == service.name);
            let Some(frontend) = own else { continue };
            if (self.by.is_rejected)(frontend) {
                reason_none = WithheldReason::RulesRefused;
                continue;
            }
            reason_none = WithheldReason::NoEndpoint;
            let slices = self.by.world.slices(&service.name);
            for (ip, is_local) in ready(port, family_of(address), slices, self.here) {
                all.insert(ip);
                local.extend(is_local.then_some(ip));
            }
        }
        match (all.is_empty(), reason_none) {
            (true, reason @ (WithheldReason::AnotherService | WithheldReason::RulesRefused)) => {
                Err(reason)
            }
            _ => Ok((all.len(), local.len())),
        }
    }
}
