use serde_json::{Map, json};

use super::*;

mod consul;
mod istio;

/// Names and texts.
type Annotations<'a> = &'a [(&'a str, &'a str)];

fn entry(object: Value) -> Result<RedirectConfig, CniError> {
    RedirectConfig::of(serde_json::from_value(object).unwrap())
}

fn decide(
    entry: &RedirectConfig,
    annotations: Annotations<'_>,
) -> Result<Option<Redirect>, String> {
    in_namespace(entry, "shop", annotations)
}

fn in_namespace(
    entry: &RedirectConfig,
    namespace: &str,
    annotations: Annotations<'_>,
) -> Result<Option<Redirect>, String> {
    let (namespace, name, unknown) = (namespace.to_owned(), "web-0".to_owned(), Map::new());
    let pod = PodRef { namespace, name, uid: None, unknown };
    let of = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    let annotations = annotations.iter().map(of).collect();
    entry.decide(&pod, &annotations, "eth0").map_err(|error| {
        assert_eq!(error.code(), 7);
        error.to_string()
    })
}

const INJECTED: (&str, &str) = ("linkerd.io/proxy-version", "edge-26.8.1");

/// What a pod has that linkerd's injector has changed.
fn of_linkerd(object: Value, annotations: Annotations<'_>) -> Result<Redirect, String> {
    let mut object = object;
    object["profile"] = "linkerd".into();
    let annotations = [&[INJECTED], annotations].concat();
    decide(&entry(object).unwrap(), &annotations).map(|decided| decided.expect("it is selected"))
}

#[test]
fn linkerd_s_pods_are_redirected_as_linkerd_init_does_it() {
    let redirect = of_linkerd(json!({}), &[]).unwrap();
    let expected = json!({
        "profile": "linkerd", "inboundPort": 4143, "outboundPort": 4140, "proxyUid": 2102,
        "alwaysSkipInboundPorts": ["4190", "4191"], "skipInboundPorts": ["4567-4568"],
        "skipOutboundPorts": ["4567-4568"], "interfaces": ["eth0"],
    });
    assert_eq!(serde_json::to_value(redirect).unwrap(), expected);
}

/// Each of linkerd's annotations, and each of denizen's own: the value that it changes, and to
/// what.
#[test]
fn annotations_override_values() {
    let cases = [
        ("config.linkerd.io/inbound-port", "5143", "inboundPort", json!(5143)),
        ("config.linkerd.io/outbound-port", "5140", "outboundPort", json!(5140)),
        ("config.linkerd.io/proxy-uid", "2103", "proxyUid", json!(2103)),
        ("config.linkerd.io/proxy-gid", "2104", "proxyGid", json!(2104)),
        ("config.linkerd.io/skip-inbound-ports", "80", "skipInboundPorts", json!(["80"])),
        (
            "config.linkerd.io/skip-outbound-ports",
            "443, 8080 ,9000-9010",
            "skipOutboundPorts",
            json!(["443", "8080", "9000-9010"]),
        ),
        ("config.linkerd.io/skip-outbound-ports", "", "skipOutboundPorts", json!(null)),
        (
            "config.linkerd.io/skip-subnets",
            "10.0.0.0/8,fd00::/16",
            "skipInboundCidrs",
            json!(["10.0.0.0/8", "fd00::/16"]),
        ),
        (
            "config.linkerd.io/control-port",
            "5190",
            "alwaysSkipInboundPorts",
            json!(["4191", "5190"]),
        ),
        ("config.linkerd.io/admin-port", "4190", "alwaysSkipInboundPorts", json!(["4190"])),
        ("redirect.denizen.io/only-inbound-ports", "80", "onlyInboundPorts", json!(["80"])),
        (
            "redirect.denizen.io/skip-outbound-cidrs",
            "192.0.2.1",
            "skipOutboundCidrs",
            json!(["192.0.2.1/32"]),
        ),
        (
            "redirect.denizen.io/skip-outbound-uids",
            "1000,1001",
            "skipOutboundUids",
            json!([1000, 1001]),
        ),
        ("redirect.denizen.io/interfaces", "eth0,net1", "interfaces", json!(["eth0", "net1"])),
        ("redirect.denizen.io/ipv6", "bypass", "bypassIpv6", json!(true)),
        ("redirect.denizen.io/skip-mark", "0x500/0xf00", "skipMark", json!("0x500/0xf00")),
        ("redirect.denizen.io/hairpin", "inbound", "hairpin", json!("inbound")),
        ("redirect.denizen.io/drop-invalid", "true", "dropInvalid", json!(true)),
        ("redirect.denizen.io/backend", "iptables", "backend", json!("iptables")),
    ];
    for (annotation, text, name, value) in cases {
        let redirect = of_linkerd(json!({}), &[(annotation, text)]).unwrap();
        let key = if name == "bypassIpv6" { "ipv6" } else { name };
        assert_eq!(redirect.annotations.get(key).unwrap(), annotation);
        let changed = serde_json::to_value(&redirect).unwrap();
        assert_eq!(changed.get(name).unwrap_or(&Value::Null), &value, "{annotation}: {text}");
        let rest = |value: &Value| {
            let mut rest = value.as_object().unwrap().clone();
            rest.retain(|key, _| key != name && key != "annotations");
            rest
        };
        let default = serde_json::to_value(of_linkerd(json!({}), &[]).unwrap()).unwrap();
        assert_eq!(rest(&changed), rest(&default), "{annotation}");
    }
}

#[test]
fn the_nearest_says_what_counts() {
    let object = json!({
        "skipOutboundPorts": [443], "inboundPort": 1,
        "namespaces": { "shop": { "skipOutboundPorts": ["444"] } },
    });
    let ports = |redirect: Redirect| redirect.skip_outbound_ports[0].to_string();
    let redirect = of_linkerd(object.clone(), &[]).unwrap();
    assert_eq!(redirect.inbound_port.unwrap().get(), 1, "the conflist's, not the profile's");
    assert_eq!(ports(redirect), "444", "the namespace's, not the conflist's");
    let theirs = ("config.linkerd.io/skip-outbound-ports", "445");
    assert_eq!(ports(of_linkerd(object.clone(), &[theirs]).unwrap()), "445", "the pod's");
    let ours = ("redirect.denizen.io/skip-outbound-ports", "446");
    let redirect = of_linkerd(object, &[ours, theirs]).unwrap();
    assert_eq!(redirect.annotations["skipOutboundPorts"], ours.0);
    assert_eq!(ports(redirect), "446", "denizen's own annotation");
}

#[test]
fn pods_are_selected() {
    let enabled = ("denizen.io/redirect", "enabled");
    let disabled = ("denizen.io/redirect", "disabled");
    let linkerd = entry(json!({ "profile": "linkerd", "namespaces": { "never": null } })).unwrap();
    let custom = json!({ "profile": "custom", "inboundPort": 1 });
    let mut by_value = custom.clone();
    by_value["select"] = json!({ "annotation": "mesh", "value": "on" });
    let (custom, by_value) = (entry(custom).unwrap(), entry(by_value).unwrap());
    let cases: [(&str, &RedirectConfig, &str, Annotations<'_>, bool); 12] = [
        ("no proxy", &linkerd, "shop", &[("linkerd.io/inject", "enabled")], false),
        ("injected", &linkerd, "shop", &[INJECTED], true),
        ("injected, but not wanted", &linkerd, "shop", &[INJECTED, disabled], false),
        ("wanted", &linkerd, "shop", &[enabled], true),
        ("a namespace that is never", &linkerd, "never", &[INJECTED, enabled], false),
        ("custom", &custom, "shop", &[INJECTED], false),
        ("custom, wanted", &custom, "shop", &[enabled], true),
        ("custom, not wanted", &custom, "shop", &[disabled], false),
        ("by value", &by_value, "shop", &[("mesh", "on")], true),
        ("another value", &by_value, "shop", &[("mesh", "off")], false),
        ("no value", &by_value, "shop", &[], false),
        ("by value, not wanted", &by_value, "shop", &[("mesh", "on"), disabled], false),
    ];
    for (name, entry, namespace, annotations, selected) in cases {
        let decided = in_namespace(entry, namespace, annotations).unwrap();
        assert_eq!(decided.is_some(), selected, "{name}");
    }
}

#[test]
fn a_bad_annotation_is_named_with_what_is_wrong() {
    let skip = "config.linkerd.io/skip-outbound-ports";
    let many = (1..=201).map(|port| port.to_string()).collect::<Vec<_>>().join(",");
    let cases = [
        (skip, "443,,80", "\"\" is neither a port"),
        (skip, "443;80", "\"443;80\" is neither a port"),
        (skip, "0", "\"0\" is neither a port"),
        (skip, "65536", "\"65536\" is neither a port"),
        (skip, "90-80", "\"90-80\" is neither a port"),
        (skip, &many, "has 201 entries"),
        ("config.linkerd.io/proxy-uid", "0", "0 is root"),
        ("config.linkerd.io/proxy-uid", "-1", "\"-1\" is not a number"),
        ("config.linkerd.io/proxy-uid", "+7", "\"+7\" is not a number"),
        ("config.linkerd.io/proxy-uid", "4294967295", "is not a number from 1"),
        ("config.linkerd.io/proxy-uid", "", "\"\" is not a number"),
        ("config.linkerd.io/proxy-gid", "0", "0 is root"),
        ("redirect.denizen.io/skip-outbound-uids", "7,0", "0 is root"),
        ("config.linkerd.io/inbound-port", "0", "\"0\" is not a port"),
        ("config.linkerd.io/inbound-port", "80-81", "\"80-81\" is not a port"),
        ("config.linkerd.io/control-port", "x", "\"x\" is not a port"),
        ("config.linkerd.io/skip-subnets", "10.0.0.0/33", "is neither an address nor a CIDR"),
        ("config.linkerd.io/skip-subnets", "10.0.0.1/8", "an address within the CIDR 10.0.0.0/8"),
        ("redirect.denizen.io/interfaces", "", "is empty"),
        ("redirect.denizen.io/interfaces", "eth0,", "an interface's name is empty"),
        ("redirect.denizen.io/interfaces", "a/b", "\"a/b\" is no interface's name"),
        ("redirect.denizen.io/ipv6", "on", "\"on\" is neither \"redirect\" nor"),
        ("redirect.denizen.io/skip-mark", "0", "\"0\" is neither a mark"),
        ("redirect.denizen.io/skip-mark", "0x10/0xf", "\"0x10/0xf\" is neither a mark"),
        ("redirect.denizen.io/hairpin", "no", "\"no\" is none of"),
        ("redirect.denizen.io/drop-invalid", "1", "\"1\" is neither \"true\" nor"),
        ("redirect.denizen.io/backend", "nft", "\"nft\" is neither \"nftables\" nor"),
        ("redirect.denizen.io/skip-outbound-port", "1", "is unknown"),
        ("denizen.io/redirect", "true", "\"true\" is neither \"enabled\" nor"),
    ];
    for (annotation, text, why) in cases {
        let message = of_linkerd(json!({}), &[(annotation, text)]).expect_err(annotation);
        let begin = format!("pod shop/web-0: annotation {annotation}");
        assert!(message.starts_with(&begin) && message.contains(why), "{text}: {message}");
    }
}

/// Every list of ports, in the conflist and in an annotation.
#[test]
fn ports_that_are_named_twice_are_their_union() {
    let cases: [(&str, &[&str]); 6] = [
        ("443,443", &["443"]),
        ("443,440-450", &["440-450"]),
        ("440-450,443", &["440-450"]),
        ("443,15020,443", &["443", "15020"]),
        ("1-5,80,9-20,5-9", &["1-20", "80"]),
        ("2,1", &["2", "1"]),
    ];
    for (text, union) in cases {
        for key in KEYS.iter().filter(|key| key.name.ends_with("Ports")) {
            let annotation = format!("{PREFIX}{}", key.annotation);
            let of_pod = of_linkerd(json!({}), &[(&annotation, text)]).unwrap();
            let listed: Vec<&str> = text.split(',').collect();
            let of_list = of_linkerd(json!({ key.name: listed }), &[]).unwrap();
            for redirect in [of_pod, of_list] {
                let redirect = serde_json::to_value(redirect).unwrap();
                assert_eq!(redirect[key.name], json!(union), "{}: {text}", key.name);
            }
        }
    }
}

/// Annotations have up to 256 KiB, and an error goes into events and logs.
#[test]
fn a_long_value_is_quoted_in_short() {
    let long = "x".repeat(250_000);
    for profile in ["linkerd", "istio", "consul", "custom"] {
        let entry = entry(json!({ "profile": profile, "inboundPort": 1 })).unwrap();
        let known = entry.profile.annotations().into_iter().map(|(name, _)| name);
        let names = known.chain(["denizen.io/redirect".to_owned(), format!("{PREFIX}{long}")]);
        for name in names {
            let enabled = ("denizen.io/redirect", "enabled");
            // The last one of a name counts.
            let message = decide(&entry, &[enabled, (&name, &long)]);
            let Err(message) = message else {
                assert_eq!(name, "traffic.sidecar.istio.io/excludeInterfaces");
                continue;
            };
            assert!(message.len() < 400, "{} bytes: {:.400}", message.len(), message);
            let begin = &name[..name.len().min(40)];
            assert!(message.contains(begin), "{begin}: {message}");
        }
    }
    let Err(error) = entry(json!({ "profile": "linkerd", "outboundPort": long })) else {
        panic!("it is accepted");
    };
    let message = error.to_string();
    assert!(message.len() < 400 && message.contains("redirect.outboundPort"), "{:.400}", message);
}

#[test]
fn only_allowed_annotations_count() {
    let object = json!({ "allow": ["config.linkerd.io/skip-outbound-ports"] });
    of_linkerd(object.clone(), &[("config.linkerd.io/skip-outbound-ports", "443")]).unwrap();
    let refused = of_linkerd(object, &[("config.linkerd.io/proxy-uid", "7")]).unwrap_err();
    assert!(refused.contains("config.linkerd.io/proxy-uid is not in"), "{refused}");
}

#[test]
fn what_cannot_work_is_refused() {
    let enabled = [("denizen.io/redirect", "enabled")];
    let cases = [
        (json!({}), "neither inboundPort nor outboundPort"),
        (json!({ "outboundPort": 4140 }), "neither proxyUid nor proxyGid"),
        (json!({ "backend": "iptables", "interfaces": ["eth0", "net1"] }), "linkerd-init's rules"),
        (json!({ "backend": "iptables", "interfaces": ["net1"] }), "linkerd-init's rules"),
        (json!({ "backend": "iptables", "hairpin": "outbound" }), "linkerd-init's rules"),
        (json!({ "backend": "iptables", "skipMark": 1 }), "linkerd-init's rules"),
        (json!({ "backend": "iptables", "dropInvalid": true }), "linkerd-init's rules"),
    ];
    for (mut object, why) in cases {
        object["profile"] = "custom".into();
        let refused = decide(&entry(object).unwrap(), &enabled).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn a_bad_entry_is_named_with_its_value() {
    let cases = [
        (json!({ "profile": "mesh" }), "redirect.profile", "\"consul\" or \"custom\""),
        (json!({ "profile": "linkerd", "x": 1 }), "redirect.x", "does not know"),
        (json!({ "profile": "linkerd", "verify": "no" }), "redirect.verify", "\"connect\" or"),
        (json!({ "profile": "linkerd", "onError": "" }), "redirect.onError", "\"fail\" or"),
        (
            json!({ "profile": "linkerd", "withoutAnnotations": 1 }),
            "redirect.withoutAnnotations",
            "\"fail\" or",
        ),
        (json!({ "profile": "linkerd", "proxyUid": 0 }), "redirect.proxyUid", "0 is root"),
        (
            json!({ "profile": "linkerd", "proxyUid": [1] }),
            "redirect.proxyUid",
            "a number or a text",
        ),
        (
            json!({ "profile": "linkerd", "inboundPort": 70000 }),
            "redirect.inboundPort",
            "\"70000\" is not a port",
        ),
        (
            json!({ "profile": "linkerd", "dropInvalid": "yes" }),
            "redirect.dropInvalid",
            "\"yes\" is neither",
        ),
        (
            json!({ "profile": "linkerd", "skipOutboundPorts": 443 }),
            "redirect.skipOutboundPorts",
            "a list",
        ),
        (
            json!({ "profile": "linkerd", "skipOutboundPorts": [443, true] }),
            "redirect.skipOutboundPorts",
            "a list",
        ),
        (
            json!({ "profile": "linkerd", "skipInboundCidrs": ["x"] }),
            "redirect.skipInboundCidrs",
            "\"x\" is neither",
        ),
        (
            json!({ "profile": "linkerd", "allow": ["config.linkerd.io/skip-port"] }),
            "redirect.allow",
            "no such annotation",
        ),
        (
            json!({ "profile": "linkerd", "select": { "label": "x" } }),
            "redirect.select",
            "\"annotation\"",
        ),
        (
            json!({ "profile": "linkerd", "namespaces": { "a": { "profile": "custom" } } }),
            "redirect.namespaces.a.profile",
            "does not know",
        ),
        (
            json!({ "profile": "linkerd", "namespaces": { "a": { "ipv6": "no" } } }),
            "redirect.namespaces.a.ipv6",
            "neither",
        ),
        (
            json!({ "profile": "linkerd", "namespaces": { "a": 1 } }),
            "redirect.namespaces",
            "objects or null",
        ),
    ];
    for (object, path, why) in cases {
        let Err(CniError::UnsupportedField { key, value, why: said }) = entry(object.clone())
        else {
            panic!("{object} is accepted");
        };
        assert!(key == path && said.contains(why), "{object}: {key} {value} {said}");
    }
    let missing = entry(json!({})).unwrap_err();
    assert_eq!(missing.to_string(), "redirect.profile is missing");
}
