//! Pods that follow each other at one address.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::thread;

use anyhow::{Result, ensure};
use denizen_state::run_dir::STATE_FILE;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::conntrack::tracked;
use denizen_tests::kernel::ctnetlink::{self, FlowEntry};
use denizen_tests::node::cni::Chain;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::PolicyWorld;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::{TIMEOUT, attach, each, isolate, pods, remove, wiring};
use crate::newcomers::{Newcomer, Newcomers, nothing_wrong};

/// How many addresses are reused at a time. A DEL waits at most half a second until the connections
/// of all pods that were removed meanwhile are deleted.
const ADDRESSES: usize = 8;

/// A chain whose pods all get the same address of each family.
pub(super) struct OneAddress {
    pub chain: Chain,
    pub addresses: [IpAddr; 2],
}

impl OneAddress {
    pub fn new(newcomers: &Newcomers, number: usize) -> Result<Self> {
        let [host, other] = &newcomers.nodes.hosts;
        let text = [format!("10.12.{number}."), format!("fd00:12:{number}::")];
        let [v4, v6] = [format!("{}0/30", text[0]), format!("{}/126", text[1])];
        let at = |last: u8| text.each_ref().map(|text| ip(&format!("{text}{last}")));
        let (gateways, addresses) = (at(1), at(2));
        let ranges = [(v4.as_str(), gateways[0]), (v6.as_str(), gateways[1])];
        let folder = host.run_dir.join(format!("one-address-{number}"));
        let options = json!({ "waitForAgent": isolate("10s") });
        let chain = match wiring(number) {
            Wiring::Bridged => Chain::bridged(&format!("one{number}"), &ranges, &folder),
            Wiring::Routed => Chain::routed(&ranges, &folder),
        };
        // The smallest range that host-local takes has one more IPv6 address: it is reserved.
        let reserved = folder.join("addresses").join(&chain.name);
        fs::create_dir_all(&reserved)?;
        fs::write(reserved.join(at(3)[1].to_string()), "nobody's")?;
        for ((range, _), via) in ranges.iter().zip(&host.node.addresses) {
            other.netns.ip(&format!("route add {range} via {via}"))?;
        }
        Ok(Self { chain: chain.then_denizen(&host.run_dir, &options), addresses })
    }
}

/// Two kinds of pods take turns at one address. What the one before was permitted, the next is not.
#[test]
fn at_an_address_that_is_reused_at_once() -> Result<()> {
    let newcomers = Newcomers::new("first-reuse", &isolate("10s"))?;
    let count = pods(16);
    let turns = count.div_ceil(ADDRESSES);
    each(ADDRESSES.min(count), |chain| {
        let OneAddress { chain: plugins, addresses } = OneAddress::new(&newcomers, chain)?;
        newcomers.aim(|targets| targets.extend(addresses));
        let mut wrong = Vec::new();
        for turn in 0..turns {
            let (name, role) = (format!("p{chain}-{turn}"), ["other", "new"][turn % 2]);
            let netns = newcomers.nodes.sandbox(&format!("new/{name}"))?;
            newcomers.announce(&format!("new/{name}"), netns.name(), role)?;
            newcomers.forget(&addresses);
            let pod = attach(&newcomers, netns, &format!("new/{name}"), &plugins)?;
            ensure!(pod.addresses == addresses, "{:?}", pod.addresses);
            let newcomer = Newcomer::start(pod)?;
            let found = match role {
                "new" => newcomers.first_packets(&newcomer)?,
                // No policy selects it; but the friend here hears the others alone.
                _ => newcomers.passed(&newcomer, |exchange| exchange.is_heard())?,
            };
            wrong.extend(found.into_iter().map(|line| format!("turn {turn}: {line}")));
            remove(&newcomers, &name, newcomer)?;
        }
        Ok(wrong)
    })
}

/// No rule stands in any packet's way: each first datagram, and each answer, arrives.
#[test]
fn nothing_is_lost_without_policies_at_an_address_that_is_reused_at_once() -> Result<()> {
    let newcomers = Newcomers::new("first-unruled", &isolate("10s"))?;
    newcomers.put("policies", &PolicyWorld::default())?;
    newcomers.nodes.settled(|_, status| status["networkPolicy"]["policies"] == 0)?;
    let count = pods(16);
    each(ADDRESSES.min(count), |chain| {
        let OneAddress { chain: plugins, addresses } = OneAddress::new(&newcomers, chain)?;
        let mut wrong = Vec::new();
        for turn in 0..count.div_ceil(ADDRESSES) {
            let name = format!("p{chain}-{turn}");
            let netns = newcomers.nodes.sandbox(&format!("new/{name}"))?;
            newcomers.announce(&format!("new/{name}"), netns.name(), "new")?;
            let pod = attach(&newcomers, netns, &format!("new/{name}"), &plugins)?;
            ensure!(pod.addresses == addresses, "{:?}", pod.addresses);
            let newcomer = Newcomer::start(pod)?;
            let lost = newcomers.verify(&newcomer, |_| true)?;
            wrong.extend(lost.into_iter().map(|line| format!("turn {turn}: {line}")));
            remove(&newcomers, &name, newcomer)?;
        }
        Ok(wrong)
    })
}

/// Who was isolated by nothing had the address before, and the agent is too busy to read of either
/// until both are recorded. DEL gave up by then; ADD waits.
#[test]
fn at_an_address_that_has_changed_hands_when_the_agent_reads_of_it() -> Result<()> {
    let newcomers = Newcomers::new("first-late", &isolate("10s"))?;
    let mut wrong = Vec::new();
    for number in 0..2 {
        let OneAddress { chain, addresses } = OneAddress::new(&newcomers, number)?;
        newcomers.aim(|targets| targets.extend(addresses));
        let [former, next] = ["former", "next"].map(|name| format!("{name}-{number}"));
        let netns = newcomers.nodes.sandbox(&format!("new/{former}"))?;
        newcomers.announce(&format!("new/{former}"), netns.name(), "other")?;
        let before = Newcomer::start(attach(&newcomers, netns, &format!("new/{former}"), &chain)?)?;
        wrong.extend(newcomers.passed(&before, |exchange| exchange.is_heard())?);
        let pod = while_the_agent_sleeps(&newcomers, &next, || {
            remove(&newcomers, &former, before)?;
            newcomers.forget(&addresses);
            let netns = newcomers.nodes.sandbox(&format!("new/{next}"))?;
            newcomers.announce(&format!("new/{next}"), netns.name(), "new")?;
            attach(&newcomers, netns, &format!("new/{next}"), &chain)
        })?;
        ensure!(pod.addresses == addresses, "{:?}", pod.addresses);
        let newcomer = Newcomer::start(pod)?;
        let found = newcomers.first_packets(&newcomer)?;
        wrong.extend(found.into_iter().map(|line| format!("{:?}: {line}", wiring(number))));
    }
    nothing_wrong(2, &wrong)
}

/// Who sends from an address before its pod is there, is on both ends of a connection if he likes.
#[test]
fn no_connection_at_its_address_is_older_than_a_pod() -> Result<()> {
    let newcomers = Newcomers::new("first-prepared", &isolate("10s"))?;
    let node = &newcomers.nodes.hosts[0].netns;
    for number in 0..2 {
        let OneAddress { chain, addresses } = OneAddress::new(&newcomers, number)?;
        let server = SocketAddr::new(addresses[0], 7000);
        let flow = |number: u32| {
            let client = SocketAddr::new(ip("192.0.2.1"), 1024 + number as u16);
            FlowEntry { client, frontend: server, endpoint: server }
        };
        node.run(|| ctnetlink::fill(100, flow))??;
        let at_server = || -> Result<usize> {
            let all = tracked(node, Protocol::Udp)?;
            Ok(all.iter().filter(|entry| entry.destination == server).count())
        };
        ensure!(at_server()? == 100, "they are prepared");
        let name = format!("new/p{number}");
        let netns = newcomers.nodes.sandbox(&name)?;
        newcomers.announce(&name, netns.name(), "new")?;
        let _pod = attach(&newcomers, netns, &name, &chain)?;
        let left = at_server()?;
        ensure!(left == 0, "{:?}: {left} are left when the ADD returns", wiring(number));
    }
    Ok(())
}

/// The pod does not answer for its IPv6 address yet, so what is sent to it waits on the node. What
/// has waited since before its policies were programmed must not arrive when it answers.
#[test]
fn what_waits_for_a_new_pods_mac_address_does_not_arrive() -> Result<()> {
    let newcomers = Newcomers::new("first-waits", &isolate("10s"))?;
    let mut wrong = Vec::new();
    for number in 0..2 {
        let OneAddress { chain, addresses } = OneAddress::new(&newcomers, number)?;
        newcomers.aim(|targets| targets.extend(addresses));
        let name = format!("p{number}");
        let netns = newcomers.nodes.sandbox(&format!("new/{name}"))?;
        mute(&netns)?;
        newcomers.announce(&format!("new/{name}"), netns.name(), "new")?;
        let pod = while_the_agent_sleeps(&newcomers, &name, || {
            attach(&newcomers, netns, &format!("new/{name}"), &chain)
        })?;
        let newcomer = Newcomer::start(pod)?;
        unmute(&newcomer)?;
        let found = newcomers.first_packets(&newcomer)?;
        wrong.extend(found.into_iter().map(|line| format!("{:?}: {line}", wiring(number))));
    }
    nothing_wrong(2, &wrong)
}

/// Nobody who asks for the MAC address of the pod's IPv6 address gets an answer.
pub(super) fn mute(pod: &Netns) -> Result<()> {
    let rules = "table ip6 mute { chain input { type filter hook input priority 0; \
                 icmpv6 type nd-neighbor-solicit drop; }; }";
    pod.nft(rules)
}

pub(super) fn unmute(newcomer: &Newcomer) -> Result<()> {
    newcomer.pod.netns.nft("delete table ip6 mute")
}

/// Attaches a pod, and wakes the agent up when it is recorded.
fn while_the_agent_sleeps(
    newcomers: &Newcomers,
    name: &str,
    attach: impl FnOnce() -> Result<Pod> + Send,
) -> Result<Pod> {
    let host = &newcomers.nodes.hosts[0];
    let agent = Pid::from_raw(i32::try_from(host.agent()?.pid())?);
    let is_recorded = || Ok(fs::read_to_string(host.run_dir.join(STATE_FILE))?.contains(name));
    kill(agent, Signal::SIGSTOP)?;
    thread::scope(|scope| {
        let attached = scope.spawn(attach);
        let recorded = eventually("recorded", TIMEOUT, is_recorded);
        kill(agent, Signal::SIGCONT)?;
        recorded.and(attached.join().expect("it does not panic"))
    })
}
