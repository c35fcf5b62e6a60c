//! What a bad call gets: the specification's code, a message that names the thing, and an unharmed
//! state file.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use denizen_tests::node::cni::{PluginContext, VERSIONS, invoke, with};
use serde_json::{Value, json};

/// A variable that is wrong: its name and its value, and what the message has to name besides. The
/// code is 4.
const BAD_VARIABLES: [(&str, &str, &str); 21] = [
    ("CNI_COMMAND", "add", "\"add\""),
    ("CNI_COMMAND", "", "missing"),
    ("CNI_CONTAINERID", "", "missing"),
    ("CNI_CONTAINERID", "a/b", "a/b"),
    ("CNI_CONTAINERID", "..", "\"..\""),
    ("CNI_CONTAINERID", "../x", "../x"),
    ("CNI_CONTAINERID", "a\n", "a\\n"),
    ("CNI_CONTAINERID", "-a", "-a"),
    ("CNI_IFNAME", "", "missing"),
    ("CNI_IFNAME", "a/b", "a/b"),
    ("CNI_IFNAME", "..", "\"..\""),
    ("CNI_IFNAME", "a b", "a b"),
    ("CNI_IFNAME", "abcdefghijklmnop", "15"),
    ("CNI_NETNS", "", "missing"),
    ("CNI_NETNS", "/nowhere", "/nowhere"),
    ("CNI_NETNS", "/etc/passwd", "/etc/passwd: it is not a network namespace"),
    ("CNI_NETNS", "/proc", "/proc"),
    ("CNI_NETNS", "/proc/self/ns/mnt", "/proc/self/ns/mnt: it is not a network namespace"),
    ("CNI_NETNS", "/proc/thread-self/ns/net", "own network namespace"),
    ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME", "K8S_POD_NAME"),
    ("CNI_ARGS", "=;rubbish", "rubbish"),
];

/// What stands at a place of the configuration, the code that it gets, and two things that the
/// message has to name.
type BadValue = (&'static str, Value, u32, &'static str, &'static str);

fn bad_configurations() -> Vec<BadValue> {
    vec![
        ("/cniVersion", Value::Null, 1, "cniVersion", "missing"),
        ("/cniVersion", json!("0.2.0"), 1, "0.2.0", "0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"),
        ("/cniVersion", json!("1.2.0"), 1, "cniVersion", "1.2.0"),
        ("/cniVersion", json!(1), 7, "cniVersion", "string"),
        ("/name", Value::Null, 7, "name", "missing"),
        ("/name", json!("../x"), 7, "name", "../x"),
        ("/runDir", json!("run"), 7, "runDir", "absolute"),
        ("/runDir", json!(7), 7, "runDir", "string"),
        ("/waitForAgnet", json!({}), 2, "waitForAgnet", "{}"),
        ("/ipMasq", json!(true), 2, "ipMasq", "true"),
        ("/ipam", json!({ "type": "host-local" }), 2, "ipam", "host-local"),
        ("/waitForAgent", json!(true), 7, "waitForAgent", "true"),
        ("/waitForAgent", json!({ "time": 1 }), 2, "waitForAgent.time", "1"),
        ("/waitForAgent", json!({ "timeout": "5" }), 2, "waitForAgent.timeout", "\"5\""),
        ("/waitForAgent", json!({ "timeout": "1.5s" }), 2, "waitForAgent.timeout", "1.5s"),
        ("/waitForAgent", json!({ "timeout": "0s" }), 2, "waitForAgent.timeout", "0s"),
        ("/waitForAgent", json!({ "timeout": "2m" }), 2, "waitForAgent.timeout", "60s"),
        ("/waitForAgent", json!({ "onTimeout": "retry" }), 2, "waitForAgent.onTimeout", "retry"),
    ]
}

fn bad_results() -> Vec<BadValue> {
    vec![
        ("/prevResult", Value::Null, 7, "prevResult", "chained"),
        ("/prevResult", json!("ok"), 7, "prevResult", "malformed"),
        ("/prevResult/cniVersion", json!("0.2.0"), 7, "prevResult", "0.2.0"),
        ("/prevResult/interfaces", json!({}), 7, "prevResult", "malformed"),
        ("/prevResult/ips/0/address", json!("10.1.0.500/16"), 7, "prevResult", "10.1.0.500"),
        ("/prevResult/ips/0/address", json!("10.1.0.5"), 7, "10.1.0.5", "prefix"),
        ("/prevResult/ips/0/address", json!("10.1.0.5/33"), 7, "10.1.0.5/33", "prefix"),
        ("/prevResult/ips/0/address", json!("127.0.0.1/8"), 7, "127.0.0.1", "no pod"),
        ("/prevResult/ips/1/address", json!("::/0"), 7, "::/0", "no pod"),
        ("/prevResult/ips/1/address", json!("ff02::1/64"), 7, "ff02::1", "no pod"),
        ("/prevResult/ips/0/version", json!("6"), 7, "10.1.0.5", "version"),
        ("/prevResult/ips/0/interface", json!(3), 7, "10.1.0.5", "interface"),
        ("/prevResult/ips/0/interface", json!(-1), 7, "prevResult", "malformed"),
    ]
}

/// Puts `value` at the place that `pointer` names.
fn put(configuration: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = configuration.pointer_mut(parent).unwrap();
    match key.parse::<usize>() {
        Ok(index) => parent[index] = value,
        Err(_) => parent[key] = value,
    }
}

#[test]
fn a_bad_variable_is_named_and_harms_nothing() {
    for version in VERSIONS {
        let context = PluginContext::new();
        context.add("c1");
        let before = context.text();
        for (name, value, named) in BAD_VARIABLES {
            let variables = with(context.variables("ADD", "c2"), name, value);
            let refusal =
                context.call(variables, &context.configuration(version)).expect_err(value);
            assert_eq!(refusal["code"], 4, "{name}={value}, {version}: {refusal}");
            let message = refusal["msg"].as_str().unwrap();
            assert!(
                message.contains(name) && message.contains(named),
                "{name}={value}, {version}: {message}"
            );
            assert_eq!(context.text(), before, "{name}={value}, {version}");
        }
        let nothing = vec![("CNI_COMMAND", "ADD".to_owned())];
        let refusal = context.call(nothing, &context.configuration(version)).unwrap_err();
        assert_eq!(
            refusal["msg"], "missing variables: CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS",
            "{version}"
        );
        assert_eq!(refusal["cniVersion"], version, "an error speaks the version that was asked in");
    }
}

#[test]
fn a_bad_configuration_or_result_is_named_and_harms_nothing() {
    for version in VERSIONS {
        let context = PluginContext::new();
        context.add("c1");
        let before = context.text();
        for (place, value, code, one, two) in [bad_configurations(), bad_results()].concat() {
            let name = format!("{place}: {value}, {version}");
            let mut configuration = context.configuration(version);
            put(&mut configuration, place, value);
            let refusal =
                context.call(context.variables("ADD", "c2"), &configuration).expect_err(&name);
            assert_eq!(refusal["code"], code, "{name}: {refusal}");
            let message = refusal["msg"].as_str().unwrap();
            assert!(message.contains(one) && message.contains(two), "{name}: {message}");
            let speaks = if place == "/cniVersion" { "1.1.0" } else { version };
            assert_eq!(refusal["cniVersion"], speaks, "{name}");
            assert_eq!(context.text(), before, "{name}");
        }
    }
}

#[test]
fn standard_input_that_is_no_configuration_is_a_decoding_error() {
    let context = PluginContext::new();
    for command in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        for input in
            ["", "  \n", "hello", "[]", "7", "{", "{\"cniVersion\":\"1.1.0\"", "\u{feff}{}", "{}{}"]
        {
            let refusal = invoke(&context.node, context.variables(command, "c1"), input.as_bytes())
                .unwrap_err();
            assert_eq!(refusal["code"], 6, "{command}, {input:?}: {refusal}");
            assert!(
                refusal["msg"].as_str().unwrap().starts_with("standard input "),
                "{command}, {input:?}"
            );
        }
    }
    let refusal =
        invoke(&context.node, context.variables("ADD", "c1"), b"{\"name\": \"\xff\"}").unwrap_err();
    assert_eq!(refusal["code"], 6, "not UTF-8: {refusal}");
}
