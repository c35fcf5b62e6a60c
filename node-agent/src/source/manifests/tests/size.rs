//! How long large files take, and how much memory. Measurements, not assertions:
//! `cargo test --release -p denizen-agent source::manifests::tests::size -- --ignored --nocapture --test-threads 1`

use std::fmt::Write;

use super::*;

/// Services of 4 endpoints in one file, as `kubectl get -o yaml` or `-o json` would print them, less what
/// the API's bookkeeping adds.
fn objects(services: usize, json: bool) -> String {
    let mut text = String::from(if json {
        r#"{"apiVersion":"v1","kind":"List","items":["#
    } else {
        "apiVersion: v1\nkind: List\nitems:\n"
    });
    for number in 0..services {
        let address = std::net::Ipv4Addr::from(0x0a60_0000 + u32::try_from(number).unwrap());
        if json {
            json_objects(&mut text, number, address);
        } else {
            yaml_objects(&mut text, number, address);
        }
    }
    if json {
        text.pop();
        text += "]}";
    }
    text
}

fn yaml_objects(text: &mut String, number: usize, address: std::net::Ipv4Addr) {
    write!(
        text,
        "- apiVersion: v1\n  kind: Service\n  metadata:\n    name: service-{number}\n    namespace: load\n\
         \x20   creationTimestamp: \"2026-11-20T12:00:00Z\"\n    labels:\n      app: app-{number}\n  spec:\n\
         \x20   clusterIP: {address}\n    clusterIPs:\n    - {address}\n    ports:\n    - name: http\n\
         \x20     port: 80\n      protocol: TCP\n      targetPort: 8080\n    selector:\n      app: app-{number}\n\
         \x20   type: ClusterIP\n- apiVersion: discovery.k8s.io/v1\n  kind: EndpointSlice\n\
         \x20 addressType: IPv4\n  metadata:\n    name: service-{number}-x7f2q\n    namespace: load\n\
         \x20   labels:\n      kubernetes.io/service-name: service-{number}\n  ports:\n  - name: http\n\
         \x20   port: 8080\n    protocol: TCP\n  endpoints:\n"
    )
    .unwrap();
    for endpoint in 0..4 {
        write!(
            text,
            "  - addresses:\n    - 10.{}.{}.{}\n    conditions:\n      ready: true\n      serving: true\n\
             \x20     terminating: false\n    nodeName: node-{}\n",
            128 + endpoint,
            number / 250,
            number % 250 + 1,
            (number + endpoint) % 100
        )
        .unwrap();
    }
}

fn json_objects(text: &mut String, number: usize, address: std::net::Ipv4Addr) {
    let endpoints: Vec<serde_json::Value> = (0..4)
        .map(|endpoint| {
            serde_json::json!({
                "addresses": [format!("10.{}.{}.{}", 128 + endpoint, number / 250, number % 250 + 1)],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": format!("node-{}", (number + endpoint) % 100),
            })
        })
        .collect();
    let service = serde_json::json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("service-{number}"), "namespace": "load",
            "creationTimestamp": "2026-11-20T12:00:00Z", "labels": {"app": format!("app-{number}")}},
        "spec": {"clusterIP": address, "clusterIPs": [address], "type": "ClusterIP",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
            "selector": {"app": format!("app-{number}")}}});
    let slice = serde_json::json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "addressType": "IPv4", "metadata": {"name": format!("service-{number}-x7f2q"), "namespace": "load",
            "labels": {"kubernetes.io/service-name": format!("service-{number}")}},
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints});
    write!(text, "{service},{slice},").unwrap();
}

/// How long this thread has run, however busy the machine is.
fn on_cpu() -> Duration {
    let statistics = std::fs::File::open("/proc/thread-self/schedstat")
        .map(std::io::read_to_string)
        .unwrap();
    Duration::from_nanos(statistics.unwrap().split(' ').next().unwrap().parse().unwrap())
}

/// Resident memory and its peak, in MiB.
fn memory() -> (usize, usize) {
    let status = std::fs::File::open("/proc/self/status")
        .map(std::io::read_to_string)
        .unwrap()
        .unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<usize>().unwrap() / 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}

#[expect(clippy::disallowed_methods, reason = "a measurement")]
fn measure(services: usize, json: bool) {
    let place = Place::new();
    let name = if json { "all.json" } else { "all.yaml" };
    place.write(name, &objects(services, json));
    let size = std::fs::metadata(place.folder.path().join(name)).unwrap().len();
    // What building the text took is not part of it: the peak begins anew.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory();
    let began = on_cpu();
    let mut folder = Folder::new(place.folder.path().to_owned(), "n1".to_owned());
    let events = folder.scan(&Look::Everywhere).unwrap();
    let first = on_cpu() - began;
    let held = memory();
    assert_eq!(events.len(), services * 2);
    drop(events);
    let after = memory();
    let began = on_cpu();
    assert!(folder.scan(&Look::Everywhere).unwrap().is_empty());
    let again = on_cpu() - began;
    let text = std::fs::read_to_string(place.folder.path().join(name)).unwrap();
    let began = on_cpu();
    if json {
        serde_json::from_str::<serde::de::IgnoredAny>(&text).unwrap();
    } else {
        let options = serde_saphyr::options! { budget: None, with_snippet: false };
        serde_saphyr::from_str_with_options::<serde::de::IgnoredAny>(&text, options).unwrap();
    }
    let parser = on_cpu() - began;
    println!(
        "{name} {services} services, {:.1} MB: first look {first:?}, parsed again {again:?}, the parser alone {parser:?}; resident MiB: \
         before {}, with the events {}, peak {}, without them {}",
        size as f64 / 1e6,
        before.0,
        held.0,
        held.1,
        after.0
    );
}

#[test]
#[ignore = "a measurement"]
fn one_large_file() {
    for services in [1_000, 10_000, 50_000] {
        measure(services, true);
        measure(services, false);
    }
}
