//! Istio's annotations, which its injector writes onto each pod with a sidecar.
//!
//! What Istio only writes into the proxy's environment is not visible here: that DNS is captured
//! (`ISTIO_META_DNS_CAPTURE`), and other users than 1337.

use std::collections::BTreeMap;

use denizen_state::json;
use denizen_state::redirect::Redirect;
use serde::Deserialize;

use super::key::{self, RedirectKey, cidrs, list, malformed, ports, set};
use super::reads::Reads;
use crate::error::quoted;

/// What the injector did to the pod.
const STATUS: &str = "sidecar.istio.io/status";
const MODE: &str = "sidecar.istio.io/interceptionMode";
const INCLUDE_RANGES: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
/// Interfaces of virtual machines in the pod, whose packets are treated as outbound.
const VIRTUAL_INTERFACES: [&str; 2] =
    ["istio.io/reroute-virtual-interfaces", "traffic.sidecar.istio.io/kubevirtInterfaces"];

/// Whether the list is `*`, which stands for everything.
fn is_everything(entries: &[String]) -> bool {
    matches!(entries, [one] if one == "*")
}

static EXCLUDE_INBOUND_PORTS: RedirectKey = list("skipInboundPorts", "", |to, entries| {
    if is_everything(entries) {
        to.inbound_port = None;
        return Ok(());
    }
    set(&mut to.skip_inbound_ports, ports(entries))
});
static EXCLUDE_OUTBOUND_PORTS: RedirectKey = list("skipOutboundPorts", "", |to, entries| {
    if is_everything(entries) {
        to.outbound_port = None;
        return Ok(());
    }
    set(&mut to.skip_outbound_ports, ports(entries))
});
static INCLUDE_INBOUND_PORTS: RedirectKey = list("onlyInboundPorts", "", |to, entries| {
    if entries.is_empty() {
        to.inbound_port = None;
    }
    let entries = if is_everything(entries) { &[] } else { entries };
    set(&mut to.only_inbound_ports, ports(entries))
});
static INCLUDE_OUTBOUND_PORTS: RedirectKey =
    list("onlyOutboundPorts", "", |to, entries| set(&mut to.only_outbound_ports, ports(entries)));
/// Read after the ports, which are redirected in addition to these ranges.
static INCLUDE_OUTBOUND_RANGES: RedirectKey = list("onlyOutboundCidrs", "", |to, entries| {
    if is_everything(entries) {
        to.only_outbound_ports.clear();
        return Ok(());
    }
    if entries.is_empty() && to.only_outbound_ports.is_empty() {
        to.outbound_port = None;
    }
    set(&mut to.only_outbound_cidrs, cidrs(entries))
});
static EXCLUDE_INTERFACES: RedirectKey = list("interfaces", "", |to, entries| {
    to.interfaces.retain(|interface| !entries.contains(interface));
    Ok(())
});

/// The annotations that say what is redirected.
pub(super) static ANNOTATIONS: [(&str, Reads); 7] = [
    ("traffic.sidecar.istio.io/excludeInboundPorts", Reads::One(&EXCLUDE_INBOUND_PORTS)),
    ("traffic.sidecar.istio.io/excludeOutboundPorts", Reads::One(&EXCLUDE_OUTBOUND_PORTS)),
    ("traffic.sidecar.istio.io/excludeOutboundIPRanges", Reads::One(&key::SKIP_OUTBOUND_CIDRS)),
    ("traffic.sidecar.istio.io/includeInboundPorts", Reads::One(&INCLUDE_INBOUND_PORTS)),
    ("traffic.sidecar.istio.io/includeOutboundPorts", Reads::One(&INCLUDE_OUTBOUND_PORTS)),
    (INCLUDE_RANGES, Reads::One(&INCLUDE_OUTBOUND_RANGES)),
    ("traffic.sidecar.istio.io/excludeInterfaces", Reads::One(&EXCLUDE_INTERFACES)),
];

/// Whether the injector relies on a CNI plugin to redirect this pod: then it adds an init container
/// that checks the redirection, `istio-validation`. It does not add that to gateways, nor in the
/// mode `NONE`; with `istio-init` the pod redirects itself.
pub(super) fn selects(annotations: &BTreeMap<String, String>) -> Result<bool, String> {
    #[derive(Deserialize)]
    struct IstioStatus {
        #[serde(rename = "initContainers")]
        init_containers: Option<Vec<String>>,
    }
    let Some(text) = annotations.get(STATUS) else {
        return Ok(false);
    };
    let status: IstioStatus =
        json::parse(text).map_err(|error| format!("annotation {STATUS} {}", malformed(&error)))?;
    Ok(status.init_containers.into_iter().flatten().any(|name| name == "istio-validation"))
}

/// Applies what only several annotations together say, and refuses what is not supported.
pub(super) fn complete(
    redirect: &mut Redirect,
    annotations: &BTreeMap<String, String>,
) -> Result<(), String> {
    match annotations.get(MODE).map(|text| text.trim()) {
        None | Some("REDIRECT" | "") => {}
        Some(mode) => {
            return Err(format!("annotation {MODE}: {} is not \"REDIRECT\"", quoted(mode)));
        }
    }
    let is_set =
        |name: &&&str| annotations.get(**name).is_some_and(|value| !value.trim().is_empty());
    if let Some(name) = VIRTUAL_INTERFACES.iter().find(is_set) {
        return Err(format!("annotation {name}: denizen does not redirect virtual interfaces"));
    }
    // Without this annotation everything is redirected, these ports included.
    if !annotations.contains_key(INCLUDE_RANGES) {
        redirect.only_outbound_ports.clear();
    }
    Ok(())
}
