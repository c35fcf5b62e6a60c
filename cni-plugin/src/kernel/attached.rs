//! Which way a pod's packets come into this node: its end of the pod's veth, the bridge, the VLAN.

use std::io;
use std::os::fd::AsFd;

use denizen_shared::state::HostInterface;
use serde_json::Map;

use super::link::{Link, Links};
use super::netns::Netns;
use super::vlan;

/// Where a pod is attached to this node's stack.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Attached {
    pub(crate) host_interface: Option<HostInterface>,
    pub(crate) bridge: Option<String>,
    pub(crate) l3_interface: Option<String>,
}

/// Where `container`, the pod's interface in `netns`, is attached to the node whose links are
/// `node`. `told` are the links on the node that the plugins before this one named.
///
/// What the kernel can tell is taken from it: a result may list bridges and dummies beside the
/// pod's link, in any order. Only where the container's interface leads nowhere that the kernel
/// could name (it is no veth) does the result decide.
pub(crate) fn attached(
    node: &mut Links,
    container: Option<&Link>,
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
    at(node, host)
}

/// Where a pod is attached whose link on the node is `host`.
pub(crate) fn at(node: &mut Links, host: Option<Link>) -> io::Result<Attached> {
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
    })
}

/// The other end of `container`, when it is on this node.
///
/// An index alone proves nothing: it may count the links of a third namespace, and what has it here
/// may be another pod's veth, whose other end has the same index as this one's. So the link found
/// has to lead back, and into this very namespace.
fn peer(node: &mut Links, container: &Link, netns: &Netns) -> io::Result<Option<Link>> {
    let Some(host) = container.lower.map(|index| node.at(index)).transpose()?.flatten() else {
        return Ok(None);
    };
    let leads_back = host.is("veth") && host.lower == Some(container.index);
    let into_it = host.lower_nsid.is_some() && host.lower_nsid == node.nsid(netns.file.as_fd())?;
    Ok((leads_back && into_it).then_some(host))
}

/// The one link of those named that could be a pod's. Of several, none is guessed.
pub(crate) fn only(node: &mut Links, prev_result: &[String]) -> io::Result<Option<Link>> {
    let mut found = Vec::new();
    for name in prev_result {
        found.extend(node.named(name)?.filter(|link| !link.is("bridge")));
    }
    Ok(if found.len() == 1 { found.pop() } else { None })
}
