//! What implementations of NetworkPolicy got wrong, and the tests that it does not happen here. The
//! numbers are those of the list that it was collected in.
//!
//! 1. A new pod is open for a while, and what it began goes on: `first_packet::of_a_new_pod`,
//!    `first_packet::reuse::what_waits_for_a_new_pods_mac_address_does_not_arrive`,
//!    `connections::what_a_new_policy_forbids_ends`,
//!    `forbidden::what_is_forbidden_ends_though_both_sides_send`,
//!    `forbidden::what_is_forbidden_for_egress_ends_though_both_sides_send`,
//!    `forbidden::what_both_ends_close_while_it_is_forbidden_is_over_for_both`
//! 2. Replies of connections from before a policy are denied:
//!    `connections::replies_to_a_pod_that_is_isolated_later_arrive`
//! 3. Everything to a new pod is refused for a while: `first_packet::of_a_new_pod`
//! 4. A completed pod's address is taken for its own:
//!    `addressing::a_completed_pods_address_is_not_its_own_any_more`,
//!    `addressing::of_two_pods_with_one_address_the_younger_one_has_it`
//! 5. A late deletion removes the next owner's entry:
//!    `order::a_late_deletion_takes_nothing_from_the_address_next_owner`,
//!    `first_packet::reuse::at_an_address_that_is_reused_at_once`
//! 6. Permitted egress skips the receiver's ingress:
//!    `selecting::egress_that_is_permitted_leaves_the_receivers_ingress_to_judge`
//! 7. One pod's mark permits another's packet: `rules::no_rule_accepts_or_touches_a_mark`
//! 8. Another's accept comes first: `beside::what_another_table_accepts_is_judged_all_the_same`
//! 9. What another firewall drops is accepted: `beside::what_another_table_drops_stays_dropped`,
//!    `rules::no_rule_accepts_or_touches_a_mark`
//! 10. Mark bits clash: `rules::the_priority_and_the_mark_are_given_back`
//! 11. Pods of one bridge are not filtered: `packets::kubernetes_own_suite_between_bridged_pods`,
//!     `beside::a_bridge_that_hides_its_frames_is_set_right`,
//!     `forbidden::what_is_forbidden_ends_though_its_beginning_was_not_seen`
//! 12. Neighbour discovery is blocked:
//!     `rules::discovery_passes_isolated_pods_and_an_echo_does_not`,
//!     `connections::neighbours_are_found_by_isolated_pods`
//! 13. ICMP errors are blocked: `connections::icmp_errors_about_permitted_packets_arrive`
//! 14. Probes are blocked:
//!     `frontends::a_node_reaches_its_isolated_pods_and_the_other_node_does_not`
//! 15. The node's address becomes a pod's:
//!     `addressing::a_pod_of_the_hosts_network_is_neither_subject_nor_peer`
//! 16. One bad object stops all:
//!     `addressing::a_pod_without_addresses_and_a_policy_that_is_wrong_spare_the_others`
//! 17. /0 is approximated: `addressing::a_block_of_everything_is_everything`
//! 18. Blocks with host bits collide:
//!     `addressing::blocks_with_host_bits_are_the_blocks_that_hold_them`
//! 19. `except` races with its block: `addressing::except_takes_from_its_own_block_alone`
//! 20. Ranges overlap in one set:
//!     `addressing::overlapping_blocks_become_ranges_that_do_not_overlap`
//! 21. Names are joined without a separator:
//!     `selecting::names_that_are_alike_when_written_in_a_row_are_told_apart`
//! 22. Comments are too long: `rules::comments_fit_and_name_no_object`
//! 23. Named ports of the wrong pod:
//!     `selecting::named_ports_are_resolved_on_the_destination_pod_by_pod`,
//!     `selecting::a_named_port_without_peers_is_that_of_pods_of_every_namespace`,
//!     `selecting::a_named_port_of_another_protocol_permits_nothing`
//! 24. NotIn of several values admits everybody:
//!     `selecting::not_in_several_values_excludes_each_of_them`
//! 25. Objects without labels are not seen:
//!     `selecting::namespaces_without_labels_are_selected_too`,
//!     `selecting::peers_that_match_nobody_permit_nobody`
//! 26. Policies come before their namespaces: `order::facts_may_come_in_any_order`
//! 27. A restart opens a window: `restart::a_restarted_agent_opens_no_window`
//! 28. What was to be temporary stays: `restart::what_was_left_pending_is_lifted`
//! 29. An edit of policyTypes is not applied:
//!     `order::an_edit_of_policy_types_changes_both_directions`,
//!     `order::the_deletion_of_one_policy_leaves_the_other_direction_alone`
//! 30. Static pods have other UIDs: `order::a_static_pod_is_known_by_its_hash`
//! 31. Errors of writing are swallowed: `who_waits_for_a_pod_is_answered_by_a_repair_too`
//! 32. UDP races in connection tracking behind a queue: none: verdicts are the kernel's, nothing
//!     is queued
//! 33. Writing all sets wipes others' changes, and drift stays:
//!     `restart::drift_is_repaired_and_others_tables_are_left_alone`
//! 34. Node ports and hairpins bypass policies:
//!     `frontends::every_frontend_of_an_isolated_pod_is_judged`,
//!     `frontends::a_pod_reaches_itself_through_its_service`
//! 35. Another node's masquerading hides the client:
//!     `frontends::a_client_that_another_node_masqueraded_is_that_node`
//! 36. An own flow table collects garbage too early: none: connections are the kernel's
//! 37. A broad block is meant as "outside": `addressing::a_block_of_everything_holds_pods_too`
//! 38. Every change syncs everything: `one_more_remote_pod_is_one_more_identity`
//! 39. A lookup misses what is being replaced: `rules::a_lookup_that_misses_permits_nothing`
//! 40. A policy comes together with its pod:
//!     `first_packet::at_once::a_policy_that_was_stored_before_its_pod_holds_from_the_first_packet_on`,
//!     `first_packet::at_once::what_waits_for_an_open_pod_does_not_arrive_once_a_policy_isolates_it`,
//!     `first_packet::when_a_policy_comes_meanwhile`
//! 41. A namespace's policies are deleted before its pods:
//!     `ending::policies_of_a_namespace_that_is_being_deleted_hold_until_it_is_gone`: since
//!     Kubernetes 1.33 pods are deleted first
//! 42. Unknown peers match everybody: `a_peer_with_a_wrong_selector_is_left_out`

mod addressing;
mod bad_input;
mod beside;
pub mod connections;
mod conversation;
mod forbidden;
mod frontends;
mod order;
mod restart;
mod rules;
mod selecting;
pub mod small;
pub mod test_cluster;
mod unseen;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Every test that the list above names is there, and every regression has one or a reason.
#[test]
fn every_regression_has_its_test() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("a workspace")?;
    let sources = [
        "tests/tests/network_policy",
        "tests/tests/network_policy/first_packet",
        "tests/tests/network_policy/regressions",
        "node-agent/agent/src/engine",
        "node-agent/plan/src/firewall",
        "node-agent/object/src/network_policy",
    ];
    let mut tests = BTreeSet::new();
    for folder in sources {
        let (_, parent) = folder.rsplit_once('/').context("a folder within a folder")?;
        for entry in fs::read_dir(workspace.join(folder))? {
            let path = entry?.path();
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let file = path.file_stem().and_then(|stem| stem.to_str()).context("a name")?;
            for test in text.split("#[test]\n").skip(1) {
                let name = test.trim_start().strip_prefix("fn ").context("a test is a function")?;
                let name = name.split('(').next().unwrap_or_default();
                let in_file = format!("{file}::{name}");
                tests.extend([name.to_owned(), format!("{parent}::{in_file}"), in_file]);
            }
        }
    }
    let lines = include_str!("regressions.rs").lines().map_while(|line| line.strip_prefix("//!"));
    let mut items: Vec<String> = Vec::new();
    for line in lines {
        match (
            line.trim_start().starts_with(|first: char| first.is_ascii_digit()),
            items.last_mut(),
        ) {
            (true, _) => items.push(line.trim_start().to_owned()),
            (false, Some(item)) => *item += line,
            (false, None) => {}
        }
    }
    let mut last = 0;
    for (number, item) in (1..).zip(&items) {
        let (regression, named) = item.split_once(": ").context("its tests follow a colon")?;
        ensure!(
            regression.starts_with(&format!("{number}. ")),
            "{regression} is not number {number}"
        );
        let named: Vec<_> = named.split('`').skip(1).step_by(2).collect();
        let is_there = |name: &&str| tests.contains(*name);
        ensure!(
            item.contains("none: ") || !named.is_empty(),
            "{regression}: no test and no reason"
        );
        ensure!(named.iter().all(is_there), "{regression}: not all of {named:?} are there");
        last = number;
    }
    ensure!(last == 42, "{last} regressions of 42");
    Ok(())
}
