//! Rules that detect packets of local pods.
//!
//! IP rules do not see the port of a bridge: a bridged pod's packets come in through the bridge. A
//! table of the bridge family sees the port and passes it to the IP tables as one bit of the mark.
//! Others must not see the bit: it is set when the frame arrives, and cleared right after the chain
//! that reads it, or when the bridge only forwards the frame.

use std::sync::Arc;

use super::name::{ChainName, ServiceSet};
use super::rule::{
    SetStatements, base, comes_from, comes_in_by, comes_in_by_kind, is_marked, mark, rule, unmark,
};
use super::table_config::TableConfig;
use crate::why::Why;
use denizen_model::Family;
use denizen_nft::{BaseChain, Chain, ChainKind, Field, Hook, Statement};
use denizen_plan::LocalTest;

/// Before `filter` (0), where other firewalls drop.
pub(super) const FORWARD_PRIORITY: i32 = -10;

/// `dstnat` of a bridge: before bridge netfilter (`NF_BR_PRI_BRNF`, 0) calls the IP hooks.
const BRIDGE_PRIORITY: i32 = -300;

/// Right behind the kernel's one hook for all nat chains (`NF_IP_PRI_NAT_DST`, -100): their own
/// priorities only order them among each other.
const BEHIND_NAT: i32 = -99;

/// The kinds of input interface that packets from a bridge's port have: the bridge, or a VLAN's
/// device on it. On other interfaces a packet may arrive with any mark.
const BEHIND_PORTS: [&str; 2] = ["bridge", "vlan"];

/// The matches of each rule that detects local pods' packets: a detector with several values has
/// several rules, all before the one that marks (KEP-2450's MASQ-IF-NOT-LOCAL).
pub(super) fn local_pod_matches(sets: SetStatements, config: &TableConfig) -> Vec<Vec<Statement>> {
    let has_port_bit = || is_marked(config.node_side.port_bit);
    let rules = |test: &LocalTest| match test {
        LocalTest::Pod => vec![vec![sets.is_in(ServiceSet::LocalPods)]],
        // All pods are in `LocalPods` too, with every detector: an earlier run's rules, which stay
        // until services are known, may test only that set.
        LocalTest::PodAtItsPort => vec![vec![has_port_bit(), sets.is_in(ServiceSet::BridgedPods)]],
        LocalTest::PodWithoutPort => {
            vec![vec![sets.is_in(ServiceSet::LocalPods), sets.is_not_in(ServiceSet::BridgedPods)]]
        }
        LocalTest::AnyPort => {
            BEHIND_PORTS.map(|kind| vec![comes_in_by_kind(kind), has_port_bit()]).into()
        }
        LocalTest::Bridge(name) => vec![vec![comes_in_by(name)]],
        LocalTest::Prefix(prefix) => vec![vec![begins_with(prefix)]],
        LocalTest::Source(range) => vec![vec![comes_from(*range)]],
    };
    config.local.iter().flat_map(rules).collect()
}

/// A prefix as long as a name can be is a whole name, which nft cannot write with a wildcard.
fn begins_with(prefix: &Arc<str>) -> Statement {
    const LONGEST_NAME: usize = 15;
    if prefix.len() < LONGEST_NAME {
        Statement::BeginsWith(Field::InputInterface, prefix.clone())
    } else {
        comes_in_by(prefix)
    }
}

/// The chains that clear the port bit, after those that read it. They are chains of their own,
/// since nat chains see only the first packet of a connection.
pub(super) fn clear_port_bit(config: &TableConfig) -> Vec<Chain> {
    let bit = config.node_side.port_bit;
    let clear =
        |kind| rule(Why::ClearPortBit, [comes_in_by_kind(kind), is_marked(bit), unmark(bit)]);
    let behind = |name, hook, priority| {
        let base_chain = BaseChain { kind: ChainKind::Filter, hook, priority };
        base(name, base_chain, Why::ClearPortBit, BEHIND_PORTS.map(clear).into())
    };
    match (config.reads_ports(), &config.egress) {
        (false, _) => Vec::new(),
        (true, None) => vec![behind(ChainName::ClearPortBit, Hook::Prerouting, BEHIND_NAT)],
        // Egress masquerade reads the bit too, in the forward hook.
        (true, Some(_)) => vec![
            behind(ChainName::ClearPortBit, Hook::Forward, FORWARD_PRIORITY + 1),
            behind(ChainName::ClearPortBitHere, Hook::Input, BRIDGE_PRIORITY),
        ],
    }
}

/// The bridge's table.
pub(super) fn bridge_chains(sets: SetStatements, config: &TableConfig) -> Vec<Chain> {
    let bit = config.node_side.port_bit;
    let tell = |why, is| rule(why, [is, mark(bit)]);
    let arriving = |test: &LocalTest| match test {
        LocalTest::PodAtItsPort => vec![
            // A packet may arrive with any mark.
            rule(Why::PortUnproven, [unmark(bit)]),
            tell(Why::PodPort, sets.is_in(ServiceSet::PodPorts)),
            tell(Why::PodPort, sets.is_in(ServiceSet::PodPorts6)),
        ],
        LocalTest::AnyPort => vec![
            tell(Why::AnyPort, Statement::carries(Family::V4)),
            tell(Why::AnyPort, Statement::carries(Family::V6)),
        ],
        LocalTest::Pod
        | LocalTest::PodWithoutPort
        | LocalTest::Bridge(_)
        | LocalTest::Prefix(_)
        | LocalTest::Source(_) => Vec::new(),
    };
    let arriving = config.local.iter().flat_map(arriving).collect();
    let forget = rule(Why::OnlyBridged, [is_marked(bit), unmark(bit)]);
    let at = |hook| BaseChain { kind: ChainKind::Filter, hook, priority: BRIDGE_PRIORITY };
    vec![
        base(ChainName::Prerouting, at(Hook::Prerouting), Why::TellPort, arriving),
        base(ChainName::Bridged, at(Hook::Forward), Why::OnlyBridged, vec![forget]),
    ]
}
