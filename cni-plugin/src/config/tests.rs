use super::*;

fn whole(text: &str) -> Result<(String, PathBuf, Option<WaitForAgent>), CniError> {
    let raw = RawConfig::parse(text.as_bytes())?;
    raw.version()?;
    PluginConfig::whole(&raw).map(|config| (config.network, config.run_dir, config.wait_for_agent))
}

#[test]
fn missing_keys_have_defaults() {
    let text = r#"{"cniVersion":"1.0.0","name":"pods","type":"denizen"}"#;
    assert_eq!(whole(text).unwrap(), ("pods".into(), "/run/denizen".into(), None));
    let text = r#"{"cniVersion":"1.0.0","name":"pods","waitForAgent":{}}"#;
    let wait = WaitForAgent { timeout: Duration::from_secs(1), on_timeout: OnTimeout::Proceed };
    assert_eq!(whole(text).unwrap().2, Some(wait));
}

#[test]
fn keys_of_the_protocol_and_empty_keys_of_go_are_accepted() {
    let text = r#"{"cniVersion":"1.1.0","name":"pods","type":"denizen","args":{"cni":{}},
        "capabilities":{"x":true},"runtimeConfig":{"x":1},"cni.dev/attachments":[],"ipam":{},
        "dns":{ },"waitForAgent":null,"prevResult":null}"#;
    whole(text).unwrap();
}

#[test]
fn durations_are_whole_and_have_a_unit() {
    let cases = [("1ms", Some(1)), ("1s", Some(1_000)), ("01s", Some(1_000)), ("1m", Some(60_000))];
    for (text, milliseconds) in cases {
        assert_eq!(duration(text), milliseconds.map(Duration::from_millis), "{text}");
    }
    for text in [
        "",
        "1",
        "s",
        "1.5s",
        "-1s",
        "1 s",
        "1h",
        "1m30s",
        "99999999999999999999s",
        "18446744073709551615m",
    ] {
        assert_eq!(duration(text), None, "{text}");
    }
}

#[test]
fn an_escaped_key_is_decoded() {
    let raw = RawConfig::parse(br#"{"cniVersi\u006fn":"0.3.1"}"#).unwrap();
    assert_eq!(raw.version().unwrap(), CniVersion::V0_3_1);
}
