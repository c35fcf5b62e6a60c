//! Any content of a state file, for tests of properties.

use std::net::IpAddr;
use std::num::NonZeroU16;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::host_port::{HostPort, HostPortFamily, HostPortProtocol};
use crate::redirect::{Redirect, RedirectBackend};
use crate::state::{Attachment, Epoch, Generation, HostInterface, PodRef, State};

/// Texts, plain ones and difficult ones.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9]{1,6}", Just("\"\\\n\u{e9}\u{1f980}/".to_owned()), Just(String::new())]
}

fn unknown() -> impl Strategy<Value = Map<String, Value>> {
    let value = prop_oneof![Just(json!(null)), Just(json!({"a": [1.5, "x"]})), Just(json!(7))];
    prop::collection::btree_map("x[a-z]{1,3}", value, 0..2)
        .prop_map(|map| map.into_iter().collect())
}

prop_compose! {
    fn host_port()(
        ip in prop::option::of(any::<IpAddr>()), family in prop::option::of(any::<bool>()),
        protocol in 0..3_usize, port in any::<NonZeroU16>(), pod_port in any::<NonZeroU16>(),
        unknown in unknown(),
    ) -> HostPort {
        let family =
            family.map(|is_4| if is_4 { HostPortFamily::Ipv4 } else { HostPortFamily::Ipv6 });
        let all = [HostPortProtocol::Tcp, HostPortProtocol::Udp, HostPortProtocol::Sctp];
        let protocol = all[protocol];
        HostPort { ip, family, protocol, port, pod_port, unknown }
    }
}

prop_compose! {
    pub fn attachment()(
        container_id in "[a-c]{1,2}", if_name in "eth[01]", network in text(),
        pod in prop::option::of((text(), text(), prop::option::of(text()), unknown())),
        netns in prop::option::of(text()), l3_interface in prop::option::of(text()),
        host in prop::option::of((text(), any::<u32>(), text(), unknown())),
        further_one in prop::option::of((text(), any::<u32>(), any::<IpAddr>(), unknown())),
        bridge in prop::option::of(text()), ips in prop::collection::vec(any::<IpAddr>(), 0..3),
        mac in prop::option::of(text()), host_ports in prop::collection::vec(host_port(), 0..3),
        added_at in text(), adopted in any::<bool>(), profile in prop::option::of(text()),
        obsolete_profile in prop::option::of(text()), unknown in unknown(),
    ) -> Attachment {
        let redirect = profile.map(|profile| Redirect { profile, ..Redirect::default() });
        let backend = RedirectBackend::Iptables;
        let obsolete = |profile| Redirect { profile, backend, ..Redirect::default() };
        let obsolete_redirects = obsolete_profile.map(obsolete).into_iter().collect();
        let pod =
            pod.map(|(namespace, name, uid, unknown)| PodRef { namespace, name, uid, unknown });
        let host = host.map(|(name, index, mac, unknown)| HostInterface { name, index, mac, unknown });
        let further = |(name, index, ip, unknown): (String, u32, IpAddr, _)| Attachment {
            host_interface: Some(HostInterface {
                name: name.clone(), index, mac: String::new(), unknown,
            }),
            if_name: name, ips: vec![ip], ..crate::fuzzing::record()
        };
        let further_interfaces = further_one.map(further).into_iter().collect();
        Attachment {
            container_id, if_name, network, pod, netns, host_interface: host, l3_interface, bridge,
            ips, mac, host_ports, host_ports_adopted: adopted, further_interfaces, added_at, adopted,
            redirect, obsolete_redirects, unknown,
        }
    }
}

prop_compose! {
    pub fn state()(
        records in prop::collection::vec(attachment(), 0..6), generation in 0_u64..1_000,
        unknown in unknown(), plugin_was_called in any::<bool>(),
    ) -> State {
        let mut state = State::empty(Epoch("b1946ac9".to_owned()));
        state.attachments.extend(records.into_iter().map(|record| (record.id(), record)));
        (state.generation, state.unknown) = (Generation(generation), unknown);
        state.plugin_was_called = plugin_was_called;
        state
    }
}
