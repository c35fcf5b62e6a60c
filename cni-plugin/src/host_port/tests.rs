use super::*;

fn parsed(text: &str) -> Result<String, String> {
    let passed: Box<RawValue> = serde_json::from_str(text).unwrap();
    let pod = PodRef {
        namespace: "default".to_owned(),
        name: "web-0".to_owned(),
        uid: None,
        unknown: Map::new(),
    };
    let all = host_ports(&passed, Some(&pod)).map_err(|error| {
        assert_eq!(error.code(), 7);
        error.to_string()
    })?;
    let each = all.iter().map(|host_port| format!("{host_port}->{}", host_port.pod_port));
    Ok(each.collect::<Vec<_>>().join(" "))
}

#[test]
fn keys_and_protocols_are_read_in_any_case() {
    let cases = [
        // containerd's own bytes: its struct has no JSON names.
        (
            r#"[{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":""}]"#,
            "*:8080/tcp->80",
        ),
        (
            r#"[{"hostPort":53,"containerPort":5353,"protocol":"UDP","hostIP":"192.168.0.2"}]"#,
            "192.168.0.2:53/udp->5353",
        ),
        (r#"[{"hostPort":53,"containerPort":53}]"#, "*:53/tcp->53"),
        (r#"[{"hostPort":1,"containerPort":2,"protocol":"","hostIP":null}]"#, "*:1/tcp->2"),
        (
            r#"[{"HostPort":9,"ContainerPort":9,"Protocol":"SCTP","HostIP":"0.0.0.0"},
                {"HostPort":9,"ContainerPort":9,"Protocol":"sctp","HostIP":"::"}]"#,
            "0.0.0.0:9/sctp->9 [::]:9/sctp->9",
        ),
        (
            r#"[{"hostPort":65535,"containerPort":1,"hostIP":"::ffff:192.168.0.2"},
                {"hostPort":1,"containerPort":1,"hostIP":"FD00:0::1","other":[1]}]"#,
            "192.168.0.2:65535/tcp->1 [fd00::1]:1/tcp->1",
        ),
        ("null", ""),
        ("[]", ""),
        // The same twice is once.
        (r#"[{"hostPort":1,"containerPort":2},{"HostPort":1,"ContainerPort":2}]"#, "*:1/tcp->2"),
    ];
    for (text, expected) in cases {
        assert_eq!(parsed(text).unwrap(), expected, "{text}");
    }
}

#[test]
fn a_bad_entry_is_named_with_its_pod() {
    let cases = [
        (r#"[{"containerPort":80}]"#, "hostPort is missing"),
        (r#"[{"hostPort":80}]"#, "containerPort is missing"),
        (r#"[{"hostPort":0,"containerPort":80}]"#, "hostPort 0 is not from 1 to 65535"),
        (r#"[{"hostPort":-1,"containerPort":80}]"#, "hostPort -1 is not from 1 to 65535"),
        (r#"[{"hostPort":65536,"containerPort":80}]"#, "hostPort 65536 is not from 1 to 65535"),
        (r#"[{"hostPort":"80","containerPort":80}]"#, "hostPort \"80\" is not from 1 to 65535"),
        (r#"[{"hostPort":80,"containerPort":80.5}]"#, "containerPort 80.5 is not from 1 to 65535"),
        (
            r#"[{"hostPort":80,"containerPort":80,"protocol":"icmp"}]"#,
            "protocol \"icmp\" is none of tcp, udp and sctp",
        ),
        (r#"[{"hostPort":80,"containerPort":80,"protocol":6}]"#, "protocol is no string"),
        (
            r#"[{"hostPort":80,"containerPort":80,"hostIP":"node-1"}]"#,
            "hostIP \"node-1\" is no IP address",
        ),
        (
            r#"[{"hostPort":80,"containerPort":80,"hostIP":"fe80::1%eth0"}]"#,
            "hostIP \"fe80::1%eth0\" is no IP address",
        ),
    ];
    for (text, why) in cases {
        let error = parsed(text).unwrap_err();
        let begin = "runtimeConfig.portMappings of pod default/web-0: entry 1, {";
        assert!(error.starts_with(begin) && error.ends_with(why), "{text}: {error}");
    }
    let second = r#"[{"hostPort":1,"containerPort":2},{"hostPort":1,"containerPort":0}]"#;
    assert!(parsed(second).unwrap_err().contains("entry 2, "));
    for text in ["{}", "[1]", "\"80\"", "80"] {
        let error = parsed(text).unwrap_err();
        assert!(
            error.starts_with("runtimeConfig.portMappings of pod default/web-0 is malformed"),
            "{text}: {error}"
        );
    }
}
