//! The table of links and addresses, from rtnetlink messages. Pure.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enums of netlink-packet-route list every message and attribute of the kernel"
)]

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnetwork::IpNetwork;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::tunnel::tunnels_of;
use denizen_model::{NodeAddress, NodeLinks, Tunnel};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// Its index in the network namespace.
    pub index: u32,
    pub name: Arc<str>,
    /// Its hardware address, as `ip` prints it; empty for a link that has none.
    pub mac: String,
    pub kind: LinkKind,
    /// The index of the bridge or other device whose port it is.
    pub master: Option<u32>,
}

/// What a link is, as far as needed to tell whether it may be a pod's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    Bridge,
    /// A veth with both ends in this network namespace.
    Veth,
    /// A veth whose other end is in another network namespace: a pod's, or another container's.
    VethToOtherNetns,
    Other,
}

impl LinkKind {
    fn of(message: &LinkMessage) -> Self {
        let infos = message.attributes.iter().filter_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => Some(infos),
            _ => None,
        });
        let kind = infos.flatten().find_map(|info| match info {
            LinkInfo::Kind(kind) => Some(kind),
            _ => None,
        });
        let is_netns =
            |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::LinkNetNsId(_));
        match kind {
            Some(InfoKind::Bridge) => Self::Bridge,
            Some(InfoKind::Veth) if message.attributes.iter().any(is_netns) => {
                Self::VethToOtherNetns
            }
            Some(InfoKind::Veth) => Self::Veth,
            _ => Self::Other,
        }
    }
}

/// The links and addresses that the kernel has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LinkTable {
    links: BTreeMap<u32, Link>,
    dummies: BTreeSet<u32>,
    /// By the index of a link, the index of its lower link; of a veth, that of its other end.
    peers: BTreeMap<u32, u32>,
    /// Tunnels, by the index of their link.
    tunnels: BTreeMap<u32, BTreeSet<Tunnel>>,
    addresses: BTreeSet<LinkAddress>,
}

/// An address of a link: one address may be on a link with several prefix lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LinkAddress {
    /// The link's index.
    link: u32,
    address: IpAddr,
    /// The network's prefix. On a point-to-point link, IPv4 has that of the other end's address.
    network: IpNetwork,
    /// As it was set, for IPv4. It need not be the network's last address.
    broadcast: Option<Ipv4Addr>,
}

impl LinkTable {
    /// Applies a message of the kernel: an element of a list, or a notification. Returns whether
    /// that changes the table: most notifications are about what it does not have.
    pub(super) fn apply(&mut self, message: &RouteNetlinkMessage) -> bool {
        match message {
            RouteNetlinkMessage::NewLink(link) => self.link_is(link),
            RouteNetlinkMessage::DelLink(link) => self.link_is_gone(link),
            RouteNetlinkMessage::NewAddress(address) => self.address_is(address),
            RouteNetlinkMessage::DelAddress(address) => {
                LinkAddress::of(address).is_some_and(|address| self.addresses.remove(&address))
            }
            _ => false,
        }
    }

    fn link_is(&mut self, message: &LinkMessage) -> bool {
        if message.header.interface_family != AddressFamily::Unspec {
            return false;
        }
        let index = message.header.index;
        let name = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.as_str()),
            _ => None,
        });
        let mac = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Address(bytes) => Some(bytes.as_slice()),
            _ => None,
        });
        let master = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Controller(index) => Some(*index),
            _ => None,
        });
        let peer = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Link(index) => Some(*index),
            _ => None,
        });
        let Some(name) = name else { return false };
        let mut changed = message.attributes.iter().any(is_dummy) && self.dummies.insert(index);
        changed |= replace(&mut self.peers, index, peer);
        let tunnels = tunnels_of(message);
        changed |= replace(&mut self.tunnels, index, Some(tunnels).filter(|all| !all.is_empty()));
        // Most notifications change nothing: keep the known name.
        let known = self.links.get(&index).filter(|link| *link.name == *name);
        let link = Link {
            index,
            name: known.map_or_else(|| name.into(), |link| link.name.clone()),
            mac: shown(mac.unwrap_or_default()),
            kind: LinkKind::of(message),
            master,
        };
        replace(&mut self.links, index, Some(link)) || changed
    }

    /// When a port leaves a bridge, the kernel reports it deleted, but in the bridge family only.
    fn link_is_gone(&mut self, message: &LinkMessage) -> bool {
        if message.header.interface_family != AddressFamily::Unspec {
            return false;
        }
        let index = message.header.index;
        self.dummies.remove(&index);
        self.peers.remove(&index);
        self.tunnels.remove(&index);
        let had_addresses = self.addresses.extract_if(.., |address| address.link == index).count();
        self.links.remove(&index).is_some() || had_addresses > 0
    }

    fn address_is(&mut self, message: &AddressMessage) -> bool {
        let Some(address) = LinkAddress::of(message) else { return false };
        match answers(message) {
            true => self.addresses.insert(address),
            false => self.addresses.remove(&address),
        }
    }

    /// The addresses, sorted, each once per link.
    pub(super) fn addresses(&self) -> Vec<NodeAddress> {
        let named = self.addresses.iter().filter_map(|LinkAddress { link, address, .. }| {
            let interface = self.links.get(link)?.name.clone();
            Some(NodeAddress { address: *address, interface, dummy: self.dummies.contains(link) })
        });
        let mut addresses: Vec<NodeAddress> = named.collect();
        addresses.sort();
        addresses.dedup();
        addresses
    }

    /// Whether `port` is a veth on a bridge whose other end the node itself uses. Then no pod is
    /// behind it.
    fn joins_the_node(&self, port: &Link) -> bool {
        let link = |index: &u32| self.links.get(index);
        let is_bridge = |master: &Link| master.kind == LinkKind::Bridge;
        let peer = self.peers.get(&port.index).and_then(link);
        port.kind == LinkKind::Veth
            && port.master.as_ref().and_then(link).is_some_and(is_bridge)
            && peer.is_some_and(|peer| peer.kind == LinkKind::Veth && peer.master.is_none())
    }

    /// The bridges' Ethernet addresses, the node's own veths to them, and the tunnels.
    pub(super) fn node_links(&self) -> NodeLinks {
        let bridges = self.links.values().filter(|link| link.kind == LinkKind::Bridge);
        let veths = self.links.values().filter(|link| self.joins_the_node(link));
        NodeLinks {
            bridges: bridges.filter_map(|bridge| bridge.mac.parse().ok()).collect(),
            veths: veths.map(|veth| veth.name.clone()).collect(),
            tunnels: self.tunnels.values().flatten().copied().collect(),
            also_local: self.addresses.iter().flat_map(LinkAddress::also_local).collect(),
        }
    }

    pub(super) fn links(&self) -> Vec<Link> {
        self.links.values().cloned().collect()
    }
}

impl LinkAddress {
    /// On a point-to-point link `IFA_ADDRESS` is the other end's.
    fn of(message: &AddressMessage) -> Option<Self> {
        let [mut local, mut address] = [None; 2];
        let mut broadcast = None;
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(ip) => local = Some(*ip),
                AddressAttribute::Address(ip) => address = Some(*ip),
                AddressAttribute::Broadcast(ip) => broadcast = Some(*ip),
                _ => {}
            }
        }
        let own = local.or(address)?;
        let of_network = address.filter(IpAddr::is_ipv4).unwrap_or(own);
        let network = IpNetwork::new(of_network, message.header.prefix_len).ok()?;
        let network = IpNetwork::new(network.network(), network.prefix()).ok()?;
        Some(Self { link: message.header.index, address: own, network, broadcast })
    }

    /// At which other addresses the kernel takes packets because of this one: `fib_add_ifaddr`, and
    /// while it forwards IPv6, `addrconf_join_anycast` (RFC 4291, 2.6.1).
    fn also_local(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let (first, last) = (self.network.network(), self.network.broadcast());
        let of_network = match self.network {
            IpNetwork::V4(network) if network.prefix() < 31 => [Some(first), Some(last)],
            IpNetwork::V6(network) if network.prefix() < 127 => [Some(first), None],
            IpNetwork::V4(_) | IpNetwork::V6(_) => [None; 2],
        };
        let broadcast = self.broadcast.map(IpAddr::V4);
        let all = of_network.into_iter().flatten().chain(broadcast);
        all.filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
    }
}

/// Sets or removes the value of a link. Returns whether the value changed.
fn replace<T: PartialEq>(all: &mut BTreeMap<u32, T>, index: u32, value: Option<T>) -> bool {
    let differs = all.get(&index) != value.as_ref();
    match value {
        Some(value) => drop(all.insert(index, value)),
        None => drop(all.remove(&index)),
    }
    differs
}

/// Whether this attribute says that the link is a dummy device.
fn is_dummy(attribute: &LinkAttribute) -> bool {
    match attribute {
        LinkAttribute::LinkInfo(info) => info.contains(&LinkInfo::Kind(InfoKind::Dummy)),
        _ => false,
    }
}

/// Whether the kernel answers at this address. It uses an optimistic address before its duplicate
/// detection ends.
fn answers(message: &AddressMessage) -> bool {
    let flags = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Flags(flags) => Some(*flags),
        _ => None,
    });
    let header = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    let flags = flags.unwrap_or(header);
    let waiting =
        flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic);
    !waiting && !flags.contains(AddressFlags::Dadfailed)
}

/// A hardware address as `ip` prints it.
fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 3);
    for (index, byte) in bytes.iter().enumerate() {
        let colon = if index == 0 { "" } else { ":" };
        write!(text, "{colon}{byte:02x}").expect("a string takes any text");
    }
    text
}
