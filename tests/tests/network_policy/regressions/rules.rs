//! What the rules may never do, whatever they are asked.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use denizen_tests::node::world::ip;
use denizen_tests::oracle::reader::{self, HookFamily, HookVisit, PacketType, Reader};
use denizen_tests::packets::probe::Protocol::{Tcp, Udp};
use denizen_tests::policy::{
    LabelSelector, NetworkPolicy, PolicyPacket, PolicyPeer, PolicyPort, PolicyRule, PolicyWorld,
    Transport,
};

use super::small::{XA, XB, world};
use crate::evaluated::{EvaluatedWorld, Interpreted};
use crate::random::{NODES, packets};

/// Rules of every kind, for peers of every kind.
fn everything() -> PolicyWorld {
    let pods = |value| PolicyPeer::pods(LabelSelector::label("pod", value));
    let namespaces = PolicyPeer::namespaces(LabelSelector::label("ns", "y"));
    let block = |cidr: &str, except: &str| PolicyPeer::block(cidr, [except.to_owned()]);
    let blocks = [block("10.0.0.0/15", "10.0.1.0/28"), block("fd00::/16", "fd00::1:0/124")];
    let rules = [
        PolicyRule::from([pods("a")])
            .at([PolicyPort::number(Tcp, 80), PolicyPort::range(Udp, 50, 60)]),
        PolicyRule::from([namespaces]).at([PolicyPort::every(Udp)]),
        PolicyRule::from(blocks.clone()),
        PolicyRule::all().at([PolicyPort::number(Tcp, 81)]),
    ];
    let inward = NetworkPolicy::new("x", "in", LabelSelector::default()).ingress(rules);
    let out = NetworkPolicy::new("x", "out", LabelSelector::label("pod", "a")).egress([
        PolicyRule::to(blocks),
        PolicyRule::to([pods("b")]).at([PolicyPort::number(Tcp, 53)]),
    ]);
    world([inward, out])
}

/// Sets whose elements forbid. They come and go, and none is replaced.
const NEVER_REPLACED: [&str; 10] = [
    "pending",
    "ingress-isolated",
    "egress-isolated",
    "pod-interfaces",
    "restricted-interfaces",
    "isolated-interfaces",
    "taken",
    "nodes",
    "taken6",
    "nodes6",
];

/// A lookup may miss an element that is being replaced, in kernels before 6.17. Whatever element of
/// identities and permissions is missing: no packet passes that did not pass before.
#[test]
fn a_lookup_that_misses_permits_nothing() -> Result<()> {
    let world = everything();
    let rules = EvaluatedWorld::new(&world)?.rules().next().context("the first node has rules")?;
    let whole = Interpreted::new(&world, NODES[0], &rules)?;
    let asked = [Transport::Port(Tcp, 80), Transport::Port(Tcp, 53), Transport::Port(Udp, 53)];
    let packets: Vec<_> =
        packets(&world).into_iter().filter(|packet| asked.contains(&packet.transport)).collect();
    let passed = packets.iter().map(|packet| whole.passes(*packet)).collect::<Result<Vec<_>>>()?;
    let (mut tried, mut narrowed) = (BTreeSet::new(), 0);
    for (set, element) in elements(&rules) {
        if NEVER_REPLACED.contains(&set)
            || !rules.split("table bridge").next().is_some_and(|ip| ip.contains(element))
        {
            continue;
        }
        let less = Interpreted::new(&world, NODES[0], &rules.replacen(element, "", 1))?;
        for (packet, passed) in packets.iter().zip(&passed) {
            let passes = less.passes(*packet)?;
            ensure!(*passed || !passes, "without {element} of {set}, {packet:?} passes");
            narrowed += usize::from(*passed && !passes);
        }
        tried.insert(set);
    }
    ensure!(tried.len() >= 9 && narrowed > 0, "{narrowed} packets, only {tried:?}");
    Ok(())
}

/// The lines of elements, each with its set.
fn elements(rules: &str) -> Vec<(&str, &str)> {
    let mut set = "";
    let mut found = Vec::new();
    for line in rules.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["set" | "map", name, "{"] => set = name,
            _ if line.starts_with("\t\t\t") => found.push((set, line)),
            _ => {}
        }
    }
    found
}

/// An `accept` would permit what the other direction, or another table, has not been asked about.
/// Marks are others': kube-proxy and CNI plugins keep their bits there. Of a connection's mark, one
/// bit is asked for.
#[test]
fn no_rule_accepts_or_touches_a_mark() -> Result<()> {
    let (world, open) = (everything(), self::world([]));
    for rules in EvaluatedWorld::new(&world)?.rules().chain(EvaluatedWorld::new(&open)?.rules()) {
        let statements = rules.lines().filter(|line| !line.trim_start().starts_with("type filter"));
        for line in statements {
            let code = line.split(" comment ").next().unwrap_or_default();
            let words: BTreeSet<_> = code.split_whitespace().collect();
            let asks = code.trim_start().starts_with("ct mark & 0x00000020 != 0x00000000 ");
            ensure!(!words.contains("accept") && (asks || !words.contains("mark")), "{line}");
            ensure!(code.matches("mark").count() == usize::from(asks), "{line}");
        }
    }
    Ok(())
}

/// The kernel holds 128 bytes, and whoever writes more has no rule.
#[test]
fn comments_fit_and_name_no_object() -> Result<()> {
    let mut world = everything();
    let long = "n".repeat(253);
    world.policies[0].metadata.name.clone_from(&long);
    for rules in EvaluatedWorld::new(&world)?.rules() {
        ensure!(!rules.contains(&long) && rules.contains("comment"));
        for comment in rules.split("comment \"").skip(1) {
            let text = comment.split('"').next().unwrap_or_default();
            ensure!(text.len() <= 127, "{} bytes: {text}", text.len());
        }
    }
    Ok(())
}

/// Without neighbour and listener discovery nothing is reachable; an echo needs a permission. As
/// the RFCs have them: with the largest hop limit, or from a link-local address to a group.
#[test]
fn discovery_passes_isolated_pods_and_an_echo_does_not() -> Result<()> {
    let deny = NetworkPolicy::new("x", "deny", LabelSelector::default()).ingress([]).egress([]);
    let world = world([deny]);
    let rules = EvaluatedWorld::new(&world)?.rules().next().context("the first node has rules")?;
    let reader = Reader::new(&rules, &[])?;
    let stop = |family, input: &str, output: &str| {
        let (hook, output) = ("forward", Some(output.to_owned()));
        [HookVisit { family, hook, input: input.to_owned(), output }]
    };
    let routed = stop(HookFamily::Inet, "cni0", "cni0");
    let from_pod = stop(HookFamily::Bridge, "veth0", "veth0");
    let from_router = stop(HookFamily::Bridge, "uplink", "veth0");
    for kind in 0..=255 {
        let finds = [135, 136].contains(&kind);
        let is_discovery = (133..=137).contains(&kind);
        let listens = (130..=132).contains(&kind) || kind == 143;
        for (from, hop_limit) in [(XB[1], 255), (XB[1], 64), ("fe80::9", 255), ("fe80::9", 1)] {
            for to in [XA[1], "ff02::1"] {
                let to = std::net::SocketAddr::new(ip(to), 0);
                let packet = reader::ReadPacket {
                    icmpv6_type: Some(kind),
                    packet_type: Some(PacketType::Multicast),
                    hop_limit,
                    ..reader::ReadPacket::new(ip(from), to, 58)
                };
                let is_local = from.starts_with("fe80");
                let is_other = !is_discovery && !listens;
                let is_its = to.ip() == ip(XA[1]);
                let is_valid = match is_discovery {
                    true => hop_limit == 255,
                    false => listens && is_local && !is_its,
                };
                // Nobody of this node's pods has either address.
                let is_nobodys = is_local && !is_its && (is_other || kind == 130);
                let is_routers = [134, 137].contains(&kind) || kind == 130 && !is_its;
                for (stops, expected) in [
                    (&routed, is_valid || is_nobodys),
                    (&from_pod, finds || is_other && is_its),
                    (&from_router, finds || is_routers || is_other && is_its),
                ] {
                    let passes = reader.passes(&packet, stops)?;
                    ensure!(
                        passes == expected,
                        "type {kind} from {from} to {to}, hop limit {hop_limit}, {stops:?}: {passes}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// The packet's own number is in its priority while it is asked about. (The reader says that no
/// packet leaves with another priority or mark than it came with.)
#[test]
fn the_priority_and_the_mark_are_given_back() -> Result<()> {
    let world = everything();
    let evaluated = EvaluatedWorld::new(&world)?;
    let all = packets(&world);
    let passing = all.into_iter().map(|packet: PolicyPacket| evaluated.passes(packet));
    ensure!(passing.collect::<Result<Vec<_>>>()?.contains(&true));
    Ok(())
}
