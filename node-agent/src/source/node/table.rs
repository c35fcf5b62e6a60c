//! Links and addresses as told by rtnetlink. Pure.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enums of netlink-packet-route name all that the kernel may ever say"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::model::NodeAddress;

/// A link of this node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// Its index in the network namespace.
    pub index: u32,
    /// Its name.
    pub name: Arc<str>,
    /// Its hardware address, as `ip` prints it; empty for a link that has none.
    pub mac: String,
}

/// What the kernel has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    links: BTreeMap<u32, Link>,
    /// The indices of dummy devices.
    dummies: BTreeSet<u32>,
    /// Link, address and prefix length: one address may be on a link with several lengths.
    addresses: BTreeSet<(u32, IpAddr, u8)>,
}

impl Table {
    /// Takes in what the kernel says: an element of a list, or a notification.
    pub(super) fn apply(&mut self, message: &RouteNetlinkMessage) {
        match message {
            RouteNetlinkMessage::NewLink(link) => self.link_is(link),
            RouteNetlinkMessage::DelLink(link) => self.link_is_gone(link),
            RouteNetlinkMessage::NewAddress(address) => self.address_is(address),
            RouteNetlinkMessage::DelAddress(address) => {
                if let Some(key) = key_of(address) {
                    self.addresses.remove(&key);
                }
            }
            _ => {}
        }
    }

    fn link_is(&mut self, message: &LinkMessage) {
        if message.header.interface_family != AddressFamily::Unspec {
            return;
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
        let Some(name) = name else { return };
        if message.attributes.iter().any(is_dummy) {
            self.dummies.insert(index);
        }
        let mac = shown(mac.unwrap_or_default());
        match self.links.get_mut(&index) {
            // Most notifications say nothing new.
            Some(link) if *link.name == *name => link.mac = mac,
            Some(_) | None => {
                self.links.insert(
                    index,
                    Link {
                        index,
                        name: name.into(),
                        mac,
                    },
                );
            }
        }
    }

    /// A port that leaves a bridge is "deleted" as well, but from the bridge's family only.
    fn link_is_gone(&mut self, message: &LinkMessage) {
        if message.header.interface_family == AddressFamily::Unspec {
            let index = message.header.index;
            self.links.remove(&index);
            self.dummies.remove(&index);
            self.addresses.retain(|(link, _, _)| *link != index);
        }
    }

    fn address_is(&mut self, message: &AddressMessage) {
        let Some(key) = key_of(message) else { return };
        if answers(message) {
            self.addresses.insert(key);
        } else {
            self.addresses.remove(&key);
        }
    }

    /// The addresses, sorted, each once for a link.
    pub(super) fn addresses(&self) -> Vec<NodeAddress> {
        let named = self.addresses.iter().filter_map(|(index, address, _)| {
            let interface = self.links.get(index)?.name.clone();
            Some(NodeAddress {
                address: *address,
                interface,
                dummy: self.dummies.contains(index),
            })
        });
        let mut addresses: Vec<NodeAddress> = named.collect();
        addresses.sort();
        addresses.dedup();
        addresses
    }

    /// The links, by index.
    pub(super) fn links(&self) -> Vec<Link> {
        self.links.values().cloned().collect()
    }
}

/// Whether this is what the kernel says of a dummy device.
fn is_dummy(attribute: &LinkAttribute) -> bool {
    match attribute {
        LinkAttribute::LinkInfo(info) => info.contains(&LinkInfo::Kind(InfoKind::Dummy)),
        _ => false,
    }
}

/// Which address of which link. On a point-to-point link `IFA_ADDRESS` is the other end's.
fn key_of(message: &AddressMessage) -> Option<(u32, IpAddr, u8)> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    Some((
        message.header.index,
        local.or(address)?,
        message.header.prefix_len,
    ))
}

/// Whether the kernel answers at this address. An optimistic one is used before its duplicate detection ends.
fn answers(message: &AddressMessage) -> bool {
    let flags = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Flags(flags) => Some(*flags),
        _ => None,
    });
    let header = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    let flags = flags.unwrap_or(header);
    let waiting = flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic);
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

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::address::AddressHeaderFlags;

    use super::*;

    fn link(index: u32, name: &str, family: AddressFamily) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.interface_family = family;
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Address(vec![0x0a, 0x58, 0x0a, 0x01, 0x02, 0x03]),
        ];
        message
    }

    fn address(index: u32, address: &str, length: u8) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = length;
        message.attributes = vec![AddressAttribute::Address(address.parse().unwrap())];
        message
    }

    fn with_flags(mut message: AddressMessage, flags: AddressFlags) -> AddressMessage {
        message.attributes.push(AddressAttribute::Flags(flags));
        message
    }

    fn shown_addresses(table: &Table) -> Vec<String> {
        table
            .addresses()
            .iter()
            .map(|told| format!("{}@{}", told.address, told.interface))
            .collect()
    }

    #[test]
    fn what_the_kernel_says() {
        use RouteNetlinkMessage::{DelAddress, DelLink, NewAddress, NewLink};
        let eth0 = || NewLink(link(2, "eth0", AddressFamily::Unspec));
        let a = || address(2, "10.0.0.1", 24);
        let both = AddressFlags::Tentative | AddressFlags::Optimistic;
        let mut peer = address(2, "10.0.0.9", 32);
        peer.attributes
            .push(AddressAttribute::Local("10.0.0.1".parse().unwrap()));
        let mut old = a();
        old.header.flags = AddressHeaderFlags::Tentative;
        let cases: Vec<(&str, Vec<RouteNetlinkMessage>, Vec<&str>)> = vec![
            ("nothing", vec![], vec![]),
            ("an address", vec![eth0(), NewAddress(a())], vec!["10.0.0.1@eth0"]),
            (
                "told twice",
                vec![eth0(), NewAddress(a()), NewAddress(a())],
                vec!["10.0.0.1@eth0"],
            ),
            (
                "address before link",
                vec![NewAddress(a()), eth0()],
                vec!["10.0.0.1@eth0"],
            ),
            ("no link", vec![NewAddress(a())], vec![]),
            ("removed", vec![eth0(), NewAddress(a()), DelAddress(a())], vec![]),
            (
                "one of two lengths removed",
                vec![
                    eth0(),
                    NewAddress(a()),
                    NewAddress(address(2, "10.0.0.1", 32)),
                    DelAddress(a()),
                ],
                vec!["10.0.0.1@eth0"],
            ),
            (
                "link renamed",
                vec![
                    eth0(),
                    NewAddress(a()),
                    NewLink(link(2, "lan", AddressFamily::Unspec)),
                ],
                vec!["10.0.0.1@lan"],
            ),
            (
                "link removed and its index used again",
                vec![
                    eth0(),
                    NewAddress(a()),
                    DelLink(link(2, "eth0", AddressFamily::Unspec)),
                    eth0(),
                ],
                vec![],
            ),
            (
                "port left its bridge",
                vec![
                    eth0(),
                    NewAddress(a()),
                    DelLink(link(2, "eth0", AddressFamily::Bridge)),
                ],
                vec!["10.0.0.1@eth0"],
            ),
            (
                "point to point",
                vec![eth0(), NewAddress(peer)],
                vec!["10.0.0.1@eth0"],
            ),
            (
                "deprecated",
                vec![eth0(), NewAddress(with_flags(a(), AddressFlags::Deprecated))],
                vec!["10.0.0.1@eth0"],
            ),
            (
                "tentative",
                vec![eth0(), NewAddress(with_flags(a(), AddressFlags::Tentative))],
                vec![],
            ),
            (
                "tentative by an old kernel",
                vec![eth0(), NewAddress(old)],
                vec![],
            ),
            (
                "optimistic",
                vec![eth0(), NewAddress(with_flags(a(), both))],
                vec!["10.0.0.1@eth0"],
            ),
            (
                "a duplicate",
                vec![eth0(), NewAddress(with_flags(a(), AddressFlags::Dadfailed))],
                vec![],
            ),
            (
                "no longer tentative",
                vec![
                    eth0(),
                    NewAddress(with_flags(a(), AddressFlags::Tentative)),
                    NewAddress(a()),
                ],
                vec!["10.0.0.1@eth0"],
            ),
            (
                "sorted",
                vec![
                    eth0(),
                    NewAddress(address(2, "fd00::1", 64)),
                    NewAddress(address(2, "10.0.0.2", 24)),
                    NewAddress(a()),
                ],
                vec!["10.0.0.1@eth0", "10.0.0.2@eth0", "fd00::1@eth0"],
            ),
        ];
        for (name, messages, expected) in cases {
            let mut table = Table::default();
            messages.iter().for_each(|message| table.apply(message));
            assert_eq!(shown_addresses(&table), expected, "{name}");
        }
    }

    /// One is renamed, and one is replaced by another kind of link with its index.
    #[test]
    fn addresses_on_dummy_devices_are_told_apart() {
        use RouteNetlinkMessage::{DelLink, NewAddress, NewLink};
        let dummy = |index, name| {
            let mut message = link(index, name, AddressFamily::Unspec);
            let info = vec![LinkInfo::Kind(InfoKind::Dummy)];
            message.attributes.push(LinkAttribute::LinkInfo(info));
            message
        };
        let mut table = Table::default();
        let told = |table: &Table| -> Vec<(String, bool)> {
            let all = table.addresses();
            all.iter().map(|on| (on.address.to_string(), on.dummy)).collect()
        };
        let is = |address: &str, dummy| (address.to_owned(), dummy);
        for message in [
            NewLink(link(2, "eth0", AddressFamily::Unspec)),
            NewLink(dummy(3, "kube-ipvs0")),
            NewAddress(address(2, "10.0.0.1", 24)),
            NewAddress(address(3, "10.96.0.10", 32)),
            NewLink(link(3, "renamed", AddressFamily::Unspec)),
        ] {
            table.apply(&message);
        }
        assert_eq!(told(&table), [is("10.0.0.1", false), is("10.96.0.10", true)]);
        for message in [
            DelLink(link(3, "renamed", AddressFamily::Unspec)),
            NewLink(link(3, "eth1", AddressFamily::Unspec)),
            NewAddress(address(3, "10.96.0.10", 32)),
        ] {
            table.apply(&message);
        }
        assert_eq!(told(&table), [is("10.0.0.1", false), is("10.96.0.10", false)]);
    }

    #[test]
    fn links_with_their_hardware_addresses() {
        let mut table = Table::default();
        table.apply(&RouteNetlinkMessage::NewLink(link(
            7,
            "veth1",
            AddressFamily::Unspec,
        )));
        let expected = Link {
            index: 7,
            name: "veth1".into(),
            mac: "0a:58:0a:01:02:03".to_owned(),
        };
        assert_eq!(table.links(), [expected]);
        table.apply(&RouteNetlinkMessage::DelLink(link(
            7,
            "veth1",
            AddressFamily::Unspec,
        )));
        assert!(table.links().is_empty());
    }
}
