//! Engines that enforce NetworkPolicies, recognised by what they leave in the kernel.

use anyhow::{Context, Result};
use denizen_backend::firewall::other_engine::{PolicyEngine, other_engine};
use denizen_tests::node::netns::Netns;

/// A command in a namespace.
enum Mark {
    Link(&'static str),
    Nft(&'static str),
    Program(&'static str, &'static [&'static str]),
}

fn seen(marks: &[Mark]) -> Result<Option<PolicyEngine>> {
    let at = Netns::new("engine")?;
    for mark in marks {
        match mark {
            Mark::Link(name) => at.ip(&format!("link add {name} type bridge"))?,
            Mark::Nft(commands) => at.nft(commands)?,
            Mark::Program(program, arguments) => drop(at.output(program, arguments)?),
        }
    }
    at.run(other_engine)?.context("other engines")
}

#[test]
fn every_engine_is_recognised_and_what_it_was_recognised_by_is_named() -> Result<()> {
    let chain = |name| Mark::Program("iptables-nft", name);
    let cases: [(Mark, &str, &str); 11] = [
        (chain(&["-N", "cali-FORWARD"]), "Calico", "chain cali-FORWARD of table ip filter"),
        (
            Mark::Program("ip6tables-legacy", &["-N", "cali-FORWARD"]),
            "Calico",
            "chain cali-FORWARD of table filter of legacy ip6tables",
        ),
        (Mark::Nft("table ip6 calico { }"), "Calico", "table calico of family ip6"),
        (Mark::Link("bpfin.cali"), "Calico", "link bpfin.cali"),
        (Mark::Link("cilium_host"), "Cilium", "link cilium_host"),
        (
            Mark::Program("iptables-legacy", &["-N", "KUBE-NWPLCY-ABCDEF"]),
            "kube-router",
            "chain KUBE-NWPLCY-ABCDEF of table filter of legacy iptables",
        ),
        (
            Mark::Nft("table ip kube-router-filter-ipv4 { }"),
            "kube-router",
            "table kube-router-filter-ipv4 of family ip",
        ),
        (Mark::Link("antrea-gw0"), "Antrea", "link antrea-gw0"),
        (Mark::Link("ovn-k8s-mp0"), "OVN-Kubernetes", "link ovn-k8s-mp0"),
        (
            Mark::Nft("table inet kube-network-policies { }"),
            "kube-network-policies",
            "table kube-network-policies of family inet",
        ),
        (chain(&["-N", "WEAVE-NPC"]), "Weave Net", "chain WEAVE-NPC of table ip filter"),
    ];
    for (mark, name, found) in cases {
        let engine = PolicyEngine { name, found: found.to_owned() };
        assert_eq!(seen(&[mark])?, Some(engine), "{found}");
    }
    Ok(())
}

/// What others leave without enforcing policy: service proxies, networks, and we.
#[test]
fn nobody_else_is_taken_for_an_engine() -> Result<()> {
    let marks = [
        Mark::Link("cni0"),
        Mark::Link("cali123456789ab"),
        Mark::Link("eni123456789ab"),
        Mark::Link("flannel.1"),
        Mark::Link("kube-bridge"),
        Mark::Program("iptables-nft", &["-N", "KUBE-FORWARD"]),
        Mark::Program("iptables-legacy", &["-N", "KUBE-SERVICES"]),
        Mark::Nft("add table ip kube-proxy\nadd chain ip kube-proxy services"),
        Mark::Nft("add table ip denizen"),
    ];
    assert_eq!(seen(&marks)?, None);
    assert_eq!(seen(&[])?, None);
    Ok(())
}
