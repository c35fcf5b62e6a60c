//! Real chains: Debian's interface plugins in front of ours, in network namespaces. What is
//! recorded is what `ip` says.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use denizen_state::{Attachment, AttachmentId};
use denizen_tests::node::cni::{Call, Chain, Namespace, PluginContext, VERSIONS};
use serde_json::{Value, json};

use super::isolate::{TABLES, nft, pending};
use super::redirection::context::injected;

const V4: &str = "10.85.0.0/24";
const V6: &str = "fd00:85::/64";

/// Holds `record` against what the kernel says to `ip`.
fn assert_is_what_ip_says(context: &PluginContext, record: &Attachment, name: &str) {
    let inside = context.pod.link(&record.if_name);
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
    let link = context.node.link(&host.name);
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
            let context = PluginContext::new();
            context.node.ip("link add up0 type veth peer name up1");
            let is_macvlan = first["type"] == "macvlan";
            let mut chain = context.chain(version, first, ranges);
            if let Some(further) = further {
                chain.plugins.insert(1, further);
            }
            let call = Call::new("web-0", &context.pod);
            let result = chain.add(&context.node, &call).unwrap();

            let record = context.record(&call);
            assert_is_what_ip_says(&context, &record, name);
            assert_eq!(record.ips.len(), ranges.len(), "{name}");
            assert_eq!(record.bridge.as_deref(), on_bridge, "{name}");
            assert_eq!(record.host_interface.is_none(), is_macvlan, "{name}");
            assert_eq!(record.input_interface().is_none(), is_macvlan, "{name}");
            let pod = record.pod.as_ref().unwrap();
            assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("default", "web-0"), "{name}");
            assert_eq!(pod.uid.as_deref(), Some("uid-web-0"), "{name}");
            assert_eq!(record.netns.as_deref(), context.pod.path().to_str(), "{name}");
            assert_eq!(record.network, "pods", "{name}");
            assert!(record.added_at.starts_with("20") && record.added_at.ends_with('Z'), "{name}");

            let ours = chain.plugins.last().unwrap();
            if version >= "0.4.0" {
                chain.call(&context.node, &call, "CHECK", ours, Some(&result)).unwrap();
            }
            chain.del(&context.node, &call, Some(&result)).unwrap();
            assert!(context.state().attachments.is_empty(), "{name}");
            assert_eq!(context.state().generation.0, 2, "{name}: one change each");
            // As containerd does: once more, when the namespace and the result are gone.
            let late = Call { netns: None, ..call };
            chain.call(&context.node, &late, "DEL", ours, None).unwrap();
            assert_eq!(context.state().generation.0, 2, "{name}: and none the second time");
        }
    }
}

#[test]
fn the_result_goes_through_as_the_plugin_before_returned_it() {
    for version in VERSIONS {
        let context = PluginContext::new();
        let chain = context.chain(version, bridge(), &[V4, V6]);
        let call = Call::new("web-0", &context.pod);
        let before = chain.call(&context.node, &call, "ADD", &chain.plugins[0], None).unwrap();
        let after =
            chain.call(&context.node, &call, "ADD", &chain.plugins[1], Some(&before)).unwrap();
        assert_eq!(after, before, "{version}");
    }
}

#[test]
fn a_result_that_names_no_host_interface_is_completed_from_the_kernel() {
    for first in [bridge(), json!({ "type": "ptp" })] {
        let context = PluginContext::new();
        let chain = context.chain("1.0.0", first, &[V4]);
        let call = Call::new("web-0", &context.pod);
        let mut result = chain.call(&context.node, &call, "ADD", &chain.plugins[0], None).unwrap();
        let expected =
            chain.call(&context.node, &call, "ADD", &chain.plugins[1], Some(&result)).unwrap();
        assert_eq!(expected, result);
        let complete = context.record(&call);
        assert!(complete.host_interface.is_some());

        let addresses: Vec<_> =
            result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].clone()).collect();
        result["interfaces"] = Value::Null;
        result["ips"] =
            addresses.into_iter().map(|address| json!({ "address": address })).collect();
        chain.call(&context.node, &call, "ADD", &chain.plugins[1], Some(&result)).unwrap();
        assert_eq!(
            Attachment { added_at: complete.added_at.clone(), ..context.record(&call) },
            complete
        );
    }
}

/// Two pods' interfaces have the same index in their namespaces, and each counts its peer's index
/// in another: an index alone would find a stranger's veth.
#[test]
fn another_pod_s_veth_is_not_taken_for_a_peer_that_is_elsewhere() {
    let context = PluginContext::new();
    let (other_node, other_pod) = (Namespace::new(), Namespace::new());
    for (node, pod) in [(&context.node, &context.pod), (&other_node, &other_pod)] {
        node.ip("link add host0 type veth peer name inside");
        node.ip(&format!("link set inside netns {} name eth0", pod.path().display()));
    }
    let ours = context.ours();
    let chain = Chain::new("pods", vec![ours]);
    let result = json!({ "cniVersion": "1.0.0", "ips": [] });
    let call = Call::new("web-0", &context.pod);
    chain.call(&context.node, &call, "ADD", &chain.plugins[0], Some(&result)).unwrap();
    assert_eq!(context.record(&call).host_interface.unwrap().name, "host0");
    let call = Call::new("web-1", &other_pod);
    chain.call(&context.node, &call, "ADD", &chain.plugins[0], Some(&result)).unwrap();
    assert_eq!(context.record(&call).host_interface, None, "its other end is on another node");
}

#[test]
fn a_device_that_was_moved_into_the_pod_has_no_host_interface() {
    let context = PluginContext::new();
    context.node.ip("link add up0 type veth peer name up1");
    context.node.ip("link add link up0 name mv0 type macvlan mode bridge");
    let chain = context.chain("1.0.0", json!({ "type": "host-device", "device": "mv0" }), &[V4]);
    let call = Call::new("db-0", &context.pod);
    let result = chain.add(&context.node, &call).unwrap();
    let record = context.record(&call);
    assert_eq!((&record.host_interface, &record.bridge), (&None, &None));
    assert_is_what_ip_says(&context, &record, "host-device");
    chain.check(&context.node, &call, &result).unwrap();
    chain.del(&context.node, &call, Some(&result)).unwrap();
    assert!(context.state().attachments.is_empty());
}

#[test]
fn interfaces_of_several_networks_are_records_of_their_own() {
    let context = PluginContext::new();
    let pods = context.chain("1.0.0", bridge(), &[V4]);
    let mut storage = context.chain("1.0.0", json!({ "type": "ptp" }), &["10.99.0.0/24"]);
    storage.name = "storage".to_owned();
    let first = Call::new("web-0", &context.pod);
    let second = Call { interface: "net1".to_owned(), ..first.clone() };
    let first_result = pods.add(&context.node, &first).unwrap();
    let second_result = storage.add(&context.node, &second).unwrap();
    assert_eq!(
        (context.record(&first).network, context.record(&second).network),
        ("pods".into(), "storage".into())
    );
    for call in [&first, &second] {
        context.pod.link(&call.interface)["link_index"].as_u64().unwrap();
    }
    pods.check(&context.node, &first, &first_result).unwrap();
    storage.check(&context.node, &second, &second_result).unwrap();
    storage.del(&context.node, &second, Some(&second_result)).unwrap();
    assert_eq!(
        context.state().attachments.into_keys().collect::<Vec<_>>(),
        [AttachmentId::new("web-0", "eth0")]
    );
}

#[test]
fn a_second_add_replaces_the_record() {
    let context = PluginContext::new();
    let chain = context.chain("1.0.0", bridge(), &[V4]);
    let call = Call::new("web-0", &context.pod);
    let result = chain.add(&context.node, &call).unwrap();
    let mut other = result.clone();
    other["ips"][0]["address"] = json!("10.85.0.77/24");
    chain.call(&context.node, &call, "ADD", &chain.plugins[1], Some(&other)).unwrap();
    assert_eq!(context.state().attachments.len(), 1);
    assert_eq!(context.record(&call).ips, ["10.85.0.77".parse::<IpAddr>().unwrap()]);
}

/// The annotations that the injector of this proxy writes.
fn annotations_of(redirect: &Value) -> &'static [(&'static str, &'static str)] {
    match redirect["profile"].as_str().unwrap() {
        "linkerd" => &[],
        "istio" => &[("sidecar.istio.io/status", r#"{"initContainers":["istio-validation"]}"#)],
        "consul" => &[
            ("consul.hashicorp.com/redirect-traffic-config", r#"{"ProxyInboundPort":20000}"#),
            ("consul.hashicorp.com/transparent-proxy-status", "enabled"),
        ],
        _ => &[("denizen.io/redirect", "enabled")],
    }
}

#[test]
fn every_conflist_in_conf_works_as_it_is() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../conf/cni");
    let lists: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(lists.len() >= 7, "{lists:?}");
    for path in lists {
        let list: Value = serde_json::from_reader(std::fs::File::open(&path).unwrap()).unwrap();
        let context = PluginContext::new();
        let version = VERSIONS.into_iter().find(|version| list["cniVersion"] == *version).unwrap();
        let mut plugins = list["plugins"].as_array().unwrap().clone();
        for plugin in &mut plugins {
            // Nothing else is changed than where things are kept.
            match plugin["type"].as_str().unwrap() {
                "denizen" => {
                    plugin["runDir"] = json!(context.run_dir());
                    if plugin["capabilities"]["io.kubernetes.cri.pod-annotations"] == true {
                        plugin["runtimeConfig"] = injected(annotations_of(&plugin["redirect"]));
                    }
                }
                "bridge" | "ptp" => {
                    plugin["ipam"]["dataDir"] = json!(context.folder().join("ipam"))
                }
                _ => {}
            }
        }
        let chain = Chain { name: list["name"].as_str().unwrap().to_owned(), version, plugins };
        let call = Call::new("web-0", &context.pod);
        // As an agent with the firewall on left it, which is dead now.
        nft(&context, &[TABLES]);
        let result = chain.add(&context.node, &call).unwrap();
        let record = context.record(&call);
        assert_is_what_ip_says(&context, &record, &path.display().to_string());
        let redirects = !chain.plugins.last().unwrap()["redirect"].is_null();
        assert_eq!(record.redirect.is_some(), redirects, "{}", path.display());
        assert_eq!(pending(&context), record.ips.iter().map(|ip| json!(ip)).collect::<Vec<_>>());
        // portmap 1.1's own CHECK fails on a pod with one address family.
        chain
            .call(&context.node, &call, "CHECK", chain.plugins.last().unwrap(), Some(&result))
            .unwrap();
        chain.del(&context.node, &call, Some(&result)).unwrap();
        assert!(context.state().attachments.is_empty(), "{}", path.display());
    }
}
