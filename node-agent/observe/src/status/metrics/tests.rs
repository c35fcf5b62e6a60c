use super::*;

/// Alerts and dashboards rely on these: names, types and units change only on purpose.
#[test]
fn names_and_types_are_these() {
    let metrics = Metrics::default();
    // A family without a member has no line.
    let set = [("ip_family", "IPv4".to_owned()), ("set", "services".to_owned())];
    metrics.own.elements.get_or_create(&set).set(1);
    metrics.network_policy.set_engine("Denizen");
    metrics.own.service_drops.get_or_create(&[("reason", "unused_port")]).inc();
    let text = metrics.encode();
    let types: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let golden = [
        "kubeproxy_sync_proxy_rules_duration_seconds histogram",
        "kubeproxy_sync_full_proxy_rules_duration_seconds histogram",
        "kubeproxy_sync_partial_proxy_rules_duration_seconds histogram",
        "kubeproxy_network_programming_duration_seconds histogram",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge",
        "kubeproxy_sync_proxy_rules_nftables_sync_failures counter",
        "kubeproxy_sync_proxy_rules_iptables_restore_failures counter",
        "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures counter",
        "kubeproxy_iptables_ct_state_invalid_dropped_packets counter",
        "kubeproxy_sync_proxy_rules_service_changes counter",
        "kubeproxy_sync_proxy_rules_service_changes_pending gauge",
        "kubeproxy_sync_proxy_rules_endpoint_changes counter",
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending gauge",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge",
        "kubeproxy_proxy_healthz counter",
        "kubeproxy_proxy_livez counter",
        "kubeproxy_conntrack_reconciler_sync_duration_seconds histogram",
        "kubeproxy_conntrack_reconciler_deleted_entries counter",
        "denizen_build info",
        "denizen_local_pods gauge",
        "denizen_unrecorded_interfaces gauge",
        "denizen_redirected_pods gauge",
        "denizen_unredirected_pods gauge",
        "denizen_uncovered_pods gauge",
        "denizen_services gauge",
        "denizen_endpoints gauge",
        "denizen_problems gauge",
        "denizen_rule_elements gauge",
        "denizen_pod_programming_duration_seconds histogram",
        "denizen_announce_latency_seconds histogram",
        "denizen_plugin_wait_duration_seconds histogram",
        "denizen_plugin_request_delay_seconds histogram",
        "denizen_loop_turn_duration_seconds histogram",
        "denizen_plugin_removal_wait_duration_seconds histogram",
        "denizen_plugin_waits counter",
        "denizen_drift_repaired counter",
        "denizen_missed_lookups counter",
        "denizen_service_dropped_packets counter",
        "denizen_affinity_crowded counter",
        "denizen_network_policy_engine gauge",
        "denizen_network_policy_policies gauge",
        "denizen_network_policy_cluster_policies gauge",
        "denizen_network_policy_not_understood gauge",
        "denizen_network_policy_unfiltered_bridges gauge",
        "denizen_network_policy_identities gauge",
        "denizen_network_policy_all_pods_known gauge",
        "denizen_network_policy_elements gauge",
        "denizen_network_policy_pods gauge",
        "denizen_network_policy_watched_namespaces gauge",
        "denizen_network_policy_dropped_packets counter",
        "denizen_network_policy_programming_duration_seconds histogram",
        "denizen_routing_routes gauge",
        "denizen_routing_rejected_ranges gauge",
        "denizen_routing_repaired_routes counter",
        "denizen_routing_unannounced_prefixes gauge",
        "denizen_routing_refused_announcements gauge",
        "denizen_bgp_speaker_up gauge",
        "denizen_bgp_sessions_down gauge",
        "denizen_ipvs_virtual_servers gauge",
        "denizen_ipvs_carried_by_nftables gauge",
        "denizen_ipvs_draining_endpoints gauge",
        "denizen_ipvs_draining_connections gauge",
        "denizen_ipvs_ended_connections counter",
        "denizen_host_ports_served gauge",
        "denizen_host_ports_conflicts gauge",
        "process_cpu_seconds counter",
        "process_cpu_delay_seconds counter",
        "process_resident_memory_bytes gauge",
        "process_open_fds gauge",
        "process_start_time_seconds gauge",
    ];
    assert_eq!(types, golden);
    assert!(text.ends_with("# EOF\n"), "{text}");
}

/// OpenMetrics: every sample belongs to the family whose type was declared last.
#[test]
fn every_sample_is_in_its_family_and_is_a_number() {
    let metrics = Metrics::default();
    metrics.like_kube_proxy.synced(SyncExtent::Full, 0.003, 1e9);
    let hostile = [("ip_family", "IPv4".to_owned()), ("set", "a\"b\\c\nd".to_owned())];
    metrics.own.elements.get_or_create(&hostile).set(7);
    let mut family = String::new();
    for line in metrics.encode().lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            family = declared.split(' ').next().unwrap().to_owned();
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let rest = name.strip_prefix(family.as_str());
            let known = ["", "_total", "_bucket", "_sum", "_count", "_info"];
            assert!(rest.is_some_and(|rest| known.contains(&rest)), "{line} in {family}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}

#[test]
fn a_copy_counts_into_the_same_numbers() {
    let metrics = Metrics::default();
    let copy = metrics.clone();
    copy.own.drift_repaired.inc();
    copy.like_kube_proxy.healthz.get_or_create(&[("code", "503")]).inc();
    let text = metrics.encode();
    for line in [
        "denizen_drift_repaired_total 1\n",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 1\n",
        "kubeproxy_proxy_healthz_total{code=\"200\"} 0\n",
        "denizen_plugin_waits_total{outcome=\"gave_up\"} 0\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let memory = text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
    assert!(memory.unwrap().parse::<u64>().unwrap() > 100_000, "{memory:?}");
}

/// kube-proxy has a proxy for each family, and its dashboards ask by it. A sync here is one of
/// both.
#[test]
fn a_sync_counts_for_both_families_and_by_its_extent() {
    let metrics = Metrics::default();
    metrics.like_kube_proxy.synced(SyncExtent::Full, 0.5, 1e9);
    metrics.like_kube_proxy.synced(SyncExtent::Partial, 0.25, 1e9 + 1.0);
    metrics.like_kube_proxy.synced(SyncExtent::Partial, 0.25, 1e9 + 2.0);
    metrics.like_kube_proxy.queued(1e9 + 3.0);
    metrics.like_kube_proxy.searched(0.125, [2, 1]);
    let text = metrics.encode();
    for family in ["IPv4", "IPv6"] {
        for (name, expected) in [
            ("sync_proxy_rules_duration_seconds_count", "3"),
            ("sync_proxy_rules_duration_seconds_sum", "1.0"),
            ("sync_full_proxy_rules_duration_seconds_count", "1"),
            ("sync_partial_proxy_rules_duration_seconds_count", "2"),
            ("sync_proxy_rules_last_timestamp_seconds", "1000000002.0"),
            ("sync_proxy_rules_last_queued_timestamp_seconds", "1000000003.0"),
            ("conntrack_reconciler_sync_duration_seconds_sum", "0.125"),
            (
                "conntrack_reconciler_deleted_entries_total",
                if family == "IPv4" { "2" } else { "1" },
            ),
            ("network_programming_duration_seconds_count", "0"),
            ("sync_proxy_rules_nftables_sync_failures_total", "0"),
            ("sync_proxy_rules_iptables_restore_failures_total", "0"),
        ] {
            let line = format!("kubeproxy_{name}{{ip_family=\"{family}\"}} {expected}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
    }
}
