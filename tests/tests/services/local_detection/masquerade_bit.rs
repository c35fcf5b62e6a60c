//! The bit that means "masquerade": another one than kube-proxy's, and every other bit of a mark is
//! somebody else's and stays.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use denizen_tests::node::fixture::{Fixture, Host, every_protocol, every_way, service_ips};
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::probe::Protocol;

/// Somebody else uses all bits but the twentieth. Packets are counted between denizen's marking and
/// its masquerading, and behind it.
const FOREIGN: &str = r#"
table inet foreign {
    counter marked {}
    counter before {}
    counter changed {}
    chain marking {
        type filter hook prerouting priority -300
        iifname "eth0" meta mark set 0xffefffff
    }
    chain between {
        type filter hook postrouting priority 50
        meta mark 0xffffffff counter name marked
        meta mark 0xffefffff counter name before
    }
    chain behind {
        type filter hook postrouting priority 200
        meta l4proto { tcp, udp, sctp } meta mark != 0 meta mark != 0xffefffff counter name changed
    }
}
"#;

fn counted(node: &Netns, counter: &str) -> Result<u64> {
    let text = node.output("nft", &["list", "counter", "inet", "foreign", counter])?;
    let packets = text.split("packets ").nth(1).context("a counter")?;
    Ok(packets.split_whitespace().next().context("a number")?.parse()?)
}

#[test]
fn another_bit_masquerades_and_the_others_stay() -> Result<()> {
    let fixture = Fixture::new("markbit")?;
    let web = fixture.service("web", 10, &every_protocol(), &[Host::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    let node = &fixture.cluster.world.node;
    node.nft(FOREIGN)?;
    let agent = fixture.cluster.start_agent_with(["--masquerade-bit=20"])?;
    for (to, protocol) in every_way(10) {
        let (marked, before) = (counted(node, "marked")?, counted(node, "before")?);
        let outcome = fixture.probe(Host::Outside, to, protocol)?;
        assert!(fixture.was_masqueraded(Host::Outside, &outcome)?, "{to}/{protocol}: {outcome:?}");
        assert_eq!(counted(node, "marked")?, marked + 1, "{to}/{protocol}: the first packet alone");
        assert!(counted(node, "before")? >= before, "{to}/{protocol}");
        let outcome = fixture.probe(Host::Bridged, to, protocol)?;
        assert!(!fixture.was_masqueraded(Host::Bridged, &outcome)?, "{to}/{protocol}: {outcome:?}");
    }
    assert_eq!(counted(node, "changed")?, 0, "a foreign bit was changed, or ours was left");
    // Back to the usual bit: the rules are rewritten in place.
    assert!(agent.terminate()?.success());
    let _agent = fixture.cluster.start_agent()?;
    let to = SocketAddr::new(service_ips(10)[0], 80);
    let marked = counted(node, "marked")?;
    let outcome = fixture.probe(Host::Outside, to, Protocol::Tcp)?;
    assert!(outcome.endpoint().is_some(), "{outcome:?}");
    assert_eq!(counted(node, "marked")?, marked, "the old bit is nobody's any more");
    Ok(())
}
