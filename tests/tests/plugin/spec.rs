//! The CNI specification as a table: its commands and its examples, in every version.

use denizen_tests::node::cni::{
    Namespace, PluginContext, VERSIONS, denizen, invoke, spec_result, start, with,
};
use serde_json::{Value, json};

#[test]
fn every_command_of_every_version() {
    for version in VERSIONS {
        let context = PluginContext::new();
        let configuration = context.configuration(version);
        let added = context.call(context.variables("ADD", "c1"), &configuration).unwrap();
        assert_eq!(added, spec_result(version), "{version}: key by key, unknown ones too");
        assert_eq!(context.records(), ["c1/eth0"], "{version}");

        let mut rest = configuration.clone();
        rest.as_object_mut().unwrap().remove("prevResult");
        let status = context.call(vec![("CNI_COMMAND", "STATUS".to_owned())], &rest);
        rest["cni.dev/valid-attachments"] = json!([{ "containerID": "c1", "ifname": "eth0" }]);
        let kept = context.call(vec![("CNI_COMMAND", "GC".to_owned())], &rest);
        if version == "1.1.0" {
            assert_eq!((status, kept), (Ok(Value::Null), Ok(Value::Null)));
            assert_eq!(context.records(), ["c1/eth0"]);
        } else {
            for refusal in [status, kept] {
                assert_eq!(refusal.unwrap_err()["code"], 1, "{version} has neither STATUS nor GC");
            }
        }
        let checked = context.call(context.variables("CHECK", "c1"), &configuration).unwrap_err();
        // The namespace has no eth0: CHECK has to notice, where the version has it.
        assert_eq!(
            checked["code"],
            if version >= "0.4.0" { 100 } else { 1 },
            "{version}: {checked}"
        );

        for _ in 0..2 {
            assert_eq!(
                context.call(context.variables("DEL", "c1"), &configuration),
                Ok(Value::Null),
                "{version}"
            );
            assert_eq!(context.records(), [""; 0], "{version}");
        }
    }
}

#[test]
fn the_result_goes_through_byte_by_byte() {
    let context = PluginContext::new();
    let text = r#"{ "cniVersion":"1.0.0",  "z":1, "a":[ 1.50, 1e2, "\u00e9", 99999999999999999999 ],"ips":[] }"#;
    let run_dir = context.run_dir();
    let input = format!(
        r#"{{"cniVersion":"1.0.0","name":"n","type":"denizen","runDir":{run_dir:?},"prevResult":{text}}}"#
    );
    let output = start(&context.node, &denizen(), context.variables("ADD", "c1"), input.as_bytes())
        .wait_with_output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

/// The runtime reads each result by the version that it says.
#[test]
fn a_result_in_another_version_of_its_type_goes_through_byte_by_byte() {
    for (list, result) in
        [("0.4.0", "0.3.1"), ("0.3.1", "0.4.0"), ("1.0.0", "1.1.0"), ("1.1.0", "1.0.0")]
    {
        let context = PluginContext::new();
        let text = format!(r#"{{"cniVersion":"{result}",  "ips":[{{"address":"10.1.0.5/16"}}]}}"#);
        let run_dir = context.run_dir();
        let input = format!(
            r#"{{"cniVersion":"{list}","name":"n","type":"denizen","runDir":{run_dir:?},"prevResult":{text}}}"#
        );
        let variables = context.variables("ADD", "c1");
        let child = start(&context.node, &denizen(), variables, input.as_bytes());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "{list}");
        assert_eq!(context.records(), ["c1/eth0"], "{list}");
    }
}

#[test]
fn version_says_what_is_supported() {
    let node = Namespace::new();
    let supported = json!(VERSIONS);
    for (input, version) in [
        ("", "1.1.0"),
        (r#"{"cniVersion":"0.4.0"}"#, "0.4.0"),
        (r#"{"cniVersion":"9.9.9"}"#, "9.9.9"),
        ("{}", "1.1.0"),
    ] {
        let answer =
            invoke(&node, vec![("CNI_COMMAND", "VERSION".to_owned())], input.as_bytes()).unwrap();
        assert_eq!(answer, json!({ "cniVersion": version, "supportedVersions": supported }));
    }
}

#[test]
fn gc_drops_what_is_not_valid_of_its_own_network_only() {
    let context = PluginContext::new();
    let mut configuration = context.configuration("1.1.0");
    for (container, network) in [("c1", "dbnet"), ("c2", "dbnet"), ("c3", "dbnet"), ("c4", "other")]
    {
        configuration["name"] = json!(network);
        context.call(context.variables("ADD", container), &configuration).unwrap();
    }
    configuration["name"] = json!("dbnet");
    let gc = |valid: Value| {
        let mut configuration = configuration.clone();
        configuration["cni.dev/valid-attachments"] = valid;
        context.call(vec![("CNI_COMMAND", "GC".to_owned())], &configuration)
    };
    // c3 is valid with another interface than the one that is recorded.
    gc(json!([{ "containerID": "c1", "ifname": "eth0" }, { "containerID": "c3", "ifname": "net1" }]))
        .unwrap();
    assert_eq!(context.records(), ["c1/eth0", "c4/eth0"]);
    let refusal = gc(Value::Null).unwrap_err();
    assert_eq!(refusal["code"], 7, "absent is not empty: {refusal}");
    assert_eq!(context.records(), ["c1/eth0", "c4/eth0"]);
    gc(json!([])).unwrap();
    assert_eq!(context.records(), ["c4/eth0"]);
}

#[test]
fn removal_asks_for_no_more_than_it_needs() {
    let context = PluginContext::new();
    context.add("c1");
    let mut configuration = context.configuration("1.1.0");
    configuration["prevResult"] = json!("rubbish");
    configuration["waitForAgnet"] = json!(1);
    let variables =
        with(with(context.variables("DEL", "c1"), "CNI_NETNS", "/nowhere"), "CNI_ARGS", "rubbish");
    assert_eq!(context.call(variables, &configuration), Ok(Value::Null));
    assert_eq!(context.records(), [""; 0]);

    configuration["runDir"] = json!(context.folder().join("never-made"));
    configuration["cni.dev/valid-attachments"] = json!([]);
    for command in ["DEL", "GC"] {
        assert_eq!(
            context.call(context.variables(command, "c1"), &configuration),
            Ok(Value::Null),
            "{command}"
        );
    }
    assert!(!context.folder().join("never-made").exists());
}

#[test]
fn run_by_hand_it_says_what_it_is_on_standard_error() {
    let node = Namespace::new();
    let output = start(&node, &denizen(), vec![], b"").wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"");
    let about = String::from_utf8(output.stderr).unwrap();
    for word in [
        "chained CNI plugin",
        "\"type\": \"denizen\"",
        "/run/denizen",
        "waitForAgent",
        "0.3.0",
        "1.1.0",
    ] {
        assert!(about.contains(word), "{word:?} in {about}");
    }
}

#[test]
fn standard_output_that_is_closed_does_not_hang_or_crash() {
    let context = PluginContext::new();
    let mut child = start(&context.node, &denizen(), context.variables("ADD", "c1"), b"");
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
