//! The bit of the mark by which the bridge's table tells the IP tables of a pod's port: it is for them alone.

#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and files; denizen does not"
)]

use std::net::SocketAddr;

use anyhow::{Context, Result};
use denizen_tests::agent::Agent;
use denizen_tests::cast::{Cast, Who, every_protocol, service_ips};
use denizen_tests::netns::Netns;
use denizen_tests::pod::Wiring;
use denizen_tests::probe::{Probe, Protocol};

/// The default bit's mark, and somebody else's beside it.
const BIT: &str = "0x40";

/// Rules of somebody else: what they count is not for them. `eth0`'s packets they mark with the bit themselves,
/// and a bridge's with a bit of their own. (Only TCP behind routing: the kernel's own multicast reports come there
/// with `cni0` as input interface and a number of another meaning where the mark is, `reserved_tailroom`.)
const OTHERS: &str = r#"
table bridge others {
    chain prerouting {
        type filter hook prerouting priority -400
        meta mark set meta mark | 0x2
    }
    chain forward {
        type filter hook forward priority 0
        meta mark & 0x40 == 0x40 counter comment "leak"
        meta mark & 0x2 == 0 counter comment "loss"
    }
}
table inet others {
    chain early {
        type filter hook prerouting priority -300
        iifname "eth0" meta mark set meta mark | 0x40
        iifname "cni0" meta mark & 0x40 == 0x40 counter comment "told"
    }
    chain prerouting {
        type filter hook prerouting priority -98
        iifname "cni0" meta mark & 0x40 == 0x40 counter comment "leak"
        iifname "cni0" meta mark & 0x2 == 0 counter comment "loss"
        iifname "eth0" meta mark & 0x40 == 0 counter comment "loss"
    }
    chain input {
        type filter hook input priority -300
        iifname "cni0" meta mark & 0x40 == 0x40 counter comment "leak"
    }
    chain forward {
        type filter hook forward priority -300
        iifname "cni0" meta mark & 0x40 == 0x40 counter comment "leak"
        iifname "eth0" meta mark & 0x40 == 0 counter comment "loss"
    }
    chain postrouting {
        type filter hook postrouting priority -300
        meta l4proto tcp iifname "cni0" meta mark & 0x40 == 0x40 counter comment "leak"
    }
}
"#;

/// How many packets the rules of this comment counted.
fn counted(node: &Netns, comment: &str) -> Result<u64> {
    let listed = node.output("nft", &["list", "ruleset"])?;
    let end = format!("comment \"{comment}\"");
    let lines = listed.lines().filter(|line| line.ends_with(&end));
    let counts = lines.map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let at = words
            .iter()
            .position(|word| *word == "packets")
            .context("no counter")?;
        Ok(words.get(at + 1).context("no count")?.parse::<u64>()?)
    });
    counts.sum()
}

/// Connections of every kind under `mode`, in a world where others look at, and set, the bit.
fn kept_to_itself(label: &str, mode: &str, bridge_netfilter: &str) -> Result<()> {
    let (cast, _servers) = Cast::new(label)?;
    let members = [Who::Remote];
    cast.cluster
        .manifests
        .put("web", &cast.service("web", 10, &every_protocol(), &members)?)?;
    let neighbour = cast.cluster.add_pod("near", Wiring::Bridged)?;
    let mut settings = cast.cluster.settings();
    settings.flags.push(format!("--detect-local={mode}"));
    let node = &cast.cluster.world.node;
    let agent = Agent::start(node, settings)?;
    node.nft(OTHERS)?;
    for tables in ["iptables", "ip6tables"] {
        node.sysctl(&format!("net.bridge.bridge-nf-call-{tables}"), bridge_netfilter)?;
    }
    for like in service_ips(10) {
        let service = SocketAddr::new(like, 80);
        for who in [Who::Bridged, Who::Routed, Who::Remote, Who::Outside] {
            let outcome = cast.ask(who, service, Protocol::Tcp)?;
            // What comes in through eth0 has the bit, and is no pod's for that.
            let local = who == Who::Bridged || (who == Who::Routed && mode.starts_with("pod-state"));
            assert_eq!(
                cast.was_masqueraded(who, &outcome)?,
                !local,
                "{who:?}: {outcome:?}"
            );
        }
        // Only bridged; to the node itself; past every service.
        let pod = SocketAddr::new(cast.address(Who::Bridged, like)?, denizen_tests::cast::PORT);
        let outcome = Probe::tcp(pod).ask_in(&neighbour.netns);
        assert_eq!(outcome.endpoint(), Some(pod), "{outcome:?}");
        let remote = SocketAddr::new(cast.address(Who::Remote, like)?, denizen_tests::cast::PORT);
        let outcome = Probe::tcp(remote).ask_in(&neighbour.netns);
        assert_eq!(outcome.endpoint(), Some(remote), "{outcome:?}");
        let closed = SocketAddr::new(cast.address(Who::ThisNode, like)?, 9);
        Probe::tcp(closed).ask_in(&neighbour.netns);
    }
    let listed = [
        ["list", "table", "bridge", "others"],
        ["list", "table", "inet", "others"],
    ]
    .map(|words| node.output("nft", &words).unwrap_or_default())
    .concat();
    assert!(counted(node, "told")? > 0, "nobody set {BIT}:\n{listed}");
    assert_eq!(counted(node, "leak")?, 0, "others saw {BIT}:\n{listed}");
    assert_eq!(counted(node, "loss")?, 0, "others' bits were lost:\n{listed}");
    drop(agent);
    Ok(())
}

#[test]
fn port_exact_beside_others() -> Result<()> {
    kept_to_itself("bit-exact", "pod-state=port-exact", "1")
}

#[test]
fn port_exact_beside_others_without_bridge_netfilter() -> Result<()> {
    kept_to_itself("bit-exact-no", "pod-state=port-exact", "0")
}

#[test]
fn bridge_port_beside_others() -> Result<()> {
    kept_to_itself("bit-port", "bridge-port", "1")
}

#[test]
fn bridge_port_beside_others_without_bridge_netfilter() -> Result<()> {
    kept_to_itself("bit-port-no", "bridge-port", "0")
}

/// Another mode needs no table of the bridge family, and takes away what an earlier run's needed.
#[test]
fn another_mode_leaves_no_bridge_table_behind() -> Result<()> {
    let (cast, _servers) = Cast::new("bit-switch")?;
    let node = &cast.cluster.world.node;
    let tables = |mode: &str| -> Result<String> {
        let mut settings = cast.cluster.settings();
        settings.flags.push(format!("--detect-local={mode}"));
        Agent::start(node, settings)?.terminate()?;
        node.output("nft", &["list", "tables"])
    };
    let without = "table ip denizen\ntable ip6 denizen\n";
    assert_eq!(tables("pod-state")?, without);
    let with = tables("pod-state=port-exact")?;
    assert!(with.contains("table bridge denizen"), "{with}");
    assert_eq!(tables("pod-state")?, without);
    assert!(tables("bridge-port")?.contains("table bridge denizen"));
    let program = denizen_tests::binary::ours("denizen-agent")?;
    let said = node.output(&program.display().to_string(), &["cleanup"])?;
    assert_eq!(said, "removed 3 nftables tables\n");
    Ok(())
}
