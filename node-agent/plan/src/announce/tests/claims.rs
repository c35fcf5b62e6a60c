//! What other Nodes claim: one object must not withdraw what this node serves.

use super::*;

const OLD: &str = "2026-11-01T00:00:00Z";
const YOUNG: &str = "2026-11-20T00:00:00Z";
const OWN: &str = "10.1.1.0/24";

/// This node was made in between.
fn own(ranges: &[&str]) -> Option<Node> {
    Some(Node {
        created: "2026-11-10T00:00:00Z".into(),
        ..node(None, &["192.0.2.1", "2001:db8::1"], ranges)
    })
}

fn claiming(created: &str, address: &str, ranges: &[&str]) -> OtherNode {
    OtherNode {
        created: created.into(),
        pod_cidrs: ranges.iter().map(|text| range(text)).collect(),
        ..other(address, OWN)
    }
}

/// What this node says of an address or of a podCIDR, beside a Node of these claims.
fn decision_with(
    claims: OtherNode,
    change: impl FnOnce(&mut AnnounceWorld),
    about: &str,
) -> String {
    let mut world = AnnounceWorld { node: own(&[OWN, "fd01:1::/64"]), ..world() };
    world.others.push(("node-9", claims));
    change(&mut world);
    let decided = world.decide();
    match decided.about(ip(about)) {
        Some((_, Ok(announcement))) => announcement.class.as_str().to_owned(),
        Some((_, Err(withheld))) => withheld.reason.to_string(),
        None => "unknown".to_owned(),
    }
}

#[test]
fn a_younger_node_withdraws_neither_a_pod_range_nor_a_service() {
    let claims: [&[&str]; 8] = [
        &["0.0.0.0/0", "::/0"],
        &["0.0.0.0/1", "128.0.0.0/1"],
        &[OWN, "fd01:1::/64"],
        &["10.1.1.64/26", "fd01:1::/80"],
        &["10.1.0.0/16", "fd01::/32"],
        &["203.0.113.0/24", "2001:db8:5::/64"],
        &["203.0.113.7/32", "10.96.0.10/32"],
        &["203.0.112.0/22", "10.96.0.0/16"],
    ];
    let announced = [
        ("10.1.1.5", "pod-cidr"),
        ("fd01:1::5", "pod-cidr"),
        (VIP, "load-balancer-ip"),
        ("10.96.0.10", "cluster-ip"),
    ];
    for ranges in claims {
        for (about, class) in announced {
            let claims = claiming(YOUNG, "192.0.2.9", ranges);
            assert_eq!(decision_with(claims, |_| (), about), class, "{about} beside {ranges:?}");
        }
    }
}

/// Of two Nodes with one range the older has it, whatever the younger one asks for. A range that no
/// Node's pods can have is nobody's.
#[test]
fn the_older_node_has_a_range_that_both_claim() {
    let cases = [
        (OLD, OWN, "it overlaps 10.1.1.0/24 of Node node-9"),
        (OLD, "10.1.1.64/26", "it overlaps 10.1.1.64/26 of Node node-9"),
        (OLD, "10.1.0.0/23", "it overlaps 10.1.0.0/23 of Node node-9"),
        (OLD, "0.0.0.0/0", "pod-cidr"),
        (OLD, "10.0.0.0/8", "pod-cidr"),
        (YOUNG, OWN, "pod-cidr"),
        (YOUNG, "10.1.1.64/26", "pod-cidr"),
    ];
    for (created, claimed, decision) in cases {
        let claims = claiming(created, "192.0.2.9", &[claimed]);
        assert_eq!(decision_with(claims, |_| (), "10.1.1.5"), decision, "{claimed} of {created}");
    }
    // A range of an older Node that contains a node's address is not that Node's.
    let far = claiming(OLD, "192.0.2.9", &["10.1.0.0/23"]);
    let crowded = |world: &mut AnnounceWorld| {
        world.others.push(("node-3", claiming(OLD, "10.1.0.5", &[])));
    };
    assert_eq!(decision_with(far, crowded, "10.1.1.5"), "pod-cidr");
    // Where both were made in the same second, the name decides, on every node in the same way.
    let same = claiming("2026-11-10T00:00:00Z", "192.0.2.9", &[OWN]);
    assert_eq!(decision_with(same, |_| (), "10.1.1.5"), "pod-cidr");
}

/// A Node's InternalIP can be any address, like its podCIDRs.
#[test]
fn the_address_of_a_younger_node_does_not_withdraw_a_pod_range() {
    let claims = |created| claiming(created, "10.1.1.77", &[]);
    assert_eq!(decision_with(claims(YOUNG), |_| (), "10.1.1.5"), "pod-cidr");
    let why = "10.1.1.77 is an address of node node-9";
    assert_eq!(decision_with(claims(OLD), |_| (), "10.1.1.5"), why);
    // An older Node has the same address: the younger one does not hide it.
    let both =
        |world: &mut AnnounceWorld| world.others.push(("node-3", claiming(OLD, "10.1.1.77", &[])));
    assert_eq!(
        decision_with(claims(YOUNG), both, "10.1.1.5"),
        "10.1.1.77 is an address of node node-3"
    );
}

/// `--announce-ranges` and ServiceCIDRs are for services, whatever an older Node asks for. But
/// where this node's own pods are in such a range, or where it is as wide as no node's pods are, it
/// is not for services alone: a Service must not take pods' addresses.
#[test]
fn a_pod_range_inside_the_ranges_of_services_loses_to_them() {
    let old = |claimed: &str| claiming(OLD, "192.0.2.9", &[claimed]);
    for claimed in ["203.0.113.0/24", "203.0.113.7/32", "203.0.112.0/22"] {
        assert_eq!(decision_with(old(claimed), |_| (), VIP), "load-balancer-ip", "{claimed}");
    }
    for claimed in ["10.96.0.0/16", "10.96.0.0/24", "10.96.0.0/12"] {
        assert_eq!(decision_with(old(claimed), |_| (), "10.96.0.10"), "cluster-ip", "{claimed}");
    }
    let asks = |ranges: &'static [&str], address: &'static str| {
        move |world: &mut AnnounceWorld| {
            world.settings.ranges = ranges.iter().map(|text| range(text)).collect();
            world.services = vec![at(address)];
        }
    };
    let others = "it overlaps 10.1.2.0/24 of Node node-2";
    for ranges in [&["10.1.0.0/16"][..], &["0.0.0.0/0"], &["10.0.0.0/8"]] {
        assert_eq!(decision_with(old("10.9.9.0/24"), asks(ranges, "10.1.2.9"), "10.1.2.9"), others);
    }
    let without_own = |world: &mut AnnounceWorld| {
        world.node = own(&[]);
        asks(&["10.0.0.0/8"], "10.1.2.9")(world);
    };
    assert_eq!(decision_with(old("10.9.9.0/24"), without_own, "10.1.2.9"), others);
}
