//! What implementations of ClusterNetworkPolicy got wrong, or may get wrong, and the tests that it
//! does not happen here. The numbers are those of the list that it was collected in.
//!
//! | trap | test |
//! | --- | --- |
//! | 1. The lower priority wins, from 0 to 1000 | `order::the_lower_priority_wins` |
//! | 2. Equal priorities | `order::equal_priorities_are_ordered_by_name_everywhere` |
//! | 3. The order of rules beats actions | `order::the_first_rule_wins_whatever_it_does` |
//! | 4. Being selected isolates nothing | `order::what_no_rule_is_about_stays_as_it_was` |
//! | 5. NetworkPolicies end Baseline | `order::network_policies_are_final_for_their_direction_alone` |
//! | 6. Pass skips the rest of its tier | `order::pass_goes_on_behind_the_tier` |
//! | 7. Accept beats NetworkPolicies | `order::accept_beats_network_policies_and_opens_no_other_direction` |
//! | 8. A denied port in an accepted range | `matching::a_port_that_is_denied_is_a_hole_in_a_range` |
//! | 9. Edges of ranges | `matching::every_edge_of_ranges_is_where_it_was_written` |
//! | 10. ICMP | `matching::rules_with_ports_say_nothing_of_pings` |
//! | 11. A narrow network escapes a broad Deny | `matching::a_narrow_network_does_not_escape_a_broad_one` |
//! | 12. Host bits, and /0 | `matching::host_bits_count_for_nothing_and_zero_is_everybody` |
//! | 13. Pods of a denied network | `conformance`, `matching::pods_are_accepted_out_of_a_denied_network` |
//! | 14. What is not understood | `not_understood::it_fails_closed_rule_by_rule` |
//! | 15. Probes, a broken policy | `not_understood::probes_pass_whatever_is_denied` |
//! | 15. Probes, a policy that denies all | `kernel::a_nodes_probes_pass_a_policy_that_denies_all` |
//! | 16. Pods in the host's network | `matching::pods_of_the_hosts_network_are_their_node` |
//! | 17. Named ports | `matching::names_are_names_of_every_protocol` |
//! | 18. Services, and hairpins | `kernel::a_pod_that_reaches_itself_through_its_service_is_judged` |
//! | 19. The own node's ports | `kernel::a_pod_is_kept_from_its_own_node` |
//! | 20. First packets | `first_packet::tiers` |
//! | 21. Between two versions | `churn::clients_of_tiers_are_never_refused_and_strangers_never_admitted` |
//! | 22. Established connections | `kernel::what_a_new_deny_forbids_ends_and_goes_on_without_it` |
//! | 23. Other words for the same | `order::other_words_for_the_same_change_no_rule` |
//! | 24. Definitions come and go | `kubernetes::tiers` |
//! | 25. Any history ends in the same | `random::tiers::facts_about_tiers_may_come_in_any_order` |

mod kernel;
mod matching;
mod not_understood;
mod order;

use anyhow::{Result, ensure};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::{
    ClusterNetworkPolicy, NetworkPolicy, PolicyPacket, PolicyWorld, Transport,
};
use serde_json::{Value, json};

use crate::evaluated::EvaluatedWorld;
use crate::regressions::small::{self, packet};

pub const TCP_80: Transport = Transport::Port(Protocol::Tcp, 80);
pub const PING: Transport = Transport::Other;

/// From one to another, by IPv4 and by IPv6.
pub type Expected = ([&'static str; 2], [&'static str; 2], Transport, bool);

/// A policy of tier Admin for all pods of a namespace.
pub fn admin(priority: u16, name: &str, namespace: &str) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy::new("Admin", priority, name, pods_of(namespace))
}

/// The same of tier Baseline.
pub fn baseline(priority: u16, name: &str, namespace: &str) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy::new("Baseline", priority, name, pods_of(namespace))
}

/// All pods of a namespace, as peer or subject.
pub fn pods_of(namespace: &str) -> Value {
    json!({ "namespaces": { "matchLabels": { "ns": namespace } } })
}

pub fn everybody() -> Value {
    json!({ "namespaces": {} })
}

pub fn networks(ranges: &[&str]) -> Value {
    json!({ "networks": ranges })
}

pub fn from(action: &str, peer: Value) -> Value {
    json!({ "action": action, "from": [peer] })
}

pub fn to(action: &str, peer: Value) -> Value {
    json!({ "action": action, "to": [peer] })
}

/// A rule at one port of TCP.
pub fn at(port: u16, rule: Value) -> Value {
    at_range(port, port, rule)
}

/// A rule at a range of ports of TCP.
pub fn at_range(first: u16, last: u16, mut rule: Value) -> Value {
    let port = match first == last {
        true => json!({ "number": first }),
        false => json!({ "range": { "start": first, "end": last } }),
    };
    rule["protocols"] = json!([{ "tcp": { "destinationPort": port } }]);
    rule
}

/// A world of four pods with these policies.
pub fn world(
    tiers: impl IntoIterator<Item = ClusterNetworkPolicy>,
    policies: impl IntoIterator<Item = NetworkPolicy>,
) -> PolicyWorld {
    PolicyWorld { tiers: tiers.into_iter().collect(), ..small::world(policies) }
}

/// Whether all who judge say of each packet, in both families, what is expected.
pub fn expect(world: &PolicyWorld, expected: &[Expected]) -> Result<()> {
    let evaluated = EvaluatedWorld::new(world)?;
    for (from, to, transport, passes) in expected {
        for family in 0..2 {
            expect_of(&evaluated, packet(from[family], to[family], *transport), *passes)?;
        }
    }
    Ok(())
}

pub fn expect_of(evaluated: &EvaluatedWorld<'_>, packet: PolicyPacket, passes: bool) -> Result<()> {
    ensure!(evaluated.passes(packet)? == passes, "{packet:?} passes: {}", !passes);
    Ok(())
}
