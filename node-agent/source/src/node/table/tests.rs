//! The table after messages of the kernel.

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

fn shown_addresses(table: &LinkTable) -> Vec<String> {
    table.addresses().iter().map(|found| format!("{}@{}", found.address, found.interface)).collect()
}

#[test]
fn messages_of_the_kernel() {
    use RouteNetlinkMessage::{DelAddress, DelLink, NewAddress, NewLink};
    let eth0 = || NewLink(link(2, "eth0", AddressFamily::Unspec));
    let a = || address(2, "10.0.0.1", 24);
    let both = AddressFlags::Tentative | AddressFlags::Optimistic;
    let mut peer = address(2, "10.0.0.9", 32);
    peer.attributes.push(AddressAttribute::Local("10.0.0.1".parse().unwrap()));
    let mut old = a();
    old.header.flags = AddressHeaderFlags::Tentative;
    let cases: Vec<(&str, Vec<RouteNetlinkMessage>, Vec<&str>)> = vec![
        ("nothing", vec![], vec![]),
        ("an address", vec![eth0(), NewAddress(a())], vec!["10.0.0.1@eth0"]),
        (
            "the same message twice",
            vec![eth0(), NewAddress(a()), NewAddress(a())],
            vec!["10.0.0.1@eth0"],
        ),
        ("address before link", vec![NewAddress(a()), eth0()], vec!["10.0.0.1@eth0"]),
        ("no link", vec![NewAddress(a())], vec![]),
        ("removed", vec![eth0(), NewAddress(a()), DelAddress(a())], vec![]),
        (
            "one of two lengths removed",
            vec![eth0(), NewAddress(a()), NewAddress(address(2, "10.0.0.1", 32)), DelAddress(a())],
            vec!["10.0.0.1@eth0"],
        ),
        (
            "link renamed",
            vec![eth0(), NewAddress(a()), NewLink(link(2, "lan", AddressFamily::Unspec))],
            vec!["10.0.0.1@lan"],
        ),
        (
            "link removed and its index used again",
            vec![eth0(), NewAddress(a()), DelLink(link(2, "eth0", AddressFamily::Unspec)), eth0()],
            vec![],
        ),
        (
            "port left its bridge",
            vec![eth0(), NewAddress(a()), DelLink(link(2, "eth0", AddressFamily::Bridge))],
            vec!["10.0.0.1@eth0"],
        ),
        ("point to point", vec![eth0(), NewAddress(peer)], vec!["10.0.0.1@eth0"]),
        (
            "deprecated",
            vec![eth0(), NewAddress(with_flags(a(), AddressFlags::Deprecated))],
            vec!["10.0.0.1@eth0"],
        ),
        ("tentative", vec![eth0(), NewAddress(with_flags(a(), AddressFlags::Tentative))], vec![]),
        ("tentative by an old kernel", vec![eth0(), NewAddress(old)], vec![]),
        ("optimistic", vec![eth0(), NewAddress(with_flags(a(), both))], vec!["10.0.0.1@eth0"]),
        ("a duplicate", vec![eth0(), NewAddress(with_flags(a(), AddressFlags::Dadfailed))], vec![]),
        (
            "no longer tentative",
            vec![eth0(), NewAddress(with_flags(a(), AddressFlags::Tentative)), NewAddress(a())],
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
        let mut table = LinkTable::default();
        for message in messages {
            table.apply(&message);
        }
        assert_eq!(shown_addresses(&table), expected, "{name}");
    }
}

#[test]
fn what_a_link_is() {
    let info = |kind| LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]);
    let elsewhere = || LinkAttribute::LinkNetNsId(0);
    let cases = [
        ("hardware", vec![], LinkKind::Other),
        ("a bridge", vec![info(InfoKind::Bridge)], LinkKind::Bridge),
        ("a veth pair of the node's", vec![info(InfoKind::Veth)], LinkKind::Veth),
        ("a pod's veth", vec![info(InfoKind::Veth), elsewhere()], LinkKind::VethToOtherNetns),
        (
            "the namespace attribute first",
            vec![elsewhere(), info(InfoKind::Veth)],
            LinkKind::VethToOtherNetns,
        ),
        ("a tunnel from elsewhere", vec![info(InfoKind::IpIp), elsewhere()], LinkKind::Other),
    ];
    for (name, attributes, expected) in cases {
        let mut message = link(7, "veth1", AddressFamily::Unspec);
        message.attributes.extend(attributes);
        let mut table = LinkTable::default();
        table.apply(&RouteNetlinkMessage::NewLink(message.clone()));
        assert_eq!(table.links()[0].kind, expected, "{name}");
    }
}

#[test]
fn a_port_that_joins_a_bridge_and_leaves_it() {
    let mut table = LinkTable::default();
    let port = link(7, "veth1", AddressFamily::Unspec);
    let mut joined = port.clone();
    joined.attributes.push(LinkAttribute::Controller(3));
    for (message, master) in [(port.clone(), None), (joined, Some(3)), (port, None)] {
        table.apply(&RouteNetlinkMessage::NewLink(message));
        assert_eq!(table.links()[0].master, master);
    }
}

/// A veth between two bridges joins no interface of the node.
#[test]
fn the_nodes_own_veths_to_bridges() {
    let made = |index, name, kind, attributes: &[LinkAttribute]| {
        let mut message = link(index, name, AddressFamily::Unspec);
        message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]));
        message.attributes.extend_from_slice(attributes);
        RouteNetlinkMessage::NewLink(message)
    };
    let of = LinkAttribute::Controller;
    let peer = LinkAttribute::Link;
    let mut table = LinkTable::default();
    for message in [
        made(1, "br0", InfoKind::Bridge, &[]),
        made(2, "br1", InfoKind::Bridge, &[]),
        made(3, "port", InfoKind::Veth, &[of(1), peer(4)]),
        made(4, "br0.7", InfoKind::Veth, &[peer(3)]),
        made(5, "to-br1", InfoKind::Veth, &[of(1), peer(6)]),
        made(6, "to-br0", InfoKind::Veth, &[of(2), peer(5)]),
        made(7, "pod", InfoKind::Veth, &[of(1), peer(4), LinkAttribute::LinkNetNsId(0)]),
    ] {
        table.apply(&message);
    }
    assert_eq!(table.node_links().veths, ["port".into()].into());
    table.apply(&made(4, "br0.7", InfoKind::Veth, &[peer(3), of(2)]));
    assert!(table.node_links().veths.is_empty());
}

#[test]
fn links_with_their_hardware_addresses() {
    let mut table = LinkTable::default();
    table.apply(&RouteNetlinkMessage::NewLink(link(7, "veth1", AddressFamily::Unspec)));
    let expected = Link {
        index: 7,
        name: "veth1".into(),
        mac: "0a:58:0a:01:02:03".to_owned(),
        kind: LinkKind::Other,
        master: None,
    };
    assert_eq!(table.links(), [expected]);
    table.apply(&RouteNetlinkMessage::DelLink(link(7, "veth1", AddressFamily::Unspec)));
    assert!(table.links().is_empty());
}

/// One is renamed, and one is replaced by another kind of link with its index.
#[test]
fn addresses_on_dummy_devices_are_marked() {
    use RouteNetlinkMessage::{DelLink, NewAddress, NewLink};
    let dummy = |index, name| {
        let mut message = link(index, name, AddressFamily::Unspec);
        let info = vec![LinkInfo::Kind(InfoKind::Dummy)];
        message.attributes.push(LinkAttribute::LinkInfo(info));
        message
    };
    let mut table = LinkTable::default();
    let dummies = |table: &LinkTable| -> Vec<(String, bool)> {
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
    assert_eq!(dummies(&table), [is("10.0.0.1", false), is("10.96.0.10", true)]);
    for message in [
        DelLink(link(3, "renamed", AddressFamily::Unspec)),
        NewLink(link(3, "eth1", AddressFamily::Unspec)),
        NewAddress(address(3, "10.96.0.10", 32)),
    ] {
        table.apply(&message);
    }
    assert_eq!(dummies(&table), [is("10.0.0.1", false), is("10.96.0.10", false)]);
}

#[test]
fn a_message_that_repeats_what_is_known_changes_nothing() {
    let (added, gone) = (
        RouteNetlinkMessage::NewLink(link(7, "veth1", AddressFamily::Unspec)),
        RouteNetlinkMessage::DelLink(link(7, "veth1", AddressFamily::Unspec)),
    );
    let renamed = RouteNetlinkMessage::NewLink(link(7, "veth2", AddressFamily::Unspec));
    let has = RouteNetlinkMessage::NewAddress(address(7, "10.0.0.1", 24));
    let lacks = RouteNetlinkMessage::DelAddress(address(7, "10.0.0.1", 24));
    let mut table = LinkTable::default();
    for (message, expected) in [
        (&gone, false),
        (&added, true),
        (&added, false),
        (&renamed, true),
        (&has, true),
        (&has, false),
        (&lacks, true),
        (&lacks, false),
        (&gone, true),
    ] {
        let before = (table.links(), table.addresses(), table.node_links());
        assert_eq!(table.apply(message), expected, "{message:?}");
        let after = (table.links(), table.addresses(), table.node_links());
        assert_eq!(before != after, expected, "{message:?}");
    }
}

/// What the kernel has in its table `local` beside the addresses themselves.
#[test]
fn at_which_other_addresses_the_kernel_takes_packets() {
    use RouteNetlinkMessage::{DelAddress, NewAddress};
    let with = |mut message: AddressMessage, attribute| {
        message.attributes.push(attribute);
        NewAddress(message)
    };
    let local = |ip: &str| AddressAttribute::Local(ip.parse().unwrap());
    let broadcast = |ip: &str| AddressAttribute::Broadcast(ip.parse().unwrap());
    let cases = [
        ("a network", NewAddress(address(2, "10.0.1.9", 24)), vec!["10.0.1.0", "10.0.1.255"]),
        ("two addresses", NewAddress(address(2, "10.0.1.8", 31)), vec![]),
        ("one address", NewAddress(address(2, "10.0.1.9", 32)), vec![]),
        (
            "another broadcast address",
            with(address(2, "10.0.1.9", 32), broadcast("10.9.9.9")),
            vec!["10.9.9.9"],
        ),
        (
            "the network of the other end",
            with(address(2, "10.8.0.1", 24), local("10.7.0.1")),
            vec!["10.8.0.0", "10.8.0.255"],
        ),
        ("loopback", NewAddress(address(1, "127.0.0.1", 8)), vec![]),
        ("routers of a network", NewAddress(address(2, "fd00:1::9", 64)), vec!["fd00:1::"]),
        ("routers of the link", NewAddress(address(2, "fe80::9", 64)), vec!["fe80::"]),
        ("routers of two addresses (RFC 6164)", NewAddress(address(2, "fd00:1::9", 127)), vec![]),
        ("IPv6 loopback", NewAddress(address(1, "::1", 128)), vec![]),
        ("any", NewAddress(address(2, "fd00:1::9", 0)), vec![]),
    ];
    for (name, message, expected) in cases {
        let mut table = LinkTable::default();
        table.apply(&message);
        let expected = expected.iter().map(|ip| ip.parse().unwrap()).collect();
        assert_eq!(table.node_links().also_local, expected, "{name}");
        let NewAddress(message) = message else { panic!("{name}") };
        table.apply(&DelAddress(message));
        assert!(table.node_links().also_local.is_empty(), "{name}");
    }
}
