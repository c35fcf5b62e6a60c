//! Finds the interface through which the node's IP stack receives a bridge port's packets, if the
//! bridge filters VLANs. Pure.

use super::link::{NetnsLink, PortVlan};

/// The name of that interface; `None` if it is the bridge itself.
///
/// A pod's frames are untagged; the bridge assigns them to the port's default VLAN. Towards the
/// node's own stack they leave through the bridge device. If the VLAN is untagged there, they have
/// no tag; else they have one, and a VLAN device on the bridge receives them. The `bridge` plugin
/// of containernetworking connects the node to the VLAN in a third way: with a veth, one end of
/// which is a port of the bridge with the same default VLAN.
pub(crate) fn input_interface(
    port: &NetnsLink,
    bridge: &NetnsLink,
    vlans: &[(u32, Vec<PortVlan>)],
    links: &[NetnsLink],
) -> Option<String> {
    let vlan = default_vlan(vlans, port.index)?;
    let of_bridge = of_port(vlans, bridge.index);
    if of_bridge.iter().any(|own| own.id == vlan && own.untagged) {
        return None;
    }
    let device = links.iter().find(|link| {
        link.is("vlan") && link.lower == Some(bridge.index) && link.vlan == Some(vlan)
    });
    let joined = || links.iter().find(|link| joins(link, bridge, vlan, vlans, links));
    device.or_else(joined).map(|link| link.name.clone())
}

/// Whether `link` is the node's end of a veth whose other end is a port of `bridge` in `vlan`.
fn joins(
    link: &NetnsLink,
    bridge: &NetnsLink,
    vlan: u16,
    vlans: &[(u32, Vec<PortVlan>)],
    links: &[NetnsLink],
) -> bool {
    let is_free_end = link.is("veth") && link.master.is_none() && link.lower_nsid.is_none();
    is_free_end
        && links.iter().any(|port| {
            Some(port.index) == link.lower
                && port.master == Some(bridge.index)
                && default_vlan(vlans, port.index) == Some(vlan)
        })
}

/// The VLAN of an untagged frame that enters through `port`.
fn default_vlan(vlans: &[(u32, Vec<PortVlan>)], port: u32) -> Option<u16> {
    of_port(vlans, port).iter().find(|vlan| vlan.is_default).map(|vlan| vlan.id)
}

/// The VLANs of `port`; `vlans` are in the order of indices.
fn of_port(vlans: &[(u32, Vec<PortVlan>)], port: u32) -> &[PortVlan] {
    let found = vlans.binary_search_by_key(&port, |(index, _)| *index);
    found.map_or(&[], |at| &vlans[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: &str) -> NetnsLink {
        NetnsLink {
            index,
            name: name.to_owned(),
            kind: Some(kind.to_owned()),
            ..NetnsLink::default()
        }
    }

    fn vlan(id: u16, is_default: bool, untagged: bool) -> PortVlan {
        PortVlan { id, is_default, untagged }
    }

    #[test]
    fn the_input_interface_of_a_port_s_vlan() {
        let bridge = link(1, "br0", "bridge");
        let port = NetnsLink {
            master: Some(1),
            lower: Some(2),
            lower_nsid: Some(0),
            ..link(2, "veth1", "veth")
        };
        let device = NetnsLink { lower: Some(1), vlan: Some(7), ..link(3, "br0.7", "vlan") };
        let other_device = NetnsLink { lower: Some(1), vlan: Some(8), ..link(4, "br0.8", "vlan") };
        let gateway = NetnsLink { lower: Some(6), ..link(5, "br0.gw", "veth") };
        let gateway_port =
            NetnsLink { master: Some(1), lower: Some(5), ..link(6, "vethgw", "veth") };
        let own_default = (1, vec![vlan(1, true, true)]);
        let in_seven = (2, vec![vlan(1, false, true), vlan(7, true, true)]);
        let gateway_in_seven = (6, vec![vlan(7, true, true)]);
        let cases = [
            (
                "the bridge's own VLAN",
                vec![own_default.clone(), (2, vec![vlan(1, true, true)])],
                None,
            ),
            ("a VLAN device", vec![own_default.clone(), in_seven.clone()], Some("br0.7")),
            (
                "the bridge untagged in it",
                vec![(1, vec![vlan(7, false, true)]), in_seven.clone(), gateway_in_seven.clone()],
                None,
            ),
            ("a port without a default VLAN", vec![own_default, (2, vec![])], None),
        ];
        let links =
            [&bridge, &port, &device, &other_device, &gateway, &gateway_port].map(NetnsLink::clone);
        for (name, vlans, expected) in cases {
            let mut vlans: Vec<_> = vlans.into_iter().collect();
            vlans.sort_unstable_by_key(|(index, _)| *index);
            assert_eq!(
                input_interface(&port, &bridge, &vlans, &links).as_deref(),
                expected,
                "{name}"
            );
        }
        let without_device =
            [&bridge, &port, &other_device, &gateway, &gateway_port].map(NetnsLink::clone);
        let vlans = [in_seven, gateway_in_seven];
        assert_eq!(
            input_interface(&port, &bridge, &vlans, &without_device).as_deref(),
            Some("br0.gw")
        );
    }
}
