//! What the driver of iptables must know about our chains: which are ours, in which order they are
//! created, and what happens to each when one of its rules is rejected. Pure.

use std::sync::Arc;

use super::name::{ChainName, MARK_MASQ, NODE_PORTS, SERVICES, is_a_proxys, is_a_services};
use super::rule::{Match, Rule, Target};
use super::service::Shared;
use crate::why::Why;
use denizen_iptables::{Extension, OnRejection, Schema, Table};
use denizen_model::{Family, Protocol};
use denizen_plan::MarkBit;

/// The chains of a service proxy, ours or kube-proxy's: their names are the same.
pub static SCHEMA: Schema = Schema {
    owns: is_a_proxys,
    reads: |table, chain| table == Table::Nat && READ.iter().any(|read| read.is_called(chain)),
    creation_order: |chain| CREATED.iter().position(|begin| chain.starts_with(begin)),
    on_rejection,
    extensions,
};

/// The chains from which we read what an earlier run, or kube-proxy, left.
const READ: [ChainName; 3] = [MARK_MASQ, SERVICES, NODE_PORTS];

/// Prefixes of the names of chains to which only KUBE-SERVICES and other chains of the proxy jump.
/// In the order of creation: each after the chains that it jumps to.
const CREATED: [&str; 7] = [
    "KUBE-MARK-MASQ",
    "KUBE-MASQ-IF-NOT-LOCAL",
    "KUBE-SEP-",
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-EXT-",
    "KUBE-FW-",
];

/// A service's chain needs all its rules: without one, packets might pass that it should drop. In a
/// shared chain each rule is about one service.
fn on_rejection(table: Table, chain: &str) -> OnRejection {
    let is_shared = |shared: Shared| {
        let (its, name) = shared.chain();
        its == table && name.is_called(chain)
    };
    if is_a_services(chain) {
        OnRejection::KeepChain
    } else if Shared::ALL.into_iter().any(is_shared) {
        OnRejection::OmitRule
    } else {
        OnRejection::Fail
    }
}

/// The extensions that only some services, or some ways to detect local traffic, need. Without any
/// other extension (`DNAT`, `MASQUERADE`, `MARK`, `conntrack`, …) no service is served at all, and
/// the write fails.
fn extensions(version: Family) -> Vec<Extension> {
    let extension = |marker, why, test: Option<Match>, target| Extension {
        marker,
        rule: Rule::new(why, &Arc::from(""), test, target).text(version),
    };
    let matched = |marker, why, test| extension(marker, why, Some(test), Target::Return);
    let refused = |marker, why, protocol| {
        extension(marker, why, Some(Match::Port(protocol, 1)), Target::Reject(protocol))
    };
    vec![
        matched("-m recent ", Why::Recall, Match::Recent(SERVICES, 1)),
        matched("-m statistic ", Why::Choose, Match::OneIn(2)),
        matched("-m set ", Why::LocalPod, Match::FromPod),
        matched("-m physdev ", Why::LocalPod, Match::BridgePort),
        matched("-m addrtype ", Why::LastOfAll, Match::ToNode),
        matched("-m sctp ", Why::FindService, Match::Port(Protocol::Sctp, 1)),
        refused("--reject-with tcp-reset", Why::RefuseTcp, Protocol::Tcp),
        refused("--reject-with icmp", Why::Refuse, Protocol::Udp),
        extension("-j CONNMARK ", Why::Admitted, None, Target::Admit(MarkBit::ADMITTED)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_extension_is_known_by_its_marker() {
        for version in Family::BOTH {
            for Extension { marker, rule } in extensions(version) {
                assert!(rule.contains(marker), "{marker}: {rule}");
            }
        }
    }
}
