//! Converts a Service to the model's terms.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;

use super::{ServiceObject, ServiceSpec, ServiceStatus, SpecPort};
use crate::address::{special_address, usable_address};
use crate::{
    Annotations, BorrowedText, Notes, ObjectError, ObjectKind, PROXY_NAME_LABEL, Warning, elements,
    parse_address, parse_range,
};
use denizen_model::{
    self, ForeignService, Protocol, RequestedScheduler, SessionAffinity, SourceRanges,
    TrafficPolicy, family_of,
};

/// Label of a Service whose addresses are not announced if it is `false`.
const ANNOUNCE_LABEL: &str = "denizen.io/announce";

/// `sessionAffinityConfig.clientIP.timeoutSeconds` if it is missing.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// The API's maximum: a day.
const MAX_AFFINITY_SECONDS: u32 = 86_400;

/// The service in the model's terms. `None` if this proxy does not serve it: it is headless, of
/// type `ExternalName`, given to another proxy by label, or without a usable cluster IP (with a
/// warning).
pub fn service(
    raw: &ServiceObject<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<Option<denizen_model::Service>, ObjectError> {
    let mut notes = Notes::new(ObjectKind::Service, &raw.metadata, warnings)?;
    let Some(spec) = &raw.spec else { return Ok(None) };
    if raw.metadata.label(PROXY_NAME_LABEL).is_some()
        || spec.kind.as_deref() == Some("ExternalName")
    {
        return Ok(None);
    }
    let cluster_ips = cluster_ips(spec, &mut notes);
    if cluster_ips.is_empty() {
        return Ok(None);
    }
    let [load_balancer_ips, proxied_ips] = load_balancer_ips(raw.status.as_ref(), &mut notes);
    Ok(Some(denizen_model::Service {
        name: raw.metadata.service_name(),
        cluster_ips,
        external_ips: external_ips(spec, &mut notes),
        load_balancer_ips,
        proxied_ips,
        source_ranges: source_ranges(spec, &mut notes),
        ports: ports(spec, &mut notes),
        external_policy: policy(
            "spec.externalTrafficPolicy",
            &spec.external_traffic_policy,
            &mut notes,
        ),
        internal_policy: policy(
            "spec.internalTrafficPolicy",
            &spec.internal_traffic_policy,
            &mut notes,
        ),
        affinity: affinity(spec, &mut notes),
        health_check_node_port: health_check_node_port(spec, &mut notes),
        created: raw.metadata.created(),
        scheduler: scheduler(raw.metadata.annotations.as_ref()),
        opts_out: raw.metadata.label(ANNOUNCE_LABEL) == Some("false"),
    }))
}

/// What is known of a Service that is given to another proxy by label; `None` if it is not, or has
/// no cluster IP.
pub fn foreign_service(raw: &ServiceObject<'_>) -> Option<ForeignService> {
    let proxy = raw.metadata.label(PROXY_NAME_LABEL)?;
    let spec = raw.spec.as_ref()?;
    let written = spec.cluster_ip.iter().chain(elements(spec.cluster_ips.as_ref()));
    let cluster_ips: Vec<IpAddr> = written.filter_map(|text| parse_address(text)).collect();
    (!cluster_ips.is_empty()).then(|| ForeignService { proxy: proxy.into(), cluster_ips })
}

/// The cluster IPs, at most one for each family, in the order of `clusterIPs`, or the older
/// `clusterIP` if that is the only field.
fn cluster_ips(spec: &ServiceSpec<'_>, notes: &mut Notes<'_>) -> Vec<IpAddr> {
    let first = spec.cluster_ip.as_deref().filter(|text| !text.is_empty());
    let several = elements(spec.cluster_ips.as_ref());
    let written: Vec<(&str, &str)> = match first {
        Some("None") => Vec::new(),
        Some(text) if several.is_empty() => vec![("spec.clusterIP", text)],
        Some(_) | None => several.iter().map(|text| ("spec.clusterIPs", &**text)).collect(),
    };
    if first.is_none() && several.is_empty() {
        notes.warn(
            "spec.clusterIP",
            "",
            "no address (\"None\" would make the service headless): not served",
        );
    }
    let mut addresses: Vec<IpAddr> = Vec::new();
    for (field, text) in written {
        if text.is_empty() || text == "None" {
            continue;
        }
        match parse_address(text) {
            None => {
                notes.warn(field, text, "not an IP address: no cluster IP of this family is served")
            }
            Some(address)
                if addresses.iter().any(|other| family_of(*other) == family_of(address)) =>
            {
                notes.warn(field, text, "a second cluster IP of one family: left out");
            }
            Some(address) => match special_address(address) {
                Some(problem) => notes.warn(field, text, problem),
                None => addresses.push(address),
            },
        }
    }
    addresses
}

fn external_ips(spec: &ServiceSpec<'_>, notes: &mut Notes<'_>) -> Vec<IpAddr> {
    let (mut addresses, mut known) = (Vec::new(), HashSet::new());
    for (index, text) in elements(spec.external_ips.as_ref()).iter().enumerate() {
        match usable_address(text) {
            Ok(address) if known.insert(address) => addresses.push(address),
            Ok(_) => {}
            Err(problem) => notes.warn(format_args!("spec.externalIPs[{index}]"), text, problem),
        }
    }
    addresses
}

/// An entry that cannot be read admits nobody; see [`SourceRanges::of`].
fn source_ranges(spec: &ServiceSpec<'_>, notes: &mut Notes<'_>) -> SourceRanges {
    let written = elements(spec.load_balancer_source_ranges.as_ref());
    let mut source_ranges = SourceRanges::default();
    for (index, text) in written.iter().enumerate() {
        match parse_range(text) {
            Some(range) => source_ranges.ranges.push(range),
            None => {
                source_ranges.unreadable = true;
                notes.warn(
                    format_args!("spec.loadBalancerSourceRanges[{index}]"),
                    text,
                    "not an address range: matches no client; a family without a valid range is closed",
                );
            }
        }
    }
    source_ranges
}

/// The load balancer's addresses: those that packets arrive with, and those of `ipMode: Proxy`.
fn load_balancer_ips(
    status: Option<&ServiceStatus<'_>>,
    notes: &mut Notes<'_>,
) -> [Vec<IpAddr>; 2] {
    let ingress = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    let (mut arriving, mut proxied) = Default::default();
    for (index, entry) in elements(ingress).iter().enumerate() {
        let Some(text) = entry.ip.as_deref().filter(|text| !text.is_empty()) else {
            continue;
        };
        let (addresses, known): &mut (Vec<IpAddr>, HashSet<IpAddr>) = match entry.ip_mode.as_deref()
        {
            None | Some("" | "VIP") => &mut arriving,
            Some(_) => &mut proxied,
        };
        match usable_address(text) {
            Ok(address) if known.insert(address) => addresses.push(address),
            Ok(_) => {}
            Err(problem) => {
                let field = format_args!("status.loadBalancer.ingress[{index}].ip");
                notes.warn(field, text, problem);
            }
        }
    }
    [arriving, proxied].map(|(addresses, _)| addresses)
}

fn ports(spec: &ServiceSpec<'_>, notes: &mut Notes<'_>) -> Vec<denizen_model::ServicePort> {
    let written = elements(spec.ports.as_ref());
    let mut ports: Vec<denizen_model::ServicePort> = Vec::with_capacity(written.len());
    let (mut names, mut numbers) = (HashSet::new(), HashSet::new());
    for (index, raw) in written.iter().enumerate() {
        let Some(port) = service_port(index, raw, notes) else {
            continue;
        };
        let (name, number) = ((port.protocol, port.name.clone()), (port.protocol, port.port));
        if names.contains(&name) || numbers.contains(&number) {
            notes.warn(
                format_args!("spec.ports[{index}]"),
                format_args!("{} {}/{}", port.name, port.port, port.protocol),
                "an earlier port has this name or number: left out",
            );
        } else {
            names.insert(name);
            numbers.insert(number);
            ports.push(port);
        }
    }
    ports
}

fn service_port(
    index: usize,
    raw: &SpecPort<'_>,
    notes: &mut Notes<'_>,
) -> Option<denizen_model::ServicePort> {
    let protocol =
        protocol(format_args!("spec.ports[{index}].protocol"), raw.protocol.as_deref(), notes)?;
    let Some(port) = raw.port.and_then(port_number) else {
        notes.warn(
            format_args!("spec.ports[{index}].port"),
            raw.port.unwrap_or_default(),
            "not a port number: the port is left out",
        );
        return None;
    };
    let node_port = raw.node_port.filter(|number| *number != 0);
    let usable = node_port.and_then(port_number);
    if let (Some(number), None) = (node_port, usable) {
        notes.warn(
            format_args!("spec.ports[{index}].nodePort"),
            number,
            "not a port number: no node port is served",
        );
    }
    Some(denizen_model::ServicePort {
        name: raw.name.as_deref().unwrap_or_default().into(),
        protocol,
        port,
        node_port: usable,
    })
}

/// A port number from the API's wider integer.
pub(crate) fn port_number(number: i64) -> Option<NonZeroU16> {
    u16::try_from(number).ok().and_then(NonZeroU16::new)
}

/// A port's protocol, TCP if it is missing.
pub(crate) fn protocol(
    field: fmt::Arguments<'_>,
    written: Option<&str>,
    notes: &mut Notes<'_>,
) -> Option<Protocol> {
    match written {
        None | Some("") => Some(Protocol::Tcp),
        Some(text) => {
            let protocol = Protocol::parse(text);
            if protocol.is_none() {
                notes.warn(field, text, "not a protocol of services: the port is left out");
            }
            protocol
        }
    }
}

fn policy(
    field: &'static str,
    written: &Option<BorrowedText<'_>>,
    notes: &mut Notes<'_>,
) -> TrafficPolicy {
    match written.as_deref() {
        None | Some("" | "Cluster") => TrafficPolicy::Cluster,
        Some("Local") => TrafficPolicy::Local,
        Some(text) => {
            notes.warn(field, text, "not a traffic policy: taken as Cluster");
            TrafficPolicy::Cluster
        }
    }
}

fn affinity(spec: &ServiceSpec<'_>, notes: &mut Notes<'_>) -> SessionAffinity {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return SessionAffinity::None,
        Some("ClientIP") => {}
        Some(text) => {
            notes.warn("spec.sessionAffinity", text, "not a session affinity: taken as None");
            return SessionAffinity::None;
        }
    }
    let config = spec.session_affinity_config.as_ref();
    let written = config.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    let Some(number) = written else {
        return SessionAffinity::ClientIp { seconds: DEFAULT_AFFINITY_SECONDS };
    };
    let usable =
        u32::try_from(number).ok().filter(|seconds| (1..=MAX_AFFINITY_SECONDS).contains(seconds));
    if usable.is_none() {
        notes.warn(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            number,
            "not between a second and a day: taken as three hours",
        );
    }
    SessionAffinity::ClientIp { seconds: usable.unwrap_or(DEFAULT_AFFINITY_SECONDS) }
}

/// Only a load balancer with the policy Local uses this port; for other services the API may keep a
/// stale number.
fn health_check_node_port(spec: &ServiceSpec<'_>, notes: &mut Notes<'_>) -> Option<NonZeroU16> {
    let is_used = spec.kind.as_deref() == Some("LoadBalancer")
        && spec.external_traffic_policy.as_deref() == Some("Local");
    let number = spec.health_check_node_port.filter(|number| is_used && *number != 0)?;
    let port = port_number(number);
    if port.is_none() {
        notes.warn(
            "spec.healthCheckNodePort",
            number,
            "not a port number: no health check is served",
        );
    }
    port
}

fn scheduler(annotations: Option<&Annotations<'_>>) -> Option<Box<RequestedScheduler>> {
    let written = |text: &Option<BorrowedText<'_>>| text.as_deref().map(|text| text.trim().into());
    let Annotations { scheduler, scheduler_flags, .. } = annotations?;
    let requested =
        RequestedScheduler { name: written(scheduler), flags: written(scheduler_flags) };
    (requested.name.is_some() || requested.flags.is_some()).then(|| requested.into())
}
