//! For the agent: makes the record that an ADD of this plugin would have made, from a runtime's
//! cached result of an ADD without it. The cached result counts only if the kernel confirms it.
//!
//! No namespace is entered (that needs `CAP_SYS_ADMIN`): the node's namespace is used to query the
//! kernel about a pod's.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

use denizen_state::{Attachment, HostPort, json};
use serde::Deserialize;
use serde_json::Map;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::environment::{is_if_name, is_name, pod};
use crate::error::{CniError, quoted};
use crate::kernel::{
    Attached, FurtherInterface, Netns, NetnsLink, NetnsLinks, at, attached, further_interfaces,
    only,
};
use crate::prev_result::PrevResult;
use crate::version::CniVersion;

/// A runtime's cached ADD, for which a record is to be made.
#[derive(Debug, Clone)]
pub struct AdoptionRequest<'a> {
    /// The runtime's id of the pod sandbox.
    pub container_id: &'a str,
    /// The interface's name inside the pod.
    pub if_name: &'a str,
    /// The `name` of the CNI network configuration.
    pub network: &'a str,
    /// Path of the pod's network namespace; the result may name it too.
    pub netns: Option<&'a str>,
    /// `CNI_ARGS`.
    pub args: &'a str,
    /// The host ports that the runtime passed.
    pub host_ports: Vec<HostPort>,
    /// The result of the chain's last plugin.
    pub result: &'a RawValue,
    /// The time of the ADD, RFC 3339 in UTC.
    pub added_at: String,
}

/// Why no record can be made.
#[derive(Debug, Error)]
pub enum NotAdopted {
    /// The cached result is not valid.
    #[error("{0}")]
    Malformed(String),
    /// The kernel contradicts the cached result: the pod is gone, or was never attached to this
    /// node's stack.
    #[error("{0}")]
    ContradictedByKernel(String),
    /// The kernel could not be queried.
    #[error("cannot query the kernel")]
    Kernel(#[from] io::Error),
}

/// Makes records for pods whose interfaces existed when the adopter was opened. The node's links
/// are those in the network namespace of the thread that opened it.
pub struct Adopter {
    node: NetnsLinks,
}

impl Adopter {
    /// Opens the netlink socket. Reads nothing yet.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub fn open() -> io::Result<Self> {
        NetnsLinks::open().map(|node| Self { node })
    }

    /// The record for `request`, with the kernel's current values.
    pub fn adopt(&mut self, request: &AdoptionRequest<'_>) -> Result<Attachment, NotAdopted> {
        adopt(&mut self.node, request)
    }

    /// The MAC address, from the kernel, of the pod's interface that `record` is about, for records
    /// without a MAC address; `None` if the link is gone or is not a veth.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub fn mac(&mut self, record: &Attachment) -> io::Result<Option<String>> {
        self.host_end(record)?.as_ref().map_or(Ok(None), mac_behind)
    }

    /// Whether the link of `record` leads to the interface of its pod; `None` if the kernel
    /// does not show it. The network namespace decides if it can be reached, since a pod may change
    /// its MAC address.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub fn leads_to_pod(&mut self, record: &Attachment) -> io::Result<Option<bool>> {
        let Some(host) = self.host_end(record)? else { return Ok(None) };
        let path = record.netns.as_deref().map(Path::new);
        match path.map(|path| namespace(&mut self.node, path)).transpose() {
            Ok(Some(Some((_, nsid)))) => return Ok(Some(host.lower_nsid == Some(nsid))),
            Err(NotAdopted::Kernel(error)) => return Err(error),
            Err(NotAdopted::ContradictedByKernel(_) | NotAdopted::Malformed(_)) => {
                return Ok(Some(false));
            }
            Ok(None | Some(None)) => {}
        }
        let macs = record.mac.as_ref().zip(mac_behind(&host)?);
        Ok(macs.map(|(recorded, mac)| *recorded == mac))
    }

    /// The node's end of the interface that `record` is about; `None` if it is gone.
    fn host_end(&mut self, record: &Attachment) -> io::Result<Option<NetnsLink>> {
        let Some(recorded) = &record.host_interface else { return Ok(None) };
        Ok(self.node.at(recorded.index)?.filter(|link| link.name == recorded.name))
    }
}

fn adopt(node: &mut NetnsLinks, request: &AdoptionRequest<'_>) -> Result<Attachment, NotAdopted> {
    let AdoptionRequest { container_id, if_name, network, .. } = *request;
    let malformed = |what: &str, text: &str| {
        NotAdopted::Malformed(format!("{what} is malformed: {}", quoted(text)))
    };
    if !is_name(container_id) {
        return Err(malformed("containerId", container_id));
    }
    if !is_name(network) {
        return Err(malformed("networkName", network));
    }
    is_if_name(if_name).map_err(|_| malformed("ifName", if_name))?;
    let result = Outline::parse(request.result)?;
    let prev_result = PrevResult::parse(request.result, result.version()?, if_name)
        .map_err(|error| NotAdopted::Malformed(error.to_string()))?;
    let ObservedPod { attached, ips, further } =
        observe(node, &prev_result, result.netns(request), if_name)?;
    let mut record = Attachment {
        container_id: container_id.to_owned(),
        if_name: if_name.to_owned(),
        network: network.to_owned(),
        pod: pod(request.args).map_err(|error| NotAdopted::Malformed(error.to_string()))?,
        netns: result.netns(request).map(str::to_owned),
        host_interface: attached.host_interface,
        l3_interface: attached.l3_interface,
        bridge: attached.bridge,
        ips,
        mac: attached.mac.or(prev_result.mac),
        host_ports_adopted: !request.host_ports.is_empty(),
        host_ports: request.host_ports.clone(),
        further_interfaces: Vec::new(),
        added_at: request.added_at.clone(),
        adopted: true,
        redirect: None,
        obsolete_redirects: Vec::new(),
        unknown: Map::new(),
    };
    record.further_interfaces =
        further.into_iter().map(|further| further.beside(&record)).collect();
    Ok(record)
}

/// The fields of a result that are needed in addition to those of [`PrevResult`].
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outline {
    cni_version: Option<String>,
    interfaces: Option<Vec<ResultInterface>>,
}

#[derive(Deserialize)]
struct ResultInterface {
    name: String,
    sandbox: Option<String>,
}

impl Outline {
    fn parse(result: &RawValue) -> Result<Self, NotAdopted> {
        json::parse(result.get()).map_err(|error| {
            NotAdopted::Malformed(CniError::malformed("the result", &error).to_string())
        })
    }

    fn version(&self) -> Result<CniVersion, NotAdopted> {
        let name = self.cni_version.as_deref().unwrap_or_default();
        CniVersion::named(name).ok_or_else(|| {
            NotAdopted::Malformed(format!(
                "the result has cniVersion {}, which does not name interfaces",
                quoted(name)
            ))
        })
    }

    /// The path of the pod's network namespace, from the runtime, else from the result.
    fn netns<'a>(&'a self, request: &AdoptionRequest<'a>) -> Option<&'a str> {
        let named = self.interfaces.iter().flatten().filter(|place| place.name == request.if_name);
        let sandbox =
            named.filter_map(|place| place.sandbox.as_deref()).find(|path| !path.is_empty());
        request
            .netns
            .filter(|path| !path.is_empty())
            .or(sandbox)
            .filter(|path| path.starts_with('/'))
    }
}

/// Where a pod is attached.
struct ObservedPod {
    attached: Attached,
    /// The result's addresses that the pod has.
    ips: Vec<IpAddr>,
    further: Vec<FurtherInterface>,
}

fn observe(
    node: &mut NetnsLinks,
    prev_result: &PrevResult,
    netns: Option<&str>,
    if_name: &str,
) -> Result<ObservedPod, NotAdopted> {
    let seen = match netns.map(|path| namespace(node, Path::new(path))).transpose()?.flatten() {
        Some((netns, nsid)) => inside(node, prev_result, &netns, nsid, if_name)?,
        None => outside(node, prev_result)?,
    };
    if seen.attached.host_interface.is_none() {
        return Err(NotAdopted::ContradictedByKernel(
            "it has no interface on this node's stack".to_owned(),
        ));
    }
    if seen.ips.is_empty() {
        return Err(NotAdopted::ContradictedByKernel(
            "the kernel has none of its addresses there".to_owned(),
        ));
    }
    Ok(seen)
}

/// The namespace at `path`, with the number (nsid) that the node's namespace has for it. `None` if
/// the namespace cannot be reached, because its folder is not shared with this process.
fn namespace(node: &mut NetnsLinks, path: &Path) -> Result<Option<(Netns, i32)>, NotAdopted> {
    let gone = || {
        NotAdopted::ContradictedByKernel(format!(
            "its network namespace {} is gone",
            path.display()
        ))
    };
    let netns = match Netns::open(path) {
        Ok(netns) => netns,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder_is_here = path.parent().is_some_and(Path::is_dir);
            return if folder_is_here { Err(gone()) } else { Ok(None) };
        }
        // If the mount did not propagate to this process, there is a file without permissions
        // instead.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return Err(NotAdopted::ContradictedByKernel(
                "it is in the node's own network namespace".to_owned(),
            ));
        }
        Err(error) => return Err(error.into()),
    };
    match node.nsid(netns.file.as_fd()) {
        Ok(Some(nsid)) => Ok(Some((netns, nsid))),
        Ok(None) => Err(NotAdopted::ContradictedByKernel(
            "no link of this node leads into its network namespace".to_owned(),
        )),
        // It is a plain file: the mount of the namespace did not propagate to this process.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// How the pod is attached, if its namespace can be reached: the pod's interface leads to the
/// node's link, and has the addresses.
fn inside(
    node: &mut NetnsLinks,
    prev_result: &PrevResult,
    netns: &Netns,
    nsid: i32,
    if_name: &str,
) -> Result<ObservedPod, NotAdopted> {
    let mut pod = NetnsLinks::of_namespace(nsid)?;
    let container = pod.named(if_name)?.ok_or_else(|| {
        NotAdopted::ContradictedByKernel(format!("it has no interface {if_name}"))
    })?;
    let has = pod.addresses(container.index)?;
    let ips = prev_result.ips.iter().copied().filter(|ip| has.contains(ip)).collect();
    let attached = attached(node, Some(&container), netns, &prev_result.host_links)?;
    let further = further_interfaces(node, &mut pod, netns, &prev_result.further)?;
    Ok(ObservedPod { attached, ips, further })
}

/// The MAC address of the other end of a veth that leads into another namespace.
fn mac_behind(host: &NetnsLink) -> io::Result<Option<String>> {
    let Some((nsid, index)) = host.lower_nsid.zip(host.lower) else { return Ok(None) };
    let pod = NetnsLinks::of_namespace(nsid)?.at(index)?;
    Ok(pod.filter(|link| link.is("veth") && !link.mac.is_empty()).map(|link| link.mac_text()))
}

/// How the pod is attached, if its namespace cannot be reached. Only one link in the result can be
/// the pod's on the node; it must lead into some namespace, and the node's routes to the addresses
/// must lead to that link, its VLAN device or its bridge.
fn outside(node: &mut NetnsLinks, prev_result: &PrevResult) -> Result<ObservedPod, NotAdopted> {
    let Some(host) = only(node, &prev_result.host_links)?.filter(|link| link.lower_nsid.is_some())
    else {
        return Err(NotAdopted::ContradictedByKernel(
            "no link of this node can be matched to it with certainty".to_owned(),
        ));
    };
    let mac = mac_behind(&host)?;
    let (name, attached) = (host.name.clone(), at(node, Some(host))?);
    let attached = Attached { mac, ..attached };
    let input = attached.l3_interface.as_ref().or(attached.bridge.as_ref()).unwrap_or(&name);
    let input = node.named(input)?.map(|link| link.index);
    let mut ips = Vec::new();
    for ip in &prev_result.ips {
        if input.is_some() && node.route_to(*ip)? == input {
            ips.push(*ip);
        }
    }
    Ok(ObservedPod { attached, ips, further: Vec::new() })
}
