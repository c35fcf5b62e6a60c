//! Random Services and EndpointSlices: every field that decides about packets, with every value
//! that it may have, and some that it should not.

use serde_json::{Value, json};

use super::place::{
    AWAY, FAMILIES, HERE, NODE_PORTS, PORT_NAMES, PORTS, PROTOCOLS, Places, TARGETS, ZONES,
};
use denizen_tests::random::Draw;

/// How wild a world may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wildness {
    /// Whatever can be written down.
    Any,
    /// What real hosts can play: an address is in one place, and everybody listens where slices
    /// say.
    Playable,
}

/// A Service, number `index`.
pub fn service(draw: &mut Draw<'_>, index: usize, wildness: Wildness) -> Value {
    let families: Vec<&Places> = match draw.below(4) {
        0 => vec![FAMILIES[0]],
        1 => vec![FAMILIES[1]],
        2 => vec![FAMILIES[1], FAMILIES[0]],
        _ => FAMILIES.to_vec(),
    };
    // Now and then somebody else's: the API would not allow it, manifests written by hand have it.
    let own = if wildness == Wildness::Any && draw.percent(5) { 0 } else { index };
    let cluster_ips: Vec<&str> = families.iter().map(|family| family.cluster_ips[own]).collect();
    let addresses = |draw: &mut Draw<'_>| {
        let mut pool: Vec<&str> =
            families.iter().flat_map(|family| family.external).copied().collect();
        if draw.percent(30) {
            pool.extend(FAMILIES.iter().flat_map(|family| family.taken));
        }
        draw.some(&pool, 2)
    };
    let kind = draw.one(&["ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"]);
    let mut spec = json!({
        "type": kind, "clusterIP": cluster_ips[0], "clusterIPs": cluster_ips,
        "ports": ports(draw, kind != "ClusterIP"),
    });
    if draw.percent(40) {
        spec["externalIPs"] = addresses(draw).into();
    }
    policies(draw, &mut spec);
    affinity(draw, &mut spec);
    let mut ingress = Vec::new();
    if kind == "LoadBalancer" {
        ingress = addresses(draw).into_iter().map(|ip| entry(draw, ip)).collect();
        source_ranges(draw, &families, &mut spec);
    }
    let mut metadata =
        json!({ "namespace": draw.one(&["default", "other"]), "name": format!("s{index}") });
    if draw.percent(50) {
        metadata["creationTimestamp"] =
            draw.one(&["2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"]).into();
    }
    if wildness == Wildness::Any {
        oddities(draw, &mut metadata, &mut spec);
    }
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec,
        "status": { "loadBalancer": { "ingress": ingress } },
    })
}

fn ports(draw: &mut Draw<'_>, at_node: bool) -> Vec<Value> {
    let count = 1 + draw.below(3);
    let mut ports: Vec<Value> = Vec::new();
    for _ in 0..count {
        let (protocol, _) = draw.one(&PROTOCOLS);
        let mut port = json!({ "name": draw.one(&PORT_NAMES), "port": draw.one(&PORTS), "protocol": protocol });
        if at_node && draw.percent(80) {
            port["nodePort"] = draw.one(&NODE_PORTS).into();
        }
        // The API allows no two ports of one protocol that share a name or a number.
        let clashes = |other: &Value| {
            let same = |field: &str| other[field] == port[field];
            same("protocol")
                && (same("name")
                    || same("port")
                    || (same("nodePort") && !port["nodePort"].is_null()))
        };
        if !ports.iter().any(clashes) {
            ports.push(port);
        }
    }
    ports
}

fn policies(draw: &mut Draw<'_>, spec: &mut Value) {
    for (field, chance) in [("externalTrafficPolicy", 50), ("internalTrafficPolicy", 30)] {
        if draw.percent(chance) {
            spec[field] = "Local".into();
        } else if draw.percent(50) {
            spec[field] = "Cluster".into();
        }
    }
    if draw.percent(20) {
        spec["trafficDistribution"] = "PreferClose".into();
    }
}

fn affinity(draw: &mut Draw<'_>, spec: &mut Value) {
    if draw.percent(30) {
        spec["sessionAffinity"] = "ClientIP".into();
        if draw.percent(50) {
            spec["sessionAffinityConfig"] = json!({ "clientIP": { "timeoutSeconds": 300 } });
        }
    }
}

/// One of `status.loadBalancer.ingress`.
fn entry(draw: &mut Draw<'_>, ip: &str) -> Value {
    let mut entry = json!({ "ip": ip });
    match draw.below(5) {
        1 => entry["ipMode"] = "VIP".into(),
        2 => entry["ipMode"] = "Proxy".into(),
        3 => entry = json!({ "hostname": "lb.example" }),
        _ => {}
    }
    entry
}

fn source_ranges(draw: &mut Draw<'_>, families: &[&Places], spec: &mut Value) {
    if !draw.percent(40) {
        return;
    }
    let mut ranges: Vec<String> = Vec::new();
    for family in families {
        // The last one is for everybody.
        let pool = if draw.percent(10) { family.source_ranges } else { &family.source_ranges[..4] };
        ranges.extend(draw.some(pool, 2).into_iter().map(str::to_owned));
    }
    if draw.percent(10) {
        ranges.push("office".to_owned());
    }
    spec["loadBalancerSourceRanges"] = ranges.into();
}

/// What keeps a Service from being served here at all.
fn oddities(draw: &mut Draw<'_>, metadata: &mut Value, spec: &mut Value) {
    match draw.below(40) {
        1 => metadata["labels"] = json!({ "service.kubernetes.io/service-proxy-name": "other" }),
        2 => {
            spec["clusterIP"] = "None".into();
            spec["clusterIPs"] = json!(["None"]);
        }
        3 => spec["type"] = "ExternalName".into(),
        _ => {}
    }
}

/// EndpointSlices of that Service.
pub fn slices(draw: &mut Draw<'_>, service: &Value, wildness: Wildness) -> Vec<Value> {
    let count = if draw.percent(10) { 0 } else { 1 + draw.below(4) };
    (0..count).map(|index| slice(draw, service, index, wildness)).collect()
}

fn slice(draw: &mut Draw<'_>, service: &Value, index: usize, wildness: Wildness) -> Value {
    let (namespace, name) =
        (&service["metadata"]["namespace"], service["metadata"]["name"].as_str());
    let name = name.unwrap_or_default();
    let own = service["spec"]["clusterIPs"].as_array().map_or(&[][..], Vec::as_slice);
    let is_own = |family: &&Places| {
        own.iter().any(|ip| ip.as_str().is_some_and(|ip| ip.contains(':') != family.v4))
    };
    let own: Vec<&Places> = FAMILIES.into_iter().filter(is_own).collect();
    let family = if own.is_empty() || draw.percent(5) {
        draw.one(&FAMILIES)
    } else {
        own[index % own.len()]
    };
    let endpoints = if draw.percent(10) { 0 } else { 1 + draw.below(5) };
    let mut labels = json!({ "kubernetes.io/service-name": name });
    if wildness == Wildness::Any {
        match draw.below(40) {
            1 => labels = json!({}),
            2 => labels["service.kubernetes.io/headless"] = "".into(),
            3 => labels["service.kubernetes.io/service-proxy-name"] = "other".into(),
            _ => {}
        }
    }
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "namespace": namespace, "name": format!("{name}-{index}"), "labels": labels },
        "addressType": if family.v4 { "IPv4" } else { "IPv6" },
        "ports": slice_ports(draw, service, wildness),
        "endpoints": (0..endpoints).map(|_| endpoint(draw, family, wildness)).collect::<Vec<_>>(),
    })
}

fn slice_ports(draw: &mut Draw<'_>, service: &Value, wildness: Wildness) -> Vec<Value> {
    let mut ports = Vec::new();
    for port in service["spec"]["ports"].as_array().into_iter().flatten() {
        let mut of_slice = json!({ "name": port["name"], "protocol": port["protocol"], "port": draw.one(&TARGETS) });
        match draw.below(if wildness == Wildness::Any { 30 } else { 1 }) {
            1 => of_slice["name"] = Value::Null,
            2 => of_slice["port"] = Value::Null,
            3 => of_slice["protocol"] = "SCTP".into(),
            4 => continue,
            _ => {}
        }
        ports.push(of_slice);
    }
    ports
}

fn endpoint(draw: &mut Draw<'_>, family: &Places, wildness: Wildness) -> Value {
    let here: Vec<&str> = family.bridged.iter().chain(family.routed).copied().collect();
    let mut pool = [&here, family.remote].concat();
    if wildness == Wildness::Any {
        pool.push(family.node[0].0);
    }
    let address = draw.one(&pool);
    let mut endpoint = json!({ "addresses": [address] });
    if wildness == Wildness::Any && draw.percent(10) {
        endpoint["addresses"] = json!([address, family.remote[0]]);
    }
    let local = here.contains(&address) || address == family.node[0].0;
    let node = match draw.below(10) {
        8 if wildness == Wildness::Any => Some(if local { AWAY } else { HERE }),
        9 if wildness == Wildness::Any || !local => None,
        _ => Some(if local { HERE } else { AWAY }),
    };
    if let Some(node) = node {
        endpoint["nodeName"] = node.into();
    }
    conditions(draw, &mut endpoint);
    hints(draw, &mut endpoint);
    endpoint
}

/// Each of true, false and nothing; mostly ready.
fn conditions(draw: &mut Draw<'_>, endpoint: &mut Value) {
    if !draw.percent(40) {
        return;
    }
    for condition in ["ready", "serving", "terminating"] {
        match draw.below(3) {
            1 => endpoint["conditions"][condition] = true.into(),
            2 => endpoint["conditions"][condition] = false.into(),
            _ => {}
        }
    }
}

fn hints(draw: &mut Draw<'_>, endpoint: &mut Value) {
    let named =
        |names: Vec<&str>| names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
    if draw.percent(60) {
        endpoint["hints"]["forZones"] = named(draw.subset(&ZONES, 60)).into();
    }
    if draw.percent(40) {
        endpoint["hints"]["forNodes"] = named(draw.subset(&[HERE, AWAY], 60)).into();
    }
}
