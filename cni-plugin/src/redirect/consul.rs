//! Consul's annotations. Its injector writes all that is redirected into one annotation, as JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;

use denizen_state::json;
use denizen_state::redirect::Redirect;
use serde_json::Value;

use super::key::{self, RedirectKey, boolean, malformed, one, port, set};
use super::reads::Reads;
use crate::error::shortened;

const CONFIG: &str = "consul.hashicorp.com/redirect-traffic-config";
/// Set if the pod has a transparent proxy.
const STATUS: &str = "consul.hashicorp.com/transparent-proxy-status";

static DUAL_STACK: RedirectKey =
    one("ipv6", "", |to, entries| set(&mut to.bypass_ipv6, boolean(entries).map(|both| !both)));
static DNS_PORT: RedirectKey =
    one("dnsPort", "", |to, entries| set(&mut to.dns_port, port(entries).map(Some)));

/// The annotations that say what is redirected.
pub(super) static ANNOTATIONS: [(&str, Reads); 2] =
    [(CONFIG, Reads::Several(apply)), ("consul.hashicorp.com/dual-stack", Reads::One(&DUAL_STACK))];

/// The fields of the annotation, as the type `iptables.Config` of Consul's SDK has them.
static FIELDS: [(&str, &RedirectKey); 8] = [
    ("ProxyUserID", &key::PROXY_UID),
    ("ProxyInboundPort", &key::INBOUND_PORT),
    ("ProxyOutboundPort", &key::OUTBOUND_PORT),
    ("ExcludeInboundPorts", &key::SKIP_INBOUND_PORTS),
    ("ExcludeOutboundPorts", &key::SKIP_OUTBOUND_PORTS),
    ("ExcludeOutboundCIDRs", &key::SKIP_OUTBOUND_CIDRS),
    ("ExcludeUIDs", &key::SKIP_OUTBOUND_UIDS),
    (DNS, &DNS_PORT),
];
const DNS: &str = "ConsulDNSPort";
const DNS_ADDRESS: &str = "ConsulDNSIP";
/// Other fields of `iptables.Config`, which do not say what is redirected.
const OTHERS: [&str; 3] = ["NetNS", "IptablesProvider", "NftablesProvider"];

/// Whether Consul's injector has added a transparent proxy to the pod.
pub(super) fn selects(annotations: &BTreeMap<String, String>) -> bool {
    [CONFIG, STATUS]
        .iter()
        .all(|name| annotations.get(*name).is_some_and(|value| !value.is_empty()))
}

/// Reads [`CONFIG`], and returns the values that it changed.
fn apply(to: &mut Redirect, text: &str) -> Result<Vec<&'static str>, String> {
    let mut fields: BTreeMap<String, Value> =
        json::parse(text).map_err(|error| malformed(&error))?;
    // Go writes unset fields, too.
    fields.retain(|_, value| !is_empty(value));
    check_dns(&fields)?;
    let mut changed = Vec::new();
    for (name, key) in &FIELDS {
        let Some(value) = fields.remove(*name) else { continue };
        let mut entries = key.values(&value).map_err(|why| format!("{name}: {why}"))?;
        // The injector concatenates the ports of several sources.
        let mut seen = Vec::new();
        entries.retain(|entry| {
            let is_new = !seen.contains(entry);
            seen.push(entry.clone());
            is_new
        });
        key.apply(to, &entries).map_err(|why| format!("{name}: {why}"))?;
        changed.push(key.name);
    }
    let is_unknown = |name: &&String| *name != DNS_ADDRESS && !OTHERS.contains(&name.as_str());
    match fields.keys().find(is_unknown) {
        Some(name) => Err(format!("{} is unknown", shortened(name))),
        None => Ok(changed),
    }
}

/// DNS can only be sent to the proxy in the pod.
fn check_dns(fields: &BTreeMap<String, Value>) -> Result<(), String> {
    let Some(address) = fields.get(DNS_ADDRESS) else { return Ok(()) };
    let is_loopback = address
        .as_str()
        .and_then(|text| text.parse().ok())
        .is_some_and(|address: IpAddr| address.is_loopback());
    if is_loopback && fields.contains_key(DNS) {
        return Ok(());
    }
    let address = address.to_string();
    let address = shortened(&address);
    Err(format!(
        "{DNS_ADDRESS}: denizen sends DNS only to the proxy in the pod: to the loopback and a \
         {DNS}, and this is {address}"
    ))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is) => !is,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
