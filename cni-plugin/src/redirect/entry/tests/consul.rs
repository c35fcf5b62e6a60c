//! What Consul's injector writes, field by field.

use super::*;

const CONFIG: &str = "consul.hashicorp.com/redirect-traffic-config";
const STATUS: (&str, &str) = ("consul.hashicorp.com/transparent-proxy-status", "enabled");

fn of_consul(config: &Value, annotations: Annotations<'_>) -> Result<Redirect, String> {
    let config = config.to_string();
    let annotations = [&[(CONFIG, config.as_str()), STATUS], annotations].concat();
    let entry = entry(json!({ "profile": "consul" })).unwrap();
    decide(&entry, &annotations).map(|decided| decided.expect("it is selected"))
}

/// As the injector writes it for a pod without annotations of its own.
fn written() -> Value {
    json!({
        "ConsulDNSIP": "", "ConsulDNSPort": 0, "ProxyUserID": "5995", "ProxyInboundPort": 20000,
        "ProxyOutboundPort": 15001, "ExcludeInboundPorts": null, "ExcludeOutboundPorts": null,
        "ExcludeOutboundCIDRs": null, "ExcludeUIDs": ["5996"], "NetNS": "",
        "IptablesProvider": null,
    })
}

#[test]
fn consul_s_pods_are_redirected_as_consul_cni_does_it() {
    let redirect = of_consul(&written(), &[]).unwrap();
    let expected = json!({
        "profile": "consul", "inboundPort": 20000, "outboundPort": 15001, "proxyUid": 5995,
        "skipOutboundUids": [5996], "interfaces": ["eth0"], "bypassIpv6": true,
        "hairpin": "outbound",
        "annotations": {
            "inboundPort": CONFIG, "outboundPort": CONFIG, "proxyUid": CONFIG,
            "skipOutboundUids": CONFIG,
        },
    });
    assert_eq!(serde_json::to_value(redirect).unwrap(), expected);
}

#[test]
fn both_annotations_select() {
    let entry = entry(json!({ "profile": "consul" })).unwrap();
    let config = written().to_string();
    let config = (CONFIG, config.as_str());
    let cases: [(Annotations<'_>, bool); 5] = [
        (&[config, STATUS], true),
        (&[config], false),
        (&[STATUS], false),
        (&[config, (STATUS.0, "")], false),
        (&[config, STATUS, ("denizen.io/redirect", "disabled")], false),
    ];
    for (annotations, selected) in cases {
        let decided = decide(&entry, annotations).unwrap();
        assert_eq!(decided.is_some(), selected, "{annotations:?}");
    }
}

#[test]
fn each_field_is_read() {
    let cases = [
        ("ProxyUserID", json!("1000700001"), "proxyUid", json!(1_000_700_001)),
        ("ProxyInboundPort", json!(21000), "inboundPort", json!(21000)),
        ("ProxyOutboundPort", json!(15002), "outboundPort", json!(15002)),
        (
            "ExcludeInboundPorts",
            json!(["20200", "20300", "20200"]),
            "skipInboundPorts",
            json!(["20200", "20300"]),
        ),
        ("ExcludeOutboundPorts", json!(["5432"]), "skipOutboundPorts", json!(["5432"])),
        (
            "ExcludeOutboundCIDRs",
            json!(["10.0.0.0/8", "192.0.2.1"]),
            "skipOutboundCidrs",
            json!(["10.0.0.0/8", "192.0.2.1/32"]),
        ),
        ("ExcludeUIDs", json!(["7", "8"]), "skipOutboundUids", json!([7, 8])),
    ];
    for (field, value, name, expected) in cases {
        let mut config = written();
        config[field] = value;
        let redirect = serde_json::to_value(of_consul(&config, &[]).unwrap()).unwrap();
        assert_eq!(redirect[name], expected, "{field}");
    }
    let both = [("consul.hashicorp.com/dual-stack", "true")];
    assert!(!of_consul(&written(), &both).unwrap().bypass_ipv6);
}

#[test]
fn dns_goes_to_the_proxy_in_the_pod() {
    let mut config = written();
    (config["ConsulDNSIP"], config["ConsulDNSPort"]) = ("127.0.0.1".into(), 8600.into());
    assert_eq!(of_consul(&config, &[]).unwrap().dns_port.unwrap().get(), 8600);
    for (ip, port) in [("10.96.0.7", 8600), ("127.0.0.1", 0), ("dns", 8600)] {
        (config["ConsulDNSIP"], config["ConsulDNSPort"]) = (ip.into(), port.into());
        let message = of_consul(&config, &[]).unwrap_err();
        assert!(message.contains(CONFIG) && message.contains("ConsulDNSIP: "), "{message}");
    }
}

#[test]
fn a_bad_field_is_named() {
    let cases = [
        ("ProxyUserID", json!("0"), "ProxyUserID: 0 is root"),
        ("ProxyUserID", json!("envoy"), "ProxyUserID: \"envoy\" is not a number"),
        ("ProxyInboundPort", json!(70000), "ProxyInboundPort: \"70000\" is not a port"),
        ("ExcludeInboundPorts", json!(["http"]), "ExcludeInboundPorts: \"http\" is neither"),
        ("ExcludeInboundPorts", json!("80"), "ExcludeInboundPorts: a list"),
        ("ExcludeOutboundCIDRs", json!(["x"]), "ExcludeOutboundCIDRs: \"x\" is neither"),
        ("IncludeOutboundPorts", json!(["80"]), "IncludeOutboundPorts is unknown"),
    ];
    for (field, value, why) in cases {
        let mut config = written();
        config[field] = value;
        let message = of_consul(&config, &[]).expect_err(field);
        let begin = format!("pod shop/web-0: annotation {CONFIG}: ");
        assert!(message.starts_with(&begin) && message.contains(why), "{message}");
    }
    let message = of_consul(&json!("x"), &[]).unwrap_err();
    assert!(message.contains("is malformed"), "{message}");
}
