//! Who sends a random packet, and where that comes in.

use std::net::IpAddr;

use super::place::Places;
use super::services::Wildness;
use super::world::{Pod, World, ip};
use denizen_tests::random::Draw;

/// The input interface, and the bridge's port before it, where there is one.
type Link = (String, Option<String>);

/// A sender of this family; `None` as the link means the node itself.
pub fn sender(
    world: &World,
    draw: &mut Draw<'_>,
    family: &Places,
    wildness: Wildness,
) -> (IpAddr, Option<Link>) {
    let foreign = |text: &str| (ip(text), Some(("eth0".to_owned(), None)));
    let recorded: Vec<&Pod> = world.pods.iter().collect();
    let own_ip = |pod: &&Pod| pod.ips.iter().copied().find(|ip| ip.is_ipv4() == family.v4);
    let of_family: Vec<(IpAddr, &Pod)> =
        recorded.iter().filter_map(|pod| Some((own_ip(pod)?, *pod))).collect();
    match draw.below(if wildness == Wildness::Any { 7 } else { 4 }) {
        0 => foreign(draw.one(family.outside)),
        1 => foreign(draw.one(family.remote)),
        2 => (ip(family.node[0].0), None),
        3 if !of_family.is_empty() => {
            let (ip, pod) = draw.one(&of_family);
            (ip, Some(link(pod)))
        }
        // A pod's address from where it should not come.
        4 if !of_family.is_empty() => (draw.one(&of_family).0, Some(any_link(draw, &recorded))),
        5 => {
            let own = world.addresses.iter().map(|(address, _)| *address);
            let own: Vec<IpAddr> = own.filter(|address| address.is_ipv4() == family.v4).collect();
            (draw.one(&own), None)
        }
        6 => (ip(draw.one(family.remote)), Some(any_link(draw, &recorded))),
        _ => foreign(family.outside[0]),
    }
}

fn link(pod: &Pod) -> Link {
    (pod.interface().to_owned(), pod.port().map(str::to_owned))
}

/// A recorded pod's, or one that nobody recorded.
fn any_link(draw: &mut Draw<'_>, recorded: &[&Pod]) -> Link {
    let others = ["eth0", "eth1", "vethx", "br9", "unknown0"];
    match draw.below(others.len() + recorded.len()) {
        n if n < others.len() => (others[n].to_owned(), None),
        n => link(recorded[n - others.len()]),
    }
}
