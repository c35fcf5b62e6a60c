//! Where a pod's packets enter this node: the node's end of its veth, the bridge, the VLAN.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use denizen_state::{Attachment, HostInterface};
use serde_json::Map;

use super::link::{NetnsLink, NetnsLinks};
use super::netns::Netns;
use super::vlan;

/// Where a pod is attached to this node's network stack.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Attached {
    pub(crate) host_interface: Option<HostInterface>,
    pub(crate) bridge: Option<String>,
    pub(crate) l3_interface: Option<String>,
    /// The MAC address of the pod's interface, where the kernel showed it.
    pub(crate) mac: Option<String>,
}

/// An interface of a pod besides the one that the ADD is for.
pub(crate) struct FurtherInterface {
    pub(crate) if_name: String,
    pub(crate) attached: Attached,
    pub(crate) ips: Vec<IpAddr>,
}

impl FurtherInterface {
    /// The record of this interface, with the pod's data from `first`, the record of its first
    /// interface.
    pub(crate) fn beside(self, first: &Attachment) -> Attachment {
        Attachment {
            if_name: self.if_name,
            host_interface: self.attached.host_interface,
            l3_interface: self.attached.l3_interface,
            bridge: self.attached.bridge,
            ips: self.ips,
            mac: self.attached.mac,
            host_ports: Vec::new(),
            host_ports_adopted: false,
            redirect: None,
            obsolete_redirects: Vec::new(),
            further_interfaces: Vec::new(),
            ..first.clone()
        }
    }
}

/// Where `container`, the pod's interface in `netns`, is attached to the node whose links are
/// `node`. `prev_result` names links on the node, from the previous plugins' result.
///
/// The kernel has precedence: a result may list bridges and dummies beside the pod's link, in any
/// order. The result only decides if the kernel cannot name the other end of the container's
/// interface (it is not a veth).
pub(crate) fn attached(
    node: &mut NetnsLinks,
    container: Option<&NetnsLink>,
    netns: &Netns,
    prev_result: &[String],
) -> io::Result<Attached> {
    let host = match container {
        Some(container) if container.is("veth") => match peer(node, container, netns)? {
            Some(host) => Some(host),
            None => only(node, prev_result)?,
        },
        Some(_) | None => only(node, prev_result)?,
    };
    let mac = container.filter(|link| !link.mac.is_empty()).map(NetnsLink::mac_text);
    Ok(Attached { mac, ..at(node, host)? })
}

/// The interfaces with these `names` in `netns` that lead to the node: their names, where they are
/// attached, and their addresses. The addresses are from the kernel, since a result need not list
/// them. The pod's links are `pod`, the node's `node`.
pub(crate) fn further_interfaces(
    node: &mut NetnsLinks,
    pod: &mut NetnsLinks,
    netns: &Netns,
    names: &[String],
) -> io::Result<Vec<FurtherInterface>> {
    let mut found = Vec::new();
    for name in names {
        // The AWS VPC CNI also lists names that are not interfaces.
        let Some(container) = pod.named(name)?.filter(|link| link.is("veth")) else { continue };
        let Some(host) = peer(node, &container, netns)? else { continue };
        let ips = pod.addresses(container.index)?.into_iter().filter(is_of_pod).collect();
        let attached = Attached { mac: Some(container.mac_text()), ..at(node, Some(host))? };
        found.push(FurtherInterface { if_name: name.clone(), attached, ips });
    }
    Ok(found)
}

/// Whether the pod can use the address for packets to others than the node. A link-local IPv4
/// address counts: it may be translated on the way out, as the AWS VPC CNI does it.
fn is_of_pod(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

/// Where a pod with the link `host` on the node is attached.
pub(crate) fn at(node: &mut NetnsLinks, host: Option<NetnsLink>) -> io::Result<Attached> {
    let Some(host) = host else {
        return Ok(Attached::default());
    };
    let bridge = match host.master {
        Some(master) => node.at(master)?.filter(|master| master.is("bridge")),
        None => None,
    };
    let l3_interface = match &bridge {
        Some(bridge) if bridge.filters_vlans => {
            let vlans = node.vlans()?;
            vlan::input_interface(&host, bridge, &vlans.ports, &vlans.links)
        }
        Some(_) | None => None,
    };
    let mac = host.mac_text();
    Ok(Attached {
        host_interface: Some(HostInterface {
            name: host.name,
            index: host.index,
            mac,
            unknown: Map::new(),
        }),
        bridge: bridge.map(|bridge| bridge.name),
        l3_interface,
        mac: None,
    })
}

/// The other end of `container`, if it is on this node.
///
/// An index alone proves nothing: it may belong to a third namespace, and the link with this index
/// here may be another pod's veth, whose other end has the same index as `container`. So the link
/// must lead back to that index, and into the namespace `netns`.
fn peer(
    node: &mut NetnsLinks,
    container: &NetnsLink,
    netns: &Netns,
) -> io::Result<Option<NetnsLink>> {
    let Some(host) = container.lower.map(|index| node.at(index)).transpose()?.flatten() else {
        return Ok(None);
    };
    let leads_back = host.is("veth") && host.lower == Some(container.index);
    let into_it = host.lower_nsid.is_some() && host.lower_nsid == node.nsid(netns.file.as_fd())?;
    Ok((leads_back && into_it).then_some(host))
}

/// The only one of the named links that can be a pod's; `None` if there are several.
pub(crate) fn only(node: &mut NetnsLinks, prev_result: &[String]) -> io::Result<Option<NetnsLink>> {
    let mut found = Vec::new();
    for name in prev_result {
        found.extend(node.named(name)?.filter(|link| !link.is("bridge")));
    }
    Ok(if found.len() == 1 { found.pop() } else { None })
}
