//! What the rules depend on besides the frontends: the node's part of the plan, as iptables'
//! tests. Pure.

use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::rule::{Match, Rule, Target, Test, Tests, host};
use crate::loopback::loopback;
use crate::why::Why;
use denizen_model::{Family, family_of};
use denizen_plan::{LocalTest, NodePlan, NodePorts, NodeSide};

/// What the constant chains and all services' chains depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesetConfig {
    pub family: Family,
    /// The tests that detect a local pod's packet, one rule each.
    pub local: Vec<Tests>,
    /// The tests that detect a packet to an address that serves node ports, one rule each.
    pub to_node: Vec<Tests>,
    /// Health-check node ports, which the host's firewall must not block.
    pub health_ports: Vec<u16>,
    /// Whether a bridged pod's packets must come in through its port of the bridge.
    proves_ports: bool,
    /// The ranges towards which pods keep their address (of this family); `None` if egress
    /// masquerade is off.
    pub(super) egress: Option<Vec<IpNetwork>>,
    /// The mark bits, and other settings of this node.
    pub(super) node_side: NodeSide,
    /// Whether packets that connection tracking cannot assign to a connection are dropped.
    pub drop_invalid: bool,
}

impl RulesetConfig {
    /// The config before the first plan.
    pub fn new(family: Family, drop_invalid: bool) -> Self {
        Self {
            family,
            local: Vec::new(),
            to_node: Vec::new(),
            health_ports: Vec::new(),
            proves_ports: false,
            egress: None,
            node_side: NodeSide::default(),
            drop_invalid,
        }
    }

    /// Takes over the node's part of a plan.
    pub fn configure(&mut self, node: &NodePlan) {
        let family = self.family;
        self.node_side = node.node_side;
        self.egress = node.egress.kept(family).map(<[_]>::to_vec);
        self.local = node.detection.tests(family).map(|test| self.local(test)).collect();
        self.proves_ports = node.detection.proves_ports();
        self.to_node = to_node(family, &node.node_ports);
    }

    fn local(&self, test: &LocalTest) -> Tests {
        let is = |condition| vec![Test::is(condition)];
        match test {
            LocalTest::Pod => is(Match::FromPod),
            // No set of iptables knows bridge ports, so the bridge's table sets a bit of the mark.
            LocalTest::PodAtItsPort => {
                vec![Test::is(self.has_port_bit()), Test::is(Match::FromBridgedPod)]
            }
            LocalTest::PodWithoutPort => {
                vec![Test::is(Match::FromPod), Test::is_not(Match::FromBridgedPod)]
            }
            LocalTest::AnyPort => is(Match::BridgePort),
            LocalTest::Bridge(name) => is(Match::Input(name.clone())),
            LocalTest::Prefix(prefix) => is(begins_with(prefix)),
            LocalTest::Source(range) => is(Match::Source(*range)),
        }
    }

    /// The port bit of the mark: the bridge's table sets it for a packet from its pod's bridge
    /// port.
    fn has_port_bit(&self) -> Match {
        Match::Marked(self.node_side.port_bit)
    }

    /// Only nat reads the port bit, and it sees only a connection's first packet. So the bit is
    /// cleared in the next of our chains that every packet passes (filter, priority 0 of the hooks
    /// forward and input). Between nat prerouting and there, others can see it: routing (`ip rule …
    /// fwmark`), mangle, and rules before our jumps in FORWARD and INPUT. It is cleared only for
    /// recorded pods behind bridges, since others may use the bit. With egress masquerade, its
    /// chain is the last to read the bit and clears it instead.
    pub(super) fn clear_port_bit(&self) -> Option<Rule> {
        let tests = [self.has_port_bit(), Match::FromBridgedPod];
        let clear = Target::Unmark(self.node_side.port_bit);
        let rule = || Rule::new(Why::ClearPortBit, &Arc::from(""), tests, clear);
        self.proves_ports.then(rule)
    }
}

/// The tests that detect a packet to an address that serves node ports, one rule each.
fn to_node(family: Family, node_ports: &NodePorts) -> Vec<Tests> {
    if node_ports.are_everywhere(family) {
        let loopback = Test::is_not(Match::Destination(loopback(family)));
        let unless_loopback = (!node_ports.are_on_loopback(family)).then_some(loopback);
        return vec![unless_loopback.into_iter().chain([Test::is(Match::ToNode)]).collect()];
    }
    let ours = node_ports.addresses.iter().filter(|ip| family_of(**ip) == family);
    ours.map(|ip| vec![Test::is(Match::Destination(host(*ip)))]).collect()
}

/// A prefix of the maximal length of a name is the whole name.
fn begins_with(prefix: &str) -> Match {
    const LONGEST_NAME: usize = 15;
    let plus = if prefix.len() < LONGEST_NAME { "+" } else { "" };
    Match::Input(format!("{prefix}{plus}").into())
}
