//! Converts an EndpointSlice to the model's terms.

use std::sync::Arc;

use super::{EndpointEntry, EndpointPort, EndpointSlice, Hint};
use crate::address::usable_address;
use crate::service::{port_number, protocol};
use crate::{Notes, ObjectError, ObjectKind, PROXY_NAME_LABEL, Warning, elements};
use denizen_model::{
    EndpointState, Family, ServiceName, Slice, SliceEndpoint, SlicePort, family_of,
};

/// Names a slice's Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Marks the slices of a headless Service.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// The slice in the model's terms. `None` if it belongs to no served Service: it names none, its
/// Service is headless or another proxy's, or its endpoints are host names.
pub fn slice(
    raw: &EndpointSlice<'_>,
    warnings: &mut Vec<Warning>,
) -> Result<Option<Slice>, ObjectError> {
    let mut notes = Notes::new(ObjectKind::EndpointSlice, &raw.metadata, warnings)?;
    let metadata = &raw.metadata;
    let service = metadata.label(SERVICE_NAME_LABEL).filter(|name| !name.is_empty());
    let others =
        [HEADLESS_LABEL, PROXY_NAME_LABEL].iter().any(|label| metadata.label(label).is_some());
    let (Some(service), false) = (service, others) else {
        return Ok(None);
    };
    let family = match &*raw.address_type {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        "FQDN" => return Ok(None),
        other => {
            notes.warn("addressType", other, "not an address type: the slice is left out");
            return Ok(None);
        }
    };
    Ok(Some(Slice {
        name: metadata.slice_name(),
        service: ServiceName::new(metadata.namespace(), service),
        family,
        ports: ports(elements(raw.ports.as_ref()), &mut notes),
        endpoints: endpoints(elements(raw.endpoints.as_ref()), family, &mut notes),
    }))
}

fn ports(raw: &[EndpointPort<'_>], notes: &mut Notes<'_>) -> Vec<SlicePort> {
    let mut ports = Vec::with_capacity(raw.len());
    for (index, port) in raw.iter().enumerate() {
        let Some(name) = port.name.as_deref() else {
            let number = port.port.unwrap_or_default();
            notes.warn(
                format_args!("ports[{index}].name"),
                number,
                "no name (\"\" would be valid): left out",
            );
            continue;
        };
        let protocol =
            protocol(format_args!("ports[{index}].protocol"), port.protocol.as_deref(), notes);
        let number = port.port.and_then(port_number);
        if number.is_none() {
            let written =
                port.port.map_or_else(|| "nothing".to_owned(), |number| number.to_string());
            notes.warn(format_args!("ports[{index}].port"), written, "not a port number: left out");
        }
        if let (Some(protocol), Some(port)) = (protocol, number) {
            ports.push(SlicePort { name: name.into(), protocol, port });
        }
    }
    ports
}

fn endpoints(
    raw: &[EndpointEntry<'_>],
    family: Family,
    notes: &mut Notes<'_>,
) -> Vec<SliceEndpoint> {
    let mut endpoints = Vec::with_capacity(raw.len());
    // The endpoints of a slice are on few nodes and in few zones: keep one copy of each name.
    let mut names = SharedNames::default();
    for (index, endpoint) in raw.iter().enumerate() {
        let written =
            elements(endpoint.addresses.as_ref()).first().map_or("", |address| &**address);
        let address = match usable_address(written) {
            Ok(address) if family_of(address) == family => Ok(address),
            Ok(_) => Err("not of the slice's addressType: left out"),
            Err(problem) => Err(problem),
        };
        let address = match address {
            Ok(address) => address,
            Err(problem) => {
                notes.warn(format_args!("endpoints[{index}].addresses[0]"), written, problem);
                continue;
            }
        };
        let conditions = endpoint.conditions.unwrap_or_default();
        let hints = endpoint.hints.as_ref();
        endpoints.push(SliceEndpoint {
            address,
            state: EndpointState::from_conditions(
                conditions.ready,
                conditions.serving,
                conditions.terminating,
            ),
            terminating: conditions.terminating.unwrap_or(false),
            node: endpoint.node_name.as_deref().and_then(|name| names.shared(name)),
            zone_hints: names.hints(hints.and_then(|hints| hints.for_zones.as_ref())),
            node_hints: names.hints(hints.and_then(|hints| hints.for_nodes.as_ref())),
        });
    }
    endpoints
}

/// The names found in one slice.
#[derive(Default)]
struct SharedNames(Vec<Arc<str>>);

impl SharedNames {
    /// The shared copy of a name; `None` for an empty name.
    fn shared(&mut self, name: &str) -> Option<Arc<str>> {
        if name.is_empty() {
            return None;
        }
        // From the end, since neighbours are often on one node. Bounded, so that a slice with a
        // thousand nodes takes linear time.
        if let Some(known) = self.0.iter().rev().take(8).find(|known| &***known == name) {
            return Some(known.clone());
        }
        let name: Arc<str> = name.into();
        self.0.push(name.clone());
        Some(name)
    }

    fn hints(&mut self, hints: Option<&Vec<Hint<'_>>>) -> Vec<Arc<str>> {
        elements(hints).iter().filter_map(|hint| self.shared(&hint.name)).collect()
    }
}
