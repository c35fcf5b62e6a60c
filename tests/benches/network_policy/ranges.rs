//! One policy of 20,000 `ipBlock`s, similar to the ranges that clouds publish: networks, smaller
//! networks within them, and exceptions.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use denizen_model::{
    Block, Event, NetworkPolicy, Peers, PolicyPeer, PolicyPort, PolicyRule, PortMatch, Ports,
    Protocol, Selector,
};
use denizen_tests::bench::timing::text;
use denizen_tests::node::cni::Namespace;

use crate::cluster::Cluster;
use crate::engine::Engine;

const BLOCKS: u32 = 20_000;
/// What one change replaces.
const REPLACED: u32 = 200;
const SMALL: Cluster = Cluster { namespaces: 1, policies: 0, tiers: 0, remote: 100 };

/// Measures and prints it.
pub fn report() {
    println!("\n## One policy of {BLOCKS} ipBlocks, {REPLACED} of them replaced\n");
    for (family, is_v6) in [("IPv4", false), ("IPv6", true)] {
        for (what, is_range) in [("every port", false), ("a range of ports", true)] {
            println!("{family}, to {what}:");
            Namespace::new().run(move || measured(is_v6, is_range));
        }
    }
}

/// These times matter for services too: their changes wait while a policy's change is programmed.
fn measured(is_v6: bool, is_range: bool) {
    let mut engine = Engine::new();
    engine.change([SMALL.facts(), vec![policy(0..0, is_v6, is_range)]].concat());
    for (what, blocks) in [
        ("  all are added", 0..BLOCKS),
        ("  some are replaced", REPLACED..BLOCKS + REPLACED),
        ("  one is replaced", REPLACED + 1..BLOCKS + REPLACED + 1),
        ("  all are deleted", 0..0),
    ] {
        let cost = engine.change(vec![policy(blocks, is_v6, is_range)]);
        let plan = engine.planner.plan().firewall().expect("it is on");
        let ranges = plan.blocks().count();
        println!(
            "{what:<24}{:>10}, of it written in {:>10}; {ranges} ranges of {} identities",
            text(cost.whole),
            text(cost.written),
            plan.identity_count()
        );
    }
}

fn policy(blocks: std::ops::Range<u32>, is_v6: bool, is_range: bool) -> Event {
    let peers = Peers::These(blocks.map(|n| PolicyPeer::Block(block(n, is_v6))).collect());
    let port = |number: u16| NonZeroU16::new(number).expect("not 0");
    let range =
        PolicyPort { protocol: Protocol::Tcp, port: PortMatch::Range(port(8000), port(9000)) };
    let ports = if is_range { Ports::These(vec![range]) } else { Ports::All };
    let policy = NetworkPolicy {
        name: SMALL.policy_name(0),
        pods: Selector::default(),
        ingress: None,
        egress: Some(vec![PolicyRule { index: 0, peers, ports }]),
        is_understood: true,
    };
    Event::NetworkPolicy(policy.name.clone(), Some(policy))
}

/// A network, one within it, one within that with an exception, and a single address.
fn block(n: u32, is_v6: bool) -> Block {
    let range = |at: u32, prefix: u8| {
        let at = n / 4 * 4096 + at;
        let text = match is_v6 {
            true => {
                let top = u128::from(at) << 64 | 0x2001_0db8 << 96;
                format!("{}/{}", Ipv6Addr::from(top), prefix + 32)
            }
            false => format!("{}/{prefix}", Ipv4Addr::from(0x2000_0000 + at)),
        };
        text.parse().expect("a range")
    };
    match n % 4 {
        0 => Block { range: range(0, 20), except: vec![range(512, 24)] },
        1 => Block { range: range(256, 24), except: Vec::new() },
        2 => Block { range: range(512, 26), except: vec![range(512, 30)] },
        _ => Block { range: range(4, 32), except: Vec::new() },
    }
}
