use std::path::Path;

use super::*;

/// The format, pinned: each of the two programs must be able to read what the other one wrote.
const FILE: &str = r#"{
"version": 1,
"epoch": "b1946ac9",
"generation": 42,
"attachments": {
"3f1c/eth0": {"containerId":"3f1c","ifName":"eth0","network":"pods","pod":{"namespace":"default","name":"web-0","uid":"a-1"},"netns":"/var/run/netns/cni-1","hostInterface":{"name":"veth3a1","index":12,"mac":"0a:58:0a:01:02:03"},"bridge":"cni0","ips":["10.1.2.3","fd00::3"],"addedAt":"2026-11-20T12:00:00Z"},
"3f1c/net1": {"containerId":"3f1c","ifName":"net1","network":"storage","pod":null,"netns":null,"hostInterface":null,"l3Interface":"br0.7","bridge":null,"ips":[],"mac":"0a:58:0a:01:02:04","hostPorts":[{"protocol":"tcp","port":8080,"podPort":80},{"ip":"192.168.0.2","protocol":"udp","port":53,"podPort":5353,"name":"dns"},{"family":6,"protocol":"sctp","port":9,"podPort":9}],"addedAt":"2026-11-20T12:00:01Z","redirect":{"profile":"linkerd","inboundPort":4143,"outboundPort":4140,"proxyUid":2102,"alwaysSkipInboundPorts":["4190","4191"],"skipOutboundPorts":["4567-4568"],"skipOutboundCidrs":["10.0.0.0/8"],"interfaces":["net1"],"annotations":{"skipOutboundPorts":"config.linkerd.io/skip-outbound-ports"},"gid":7},"obsoleteRedirects":[{"profile":"linkerd","outboundPort":4140,"backend":"iptables","interfaces":["net1"]}],"mtu":9000}
},
"node": "a"
}
"#;

const PATH: &str = "/run/denizen/pods.json";

fn parsed(text: &str) -> Result<State, StateError> {
    parse(text.as_bytes(), Path::new(PATH))
}

#[test]
fn the_pinned_file_is_written_back_byte_for_byte() {
    let state = parsed(FILE).unwrap();
    assert_eq!(state.attachments.len(), 2);
    assert_eq!(state.unknown["node"], "a");
    assert_eq!(String::from_utf8(print(&state).unwrap()).unwrap(), FILE);
}

#[test]
fn other_text_is_refused_with_the_files_name() {
    let cases = [
        ("nothing", ""),
        ("truncated", &FILE[..FILE.len() / 2]),
        ("not JSON", "pods: []"),
        ("not an object", "[]"),
        ("another program's", r#"{"cniVersion":"1.0.0"}"#),
        ("an older version than the first", &FILE.replacen("1", "0", 1)),
        ("a negative version", &FILE.replacen("1", "-1", 1)),
        ("an address that is none", &FILE.replace("10.1.2.3", "10.1.2.300")),
        ("a host port that is none", &FILE.replace("\"port\":8080", "\"port\":0")),
        ("a host port of no family", &FILE.replace("\"family\":6", "\"family\":5")),
        ("a record at another's key", &FILE.replace("\"3f1c/eth0\"", "\"3f1c/eth1\"")),
        ("a missing field", &FILE.replace("\"containerId\":\"3f1c\",\"ifName\":\"eth0\",", "")),
        ("something behind it", &format!("{FILE}{{}}")),
    ];
    for (name, text) in cases {
        let error = parsed(text).expect_err(name);
        assert!(matches!(error, StateError::Unreadable { .. }), "{name}: {error:?}");
        assert!(error.to_string().contains(PATH), "{name}: {error}");
    }
}

#[test]
fn a_newer_version_names_the_program_to_upgrade() {
    let newer_schema = r#"{"version": 2, "pods": []}"#;
    for text in [FILE.replacen("1", "2", 1).as_str(), newer_schema] {
        let error = parsed(text).unwrap_err();
        assert!(matches!(error, StateError::NewerVersion { found: 2, .. }), "{error:?}");
        assert!(error.to_string().contains("upgrade"), "{error}");
    }
}
