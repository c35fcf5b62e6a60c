//! The table of packets, each as real connections through the real agent: every case with bridged and with
//! routed pods, and `explain` asked about every packet.
//!
//! What is not covered yet is ignored with its reason; to enable it is to delete that line.

use anyhow::Result;
use denizen_tests::flows::play;
use denizen_tests::flows::table::{self, Backend};
use denizen_tests::pod::Wiring;

/// Packets that wait for a feature in cases that are otherwise covered: case, part of the packet's name, why.
const PENDING: &[(&str, &str, &str)] = &[];

macro_rules! cases {
    ($($(#[$attribute:meta])* $name:ident: $case:literal;)*) => {
        mod bridged {
            use super::*;
            $($(#[$attribute])* #[test] fn $name() -> Result<()> { play_case($case, Wiring::Bridged) })*
        }
        mod routed {
            use super::*;
            $($(#[$attribute])* #[test] fn $name() -> Result<()> { play_case($case, Wiring::Routed) })*
        }
        const LISTED: &[&str] = &[$($case),*];
    };
}

fn play_case(name: &str, wiring: Wiring) -> Result<()> {
    let pending = PENDING
        .iter()
        .filter(|(case, ..)| *case == name)
        .map(|(_, flow, _)| *flow);
    play(name, Backend::Nftables, wiring, &pending.collect::<Vec<_>>())
}

#[test]
fn every_case_of_the_table_is_listed() -> Result<()> {
    let cases = table::cases(Backend::Nftables)?;
    let names: Vec<_> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(LISTED, names, "in the table's order");
    for (name, part, _) in PENDING {
        let case = table::case(name, Backend::Nftables)?;
        assert!(
            case.flows.iter().any(|flow| flow.name.contains(part)),
            "{name} has no flow called …{part}…"
        );
    }
    Ok(())
}

cases! {
    no_endpoints_everywhere: "no-endpoints-everywhere";
    clusterip_basics: "clusterip-basics";
    loadbalancer_source_ranges: "loadbalancer-source-ranges";
    nodeports_nftables_ipv4_defaults: "nodeports/nftables/ipv4 defaults";
    nodeports_nftables_ipv6_defaults: "nodeports/nftables/ipv6 defaults";
    etp_local: "etp-local";
    etp_cluster: "etp-cluster";
    itp_cluster: "itp-cluster";
    itp_cluster_slice_deleted: "itp-cluster/slice-deleted";
    itp_local_one_local: "itp-local-one-local";
    itp_local_one_local_slice_deleted: "itp-local-one-local/slice-deleted";
    itp_local_none_local: "itp-local-none-local";
    itp_local_none_local_slice_deleted: "itp-local-none-local/slice-deleted";
    terminating_local_ready_local_endpoints_win: "terminating-local/ready-local-endpoints-win";
    terminating_local_only_terminating_local_endpoints: "terminating-local/only-terminating-local-endpoints";
    terminating_local_only_a_terminating_remote_endpoint: "terminating-local/only-a-terminating-remote-endpoint";
    terminating_local_nothing_usable_anywhere: "terminating-local/nothing-usable-anywhere";
    terminating_local_slice_deleted: "terminating-local/slice-deleted";
    policy_matrix_detector_on: "policy-matrix/detector-on";
    lb_ipmode_vip: "lb-ipmode/vip";
    lb_ipmode_unset: "lb-ipmode/unset";
    sloppy_addresses: "sloppy-addresses";
    should_use_topology_since_all_endpoints_have_hints_node_has_a_zone: "endpoint-selection/should-use-topology-since-all-endpoints-have-hints-node-has-a-zone-label-and-and-there-are-endpoints-for-the-node-s-zone";
    internaltrafficpolicy_local_topology_ignored_for_local_endpoints: "endpoint-selection/internaltrafficpolicy-local-topology-ignored-for-local-endpoints";
    empty_zone_label: "endpoint-selection/empty-zone-label";
    unready_endpoint: "endpoint-selection/unready-endpoint";
    missing_hints_no_filtering_applied: "endpoint-selection/missing-hints-no-filtering-applied";
    prefersamenode_falls_back_to_same_zone_when_feature_gate_disabled: "endpoint-selection/prefersamenode-falls-back-to-same-zone-when-feature-gate-disabled";
    prefersamenode_ignored_if_some_endpoints_unhinted: "endpoint-selection/prefersamenode-ignored-if-some-endpoints-unhinted";
    conflicting_topology_and_localness_require_merging_allendpoints: "endpoint-selection/conflicting-topology-and-localness-require-merging-allendpoints";
    internaltrafficpolicy_local_but_all_endpoints_are_remote: "endpoint-selection/internaltrafficpolicy-local-but-all-endpoints-are-remote";
    internaltrafficpolicy_local_some_endpoints_are_local: "endpoint-selection/internaltrafficpolicy-local-some-endpoints-are-local";
    cluster_traffic_policy_some_endpoints_are_ready: "endpoint-selection/cluster-traffic-policy-some-endpoints-are-ready";
    itp_local_etp_cluster_some_endpoints_local: "endpoint-selection/itp-local-etp-cluster-some-endpoints-local";
    itp_local_etp_local_some_endpoints_local: "endpoint-selection/itp-local-etp-local-some-endpoints-local";
    itp_local_etp_local_all_endpoints_remote_and_terminating: "endpoint-selection/itp-local-etp-local-all-endpoints-remote-and-terminating";
    externaltrafficpolicy_ignored_if_not_externally_accessible: "endpoint-selection/externaltrafficpolicy-ignored-if-not-externally-accessible";
    empty_endpoints_when_no_service_endpoints_exist: "endpoint-selection/empty-endpoints-when-no-service-endpoints-exist";
    policy_matrix_per_pod_detection: "policy-matrix/per-pod-detection";
    source_range_without_endpoints: "source-range-without-endpoints";
    session_affinity: "session-affinity";
    nil_endpoint_conditions: "nil-endpoint-conditions";
    endpoint_in_two_slices: "endpoint-in-two-slices";
}
