//! Others in the node, who look at the bit and set it.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use denizen_tests::agent::Agent;
use denizen_tests::node::fixture::{Fixture, Host, PORT, every_protocol, service_ips};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::Wiring;
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::probe::{Probe, Protocol};

use super::{PORT_EXACT, settings};

/// The default bit's mark, and somebody else's beside it.
const BIT: &str = "0x40";

/// Rules of somebody else: what they count is not for them. `eth0`'s packets they mark with the bit
/// themselves, and a bridge's with a bit of their own. `leak` stands where the bit must be gone.
/// (Only TCP behind routing: the kernel's own multicast reports come there with `cni0` as input
/// interface and a number of another meaning where the mark is, `reserved_tailroom`.)
fn others(backend: Backend, egress: bool) -> String {
    let leak = r#"iifname "cni0" meta mark & 0x40 == 0x40 counter comment "leak""#;
    let [input, forward] = match (backend, egress) {
        // Right behind nat prerouting; with egress masquerade, behind its chain, and before input.
        (Backend::Nftables | Backend::Ipvs, false) => [-300, -300],
        (Backend::Nftables | Backend::Ipvs, true) => [-299, 0],
        // Behind iptables' filter; with egress masquerade, behind security (which iptables-nft has
        // at 150).
        (Backend::IptablesLegacy | Backend::IptablesNft, false) => [1, 1],
        (Backend::IptablesLegacy | Backend::IptablesNft, true) => [1, 151],
    };
    let prerouting = if input == -300 { leak } else { "" };
    format!(
        r#"
table bridge others {{
    chain prerouting {{
        type filter hook prerouting priority -400
        meta mark set meta mark | 0x2
    }}
    chain forward {{
        type filter hook forward priority 0
        meta mark & 0x40 == 0x40 counter comment "leak"
        meta mark & 0x2 == 0 counter comment "loss"
    }}
}}
table inet others {{
    chain early {{
        type filter hook prerouting priority -300
        iifname "eth0" meta mark set meta mark | 0x40
        iifname "cni0" meta mark & 0x40 == 0x40 counter comment "seen"
    }}
    chain prerouting {{
        type filter hook prerouting priority -98
        {prerouting}
        iifname "cni0" meta mark & 0x2 == 0 counter comment "loss"
        iifname "eth0" meta mark & 0x40 == 0 counter comment "loss"
    }}
    chain input {{
        type filter hook input priority {input}
        {leak}
    }}
    chain forward {{
        type filter hook forward priority {forward}
        {leak}
        iifname "eth0" meta mark & 0x40 == 0 counter comment "loss"
    }}
    chain postrouting {{
        type filter hook postrouting priority -300
        meta l4proto tcp {leak}
    }}
}}
"#
    )
}

/// How many packets the rules of this comment counted.
fn counted(node: &Netns, comment: &str) -> Result<u64> {
    let listed = node.output("nft", &["list", "ruleset"])?;
    let end = format!("comment \"{comment}\"");
    let lines = listed.lines().filter(|line| line.ends_with(&end));
    let counts = lines.map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "packets").context("no counter")?;
        Ok(words.get(at + 1).context("no count")?.parse::<u64>()?)
    });
    counts.sum()
}

/// Connections of every kind under `mode`, in a world where others look at, and set, the bit.
fn kept_to_itself(label: &str, backend: Backend, mode: &str, bridge_netfilter: &str) -> Result<()> {
    for egress in [false, true] {
        let label = format!("{label}{}", u8::from(egress));
        let played = kept(Fixture::new(&label)?, (backend, mode), bridge_netfilter, egress);
        played.with_context(|| format!("egress masquerade: {egress}"))?;
    }
    Ok(())
}

/// With egress masquerade or without; nobody is out of the ranges, so all else is the same.
fn kept(
    fixture: Fixture,
    (backend, mode): (Backend, &str),
    bridge_netfilter: &str,
    egress: bool,
) -> Result<()> {
    let members = [Host::Remote];
    fixture
        .cluster
        .manifests
        .put("web", &fixture.service("web", 10, &every_protocol(), &members)?)?;
    let beside = fixture.service("beside", 12, &every_protocol(), &[Host::Bridged])?;
    fixture.cluster.manifests.put("beside", &beside)?;
    let neighbour = fixture.cluster.add_pod("near", Wiring::Bridged)?;
    let node = &fixture.cluster.world.node;
    let mut settings = settings(&fixture, backend, mode);
    if egress {
        let file = fixture.cluster.run_dir().join("egress.yaml");
        fs::write(&file, "nonMasqueradeCIDRs: ['0.0.0.0/0', '::/0']")?;
        let flag = format!("--egress-masquerade-config={}", file.display());
        settings.flags.push(flag);
    }
    let agent = Agent::start(node, settings)?;
    node.nft(&others(backend, egress))?;
    for tables in ["iptables", "ip6tables"] {
        node.sysctl(&format!("net.bridge.bridge-nf-call-{tables}"), bridge_netfilter)?;
    }
    for like in service_ips(10) {
        let service = SocketAddr::new(like, 80);
        for who in [Host::Bridged, Host::Routed, Host::Remote, Host::Outside] {
            let outcome = fixture.probe(who, service, Protocol::Tcp)?;
            // What comes in through eth0 has the bit, and is no pod's for that.
            let local =
                who == Host::Bridged || (who == Host::Routed && mode.starts_with("pod-state"));
            assert_eq!(fixture.was_masqueraded(who, &outcome)?, !local, "{who:?}: {outcome:?}");
        }
        // Only bridged; to the node itself; past every service.
        let pod = SocketAddr::new(fixture.address(Host::Bridged, like)?, PORT);
        let outcome = Probe::tcp(pod).send_in(&neighbour.netns);
        assert_eq!(outcome.endpoint(), Some(pod), "{outcome:?}");
        let remote = SocketAddr::new(fixture.address(Host::Remote, like)?, PORT);
        let outcome = Probe::tcp(remote).send_in(&neighbour.netns);
        assert_eq!(outcome.endpoint(), Some(remote), "{outcome:?}");
        // Through a service to the same bridge: bridged, past the rules, it would find no way back.
        if bridge_netfilter == "1" {
            let beside = service_ips(12)[usize::from(like.is_ipv6())];
            let outcome = Probe::tcp(SocketAddr::new(beside, 80)).send_in(&neighbour.netns);
            assert_eq!(outcome.endpoint(), Some(pod), "{outcome:?}");
            assert_eq!(outcome.seen(), neighbour.address_like(like), "{outcome:?}");
        }
        let closed = SocketAddr::new(fixture.address(Host::ThisNode, like)?, 9);
        Probe::tcp(closed).send_in(&neighbour.netns);
    }
    let listed = [["list", "table", "bridge", "others"], ["list", "table", "inet", "others"]]
        .map(|words| node.output("nft", &words).unwrap_or_default())
        .concat();
    assert!(counted(node, "seen")? > 0, "nobody set {BIT}:\n{listed}");
    assert_eq!(counted(node, "leak")?, 0, "others saw {BIT}:\n{listed}");
    assert_eq!(counted(node, "loss")?, 0, "others' bits were lost:\n{listed}");
    drop(agent);
    Ok(())
}

#[test]
fn port_exact_beside_others() -> Result<()> {
    kept_to_itself("bit-exact", Backend::Nftables, PORT_EXACT, "1")
}

#[test]
fn port_exact_beside_others_without_bridge_netfilter() -> Result<()> {
    kept_to_itself("bit-exact-no", Backend::Nftables, PORT_EXACT, "0")
}

#[test]
fn port_exact_beside_others_iptables_legacy() -> Result<()> {
    kept_to_itself("bit-exact-l", Backend::IptablesLegacy, PORT_EXACT, "1")
}

#[test]
fn port_exact_beside_others_iptables_nft_without_bridge_netfilter() -> Result<()> {
    kept_to_itself("bit-exact-n", Backend::IptablesNft, PORT_EXACT, "0")
}

#[test]
fn bridge_port_beside_others() -> Result<()> {
    kept_to_itself("bit-port", Backend::Nftables, "bridge-port", "1")
}

#[test]
fn bridge_port_beside_others_without_bridge_netfilter() -> Result<()> {
    kept_to_itself("bit-port-no", Backend::Nftables, "bridge-port", "0")
}
