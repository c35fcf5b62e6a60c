//! The page's section about the pod firewall.

use maud::{Markup, html};

use denizen_backend::firewall::Dropped;
use denizen_observe::status::view::{SideRow, SideState};
use denizen_observe::status::{NetworkPolicyStatus, Status};

pub(super) fn section(status: &Status) -> Markup {
    let engine = status.network_policy_engine.as_deref().unwrap_or("nobody that is known");
    html! {
        section #firewall {
            h2 { "NetworkPolicy" }
            p { "Enforced by " (engine) ": " (status.network_policy_why) }
            @if let Some(status) = &status.network_policy { (figures(status)) }
        }
    }
}

fn figures(status: &NetworkPolicyStatus) -> Markup {
    let Dropped { ingress, egress, pending, forbidden, spoofed, frame, router, tunnel } =
        status.dropped;
    let watched_pods = status.watched_pods.as_ref().map(ToString::to_string);
    let rows = [
        ("waiting for", status.waiting_for.join(", ")),
        ("policies in force", status.policies.to_string()),
        ("ClusterNetworkPolicies in force", none_if_zero(status.cluster_policies)),
        ("policies that are not understood", none_if_zero(status.not_understood)),
        ("pods isolated", status.isolated.to_string()),
        ("pods whose policies are not known yet", none_if_zero(status.pending)),
        ("identities", status.identities.to_string()),
        ("elements", status.elements.to_string()),
        ("packets dropped, ingress", ingress.to_string()),
        ("packets dropped, egress", egress.to_string()),
        ("packets dropped, policies not known yet", pending.to_string()),
        ("packets dropped, connections forbidden since", forbidden.to_string()),
        ("packets dropped, forged source", spoofed.to_string()),
        ("packets dropped, neither IPv4, IPv6 nor ARP, or tagged", frame.to_string()),
        ("packets dropped, a pod as a router", router.to_string()),
        ("packets dropped, for a tunnel of a node", tunnel.to_string()),
        ("bridges whose restricted pods are cut off", status.unfiltered_bridges.join(", ")),
        ("pods that are watched", watched_pods.unwrap_or_default()),
    ];
    html! {
        table {
            tbody {
                @for (what, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
                    tr { th scope="row" { (what) } td.number { (value) } }
                }
            }
        }
    }
}

/// A row that is shown only where something is wrong.
fn none_if_zero(number: usize) -> String {
    if number == 0 { String::new() } else { number.to_string() }
}

/// The policies that isolate a pod, by direction.
pub(super) fn sides(sides: &[SideRow]) -> Markup {
    html! {
        @for SideRow { direction, state, policies } in sides {
            @match state {
                SideState::Open => span.chip { (direction) " open" },
                SideState::Isolated => {
                    span.chip.good { (direction) " isolated" } " " small { (policies.join(", ")) }
                },
                SideState::Pending => span.chip.warn { (direction) " pending" },
            }
            " "
        }
    }
}
