use super::*;

fn prev_result(version: CniVersion, text: &str) -> Result<PrevResult, CniError> {
    PrevResult::parse(&RawValue::from_string(text.to_owned()).unwrap(), version, "eth0")
}

#[test]
fn addresses_of_other_interfaces_are_ignored() {
    let text = r#"{"interfaces": [
            {"name": "br0"}, {"name": "veth1", "sandbox": ""}, {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/x"}, {"name": "eth1", "sandbox": "/x"}
        ], "ips": [
            {"address": "10.0.0.1/24", "interface": 0}, {"address": "10.0.0.2/24", "interface": 2, "gateway": "10.0.0.1"},
            {"address": "10.0.0.3/24", "interface": 3}, {"address": "fd00::2/64", "gateway": "x"}
        ]}"#;
    for version in CniVersion::ALL {
        let expected = PrevResult {
            host_links: vec!["br0".into(), "veth1".into()],
            has_interface: true,
            ips: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            gateways: vec!["10.0.0.1".parse().unwrap()],
            mac: Some("02:00:00:00:00:01".to_owned()),
        };
        assert_eq!(prev_result(version, text).unwrap(), expected, "{version:?}");
    }
}

#[test]
fn a_result_may_be_empty() {
    let (host_links, ips, gateways) = (vec![], vec![], vec![]);
    let nothing = PrevResult { host_links, has_interface: false, ips, gateways, mac: None };
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
