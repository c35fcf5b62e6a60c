use std::ffi::OsString;

use serde_json::{Value, json};

use crate::Environment;
use crate::run::understand;

fn environment() -> Environment {
    let variable = |text: &str| Some(OsString::from(text));
    Environment {
        command: variable("ADD"),
        container_id: variable("pod-1"),
        netns: variable("/run/netns/pod-1"),
        if_name: variable("eth0"),
        args: None,
    }
}

fn configuration() -> Value {
    json!({
        "cniVersion": "0.4.0", "name": "pods", "type": "denizen",
        "prevResult": {
            "cniVersion": "0.4.0",
            "ips": [{ "version": "4", "address": "10.1.0.5/16" }],
        },
    })
}

/// The error object of an ADD, which is refused.
fn refused(environment: &Environment, configuration: &Value) -> Value {
    let error = understand(environment, configuration.to_string().as_bytes()).unwrap_err();
    serde_json::from_str(&error).unwrap()
}

/// What goes to the runtime's log and the pod's events names what is wrong, and how it ends.
#[test]
fn a_long_value_is_quoted_in_short() {
    understand(&environment(), configuration().to_string().as_bytes()).unwrap();
    let long = format!("{}-end", "x".repeat(250_000));
    let list = "y".repeat(250_000);
    let places = [
        ("/cniVersion", json!(long), "cniVersion"),
        ("/name", json!([long]), "name"),
        ("/name", json!(format!("/{long}")), "name"),
        ("/runDir", json!(long), "runDir"),
        ("/runDir", json!({ "in": long }), "runDir"),
        ("/waitForAgent", json!(long), "waitForAgent"),
        ("/waitForAgent", json!({ "timeout": long }), "waitForAgent.timeout"),
        ("/waitForAgent", json!({ "onTimeout": long }), "waitForAgent.onTimeout"),
        ("/waitForAgent", json!({ long.clone(): 1 }), "waitForAgent"),
        ("/redirect", json!(long), "redirect"),
        ("/redirect", json!({ "profile": long }), "redirect.profile"),
        ("/redirect", json!({ "profile": "custom", "select": long }), "redirect.select"),
        ("/redirect", json!({ "profile": "custom", long.clone(): 1 }), "redirect."),
        ("/redirect", json!({ "profile": "custom", "allow": [long] }), "redirect.allow"),
        ("/redirect", json!({ "profile": "custom", "hairpin": long }), "redirect.hairpin"),
        ("/ipam", json!({ "type": long }), "ipam"),
        ("/prevResult", json!(long), "prevResult"),
        ("/prevResult/cniVersion", json!(long), "prevResult"),
        ("/prevResult/interfaces", json!(long), "prevResult"),
        ("/prevResult/ips/0/address", json!(long), "prevResult"),
    ];
    for (pointer, value, names) in places {
        let mut configuration = configuration();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = configuration.pointer_mut(parent).unwrap();
        parent[key] = value;
        check(&refused(&environment(), &configuration), pointer, names);
    }
    let mut unknown = configuration();
    unknown[&long] = json!(list);
    check(&refused(&environment(), &unknown), "an unknown key", "unsupported field");
    let value = || Some(OsString::from(format!("/{long}")));
    let environments = [
        ("CNI_COMMAND", Environment { command: value(), ..environment() }),
        ("CNI_CONTAINERID", Environment { container_id: value(), ..environment() }),
        ("CNI_IFNAME", Environment { if_name: value(), ..environment() }),
        ("CNI_ARGS", Environment { args: value(), ..environment() }),
    ];
    for (name, environment) in environments {
        check(&refused(&environment, &configuration()), name, name);
    }
}

fn check(error: &Value, place: &str, names: &str) {
    let text = error.to_string();
    assert!(text.len() < 600, "{place}: {} bytes: {text:.600}", text.len());
    assert!(error["msg"].as_str().unwrap().contains(names), "{place}: {text}");
}
