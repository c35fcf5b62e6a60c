//! Pods and services by name instead of by address.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::named_protocol::NamedProtocol;
use super::packet_error::PacketError;
use super::packet_target::{PacketEnd, PacketTarget};
use crate::{Frontend, FrontendAddress, FrontendKind, Plan};
use denizen_model::{Family, Protocol, ServiceName, family_of};

/// `NAMESPACE/NAME[:PORT][/PROTO]`, or `NAMESPACE/NAME/icmp` or `…/icmpv6`.
pub(super) struct NamedEnd<'a> {
    name: &'a str,
    port: Option<&'a str>,
    kind: Option<NamedProtocol>,
}

/// Whether this is a namespace and a name. A namespace is a DNS label, so `ADDR/PREFIX` is not.
pub(super) fn is_name(text: &str) -> bool {
    let is_label = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    text.split_once('/').is_some_and(|(namespace, name)| is_label(namespace) && !name.is_empty())
}

pub(super) fn addresses_of(plan: &Plan, pod: &str) -> Option<Vec<IpAddr>> {
    let its = plan.recorded().iter().filter(|attachment| attachment.to_string() == pod);
    let addresses: Vec<IpAddr> =
        its.flat_map(|attachment| attachment.ips.iter().copied()).collect();
    (!addresses.is_empty()).then_some(addresses)
}

/// Why a name does not lead to a destination.
pub(super) enum NotFound {
    Nothing,
    WhichPort(String),
}

impl NotFound {
    pub(super) fn of(self, to: &str) -> PacketError {
        match self {
            Self::Nothing => PacketError::NoDestination(to.to_owned()),
            Self::WhichPort(ports) => PacketError::WhichPort(to.to_owned(), ports),
        }
    }
}

impl<'a> NamedEnd<'a> {
    /// `None` if it is an address and a port.
    pub(super) fn parse(to: &'a str) -> Option<Self> {
        let named =
            to.rsplit_once('/').and_then(|(rest, kind)| Some((rest, NamedProtocol::parse(kind)?)));
        let (rest, kind) = named.map_or((to, None), |(rest, kind)| (rest, Some(kind)));
        if rest.parse::<SocketAddr>().is_ok() || !is_name(rest) {
            return None;
        }
        match rest.rsplit_once(':') {
            Some((name, port)) => Some(Self { name, port: Some(port), kind }),
            None => Some(Self { name: rest, port: None, kind }),
        }
    }

    pub(super) fn ends(&self, plan: &Plan) -> Result<Vec<PacketEnd>, NotFound> {
        let ends = match self.kind {
            Some(NamedProtocol::Echo(family)) => self.pinged(plan, family),
            Some(NamedProtocol::Ports(protocol)) => self.ports(plan, Some(protocol))?,
            None => self.ports(plan, None)?,
        };
        if ends.is_empty() { Err(NotFound::Nothing) } else { Ok(ends) }
    }

    fn ports(&self, plan: &Plan, protocol: Option<Protocol>) -> Result<Vec<PacketEnd>, NotFound> {
        let frontends = self.frontends(plan, protocol);
        if frontends.is_empty() {
            return Ok(self.pod_ends(plan, protocol.unwrap_or(Protocol::Tcp)).unwrap_or_default());
        }
        let ports: BTreeSet<_> = frontends.iter().map(|frontend| &frontend.service_port).collect();
        if ports.len() > 1 {
            let ports = ports.iter().map(|port| format!("{port}/{}", port.protocol));
            return Err(NotFound::WhichPort(ports.collect::<Vec<_>>().join(", ")));
        }
        let end = |frontend: &&Frontend| {
            Some((ip_of(frontend)?, PacketTarget::Port(frontend.key.protocol, frontend.key.port)))
        };
        Ok(frontends.iter().filter_map(end).collect())
    }

    /// The cluster IPs of a service, or the addresses of a pod, that a ping can be sent to.
    fn pinged(&self, plan: &Plan, family: Family) -> Vec<PacketEnd> {
        if self.port.is_some() {
            return Vec::new();
        }
        let mut addresses: Vec<IpAddr> =
            self.frontends(plan, None).into_iter().filter_map(ip_of).collect();
        if addresses.is_empty() {
            addresses = addresses_of(plan, self.name).unwrap_or_default();
        }
        let of_family = addresses.into_iter().filter(|ip| family_of(*ip) == family);
        of_family.map(|ip| (ip, PacketTarget::Echo)).collect()
    }

    /// The cluster IPs of the service's port, sorted: IPv4 first.
    fn frontends<'p>(&self, plan: &'p Plan, protocol: Option<Protocol>) -> Vec<&'p Frontend> {
        let Some((namespace, name)) = self.name.split_once('/') else { return Vec::new() };
        let Some(services) = plan.services() else { return Vec::new() };
        let keys = services.keys_of(&ServiceName::new(namespace, name));
        let frontends = keys.iter().filter_map(|key| services.frontend(key));
        let is_meant = |frontend: &&Frontend| {
            let port = self.port.is_none_or(|port| {
                *frontend.service_port.port == *port || frontend.key.port.to_string() == port
            });
            let is_its = frontend.service_port.service.to_string() == self.name;
            let protocol = protocol.is_none_or(|protocol| protocol == frontend.key.protocol);
            is_its && frontend.kind == FrontendKind::ClusterIp && port && protocol
        };
        let mut frontends: Vec<&Frontend> = frontends.filter(is_meant).collect();
        frontends.sort_by_key(|frontend| frontend.key);
        frontends
    }

    fn pod_ends(&self, plan: &Plan, protocol: Protocol) -> Option<Vec<PacketEnd>> {
        let transport = PacketTarget::Port(protocol, self.port?.parse().ok()?);
        let addresses = addresses_of(plan, self.name)?;
        Some(addresses.into_iter().map(|ip| (ip, transport)).collect())
    }
}

fn ip_of(frontend: &Frontend) -> Option<IpAddr> {
    match frontend.key.address {
        FrontendAddress::Ip(ip) => Some(ip),
        FrontendAddress::Node(_) => None,
    }
}
