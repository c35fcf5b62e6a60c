use super::*;

fn prev_result(version: CniVersion, text: &str) -> Result<PrevResult, CniError> {
    PrevResult::parse(&RawValue::from_string(text.to_owned()).unwrap(), version, "eth0")
}

#[test]
fn addresses_of_other_interfaces_are_ignored() {
    let text = r#"{"interfaces": [
            {"name": "br0"}, {"name": "veth1", "sandbox": ""},
            {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/x"},
            {"name": "eth1", "sandbox": "/x"}
        ], "ips": [
            {"address": "10.0.0.1/24", "interface": 0},
            {"address": "10.0.0.2/24", "interface": 2, "gateway": "10.0.0.1"},
            {"address": "10.0.0.3/24", "interface": 3}, {"address": "fd00::2/64", "gateway": "x"}
        ]}"#;
    for version in CniVersion::ALL {
        let expected = PrevResult {
            host_links: vec!["br0".into(), "veth1".into()],
            further: vec!["eth1".into()],
            has_interface: true,
            ips: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            gateways: vec!["10.0.0.1".parse().unwrap()],
            mac: Some("02:00:00:00:00:01".to_owned()),
        };
        assert_eq!(prev_result(version, text).unwrap(), expected, "{version:?}");
    }
}

/// As Azure's and kindnet's plugins write it. The node may have an interface of that name too.
#[test]
fn the_pod_s_interface_may_be_named_without_its_sandbox() {
    let text = r#"{"interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01"}, {"name": "knet0"}],
        "ips": [{"address": "10.0.0.2/32", "interface": 0}, {"address": "fd00::2/128"}]}"#;
    let read = prev_result(CniVersion::V0_4_0, text).unwrap();
    let expected = PrevResult {
        host_links: vec!["knet0".into()],
        further: vec![],
        has_interface: true,
        ips: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
        gateways: vec![],
        mac: Some("02:00:00:00:00:01".to_owned()),
    };
    assert_eq!(read, expected);
}

#[test]
fn a_result_may_be_empty() {
    let (host_links, ips, gateways) = (vec![], vec![], vec![]);
    let further = vec![];
    let nothing =
        PrevResult { host_links, further, has_interface: false, ips, gateways, mac: None };
    for text in ["{}", r#"{"interfaces": null, "ips": null, "cniVersion": "1.0.0"}"#] {
        assert_eq!(prev_result(CniVersion::V1_0_0, text).unwrap(), nothing, "{text}");
    }
}

#[test]
fn an_ipv4_mapped_address_is_the_ipv4_one() {
    let of = |address: &str, version: &str| {
        let text = format!(r#"{{"ips": [{{"address": "{address}", "version": "{version}"}}]}}"#);
        prev_result(CniVersion::V0_4_0, &text).map(|prev_result| prev_result.ips)
    };
    for version in ["4", "6"] {
        assert_eq!(
            of("::ffff:10.1.2.3/120", version).unwrap(),
            ["10.1.2.3".parse::<IpAddr>().unwrap()]
        );
    }
    for (address, why) in [
        ("::ffff:127.0.0.1/128", "no pod can have it"),
        ("::ffff:0.0.0.0/96", "no pod can have it"),
        ("::ffff:224.0.0.1/128", "no pod can have it"),
        ("::ffff:10.1.2.3/129", "the prefix length is not valid"),
    ] {
        let error = of(address, "6").unwrap_err().to_string();
        assert!(error.contains(why), "{address}: {error}");
    }
}

/// As Go's plugins take it: each type of results has several versions, and its own decoder.
#[test]
fn a_result_has_any_version_of_its_type() {
    let text = |version: &str| {
        format!(r#"{{"cniVersion": "{version}", "ips": [{{"address": "10.1.2.3/16"}}]}}"#)
    };
    let types: [&[&str]; 2] = [&["0.3.0", "0.3.1", "0.4.0"], &["1.0.0", "1.1.0"]];
    let of_list = |list: &str| CniVersion::named(list).unwrap();
    for (list, of_its_type) in
        types.into_iter().flat_map(|versions| versions.iter().map(move |list| (*list, versions)))
    {
        // Before 1.0.0, a result need not say its version: it is the list's.
        for version in of_its_type.iter().chain(&[""]) {
            let read = prev_result(of_list(list), &text(version)).unwrap();
            assert_eq!(read.ips, ["10.1.2.3".parse::<IpAddr>().unwrap()], "{list}: {version}");
        }
        let all = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "1.2.0"];
        for version in all.iter().filter(|version| !of_its_type.contains(version)) {
            let error = prev_result(of_list(list), &text(version)).unwrap_err();
            assert_eq!(error.code(), 7);
            let error = error.to_string();
            assert!(error.contains(version) && error.contains(list), "{list}: {error}");
        }
    }
}
