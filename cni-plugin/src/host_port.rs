//! The host ports that the runtime passes: the capability `portMappings`. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use denizen_state::{HostPort, HostPortFamily, HostPortProtocol, PodRef, json};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::{CniError, quoted, shortened};

/// The capability by which a runtime passes host ports.
pub const PORT_MAPPINGS: &str = "portMappings";

type Fields = BTreeMap<String, Value>;

/// The host ports of `pod` in `passed`, the value of [`PORT_MAPPINGS`].
///
/// containerd writes its keys in capitals (`HostPort`), Multus and podman as the specification has
/// them (`hostPort`): plugins in Go read both.
pub(crate) fn host_ports(
    passed: &RawValue,
    pod: Option<&PodRef>,
) -> Result<Vec<HostPort>, CniError> {
    let whose =
        pod.map_or_else(String::new, |pod| format!(" of pod {}/{}", pod.namespace, pod.name));
    let what = format!("runtimeConfig.{PORT_MAPPINGS}{whose}");
    // Without ports there is `null`, as Go writes a list that was never made.
    let entries: Option<Vec<Fields>> =
        json::parse(passed.get()).map_err(|error| CniError::malformed(&what, &error))?;
    let mut all = Vec::new();
    for (number, entry) in entries.iter().flatten().enumerate() {
        let refused = |why: String| {
            let text = serde_json::to_string(entry).unwrap_or_default();
            let text = shortened(&text);
            CniError::InvalidConfig(format!("{what}: entry {}, {text}: {why}", number + 1))
        };
        let host_port = host_port(entry).map_err(refused)?;
        if !all.contains(&host_port) {
            all.push(host_port);
        }
    }
    Ok(all)
}

/// The host ports in a runtime's cache of what it passed to an ADD.
///
/// # Errors
/// What is wrong with them.
pub fn cached_host_ports(passed: &Value) -> Result<Vec<HostPort>, String> {
    let raw = serde_json::value::to_raw_value(passed).map_err(|error| error.to_string())?;
    host_ports(&raw, None).map_err(|error| error.to_string())
}

fn host_port(entry: &Fields) -> Result<HostPort, String> {
    let (ip, family) = address(text(entry, "hostIP")?)?;
    let protocol = match text(entry, "protocol")? {
        "" => HostPortProtocol::Tcp,
        name => HostPortProtocol::named(name)
            .ok_or_else(|| format!("protocol {} is none of tcp, udp and sctp", quoted(name)))?,
    };
    let (port, pod_port) = (port(entry, "hostPort")?, port(entry, "containerPort")?);
    Ok(HostPort { ip, family, protocol, port, pod_port, unknown: Map::new() })
}

/// What a hostIP asks for: one address, or every address of one family or of both.
fn address(text: &str) -> Result<(Option<IpAddr>, Option<HostPortFamily>), String> {
    if text.is_empty() {
        return Ok((None, None));
    }
    let ip: IpAddr =
        text.parse().map_err(|_| format!("hostIP {} is no IP address", quoted(text)))?;
    Ok(match ip.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => (None, Some(HostPortFamily::Ipv4)),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => (None, Some(HostPortFamily::Ipv6)),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => (Some(ip), None),
    })
}

/// The value of `key`, written in any case.
fn value<'a>(entry: &'a Fields, key: &str) -> Option<&'a Value> {
    let named = || entry.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
    let value = entry.get(key).or_else(|| named().map(|(_, value)| value));
    value.filter(|value| !value.is_null())
}

fn text<'a>(entry: &'a Fields, key: &str) -> Result<&'a str, String> {
    let Some(value) = value(entry, key) else { return Ok("") };
    value.as_str().ok_or_else(|| format!("{key} is no string"))
}

fn port(entry: &Fields, key: &str) -> Result<NonZeroU16, String> {
    let Some(value) = value(entry, key) else { return Err(format!("{key} is missing")) };
    let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
    number.and_then(NonZeroU16::new).ok_or_else(|| format!("{key} {value} is not from 1 to 65535"))
}

#[cfg(test)]
mod tests;
