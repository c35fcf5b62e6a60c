use std::fmt::Display;

use serde_json::{Value, json};

use super::*;
use crate::{ObjectError, Warning};
use denizen_model::{self, SessionAffinity, TrafficPolicy};

mod frontends;

/// A service that is served, with `changes` applied: `null` removes a field.
fn converted(changes: &Value) -> (Option<denizen_model::Service>, Vec<String>) {
    let mut object = json!({
        "metadata": {"name": "web", "namespace": "d"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]},
    });
    overlay(&mut object, changes);
    let raw = ServiceObject::deserialize(&object).unwrap();
    let mut warnings = Vec::new();
    let service = service(&raw, &mut warnings).unwrap();
    (service, warnings.iter().map(Warning::to_string).collect())
}

fn overlay(object: &mut Value, changes: &Value) {
    match (object, changes) {
        (Value::Object(object), Value::Object(changes)) => {
            for (key, change) in changes {
                overlay(object.entry(key.clone()).or_insert(Value::Null), change);
            }
        }
        (object, change) => *object = change.clone(),
    }
}

/// The values with a space between them.
fn shown<T: Display>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn which_services_are_served() {
    let cases = [
        ("plain", json!({}), Some("10.0.0.1"), 0),
        ("no spec", json!({"spec": null}), None, 0),
        ("headless", json!({"spec": {"clusterIP": "None"}}), None, 0),
        (
            "headless by the list too",
            json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}),
            None,
            0,
        ),
        (
            "headless by the list alone",
            json!({"spec": {"clusterIP": null, "clusterIPs": ["None"]}}),
            None,
            0,
        ),
        ("no address yet", json!({"spec": {"clusterIP": ""}}), None, 1),
        ("no address at all", json!({"spec": {"clusterIP": null}}), None, 1),
        ("ExternalName", json!({"spec": {"type": "ExternalName"}}), None, 0),
        (
            "another proxy's",
            json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "x"}}}),
            None,
            0,
        ),
        (
            "another proxy's without its name",
            json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": ""}}}),
            None,
            0,
        ),
        ("another label", json!({"metadata": {"labels": {"app": "x"}}}), Some("10.0.0.1"), 0),
        (
            "headless label, which is the slices'",
            json!({"metadata": {"labels": {"service.kubernetes.io/headless": ""}}}),
            Some("10.0.0.1"),
            0,
        ),
        (
            "dual stack",
            json!({"spec": {"clusterIPs": ["10.0.0.1", "fd00::1"]}}),
            Some("10.0.0.1 fd00::1"),
            0,
        ),
        (
            "IPv6 first",
            json!({"spec": {"clusterIP": "fd00::1", "clusterIPs": ["fd00::1", "10.0.0.1"]}}),
            Some("fd00::1 10.0.0.1"),
            0,
        ),
        (
            "the list alone",
            json!({"spec": {"clusterIP": null, "clusterIPs": ["10.0.0.2"]}}),
            Some("10.0.0.2"),
            0,
        ),
        ("an empty list", json!({"spec": {"clusterIPs": []}}), Some("10.0.0.1"), 0),
        ("leading zeros", json!({"spec": {"clusterIP": "010.000.000.009"}}), Some("10.0.0.9"), 0),
        (
            "one family malformed",
            json!({"spec": {"clusterIPs": ["10.0.0.1", "fd00::g"]}}),
            Some("10.0.0.1"),
            1,
        ),
        (
            "one family twice",
            json!({"spec": {"clusterIPs": ["10.0.0.1", "10.0.0.2"]}}),
            Some("10.0.0.1"),
            1,
        ),
        ("malformed", json!({"spec": {"clusterIP": "10.0.0.300"}}), None, 1),
        ("IPv4-mapped", json!({"spec": {"clusterIPs": ["::ffff:10.0.0.9"]}}), Some("10.0.0.9"), 0),
        ("loopback", json!({"spec": {"clusterIP": "127.0.0.1"}}), None, 1),
        ("IPv4-mapped loopback", json!({"spec": {"clusterIP": "::ffff:127.0.0.1"}}), None, 1),
        (
            "special ones of both families",
            json!({"spec": {"clusterIPs": ["169.254.169.254", "ff02::1"]}}),
            None,
            2,
        ),
        (
            "one of them special",
            json!({"spec": {"clusterIPs": ["224.1.2.3", "fd00::1"]}}),
            Some("fd00::1"),
            1,
        ),
    ];
    for (name, changes, expected, warnings) in cases {
        let (service, warned) = converted(&changes);
        assert_eq!(
            service.map(|service| shown(&service.cluster_ips)).as_deref(),
            expected,
            "{name}"
        );
        assert_eq!(warned.len(), warnings, "{name}: {warned:?}");
    }
}

#[test]
fn policies() {
    use TrafficPolicy::{Cluster, Local};
    let cases = [
        ("missing", json!({}), Cluster, Cluster, 0),
        (
            "written",
            json!({"externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster"}),
            Cluster,
            Cluster,
            0,
        ),
        (
            "empty",
            json!({"externalTrafficPolicy": "", "internalTrafficPolicy": ""}),
            Cluster,
            Cluster,
            0,
        ),
        ("external local", json!({"externalTrafficPolicy": "Local"}), Local, Cluster, 0),
        ("internal local", json!({"internalTrafficPolicy": "Local"}), Cluster, Local, 0),
        (
            "unknown",
            json!({"externalTrafficPolicy": "Zone", "internalTrafficPolicy": "local"}),
            Cluster,
            Cluster,
            2,
        ),
    ];
    for (name, spec, external, internal, warnings) in cases {
        let (service, warned) = converted(&json!({"spec": spec}));
        let service = service.unwrap();
        assert_eq!(
            (service.external_policy, service.internal_policy),
            (external, internal),
            "{name}"
        );
        assert_eq!(warned.len(), warnings, "{name}: {warned:?}");
    }
}

#[test]
fn affinity() {
    let config = |seconds: Value| {
        json!({
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}},
        })
    };
    let default = SessionAffinity::ClientIp { seconds: 10_800 };
    let cases = [
        ("missing", json!({}), SessionAffinity::None, 0),
        ("None", json!({"sessionAffinity": "None"}), SessionAffinity::None, 0),
        (
            "a time without affinity",
            json!({"sessionAffinity": "None", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}}),
            SessionAffinity::None,
            0,
        ),
        ("without a time", json!({"sessionAffinity": "ClientIP"}), default, 0),
        (
            "without a time in it",
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": null}}),
            default,
            0,
        ),
        ("null", config(json!(null)), default, 0),
        ("a second", config(json!(1)), SessionAffinity::ClientIp { seconds: 1 }, 0),
        ("a day", config(json!(86400)), SessionAffinity::ClientIp { seconds: 86400 }, 0),
        ("more than a day", config(json!(86401)), default, 1),
        ("0", config(json!(0)), default, 1),
        ("negative", config(json!(-1)), default, 1),
        ("unknown", json!({"sessionAffinity": "Cookie"}), SessionAffinity::None, 1),
    ];
    for (name, spec, expected, warnings) in cases {
        let (service, warned) = converted(&json!({"spec": spec}));
        assert_eq!(service.unwrap().affinity, expected, "{name}");
        assert_eq!(warned.len(), warnings, "{name}: {warned:?}");
    }
}

#[test]
fn health_check_node_port() {
    let cases = [
        ("wanted", "LoadBalancer", "Local", json!(30000), Some(30000), 0),
        ("not a load balancer", "NodePort", "Local", json!(30000), None, 0),
        ("not local", "LoadBalancer", "Cluster", json!(30000), None, 0),
        ("missing", "LoadBalancer", "Local", json!(null), None, 0),
        ("0", "LoadBalancer", "Local", json!(0), None, 0),
        ("malformed", "LoadBalancer", "Local", json!(-5), None, 1),
    ];
    for (name, kind, policy, port, expected, warnings) in cases {
        let (service, warned) = converted(&json!({"spec": {
            "type": kind, "externalTrafficPolicy": policy, "healthCheckNodePort": port}}));
        assert_eq!(service.unwrap().health_check_node_port.map(u16::from), expected, "{name}");
        assert_eq!(warned.len(), warnings, "{name}: {warned:?}");
    }
}

#[test]
fn name_and_age() {
    let (service, _) = converted(&json!({"metadata": {
        "namespace": null, "creationTimestamp": "2026-01-02T03:04:05Z"}}));
    let service = service.unwrap();
    assert_eq!(
        (service.name.to_string().as_str(), &*service.created),
        ("default/web", "2026-01-02T03:04:05Z")
    );
    let (service, _) = converted(&json!({"metadata": {"creationTimestamp": null}}));
    assert_eq!(&*service.unwrap().created, "");
    let error = super::service(&ServiceObject::default(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, ObjectError::Unnamed { .. }));
}

#[test]
fn a_warning_names_object_field_and_value() {
    let (_, warned) = converted(&json!({"spec": {"externalIPs": ["1.1.1.1", "x\ny"]}}));
    assert_eq!(
        warned,
        [r#"Service d/web: spec.externalIPs[1] "x\ny": not an IP address: left out"#]
    );
}
