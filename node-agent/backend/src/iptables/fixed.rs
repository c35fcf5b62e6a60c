//! The constant chains, and the jumps into them from the kernel's own chains. Pure.

use std::sync::Arc;

use super::egress;
use super::name::{
    ChainId, ChainName, EXTERNAL_SERVICES, FORWARD, MARK_MASQ, MASQ_IF_NOT_LOCAL, NODE_PORTS,
    POSTROUTING, PROXY_FIREWALL, SERVICES,
};
use super::rule::{Match, Rule, Target, Tests, only_test};
use super::ruleset_config::RulesetConfig;
use crate::loopback::loopback;
use crate::why::Why;
use denizen_iptables::Table;
use denizen_model::{Family, Protocol};
use denizen_plan::MarkBit;

/// The constant chains with their rules. `node_port_jumps` are in a shared chain.
pub fn chains(config: &RulesetConfig) -> Vec<(ChainId, Vec<Rule>)> {
    let nobody = Arc::from("");
    let rule = |why, tests: &[Match], target| Rule::new(why, &nobody, tests.to_vec(), target);
    let nat = |name| (Table::Nat, name);
    let mark = config.node_side.masquerade_bit;
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
        (filter(FORWARD), forward(config)),
        (filter(NODE_PORTS), health(config)),
    ];
    if !config.local.is_empty() && only_test(&config.local).is_none() {
        let local = config.local.iter().cloned();
        let returns = local.map(|is| rule(Why::LocalPod, &[], Target::Return).also(is));
        let mark = rule(Why::ComesFromElsewhere, &[], Target::Jump(MARK_MASQ));
        chains.push((nat(MASQ_IF_NOT_LOCAL), returns.chain([mark]).collect()));
    }
    chains.extend(egress::chains(config));
    chains
}

/// KUBE-FORWARD. The last rule is KEP-2450's third rule, which needs no CIDR.
fn forward(config: &RulesetConfig) -> Vec<Rule> {
    let nobody = Arc::from("");
    let accept = |why, test| Rule::new(why, &nobody, [test], Target::Accept);
    let invalid = || Rule::new(Why::Invalid, &nobody, [Match::State("INVALID")], Target::Drop);
    let clear = config.clear_port_bit().filter(|_| config.egress.is_none());
    let mut rules: Vec<Rule> = clear.into_iter().collect();
    rules.extend(config.drop_invalid.then(invalid));
    let marked = Match::Marked(config.node_side.masquerade_bit);
    rules.push(accept(Why::AdmitMarked, marked));
    rules.push(accept(Why::AdmitEstablished, Match::State("RELATED,ESTABLISHED")));
    rules
}

fn health(config: &RulesetConfig) -> Vec<Rule> {
    let nobody = Arc::from("");
    let accept = |port: &u16| {
        let tests = [Match::Port(Protocol::Tcp, *port)];
        Rule::new(Why::HealthCheck, &nobody, tests, Target::Accept)
    };
    // With `route_localnet` a neighbour could reach programs that listen on 127.0.0.1
    // (CVE-2020-8558). The rule is always there, because anybody may set `route_localnet` at
    // any time, for all interfaces or for one. IPv6 has no such setting.
    let own = loopback(config.family);
    let martian = Rule::new(Why::Martian, &nobody, [Match::Destination(own)], Target::Drop);
    let martian =
        martian.unless(Match::Source(own)).unless(Match::State("RELATED,ESTABLISHED,DNAT"));
    let martian = (config.family == Family::V4).then_some(martian);
    let first = config.clear_port_bit().into_iter().chain(martian);
    first.chain(config.health_ports.iter().map(accept)).collect()
}

/// The last rules of KUBE-SERVICES: a packet to the node itself may be for a node port.
pub fn node_port_jumps(config: &RulesetConfig) -> Vec<Rule> {
    let jump = |to_node: &Tests| {
        let rule = Rule::new(Why::LastOfAll, &Arc::from(""), [], Target::Jump(NODE_PORTS));
        rule.also(to_node.iter().cloned())
    };
    config.to_node.iter().map(jump).collect()
}

/// `--open-forward`: the first and the last rule of KUBE-SERVICES. The first sets the bit. A
/// translated packet leaves the chain, so a packet at the end was not translated, and the last
/// rule clears the bit. So two rules are enough for any number of endpoints.
pub fn admission(config: &RulesetConfig) -> Option<[Rule; 2]> {
    let rule = |why, target| Rule::new(why, &Arc::from(""), [], target);
    config.node_side.open_forward.then(|| {
        [
            rule(Why::Admitted, Target::Admit(MarkBit::ADMITTED)),
            rule(Why::NotAdmitted, Target::Dismiss(MarkBit::ADMITTED)),
        ]
    })
}

/// The jumps from the kernel's own chains. Their text is exactly kube-proxy's, so that neither
/// program adds a second one.
pub fn jumps(config: &RulesetConfig) -> Vec<(ChainId, Rule)> {
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
    services.into_iter().chain(egress::jump(config)).collect()
}
