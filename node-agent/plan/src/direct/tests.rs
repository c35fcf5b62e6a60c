//! Which ranges get a route, and why the others do not.

use proptest::prelude::*;
use proptest::sample::select;

use super::super::pod_ranges::without_host_bits;
use super::*;
use denizen_fixture::{ip, node, range};

/// A Node made at this time, with one InternalIP for each family that is given.
fn other(created: &str, addresses: &[&str], ranges: &[&str]) -> OtherNode {
    OtherNode {
        created: created.into(),
        internal: addresses.iter().map(|text| ip(text)).collect(),
        external: Vec::new(),
        pod_cidrs: ranges.iter().map(|text| range(text)).collect(),
        labels: denizen_model::Labels::default(),
    }
}

/// This node has 10.1.1.0/24 and fd01:1::/64, and the others of these names.
fn nodes(others: &[(&str, OtherNode)]) -> Nodes {
    let own = node(None, &["192.0.2.1", "2001:db8::1"], &["10.1.1.0/24", "fd01:1::/64"]);
    let others = others.iter().map(|(name, node)| ((*name).into(), node.clone()));
    Nodes { own: Some(own), others: Arc::new(others.collect()) }
}

/// It is in 192.0.2.0/24 and 2001:db8::/64 on link 2, with neighbours there. All others are behind
/// 192.0.2.254.
fn around(nodes: &Nodes) -> NodeNetworks {
    let subnets = ["192.0.2.0/24", "2001:db8::/64", "172.17.0.0/16"].map(range);
    let of_others = nodes.others.values().flat_map(|node| &node.internal).copied();
    let link = |address: IpAddr| {
        let is_near = subnets[..2].iter().any(|subnet| subnet.contains(address));
        if is_near { Ok(2) } else { Err(NotOnLink::Gateway(ip("192.0.2.254"))) }
    };
    NodeNetworks {
        addresses: ["192.0.2.1", "2001:db8::1", "10.1.1.1", "127.0.0.1"].map(ip).into(),
        subnets: subnets.into(),
        links: of_others.map(|address| (address, link(address))).collect(),
    }
}

fn decided(others: &[(&str, OtherNode)]) -> DirectRoutes {
    let nodes = nodes(others);
    direct(&nodes, &around(&nodes))
}

fn hop(address: &str) -> NextHop {
    NextHop { address: ip(address), link: 2 }
}

#[test]
fn both_families_of_a_neighbour_lead_through_its_internal_ips() {
    let ranges = ["10.1.2.0/24", "fd01:2::/64"];
    let plan = decided(&[("b", other("", &["192.0.2.2", "2001:db8::2"], &ranges))]);
    let wanted = [(ranges[0], "192.0.2.2"), (ranges[1], "2001:db8::2")];
    assert_eq!(plan.routes, wanted.map(|(to, by)| (range(to), hop(by))).into());
    assert_eq!(plan.rejected, BTreeSet::new());
}

#[test]
fn of_several_internal_ips_the_first_neighbour_is_the_next_hop() {
    let addresses = ["198.51.100.2", "192.0.2.3", "192.0.2.2"];
    let plan = decided(&[("b", other("", &addresses, &["10.1.2.0/24"]))]);
    assert_eq!(plan.routes, BTreeMap::from([(range("10.1.2.0/24"), hop("192.0.2.3"))]));
}

#[test]
fn a_range_that_would_take_addresses_from_somebody_is_rejected_with_the_reason() {
    let taken = |by: &str, of| WhyRejected::Taken { by: by.into(), range: range(of) };
    let cases = [
        ("0.0.0.0/0", WhyRejected::Special),
        ("::/0", WhyRejected::Special),
        ("127.1.0.0/16", WhyRejected::Special),
        ("169.254.0.0/17", WhyRejected::Special),
        ("224.1.0.0/24", WhyRejected::Special),
        ("250.0.0.0/24", WhyRejected::Special),
        ("fe80:1::/64", WhyRejected::Special),
        ("ff02::/64", WhyRejected::Special),
        ("::1/128", WhyRejected::Special),
        ("::ffff:10.1.2.0/120", WhyRejected::Special),
        ("11.0.0.0/11", WhyRejected::TooLarge),
        ("fd02::/31", WhyRejected::TooLarge),
        ("10.1.1.0/24", WhyRejected::OwnRange(range("10.1.1.0/24"))),
        ("10.1.1.128/25", WhyRejected::OwnRange(range("10.1.1.0/24"))),
        ("10.1.0.0/16", WhyRejected::OwnRange(range("10.1.1.0/24"))),
        ("fd01:1::/80", WhyRejected::OwnRange(range("fd01:1::/64"))),
        ("192.0.2.128/25", WhyRejected::Subnet(range("192.0.2.0/24"))),
        ("172.16.0.0/12", WhyRejected::Subnet(range("172.17.0.0/16"))),
        ("2001:db8::8000/113", WhyRejected::Subnet(range("2001:db8::/64"))),
        // Of this node, of another one, of the very node that has the range.
        ("192.0.2.1/32", WhyRejected::NodeAddress(ip("192.0.2.1"))),
        ("198.51.100.0/24", WhyRejected::NodeAddress(ip("198.51.100.3"))),
        ("192.0.2.2/32", WhyRejected::NodeAddress(ip("192.0.2.2"))),
        ("203.0.113.0/24", WhyRejected::NodeAddress(ip("203.0.113.3"))),
        // The older node has it.
        ("10.1.3.0/24", taken("c", "10.1.3.0/24")),
        ("10.1.2.0/23", taken("c", "10.1.3.0/24")),
        ("10.1.3.64/26", taken("c", "10.1.3.0/24")),
    ];
    let mut old = other("2026-01-01T00:00:00Z", &["198.51.100.3"], &["10.1.3.0/24"]);
    old.external.push(ip("203.0.113.3"));
    for (claimed, why) in cases {
        let young =
            other("2026-01-02T00:00:00Z", &["192.0.2.2", "2001:db8::2"], &["10.1.9.0/24", claimed]);
        let plan = decided(&[("b", young), ("c", old.clone())]);
        let rejected = RejectedRange { node: "b".into(), range: range(claimed), why };
        let of_b = plan.rejected.iter().filter(|rejected| &*rejected.node == "b");
        assert_eq!(of_b.collect::<Vec<_>>(), [&rejected], "{claimed}");
        assert_eq!(plan.routes, BTreeMap::from([(range("10.1.9.0/24"), hop("192.0.2.2"))]));
    }
}

#[test]
fn a_node_that_is_no_neighbour_gets_no_route_with_the_reason() {
    let cases: [(&[&str], &str, WhyRejected); 3] = [
        (&["2001:db8::2"], "10.1.2.0/24", WhyRejected::NoInternalIp),
        (
            &["198.51.100.2", "198.51.100.3"],
            "10.1.2.0/24",
            WhyRejected::NotANeighbour {
                address: ip("198.51.100.2"),
                instead: NotOnLink::Gateway(ip("192.0.2.254")),
            },
        ),
        (&["192.0.2.2"], "fd01:2::/64", WhyRejected::NoInternalIp),
    ];
    for (addresses, claimed, why) in cases {
        let plan = decided(&[("b", other("", addresses, &[claimed]))]);
        let rejected = RejectedRange { node: "b".into(), range: range(claimed), why };
        assert_eq!(plan.rejected, BTreeSet::from([rejected]), "{addresses:?}");
        assert_eq!(plan.routes, BTreeMap::new());
    }
}

/// The link of the older node goes down: the younger one does not get its packets.
#[test]
fn a_range_stays_its_owners_while_that_is_not_reached() {
    let claims = [
        ("b", other("2026-01-02T00:00:00Z", &["192.0.2.2"], &["10.1.3.0/24"])),
        ("c", other("2026-01-01T00:00:00Z", &["192.0.2.3"], &["10.1.3.0/24"])),
    ];
    let nodes = nodes(&claims);
    let mut around = around(&nodes);
    assert_eq!(direct(&nodes, &around).routes[&range("10.1.3.0/24")], hop("192.0.2.3"));
    around.links.insert(ip("192.0.2.3"), Err(NotOnLink::Nowhere));
    assert_eq!(direct(&nodes, &around).routes, BTreeMap::new());
}

/// A Node's InternalIP can be any address too.
#[test]
fn the_address_of_a_younger_node_ends_no_route() {
    let claimed = range("10.1.2.0/24");
    let beside = |created: &str| {
        let old = other("2026-01-02T00:00:00Z", &["192.0.2.2"], &["10.1.2.0/24"]);
        decided(&[("b", old), ("c", other(created, &["10.1.2.77"], &[]))])
    };
    let routes = beside("2026-01-03T00:00:00Z").routes;
    assert_eq!(routes, BTreeMap::from([(claimed, hop("192.0.2.2"))]));
    let why = WhyRejected::NodeAddress(ip("10.1.2.77"));
    let rejected = RejectedRange { node: "b".into(), range: claimed, why };
    assert_eq!(beside("2026-01-01T00:00:00Z").rejected, BTreeSet::from([rejected]));
}

/// Nothing is known of this node: its networks are still its own.
#[test]
fn without_an_own_node_object_the_kernel_says_what_is_own() {
    let mut nodes = nodes(&[("b", other("", &["192.0.2.2"], &["10.1.1.0/24", "10.1.2.0/24"]))]);
    let mut around = around(&nodes);
    around.subnets.insert(range("10.1.1.0/24"));
    around.addresses.clear();
    nodes.own = None;
    let plan = direct(&nodes, &around);
    assert_eq!(plan.routes, BTreeMap::from([(range("10.1.2.0/24"), hop("192.0.2.2"))]));
}

#[test]
fn every_reason_is_told_to_people() {
    let taken = WhyRejected::Taken { by: "c".into(), range: range("10.1.3.0/24") };
    let rejected = RejectedRange { node: "b".into(), range: range("10.1.3.0/25"), why: taken };
    let text = "no route to 10.1.3.0/25, the podCIDR of Node b: it overlaps 10.1.3.0/24 of Node c";
    assert_eq!(rejected.to_string(), text);
}

/// Ranges of few addresses, so that many overlap.
fn ranges() -> impl Strategy<Value = Vec<IpNetwork>> {
    let range = (0..4_u8, select(vec![21_u8, 22, 23, 24, 25, 32]), any::<u8>());
    let range = range.prop_map(|(third, prefix, last)| {
        IpNetwork::new([10, 1, 16 + third, last].into(), prefix).unwrap()
    });
    proptest::collection::vec(range, 0..4)
}

proptest! {
    /// By the definition: by age, each range that overlaps none before it.
    #[test]
    fn no_two_routes_overlap_and_the_oldest_claim_wins(
        claims in proptest::collection::vec((0..3_u8, ranges()), 1..6)
    ) {
        let others: Vec<(String, OtherNode)> = claims.iter().enumerate().map(|(at, (age, ranges))| {
            let address = format!("192.0.2.{}", at + 2);
            let mut node = other(&age.to_string(), &[&address], &[]);
            node.pod_cidrs.clone_from(ranges);
            (format!("n{at}"), node)
        }).collect();
        let others: Vec<_> =
            others.iter().map(|(name, node)| (name.as_str(), node.clone())).collect();
        let plan = decided(&others);
        let mut by_age = others.clone();
        by_age.sort_by_key(|(name, node)| (node.created.clone(), *name));
        let mut wanted: BTreeMap<IpNetwork, NextHop> = BTreeMap::new();
        for (_, node) in &by_age {
            for range in node.pod_cidrs.iter().copied().map(without_host_bits) {
                if !wanted.keys().any(|other| overlap(*other, range)) {
                    wanted.insert(range, NextHop { address: node.internal[0], link: 2 });
                }
            }
        }
        prop_assert_eq!(plan.routes, wanted);
    }
}
