//! Real chains: Debian's interface plugins in front of ours, in network namespaces. What is
//! recorded is what `ip` says.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use denizen_shared::state::{Attachment, AttachmentId};
use denizen_tests::cni::{Call, Chain, Namespace, Rig, VERSIONS};
use serde_json::{Value, json};

const V4: &str = "10.85.0.0/24";
const V6: &str = "fd00:85::/64";

/// Holds `record` against what the kernel says to `ip`.
fn assert_is_what_ip_says(rig: &Rig, record: &Attachment, name: &str) {
    let inside = rig.pod.link(&record.if_name);
    let addresses: BTreeSet<IpAddr> = inside["addr_info"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|address| address["scope"] == "global")
        .map(|address| address["local"].as_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(record.ips.iter().copied().collect::<BTreeSet<_>>(), addresses, "{name}");
    let Some(host) = &record.host_interface else {
        return;
    };
    let link = rig.node.link(&host.name);
    assert_eq!(json!(host.index), link["ifindex"], "{name}");
    assert_eq!(json!(host.mac), link["address"], "{name}");
    assert_eq!(json!(host.index), inside["link_index"], "{name}: it is the pod's other end");
    assert_eq!(json!(record.bridge), link["master"], "{name}: null where there is none");
}

fn bridge() -> Value {
    json!({ "type": "bridge", "bridge": "cni0", "isGateway": true })
}

/// Every kind of chain: its name, the interface plugin, its addresses, further plugins, and the
/// bridge that a pod of it is on.
type Shape = (&'static str, Value, &'static [&'static str], Option<Value>, Option<&'static str>);

fn shapes() -> Vec<Shape> {
    let ptp = || json!({ "type": "ptp" });
    let macvlan = json!({ "type": "macvlan", "master": "up0" });
    let ports =
        json!({ "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] });
    let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true }, "runtimeConfig": ports });
    vec![
        ("bridge, IPv4", bridge(), &[V4], None, Some("cni0")),
        ("bridge, IPv6", bridge(), &[V6], None, Some("cni0")),
        ("bridge, both", bridge(), &[V4, V6], None, Some("cni0")),
        ("ptp, IPv4", ptp(), &[V4], None, None),
        ("ptp, IPv6", ptp(), &[V6], None, None),
        ("ptp, both", ptp(), &[V4, V6], None, None),
        ("macvlan, both", macvlan, &[V4, V6], None, None),
        ("bridge and portmap, both", bridge(), &[V4, V6], Some(portmap), Some("cni0")),
    ]
}

#[test]
fn the_record_is_what_ip_says_after_add_and_nothing_is_left_after_del() {
    for version in VERSIONS {
        for (name, first, ranges, further, on_bridge) in shapes() {
            let name = &format!("{name}, {version}");
            let rig = Rig::new();
            rig.node.ip("link add up0 type veth peer name up1");
            let is_macvlan = first["type"] == "macvlan";
            let mut chain = rig.chain(version, first, ranges);
            if let Some(further) = further {
                chain.plugins.insert(1, further);
            }
            let call = Call::new("web-0", &rig.pod);
            let result = chain.add(&rig.node, &call).unwrap();

            let record = rig.record(&call);
            assert_is_what_ip_says(&rig, &record, name);
            assert_eq!(record.ips.len(), ranges.len(), "{name}");
            assert_eq!(record.bridge.as_deref(), on_bridge, "{name}");
            assert_eq!(record.host_interface.is_none(), is_macvlan, "{name}");
            assert_eq!(record.input_interface().is_none(), is_macvlan, "{name}");
            let pod = record.pod.as_ref().unwrap();
            assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("default", "web-0"), "{name}");
            assert_eq!(pod.uid.as_deref(), Some("uid-web-0"), "{name}");
            assert_eq!(record.netns.as_deref(), rig.pod.path().to_str(), "{name}");
            assert_eq!(record.network, "pods", "{name}");
            assert!(record.added_at.starts_with("20") && record.added_at.ends_with('Z'), "{name}");

            let ours = chain.plugins.last().unwrap();
            if version >= "0.4.0" {
                chain.call(&rig.node, &call, "CHECK", ours, Some(&result)).unwrap();
            }
            chain.del(&rig.node, &call, Some(&result)).unwrap();
            assert!(rig.state().attachments.is_empty(), "{name}");
            assert_eq!(rig.state().generation.0, 2, "{name}: one change each");
            // As containerd does: once more, when the namespace and the result are gone.
            let late = Call { netns: None, ..call };
            chain.call(&rig.node, &late, "DEL", ours, None).unwrap();
            assert_eq!(rig.state().generation.0, 2, "{name}: and none the second time");
        }
    }
}

#[test]
fn the_result_goes_through_as_the_plugin_before_returned_it() {
    for version in VERSIONS {
        let rig = Rig::new();
        let chain = rig.chain(version, bridge(), &[V4, V6]);
        let call = Call::new("web-0", &rig.pod);
        let before = chain.call(&rig.node, &call, "ADD", &chain.plugins[0], None).unwrap();
        let after = chain.call(&rig.node, &call, "ADD", &chain.plugins[1], Some(&before)).unwrap();
        assert_eq!(after, before, "{version}");
    }
}

#[test]
fn a_result_that_names_no_host_interface_is_completed_from_the_kernel() {
    for first in [bridge(), json!({ "type": "ptp" })] {
        let rig = Rig::new();
        let chain = rig.chain("1.0.0", first, &[V4]);
        let call = Call::new("web-0", &rig.pod);
        let mut result = chain.call(&rig.node, &call, "ADD", &chain.plugins[0], None).unwrap();
        let told = chain.call(&rig.node, &call, "ADD", &chain.plugins[1], Some(&result)).unwrap();
        assert_eq!(told, result);
        let complete = rig.record(&call);
        assert!(complete.host_interface.is_some());

        let addresses: Vec<_> =
            result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].clone()).collect();
        result["interfaces"] = Value::Null;
        result["ips"] =
            addresses.into_iter().map(|address| json!({ "address": address })).collect();
        chain.call(&rig.node, &call, "ADD", &chain.plugins[1], Some(&result)).unwrap();
        assert_eq!(
            Attachment { added_at: complete.added_at.clone(), ..rig.record(&call) },
            complete
        );
    }
}

/// Two pods' interfaces have the same index in their namespaces, and each counts its peer's index
/// in another: an index alone would find a stranger's veth.
#[test]
fn another_pod_s_veth_is_not_taken_for_a_peer_that_is_elsewhere() {
    let rig = Rig::new();
    let (other_node, other_pod) = (Namespace::new(), Namespace::new());
    for (node, pod) in [(&rig.node, &rig.pod), (&other_node, &other_pod)] {
        node.ip("link add host0 type veth peer name inside");
        node.ip(&format!("link set inside netns {} name eth0", pod.path().display()));
    }
    let ours = rig.ours();
    let chain = Chain { name: "pods".to_owned(), version: "1.0.0", plugins: vec![ours] };
    let result = json!({ "cniVersion": "1.0.0", "ips": [] });
    let call = Call::new("web-0", &rig.pod);
    chain.call(&rig.node, &call, "ADD", &chain.plugins[0], Some(&result)).unwrap();
    assert_eq!(rig.record(&call).host_interface.unwrap().name, "host0");
    let call = Call::new("web-1", &other_pod);
    chain.call(&rig.node, &call, "ADD", &chain.plugins[0], Some(&result)).unwrap();
    assert_eq!(rig.record(&call).host_interface, None, "its other end is on another node");
}

#[test]
fn a_device_that_was_moved_into_the_pod_has_no_host_interface() {
    let rig = Rig::new();
    rig.node.ip("link add up0 type veth peer name up1");
    rig.node.ip("link add link up0 name mv0 type macvlan mode bridge");
    let chain = rig.chain("1.0.0", json!({ "type": "host-device", "device": "mv0" }), &[V4]);
    let call = Call::new("db-0", &rig.pod);
    let result = chain.add(&rig.node, &call).unwrap();
    let record = rig.record(&call);
    assert_eq!((&record.host_interface, &record.bridge), (&None, &None));
    assert_is_what_ip_says(&rig, &record, "host-device");
    chain.check(&rig.node, &call, &result).unwrap();
    chain.del(&rig.node, &call, Some(&result)).unwrap();
    assert!(rig.state().attachments.is_empty());
}

#[test]
fn interfaces_of_several_networks_are_records_of_their_own() {
    let rig = Rig::new();
    let pods = rig.chain("1.0.0", bridge(), &[V4]);
    let mut storage = rig.chain("1.0.0", json!({ "type": "ptp" }), &["10.99.0.0/24"]);
    storage.name = "storage".to_owned();
    let first = Call::new("web-0", &rig.pod);
    let second = Call { interface: "net1".to_owned(), ..first.clone() };
    let first_result = pods.add(&rig.node, &first).unwrap();
    let second_result = storage.add(&rig.node, &second).unwrap();
    assert_eq!(
        (rig.record(&first).network, rig.record(&second).network),
        ("pods".into(), "storage".into())
    );
    for call in [&first, &second] {
        rig.pod.link(&call.interface)["link_index"].as_u64().unwrap();
    }
    pods.check(&rig.node, &first, &first_result).unwrap();
    storage.check(&rig.node, &second, &second_result).unwrap();
    storage.del(&rig.node, &second, Some(&second_result)).unwrap();
    assert_eq!(
        rig.state().attachments.into_keys().collect::<Vec<_>>(),
        [AttachmentId::new("web-0", "eth0")]
    );
}

#[test]
fn a_second_add_replaces_the_record() {
    let rig = Rig::new();
    let chain = rig.chain("1.0.0", bridge(), &[V4]);
    let call = Call::new("web-0", &rig.pod);
    let result = chain.add(&rig.node, &call).unwrap();
    let mut other = result.clone();
    other["ips"][0]["address"] = json!("10.85.0.77/24");
    chain.call(&rig.node, &call, "ADD", &chain.plugins[1], Some(&other)).unwrap();
    assert_eq!(rig.state().attachments.len(), 1);
    assert_eq!(rig.record(&call).ips, ["10.85.0.77".parse::<IpAddr>().unwrap()]);
}

#[test]
fn every_conflist_in_conf_works_as_it_is() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../conf/cni");
    let lists: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(lists.len() >= 3, "{lists:?}");
    for path in lists {
        let list: Value = serde_json::from_reader(std::fs::File::open(&path).unwrap()).unwrap();
        let rig = Rig::new();
        let version = VERSIONS.into_iter().find(|version| list["cniVersion"] == *version).unwrap();
        let mut plugins = list["plugins"].as_array().unwrap().clone();
        for plugin in &mut plugins {
            // Nothing else is changed than where things are kept.
            match plugin["type"].as_str().unwrap() {
                "denizen" => plugin["runDir"] = json!(rig.run_dir()),
                "bridge" | "ptp" => plugin["ipam"]["dataDir"] = json!(rig.folder().join("ipam")),
                _ => {}
            }
        }
        let chain = Chain { name: list["name"].as_str().unwrap().to_owned(), version, plugins };
        let call = Call::new("web-0", &rig.pod);
        let result = chain.add(&rig.node, &call).unwrap();
        assert_is_what_ip_says(&rig, &rig.record(&call), &path.display().to_string());
        // portmap 1.1's own CHECK fails on a pod with one address family.
        chain
            .call(&rig.node, &call, "CHECK", chain.plugins.last().unwrap(), Some(&result))
            .unwrap();
        chain.del(&rig.node, &call, Some(&result)).unwrap();
        assert!(rig.state().attachments.is_empty(), "{}", path.display());
    }
}
