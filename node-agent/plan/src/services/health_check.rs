//! Health-check node ports: where a load balancer asks whether this node has endpoints of a service
//! whose `externalTrafficPolicy` is Local.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use super::decide::{Settings, location};
use super::frontend::FrontendKind;
use super::selection::local_ready;
use crate::node::unspecified;
use denizen_model::{Family, Node, Service, ServiceName, Slice, TrafficPolicy, family_of};

/// One service's port and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    pub service: ServiceName,
    /// `spec.healthCheckNodePort`.
    pub port: NonZeroU16,
    /// In each family that the service exists in: how many addresses on this node serve it, ready
    /// and not terminating. Counted by address, whatever the number of its ports, since it is a
    /// weight among nodes. A node that still serves by its last terminating endpoints says 0: it
    /// wants no new connections.
    pub local_endpoints: BTreeMap<Family, usize>,
    /// Its load balancer's addresses, in the same families. Some load balancers deliver packets to
    /// their address to the node, and ask there: Google Cloud's, whose agent makes the address the
    /// node's own by a route.
    pub load_balancer_ips: Vec<IpAddr>,
    /// When the service was created; the older of two that claim a port gets it.
    created: Arc<str>,
}

impl HealthCheck {
    /// The check that `service`, whose slices are `slices`, asks for.
    pub fn of(
        settings: &Settings,
        node: Option<&Node>,
        service: &Service,
        slices: &[&Slice],
    ) -> Option<Self> {
        let port = service
            .health_check_node_port
            .filter(|_| service.external_policy == TrafficPolicy::Local)?;
        let here = location(settings, node);
        let ready_in = |family: Family| {
            let ports = service.ports.iter();
            let ready: BTreeSet<IpAddr> = ports
                .flat_map(|port| local_ready(port, family, slices.iter().copied(), here))
                .collect();
            ready.len()
        };
        let exists_in =
            |family: &Family| service.cluster_ips.iter().any(|ip| family_of(*ip) == *family);
        let families = Family::BOTH.into_iter().filter(exists_in);
        let permitted = |ip: &&IpAddr| {
            exists_in(&family_of(**ip))
                && settings.permitted.permit(FrontendKind::LoadBalancerIp, **ip)
        };
        let load_balancer_ips = service.load_balancer_ips.iter().filter(permitted);
        Some(Self {
            service: service.name.clone(),
            port,
            local_endpoints: families.map(|family| (family, ready_in(family))).collect(),
            load_balancer_ips: load_balancer_ips.copied().collect(),
            created: service.created.clone(),
        })
    }

    /// As for frontends: the older service wins, then the first by name, on every node and after
    /// every restart.
    fn rank(&self) -> impl Ord + '_ {
        (self.created.is_empty(), &self.created, &self.service)
    }
}

/// Where health-check node ports are served, and what each answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthPorts {
    /// The node's addresses where all of them are served ([`NodePorts::listening`]).
    ///
    /// [`NodePorts::listening`]: crate::NodePorts::listening
    pub addresses: Vec<IpAddr>,
    pub checks: BTreeMap<NonZeroU16, HealthCheck>,
}

impl HealthPorts {
    /// Every address and port to listen at, in the families of the service. The load balancer's
    /// addresses need not be the node's.
    pub fn sockets(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.checks.values().flat_map(|check| {
            let known = |ip: &&IpAddr| check.local_endpoints.contains_key(&family_of(**ip));
            let addresses = self.addresses.iter().filter(known);
            // Beside a listener at every address, the kernel permits none at a single one.
            let is_alone = |ip: &&IpAddr| !self.addresses.contains(&unspecified(family_of(**ip)));
            let balancers = check.load_balancer_ips.iter().filter(is_alone);
            addresses.chain(balancers).map(|ip| SocketAddr::new(*ip, check.port.get()))
        })
    }
}

/// Every service's check.
#[derive(Debug, Default)]
pub struct HealthChecks {
    checks: BTreeMap<ServiceName, HealthCheck>,
    /// How many services have each port.
    ports: BTreeMap<NonZeroU16, usize>,
}

impl HealthChecks {
    /// Replaces the check of a service. Returns whether it differs.
    pub(crate) fn put(&mut self, service: &ServiceName, check: Option<HealthCheck>) -> bool {
        if self.checks.get(service) == check.as_ref() {
            return false;
        }
        if let Some(new) = &check {
            *self.ports.entry(new.port).or_default() += 1;
        }
        let before = match check {
            Some(check) => self.checks.insert(service.clone(), check),
            None => self.checks.remove(service),
        };
        if let Some(before) = before
            && let Entry::Occupied(mut count) = self.ports.entry(before.port)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        true
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &HealthCheck> {
        self.checks.values()
    }

    /// Whether a service has this port.
    pub(super) fn have(&self, port: NonZeroU16) -> bool {
        self.ports.contains_key(&port)
    }

    /// The check of each port, and the checks whose port another service has, with that service's
    /// name.
    pub fn by_port(&self) -> (BTreeMap<NonZeroU16, HealthCheck>, Vec<(HealthCheck, ServiceName)>) {
        let mut ranked: Vec<&HealthCheck> = self.checks.values().collect();
        ranked.sort_by(|a, b| a.rank().cmp(&b.rank()));
        let (mut ports, mut lost) = (BTreeMap::<_, HealthCheck>::new(), Vec::new());
        for check in ranked {
            match ports.get(&check.port) {
                Some(winner) => lost.push((check.clone(), winner.service.clone())),
                None => {
                    ports.insert(check.port, check.clone());
                }
            }
        }
        (ports, lost)
    }
}
