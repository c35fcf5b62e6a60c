//! The facts in the previous plugin's result that are recorded. The caller passes the text on
//! unchanged.

use std::net::IpAddr;

use denizen_state::json;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{CniError, quoted};
use crate::version::CniVersion;

/// The facts in a `prevResult` about one attachment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PrevResult {
    /// The names of links on the node in the result: the pod's veth, the bridge, others.
    pub(crate) host_links: Vec<String>,
    /// The names of other interfaces that the result lists as in a sandbox.
    pub(crate) further: Vec<String>,
    /// Whether the result lists the container's interface.
    pub(crate) has_interface: bool,
    /// The interface's addresses.
    pub(crate) ips: Vec<IpAddr>,
    /// The gateways of those addresses.
    pub(crate) gateways: Vec<IpAddr>,
    /// The MAC address of the interface.
    pub(crate) mac: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawResult {
    cni_version: Option<String>,
    interfaces: Option<Vec<RawInterface>>,
    ips: Option<Vec<RawIp>>,
}

#[derive(Deserialize)]
struct RawInterface {
    name: String,
    mac: Option<String>,
    sandbox: Option<String>,
}

#[derive(Deserialize)]
struct RawIp {
    version: Option<String>,
    address: String,
    gateway: Option<String>,
    interface: Option<usize>,
}

impl RawInterface {
    fn is_in_sandbox(&self) -> bool {
        self.sandbox.as_ref().is_some_and(|sandbox| !sandbox.is_empty())
    }
}

impl PrevResult {
    /// Parses `raw`, the result of a chain in `version`, for the container's interface `if_name`.
    pub(crate) fn parse(
        raw: &RawValue,
        version: CniVersion,
        if_name: &str,
    ) -> Result<PrevResult, CniError> {
        let result: RawResult =
            json::parse(raw.get()).map_err(|error| CniError::malformed("prevResult", &error))?;
        check_version(result.cni_version.as_deref(), version)?;
        let interfaces = result.interfaces.unwrap_or_default();
        // Azure's and kindnet's plugins leave out the sandbox of the only interface that they list.
        let no_sandbox = !interfaces
            .iter()
            .any(|interface| interface.is_in_sandbox() && interface.name == if_name);
        let ours = |interface: &RawInterface| {
            interface.name == if_name && (interface.is_in_sandbox() || no_sandbox)
        };
        let (mut ips, mut gateways) = (Vec::new(), Vec::new());
        for ip in result.ips.unwrap_or_default() {
            let address = address(&ip)?;
            // An address without an interface belongs to the interface of this call.
            let is_ours = match ip.interface {
                None => true,
                Some(index) => ours(
                    interfaces
                        .get(index)
                        .ok_or_else(|| malformed(&ip, "its interface is not in the list"))?,
                ),
            };
            if is_ours {
                ips.push(address);
                // Gateways only serve as destinations when a redirection is tested, so an invalid
                // one is ignored.
                gateways.extend(ip.gateway.and_then(|gateway| gateway.parse::<IpAddr>().ok()));
            }
        }
        let own = interfaces.iter().find(|interface| ours(interface));
        let has_interface = own.is_some();
        let mac = own.and_then(|interface| interface.mac.clone()).filter(|mac| !mac.is_empty());
        let (mut host_links, mut further) = (Vec::new(), Vec::new());
        for interface in interfaces.iter().filter(|interface| !ours(interface)) {
            let names = if interface.is_in_sandbox() { &mut further } else { &mut host_links };
            if !names.contains(&interface.name) {
                names.push(interface.name.clone());
            }
        }
        Ok(PrevResult { host_links, further, has_interface, ips, gateways, mac })
    }
}

/// Checks that a result with the version `stated` has the same type as results of a chain in
/// `version`. Like Go's plugins, this accepts every version with that type: in what is read here,
/// such results do not differ.
fn check_version(stated: Option<&str>, version: CniVersion) -> Result<(), CniError> {
    // Before 1.0.0, results need not state their version; then it is the chain's.
    let Some(stated) = stated.filter(|stated| !stated.is_empty()) else {
        return Ok(());
    };
    match CniVersion::named(stated) {
        Some(result) if result.has_result_type_of(version) => Ok(()),
        Some(_) | None => Err(CniError::InvalidConfig(format!(
            "prevResult has cniVersion {}, whose results are of another type than those of the \
             configuration's {:?}",
            quoted(stated),
            version.name()
        ))),
    }
}

/// The address of `ip`, without its prefix length.
fn address(ip: &RawIp) -> Result<IpAddr, CniError> {
    let Some((address, prefix)) = ip.address.split_once('/') else {
        return Err(malformed(ip, "the prefix length is missing"));
    };
    let address: IpAddr = address.parse().map_err(|_| malformed(ip, "it is not an IP address"))?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    if !prefix.parse::<u8>().is_ok_and(|prefix| prefix <= longest) {
        return Err(malformed(ip, "the prefix length is not valid"));
    }
    // The packets of an IPv4-mapped IPv6 address are IPv4 packets.
    let written = address;
    let address = written.to_canonical();
    // Versions 0.3.x and 0.4.0 of the specification repeat the family.
    let is_of = |stated: &str, address: IpAddr| stated == if address.is_ipv4() { "4" } else { "6" };
    if let Some(stated) = &ip.version
        && !is_of(stated, written)
        && !is_of(stated, address)
    {
        return Err(malformed(ip, "address and version (IPv4 or IPv6) disagree"));
    }
    // If recorded, these would make the node itself, or every host, count as a pod.
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        return Err(malformed(ip, "no pod can have it"));
    }
    Ok(address)
}

fn malformed(ip: &RawIp, why: &str) -> CniError {
    let address = quoted(&ip.address);
    CniError::InvalidConfig(format!("prevResult has a bad address: {address}: {why}"))
}

#[cfg(test)]
mod tests;
