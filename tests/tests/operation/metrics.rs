//! `/metrics`, scraped by curl: it is OpenMetrics, and its values move with what happens.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::cases::counted_connections;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::cni::POD_INTERFACE;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::Wiring;
use denizen_tests::node::world::ip;
use denizen_tests::packets::frame::{self, FrameSocket};
use denizen_tests::packets::http::{fetch, url};
use denizen_tests::packets::probe::{Outcome, Protocol};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyRule, PolicyWorld};
use serde_json::{Value, json};

const METRICS: u16 = 10249;
const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];

/// What has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(20);

fn scrape(node: &Netns) -> Result<String> {
    let reply = fetch(node, &url(ip("127.0.0.1"), METRICS, "/metrics"), &[])?;
    ensure!(reply.status == 200, "{reply:?}");
    let kind = reply.header("content-type").unwrap_or_default();
    ensure!(kind.starts_with("application/openmetrics-text"), "{kind}");
    ensure!(reply.body.ends_with("# EOF\n"), "{}", reply.body);
    Ok(reply.body)
}

/// The value of a series, named as it stands there.
fn value(text: &str, series: &str) -> Result<f64> {
    let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
    let found = text.lines().find_map(value);
    found.with_context(|| format!("no {series} in\n{text}"))
}

fn until(node: &Netns, series: &str, now: impl Fn(f64) -> bool) -> Result<f64> {
    observed(series, TIMEOUT, || value(&scrape(node)?, series), |value| now(*value))
}

#[test]
fn services_and_syncs_are_counted() -> Result<()> {
    let fixture = Fixture::new("met-sync")?;
    let node = &fixture.cluster.world.node;
    let _agent = fixture.cluster.start_agent()?;
    until(node, "denizen_local_pods", |pods| pods == 2.0)?;
    let before = scrape(node)?;
    let manifests = &fixture.cluster.manifests;
    let mut web = fixture.service("web", 10, &HTTP, &[Host::Remote])?;
    web[0]["spec"]["internalTrafficPolicy"] = "Local".into();
    manifests.put("web", &web)?;
    until(node, "denizen_services", |services| services == 1.0)?;
    let after = scrape(node)?;
    let elements = |set: &str| format!("denizen_rule_elements{{ip_family=\"IPv4\",set=\"{set}\"}}");
    let no_local = "kubeproxy_sync_proxy_rules_no_local_endpoints_total\
                    {ip_family=\"IPv4\",traffic_policy=\"internal\"}";
    let mut rose = vec![
        ("kubeproxy_sync_proxy_rules_service_changes_total".to_owned(), 1.0),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_total".to_owned(), 2.0),
        ("process_cpu_seconds_total".to_owned(), 0.0),
        (no_local.to_owned(), 1.0),
    ];
    for family in ["IPv4", "IPv6"] {
        let series = |name: &str| format!("kubeproxy_{name}{{ip_family=\"{family}\"}}");
        rose.extend([
            (series("sync_proxy_rules_duration_seconds_count"), 1.0),
            (series("sync_proxy_rules_duration_seconds_sum"), 0.0),
            (series("sync_partial_proxy_rules_duration_seconds_count"), 1.0),
            (series("sync_proxy_rules_last_timestamp_seconds"), 0.0),
            (series("sync_proxy_rules_last_queued_timestamp_seconds"), 0.0),
            (series("sync_proxy_rules_nftables_sync_failures_total"), 0.0),
            (series("conntrack_reconciler_sync_duration_seconds_count"), 0.0),
            (series("conntrack_reconciler_deleted_entries_total"), 0.0),
        ]);
        let full = series("sync_full_proxy_rules_duration_seconds_count");
        assert!(value(&before, &full)? >= 1.0, "the first sync is a full one");
    }
    for (series, least) in rose {
        let (from, to) = (value(&before, &series)?, value(&after, &series)?);
        assert!(to - from >= least, "{series}: {from}, {to}");
    }
    assert_eq!(value(&after, "denizen_problems")?, 0.0);
    assert_eq!(value(&after, &elements("local-pods"))?, 2.0);
    assert_eq!(value(&after, &elements("services"))?, 1.0);
    manifests.put("web", &fixture.service("web", 10, &HTTP, &[Host::Remote, Host::Routed])?)?;
    until(node, &elements("endpoints"), |endpoints| endpoints == 2.0)?;
    until(node, no_local, |services| services == 0.0)?;
    manifests.remove("web")?;
    until(node, &elements("endpoints"), |endpoints| endpoints == 0.0)?;
    Ok(())
}

/// By reason, with the rules' own counters: with iptables as with nftables.
#[test]
fn what_services_rules_refuse_is_counted() -> Result<()> {
    for (label, flags, counts_unused_ports) in [
        ("met-drop", ["--backend=nftables", "--network-policy=off"].as_slice(), true),
        ("met-drop-i", ["--backend=iptables", "--iptables-variant=nft"].as_slice(), false),
    ] {
        let fixture = Fixture::new(label)?;
        let node = &fixture.cluster.world.node;
        let manifests = &fixture.cluster.manifests;
        manifests.put("lonely", &fixture.service("lonely", 99, &HTTP, &[])?)?;
        let _agent = fixture.cluster.start_agent_with(flags.iter().copied())?;
        let series =
            |reason: &str| format!("denizen_service_dropped_packets_total{{reason=\"{reason}\"}}");
        let no_endpoints = series("no_endpoints");
        until(node, &no_endpoints, |packets| packets == 0.0)?;
        for lonely in service_ips(99) {
            let refused = fixture.probe(Host::Routed, (lonely, 80).into(), Protocol::Tcp)?;
            assert_eq!(refused, Outcome::Refused, "{label} {lonely}");
        }
        until(node, &no_endpoints, |packets| packets >= 2.0)?;
        let text = scrape(node)?;
        assert_eq!(value(&text, &series("source_ranges"))?, 0.0);
        if counts_unused_ports {
            let [unused, _] = service_ips(99);
            let refused = fixture.probe(Host::Routed, (unused, 81).into(), Protocol::Tcp)?;
            assert_eq!(refused, Outcome::Refused);
            until(node, &series("unused_port"), |packets| packets >= 1.0)?;
        }
        // What was counted stays when the rule goes.
        let before = value(&scrape(node)?, &no_endpoints)?;
        let web = fixture.service("lonely", 99, &HTTP, &[Host::Remote])?;
        manifests.put("lonely", &web)?;
        eventually("the service is served", TIMEOUT, || {
            let answer =
                fixture.probe(Host::Routed, (service_ips(99)[0], 80).into(), Protocol::Tcp)?;
            Ok(answer.endpoint().is_some())
        })?;
        assert!(value(&scrape(node)?, &no_endpoints)? >= before, "{label}");
    }
    Ok(())
}

/// As kube-proxy: iptables drops what connection tracking cannot assign, and counts it.
#[test]
fn invalid_packets_that_iptables_drops_are_counted() -> Result<()> {
    const TCP: u8 = 6;
    const RST: u8 = 4;
    let fixture = Fixture::new("met-inv")?;
    let node = &fixture.cluster.world.node;
    let _agent =
        fixture.cluster.start_agent_with(["--backend=iptables", "--iptables-variant=nft"])?;
    let invalid = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total";
    until(node, invalid, |packets| packets == 0.0)?;
    let pod = &fixture.routed;
    let from = frame::mac_of(&pod.netns, POD_INTERFACE)?;
    let to = frame::mac_of(node, pod.host_interface())?;
    let remote = fixture.address(Host::Remote, pod.addresses[0])?;
    // It belongs to no connection, and begins none.
    let mut reset = [0; 20];
    (reset[12], reset[13]) = (5 << 4, RST);
    let reset = frame::packet(pod.addresses[0], remote, TCP, 64, &reset);
    let reset = frame::frame(from, to, &[], frame::ether_type(remote), &reset);
    let socket = FrameSocket::open(&pod.netns, POD_INTERFACE)?;
    eventually("it is dropped", TIMEOUT, || {
        socket.send(&reset)?;
        Ok(value(&scrape(node)?, invalid)? >= 1.0)
    })
}

/// Text with one name in two families, or a family in two places, is refused by Prometheus as a
/// whole.
#[test]
fn every_family_is_declared_once_with_help() -> Result<()> {
    let cluster = Cluster::new("met-form", &Value::Null)?;
    let _agent = cluster.start_agent()?;
    let text = scrape(&cluster.world.node)?;
    let declared = |what: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(what));
        lines.filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect()
    };
    let (types, helps) = (declared("# TYPE"), declared("# HELP"));
    assert_eq!(types, helps);
    let mut once = types.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), types.len(), "{types:?}");
    Ok(())
}

#[test]
fn pods_waits_and_repairs_are_counted() -> Result<()> {
    let cluster = Cluster::new("met-pod", &json!({ "timeout": "10s", "onTimeout": "fail" }))?;
    let node = &cluster.world.node;
    let _agent = cluster.start_agent()?;
    let waited = "denizen_plugin_waits_total{outcome=\"programmed\"}";
    let measured = "denizen_pod_programming_duration_seconds_count";
    assert_eq!(value(&scrape(node)?, waited)?, 0.0);
    let mut removed = None;
    for (name, count) in [("a", 1.0), ("b", 2.0)] {
        removed = Some(cluster.add_pod(name, Wiring::Routed)?);
        until(node, waited, |waits| waits == count)?;
        until(node, measured, |pods| pods == count)?;
        assert_eq!(value(&scrape(node)?, "denizen_plugin_wait_duration_seconds_count")?, count);
    }
    // A DEL waits too, and is no ADD.
    removed.context("a pod")?.detach(node)?;
    until(node, "denizen_plugin_removal_wait_duration_seconds_count", |dels| dels == 1.0)?;
    let text = scrape(node)?;
    assert_eq!(value(&text, waited)?, 2.0);
    assert_eq!(value(&text, "denizen_plugin_wait_duration_seconds_count")?, 2.0);
    node.nft("flush map ip denizen services\nflush set ip denizen local-pods\n")
        .or_else(|_| node.nft("delete table ip denizen\n"))?;
    until(node, "denizen_drift_repaired_total", |repairs| repairs >= 1.0)?;
    let before = value(&scrape(node)?, "kubeproxy_proxy_livez_total{code=\"200\"}")?;
    fetch(node, &url(ip("127.0.0.1"), 10256, "/livez"), &[])?;
    until(node, "kubeproxy_proxy_livez_total{code=\"200\"}", |answers| answers == before + 1.0)?;
    Ok(())
}

#[test]
fn policies_and_the_time_that_they_took_are_counted() -> Result<()> {
    let fixture = Fixture::new("met-policy")?;
    let (node, manifests) = (&fixture.cluster.world.node, &fixture.cluster.manifests);
    manifests.put("pods", &fixture.pod_objects("client", "web"))?;
    let put = |rules: Vec<PolicyRule>| {
        let policy = NetworkPolicy::new("default", "web", LabelSelector::label("role", "web"));
        let world = PolicyWorld { policies: vec![policy.ingress(rules)], ..PolicyWorld::default() };
        manifests.put("policies", &world.manifests())
    };
    put(vec![])?;
    let _agent = fixture.cluster.start_agent_with(["--network-policy=on"])?;
    let (took, isolated) = (
        "denizen_network_policy_programming_duration_seconds_count",
        "denizen_network_policy_pods{state=\"isolated\"}",
    );
    until(node, isolated, |pods| pods == 1.0)?;
    let text = scrape(node)?;
    assert_eq!(value(&text, took)?, 0.0, "what was there at the start is no change");
    assert_eq!(value(&text, "denizen_network_policy_engine{engine=\"Denizen\"}")?, 1.0);
    put(vec![PolicyRule::all()])?;
    until(node, took, |changes| changes == 1.0)?;
    let mut wrong = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "default", "name": "wrong" },
        "spec": { "podSelector": {}, "ingress": [{ "form": [] }] },
    });
    manifests.put("wrong", &[wrong.clone()])?;
    until(node, "denizen_network_policy_not_understood", |policies| policies == 1.0)?;
    until(node, isolated, |pods| pods == 2.0)?;
    until(node, took, |changes| changes == 2.0)?;
    // Nothing that decides about packets, and something that is no policy.
    wrong["metadata"]["labels"] = json!({ "some": "label" });
    manifests.put("wrong", &[wrong])?;
    manifests.put("web", &fixture.service("web", 10, &HTTP, &[Host::Remote])?)?;
    until(node, "denizen_services", |services| services == 1.0)?;
    assert_eq!(value(&scrape(node)?, took)?, 2.0);
    manifests.remove("policies")?;
    until(node, "denizen_network_policy_policies", |policies| policies == 1.0)?;
    assert_eq!(value(&scrape(node)?, took)?, 3.0);
    Ok(())
}

/// As kube-proxy: on loopback, unless it is said otherwise; nothing can be changed by it.
#[test]
fn metrics_are_for_this_node_alone() -> Result<()> {
    let cluster = Cluster::new("met-where", &Value::Null)?;
    let _agent = cluster.start_agent()?;
    let node = &cluster.world.node;
    let local = |path: &str, method: &str| {
        fetch(node, &url(ip("127.0.0.1"), METRICS, path), &["--request", method])
    };
    let mode = local("/proxyMode", "GET")?;
    assert_eq!((mode.status, mode.body.as_str()), (200, "nftables"));
    assert_eq!(local("/metrics", "POST")?.status, 405);
    assert_eq!(local("/nothing", "GET")?.status, 404);
    assert_eq!(local("/healthz", "GET")?.status, 200);
    for address in ["192.168.0.2", "2001:db8::1"] {
        let reply = fetch(&cluster.world.client, &url(ip(address), METRICS, "/metrics"), &[]);
        assert!(reply.is_err(), "{reply:?}");
    }
    Ok(())
}

#[test]
fn connections_to_services_are_counted() -> Result<()> {
    let fixture = Fixture::new("met-conn")?;
    counted_connections::are_counted(&fixture, "--backend=nftables", scrape, |_| Ok(()))
}

/// iptables does not count them, and the agent does not keep that to itself.
#[test]
fn connections_that_are_not_counted_are_warned_of() -> Result<()> {
    let cluster = Cluster::new("met-ipt", &Value::Null)?;
    for (flags, warns) in [
        (&["--backend=iptables", "--service-metrics"][..], true),
        (&["--backend=iptables"], false),
        (&["--backend=nftables", "--service-metrics"], false),
    ] {
        let agent = cluster.start_agent_with(flags.iter().copied())?;
        let output = agent.status()?["warnings"].to_string();
        let words = "--service-metrics has no effect: the backend iptables does not count";
        ensure!(output.contains(words) == warns, "{flags:?}: {output}");
        let log = agent.log();
        ensure!(log.contains("a flag has no effect") == warns, "{flags:?}: {log}");
        // Its log goes with it.
        drop(agent);
    }
    Ok(())
}
