//! The constant chains, and the jumps into them from the kernel's own chains. Pure.

use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::egress;
use super::name::{
    ChainId, ChainName, EXTERNAL_SERVICES, FORWARD, MARK_MASQ, MASQ_IF_NOT_LOCAL, NODE_PORTS,
    POSTROUTING, PROXY_FIREWALL, SERVICES,
};
use super::rule::{Match, Rule, Target, Test, Tests, host};
use crate::why::Why;
use denizen_iptables::Table;
use denizen_model::{Family, Protocol, family_of};
use denizen_plan::{LocalTest, MarkBit, NodePlan, NodePorts, NodeSide};

/// What the constant chains and all services' chains depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesetConfig {
    /// The family.
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

    /// The constant chains with their rules. `node_port_jumps` are in a shared chain.
    pub fn chains(&self) -> Vec<(ChainId, Vec<Rule>)> {
        let nobody = Arc::from("");
        let rule = |why, tests: &[Match], target| Rule::new(why, &nobody, tests.to_vec(), target);
        let nat = |name| (Table::Nat, name);
        let mark = self.node_side.masquerade_bit;
        let filter = |name| (Table::Filter, name);
        let mut chains = vec![
            (nat(MARK_MASQ), vec![Rule::owned(Why::MarkForMasquerade, Target::Mark(mark))]),
            (
                nat(POSTROUTING),
                vec![
                    rule(Why::NotMarked, &[], Target::Return).unless(Match::Marked(mark)),
                    rule(Why::MarkDone, &[], Target::Unmark(mark)),
                    rule(Why::MarkedAbove, &[], Target::Masquerade),
                ],
            ),
            (filter(FORWARD), self.forward()),
            (filter(NODE_PORTS), self.health()),
        ];
        if !self.local.is_empty() && only_test(&self.local).is_none() {
            let local = self.local.iter().cloned();
            let returns = local.map(|is| rule(Why::LocalPod, &[], Target::Return).also(is));
            let mark = rule(Why::ComesFromElsewhere, &[], Target::Jump(MARK_MASQ));
            chains.push((nat(MASQ_IF_NOT_LOCAL), returns.chain([mark]).collect()));
        }
        chains.extend(egress::chains(self));
        chains
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

    /// KUBE-FORWARD. The last rule is KEP-2450's third rule, which needs no CIDR.
    fn forward(&self) -> Vec<Rule> {
        let nobody = Arc::from("");
        let accept = |why, test| Rule::new(why, &nobody, [test], Target::Accept);
        let invalid = || Rule::new(Why::Invalid, &nobody, [Match::State("INVALID")], Target::Drop);
        let clear = self.clear_port_bit().filter(|_| self.egress.is_none());
        let mut rules: Vec<Rule> = clear.into_iter().collect();
        rules.extend(self.drop_invalid.then(invalid));
        let marked = Match::Marked(self.node_side.masquerade_bit);
        rules.push(accept(Why::AdmitMarked, marked));
        rules.push(accept(Why::AdmitEstablished, Match::State("RELATED,ESTABLISHED")));
        rules
    }

    fn health(&self) -> Vec<Rule> {
        let nobody = Arc::from("");
        let accept = |port: &u16| {
            let tests = [Match::Port(Protocol::Tcp, *port)];
            Rule::new(Why::HealthCheck, &nobody, tests, Target::Accept)
        };
        // With `route_localnet` a neighbour could reach programs that listen on 127.0.0.1
        // (CVE-2020-8558). The rule is always there, because anybody may set `route_localnet` at
        // any time, for all interfaces or for one. IPv6 has no such setting.
        let own = loopback(self.family);
        let martian = Rule::new(Why::Martian, &nobody, [Match::Destination(own)], Target::Drop);
        let martian =
            martian.unless(Match::Source(own)).unless(Match::State("RELATED,ESTABLISHED,DNAT"));
        let martian = (self.family == Family::V4).then_some(martian);
        let first = self.clear_port_bit().into_iter().chain(martian);
        first.chain(self.health_ports.iter().map(accept)).collect()
    }

    /// The last rules of KUBE-SERVICES: a packet to the node itself may be for a node port.
    pub fn node_port_jumps(&self) -> Vec<Rule> {
        let jump = |to_node: &Tests| {
            let rule = Rule::new(Why::LastOfAll, &Arc::from(""), [], Target::Jump(NODE_PORTS));
            rule.also(to_node.iter().cloned())
        };
        self.to_node.iter().map(jump).collect()
    }

    /// `--open-forward`: the first and the last rule of KUBE-SERVICES. The first sets the bit. A
    /// translated packet leaves the chain, so a packet at the end was not translated, and the last
    /// rule clears the bit. So two rules are enough for any number of endpoints.
    pub fn admission(&self) -> Option<[Rule; 2]> {
        let rule = |why, target| Rule::new(why, &Arc::from(""), [], target);
        self.node_side.open_forward.then(|| {
            [
                rule(Why::Admitted, Target::Admit(MarkBit::ADMITTED)),
                rule(Why::NotAdmitted, Target::Dismiss(MarkBit::ADMITTED)),
            ]
        })
    }

    /// The jumps from the kernel's own chains. Their text is exactly kube-proxy's, so that neither
    /// program adds a second one.
    pub fn jumps(&self) -> Vec<(ChainId, Rule)> {
        use Why::{ExternalPortals, ForwardingRules, HealthPorts, LoadBalancerFirewall};
        use Why::{PostroutingRules, ServicePortals};
        let (filter, nat) = (Table::Filter, Table::Nat);
        let entry = |table, from, to, why| {
            // Only the first packet of a connection is checked.
            let new = table == filter && to != FORWARD && to != NODE_PORTS;
            let new = new.then_some(Match::New);
            let rule = Rule::new(why, &Arc::from(""), new, Target::Jump(to));
            ((table, ChainName::BuiltIn(from)), rule)
        };
        let services = [
            entry(nat, "PREROUTING", SERVICES, ServicePortals),
            entry(nat, "OUTPUT", SERVICES, ServicePortals),
            entry(nat, "POSTROUTING", POSTROUTING, PostroutingRules),
            entry(filter, "INPUT", NODE_PORTS, HealthPorts),
            entry(filter, "INPUT", EXTERNAL_SERVICES, ExternalPortals),
            entry(filter, "INPUT", PROXY_FIREWALL, LoadBalancerFirewall),
            entry(filter, "FORWARD", FORWARD, ForwardingRules),
            entry(filter, "FORWARD", SERVICES, ServicePortals),
            entry(filter, "FORWARD", EXTERNAL_SERVICES, ExternalPortals),
            entry(filter, "FORWARD", PROXY_FIREWALL, LoadBalancerFirewall),
            entry(filter, "OUTPUT", SERVICES, ServicePortals),
            // kube-proxy does not have this: it lets this node's own packets to such an address
            // leave the node.
            entry(filter, "OUTPUT", EXTERNAL_SERVICES, ExternalPortals),
            entry(filter, "OUTPUT", PROXY_FIREWALL, LoadBalancerFirewall),
        ];
        services.into_iter().chain(egress::jump(self)).collect()
    }
}

/// The tests that detect a packet to an address that serves node ports, one rule each.
fn to_node(family: Family, node_ports: &NodePorts) -> Vec<Tests> {
    if node_ports.are_everywhere() {
        let loopback = Test::is_not(Match::Destination(loopback(family)));
        let unless_loopback = (!node_ports.are_on_loopback(family)).then_some(loopback);
        return vec![unless_loopback.into_iter().chain([Test::is(Match::ToNode)]).collect()];
    }
    let ours = node_ports.addresses.iter().filter(|ip| family_of(**ip) == family);
    ours.map(|ip| vec![Test::is(Match::Destination(host(*ip)))]).collect()
}

/// The only test, if there is exactly one: then a rule can require that it does not hold.
pub fn only_test(rules: &[Tests]) -> Option<&Test> {
    match rules {
        [only] if only.len() == 1 => only.first(),
        _ => None,
    }
}

/// A prefix of the maximal length of a name is the whole name.
fn begins_with(prefix: &str) -> Match {
    const LONGEST_NAME: usize = 15;
    let plus = if prefix.len() < LONGEST_NAME { "+" } else { "" };
    Match::Input(format!("{prefix}{plus}").into())
}

fn loopback(family: Family) -> IpNetwork {
    let (address, prefix) = match family {
        Family::V4 => (IpAddr::from([127, 0, 0, 0]), 8),
        Family::V6 => (IpAddr::from(std::net::Ipv6Addr::LOCALHOST), 128),
    };
    IpNetwork::new(address, prefix).expect("these prefixes are no longer than their addresses")
}
