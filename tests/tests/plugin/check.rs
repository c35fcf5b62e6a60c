//! CHECK, behind the real `bridge`: it fails, and says why, when somebody changes things behind our
//! back.

use denizen_tests::node::cni::{Call, Chain, Namespace, PluginContext, VERSIONS};
use serde_json::{Value, json};

const V4: &str = "10.85.0.0/24";

fn bridge() -> Value {
    json!({ "type": "bridge", "bridge": "cni0", "isGateway": true })
}

/// What somebody does behind our back: on the node and in the pod, as arguments of `ip`; `VETH`
/// stands for the pod's veth.
type NodeChange = (&'static str, &'static [&'static str], &'static [&'static str], &'static str);

const CHANGES: [NodeChange; 7] = [
    (
        "renamed",
        &["link set VETH down", "link set VETH name veth-new"],
        &[],
        "host interface's name: recorded",
    ),
    ("deleted", &["link del VETH"], &[], "interface eth0 is gone from the pod; host interface"),
    (
        "on another bridge",
        &["link add br9 type bridge", "link set VETH master br9"],
        &[],
        "bridge: recorded",
    ),
    ("on no bridge", &["link set VETH nomaster"], &[], "bridge: recorded"),
    ("another MAC", &["link set VETH address 02:00:00:00:00:99"], &[], "MAC address: recorded"),
    (
        "no address",
        &[],
        &["addr flush dev eth0"],
        "address 10.85.0.2 is recorded, but eth0 does not have it",
    ),
    (
        "another address",
        &[],
        &["addr del 10.85.0.2/24 dev eth0", "addr add 10.85.0.77/24 dev eth0"],
        "address 10.85.0.2 is recorded",
    ),
];

#[test]
fn check_fails_with_the_reason_when_the_kernel_disagrees() {
    for version in &VERSIONS[2..] {
        for (name, on_node, in_pod, reason) in CHANGES {
            let context = PluginContext::new();
            let chain = context.chain(version, bridge(), &[V4]);
            let call = Call::new("web-0", &context.pod);
            let result = chain.add(&context.node, &call).unwrap();
            let check =
                || chain.call(&context.node, &call, "CHECK", &chain.plugins[1], Some(&result));
            check().unwrap();
            let veth = context.record(&call).host_interface.unwrap().name;
            on_node.iter().for_each(|change| drop(context.node.ip(&change.replace("VETH", &veth))));
            in_pod.iter().for_each(|change| drop(context.pod.ip(change)));
            let refusal = check().unwrap_err();
            let message = refusal["msg"].as_str().unwrap();
            assert!(message.contains(reason), "{name}, {version}: {message}");
            assert!(message.starts_with("web-0/eth0: "), "{name}, {version}: {message}");
            assert_eq!(refusal["code"], 100, "{name}, {version}");
        }
    }
}

#[test]
fn check_fails_with_the_reason_when_record_or_result_disagree() {
    let context = PluginContext::new();
    let chain = context.chain("1.1.0", bridge(), &[V4]);
    let call = Call::new("web-0", &context.pod);
    let result = chain.add(&context.node, &call).unwrap();
    let ours = &chain.plugins[1];
    let refused = |chain: &Chain, call: &Call, result: &Value| {
        let refusal = chain.call(&context.node, call, "CHECK", ours, Some(result)).unwrap_err();
        refusal["msg"].as_str().unwrap().to_owned()
    };
    let mut other = result.clone();
    other["ips"][0]["address"] = json!("10.85.0.77/24");
    assert!(
        refused(&chain, &call, &other)
            .contains("addresses: recorded [10.85.0.2], in prevResult [10.85.0.77]")
    );

    let renamed = Chain { name: "others".to_owned(), ..chain.clone() };
    assert!(
        refused(&renamed, &call, &result)
            .contains("network: recorded \"pods\", configured \"others\"")
    );

    let elsewhere = Namespace::new();
    let moved = Call { netns: Some(elsewhere.path().to_owned()), ..call.clone() };
    assert!(refused(&chain, &moved, &result).contains("netns: recorded"));

    chain.call(&context.node, &call, "DEL", ours, None).unwrap();
    assert!(refused(&chain, &call, &result).starts_with("web-0/eth0 is not recorded in "));
}
