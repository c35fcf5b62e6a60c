//! The values of a redirection: the name of each in the conflist and in annotations, and how it is
//! parsed.

use std::fmt;
use std::num::NonZeroU16;

use denizen_state::redirect::{Hairpin, PortRange, Redirect, RedirectBackend};
use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::environment::is_if_name;
use crate::error::{quoted, shortened};

/// Maximum number of entries in one list. Each is a rule, and the first packet of a connection
/// passes them one after the other.
const MOST_ENTRIES: usize = 200;

/// A value of a [`Redirect`].
pub(super) struct RedirectKey {
    /// Its name in the conflist, and in the record.
    pub(super) name: &'static str,
    /// Its name in denizen's own annotations, after the prefix.
    pub(super) annotation: &'static str,
    pub(super) is_list: bool,
    /// Replaces the value by these entries; if it is not a list, there is exactly one.
    apply: fn(&mut Redirect, &[String]) -> Result<(), String>,
}

impl fmt::Debug for RedirectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

pub(super) const fn one(
    name: &'static str,
    annotation: &'static str,
    apply: fn(&mut Redirect, &[String]) -> Result<(), String>,
) -> RedirectKey {
    RedirectKey { name, annotation, is_list: false, apply }
}

pub(super) const fn list(
    name: &'static str,
    annotation: &'static str,
    apply: fn(&mut Redirect, &[String]) -> Result<(), String>,
) -> RedirectKey {
    RedirectKey { name, annotation, is_list: true, apply }
}

pub(super) static INBOUND_PORT: RedirectKey = one("inboundPort", "inbound-port", |to, entries| {
    set(&mut to.inbound_port, port(entries).map(Some))
});
pub(super) static OUTBOUND_PORT: RedirectKey =
    one("outboundPort", "outbound-port", |to, entries| {
        set(&mut to.outbound_port, port(entries).map(Some))
    });
pub(super) static PROXY_UID: RedirectKey =
    one("proxyUid", "proxy-uid", |to, entries| set(&mut to.proxy_uid, id(entries).map(Some)));
pub(super) static PROXY_GID: RedirectKey =
    one("proxyGid", "proxy-gid", |to, entries| set(&mut to.proxy_gid, id(entries).map(Some)));
pub(super) static ALWAYS_SKIP_INBOUND_PORTS: RedirectKey =
    list("alwaysSkipInboundPorts", "always-skip-inbound-ports", |to, entries| {
        set(&mut to.always_skip_inbound_ports, ports(entries))
    });
pub(super) static SKIP_INBOUND_PORTS: RedirectKey =
    list("skipInboundPorts", "skip-inbound-ports", |to, entries| {
        set(&mut to.skip_inbound_ports, ports(entries))
    });
pub(super) static ONLY_INBOUND_PORTS: RedirectKey =
    list("onlyInboundPorts", "only-inbound-ports", |to, entries| {
        set(&mut to.only_inbound_ports, ports(entries))
    });
pub(super) static SKIP_INBOUND_CIDRS: RedirectKey =
    list("skipInboundCidrs", "skip-inbound-cidrs", |to, entries| {
        set(&mut to.skip_inbound_cidrs, cidrs(entries))
    });
pub(super) static SKIP_OUTBOUND_PORTS: RedirectKey =
    list("skipOutboundPorts", "skip-outbound-ports", |to, entries| {
        set(&mut to.skip_outbound_ports, ports(entries))
    });
pub(super) static SKIP_OUTBOUND_CIDRS: RedirectKey =
    list("skipOutboundCidrs", "skip-outbound-cidrs", |to, entries| {
        set(&mut to.skip_outbound_cidrs, cidrs(entries))
    });
pub(super) static SKIP_OUTBOUND_UIDS: RedirectKey =
    list("skipOutboundUids", "skip-outbound-uids", |to, entries| {
        let ids = entries.iter().map(|entry| id(std::slice::from_ref(entry))).collect();
        set(&mut to.skip_outbound_uids, ids)
    });
pub(super) static INTERFACES: RedirectKey =
    list("interfaces", "interfaces", |to, entries| set(&mut to.interfaces, interfaces(entries)));
pub(super) static IPV6: RedirectKey =
    one("ipv6", "ipv6", |to, entries| set(&mut to.bypass_ipv6, ipv6(entries)));
pub(super) static SKIP_MARK: RedirectKey = one("skipMark", "skip-mark", |to, entries| {
    let mark = single(entries).and_then(|text| {
        text.parse().map(Some).map_err(|error| format!("{} {error}", quoted(text)))
    });
    set(&mut to.skip_mark, mark)
});
pub(super) static HAIRPIN: RedirectKey =
    one("hairpin", "hairpin", |to, entries| set(&mut to.hairpin, hairpin(entries)));
pub(super) static DROP_INVALID: RedirectKey =
    one("dropInvalid", "drop-invalid", |to, entries| set(&mut to.drop_invalid, boolean(entries)));
pub(super) static BACKEND: RedirectKey =
    one("backend", "backend", |to, entries| set(&mut to.backend, backend(entries)));

/// Every key of the conflist.
pub(super) static KEYS: [&RedirectKey; 17] = [
    &INBOUND_PORT,
    &OUTBOUND_PORT,
    &PROXY_UID,
    &PROXY_GID,
    &ALWAYS_SKIP_INBOUND_PORTS,
    &SKIP_INBOUND_PORTS,
    &ONLY_INBOUND_PORTS,
    &SKIP_INBOUND_CIDRS,
    &SKIP_OUTBOUND_PORTS,
    &SKIP_OUTBOUND_CIDRS,
    &SKIP_OUTBOUND_UIDS,
    &INTERFACES,
    &IPV6,
    &SKIP_MARK,
    &HAIRPIN,
    &DROP_INVALID,
    &BACKEND,
];

/// The port of linkerd's proxy for its control plane, which linkerd's annotation moves.
pub(super) static LINKERD_CONTROL_PORT: RedirectKey =
    one("alwaysSkipInboundPorts", "", |to, entries| moved(to, 4190, port(entries)?));
/// Likewise the port of linkerd's proxy for metrics and probes.
pub(super) static LINKERD_ADMIN_PORT: RedirectKey =
    one("alwaysSkipInboundPorts", "", |to, entries| moved(to, 4191, port(entries)?));

impl RedirectKey {
    /// Sets the value in `to`, or says what is wrong with it.
    pub(super) fn apply(&self, to: &mut Redirect, entries: &[String]) -> Result<(), String> {
        match entries.len() {
            more if more > MOST_ENTRIES => {
                Err(format!("has {more} entries; at most {MOST_ENTRIES} are allowed"))
            }
            _ => (self.apply)(to, entries),
        }
    }

    /// The entries of a value in JSON.
    pub(super) fn values(&self, value: &Value) -> Result<Vec<String>, &'static str> {
        let entry = |value: &Value| match value {
            Value::Number(number) => Some(number.to_string()),
            Value::String(text) => Some(text.clone()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        };
        match (self.is_list, value) {
            (true, value) => {
                let list = value.as_array().and_then(|list| list.iter().map(entry).collect());
                list.ok_or("a list of numbers and texts is needed")
            }
            (false, Value::Bool(is)) => Ok(vec![is.to_string()]),
            (false, value) => {
                entry(value).map(|entry| vec![entry]).ok_or("a number or a text is needed")
            }
        }
    }

    /// The entries of an annotation's text.
    pub(super) fn entries(&self, text: &str) -> Vec<String> {
        match (self.is_list, text.trim()) {
            (true, "") => Vec::new(),
            (true, text) => text.split(',').map(|entry| entry.trim().to_owned()).collect(),
            (false, text) => vec![text.to_owned()],
        }
    }
}

pub(super) fn set<T>(to: &mut T, value: Result<T, String>) -> Result<(), String> {
    value.map(|value| *to = value)
}

/// Why a value in JSON cannot be read.
pub(super) fn malformed(error: &serde_json::Error) -> String {
    format!("is malformed: {}", shortened(&error.to_string()))
}

/// The only entry.
fn single(entries: &[String]) -> Result<&str, String> {
    match entries {
        [one] => Ok(one),
        several => Err(format!("has {} values instead of one", several.len())),
    }
}

pub(super) fn port(entries: &[String]) -> Result<NonZeroU16, String> {
    let text = single(entries)?;
    let range = text.parse::<PortRange>().ok().map(PortRange::bounds);
    let port =
        range.filter(|(first, last)| first == last).and_then(|(port, _)| port.try_into().ok());
    port.ok_or_else(|| format!("{} is not a port from 1 to 65535", quoted(text)))
}

/// A user or group id. Root is rejected: everything that runs as root would bypass the proxy.
fn id(entries: &[String]) -> Result<u32, String> {
    let text = single(entries)?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(0) => Err("0 is root: all that runs as root would not be redirected".to_owned()),
        // The greatest number is no id: it stands for "none".
        Ok(id) if digits && id < u32::MAX => Ok(id),
        Ok(_) | Err(_) => Err(format!("{} is not a number from 1 to 4294967294", quoted(text))),
    }
}

/// The union of these ports, in their order. Injectors put the ports of several sources together.
pub(super) fn ports(entries: &[String]) -> Result<Vec<PortRange>, String> {
    let mut ports: Vec<PortRange> = Vec::new();
    for text in entries {
        let range: PortRange = text.parse().map_err(|error| format!("{} {error}", quoted(text)))?;
        let place = ports.iter().position(|other| other.overlaps(range)).unwrap_or(ports.len());
        let overlapping = ports.extract_if(.., |other| other.overlaps(range));
        let union = overlapping.fold(range, PortRange::spanning);
        ports.insert(place, union);
    }
    Ok(ports)
}

pub(super) fn cidrs(entries: &[String]) -> Result<Vec<IpNetwork>, String> {
    let cidr = |text: &String| {
        let not_one =
            || format!("{} is neither an address nor a CIDR such as 10.0.0.0/8", quoted(text));
        let cidr: IpNetwork = text.parse().map_err(|_| not_one())?;
        if cidr.ip() == cidr.network() {
            return Ok(cidr);
        }
        let (network, prefix) = (cidr.network(), cidr.prefix());
        Err(format!("{} is an address within the CIDR {network}/{prefix}", quoted(text)))
    };
    entries.iter().map(cidr).collect()
}

fn interfaces(entries: &[String]) -> Result<Vec<String>, String> {
    if entries.is_empty() {
        return Err("is empty: nothing would be redirected".to_owned());
    }
    let name = |text: &String| match is_if_name(text) {
        Ok(()) if text.is_empty() => Err("an interface's name is empty".to_owned()),
        Ok(()) => Ok(text.clone()),
        Err(why) => Err(format!("{} is no interface's name: it {why}", quoted(text))),
    };
    entries.iter().map(name).collect()
}

fn ipv6(entries: &[String]) -> Result<bool, String> {
    match single(entries)? {
        "redirect" => Ok(false),
        "bypass" => Ok(true),
        other => Err(format!("{} is neither \"redirect\" nor \"bypass\"", quoted(other))),
    }
}

fn hairpin(entries: &[String]) -> Result<Hairpin, String> {
    match single(entries)? {
        "direct" => Ok(Hairpin::Direct),
        "inbound" => Ok(Hairpin::Inbound),
        "outbound" => Ok(Hairpin::Outbound),
        other => {
            Err(format!("{} is none of \"direct\", \"inbound\" and \"outbound\"", quoted(other)))
        }
    }
}

fn backend(entries: &[String]) -> Result<RedirectBackend, String> {
    match single(entries)? {
        "nftables" => Ok(RedirectBackend::Nftables),
        "iptables" => Ok(RedirectBackend::Iptables),
        other => Err(format!("{} is neither \"nftables\" nor \"iptables\"", quoted(other))),
    }
}

pub(super) fn boolean(entries: &[String]) -> Result<bool, String> {
    match single(entries)? {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(format!("{} is neither \"true\" nor \"false\"", quoted(other))),
    }
}

/// The proxy listens at `port` instead of its default port `from`.
fn moved(to: &mut Redirect, from: u16, port: NonZeroU16) -> Result<(), String> {
    to.always_skip_inbound_ports.retain(|range| range.bounds() != (from, from));
    if !to.always_skip_inbound_ports.iter().any(|range| range.contains(port.get())) {
        to.always_skip_inbound_ports.push(port.into());
    }
    Ok(())
}
